"""Every command in README.md and docs/ is run, as it stands there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.world import ROOT, World, commands, world

PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
COMMANDS = list(dict.fromkeys(command for page in PAGES for command in commands(ROOT / page)))
# What a command may answer beside 0: `bcd doctor` and the like find the fault of this node, an order may not fit its state.
NEGATIVE = {"bcd doctor": (0, 1, 2), "bcd diag": (0, 1, 2), "bcd xid": (0, 1, 2), "better-compute api": (0, 1)}

pytestmark = pytest.mark.xdist_group("docs")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("docs")) as made:
        yield made


def test_every_command_runs(there: World) -> None:
    wrong = []
    for command in COMMANDS:
        done = there.run(command)
        allowed = next((codes for start, codes in NEGATIVE.items() if command.startswith(start)), (0,))
        if done.returncode not in allowed or "usage:" in done.stderr or "Traceback" in done.stderr:
            wrong.append(f"$ {command}\n  ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
    assert not wrong, "\n".join(wrong)


def test_pages_have_commands() -> None:
    assert len(COMMANDS) > 40
    assert commands(Path(ROOT / "docs/install.md"))[0].startswith("apt install")


def test_a_command_that_is_wrong_is_seen(there: World) -> None:
    wrong = ("better-compute api nodes.wy", "bcd inventory --nothing", "bc-receiver serve --nothing", "bcd run --server nowhere")
    assert [command for command in wrong if there.run(command).returncode != 2] == []
    assert there.run("systemctl restart nothing").returncode == 1
