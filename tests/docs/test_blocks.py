"""What the pages show to be written into files is taken by the code that reads those files."""

import json
import re

from agent import config as agent_config
from agent import holds
from agent.conditions import declared
from receiver import config as receiver_config
from tests.docs.world import ROOT


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)


def test_configuration_files_are_read() -> None:
    (of_bcd,) = blocks("install.md", "toml")
    assert agent_config.parse(of_bcd, "bcd.toml")["commands_allow"] == agent_config.COMMAND_KINDS
    parts = blocks("receiver.md", "toml")
    assert len(parts) == 2
    for part in parts:
        assert receiver_config.parse(part, "receiver.toml")


def test_a_hold_and_a_declared_condition_are_taken() -> None:
    (hold,) = (one for one in blocks("placement.md", "json") if "owner" in json.loads(one))
    assert holds.parse(hold.encode()).devices == ("GPU-...",)
    (condition,) = blocks("install.md", "json")
    ((kind, verdict),), valid_for = declared.parse(condition.encode())
    assert (kind, verdict.status, valid_for) == ("KubernetesReleaseStuck", "true", 600)
