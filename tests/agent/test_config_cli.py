"""`bcd config`: what the daemon would run with, and why."""

import json
from pathlib import Path

import pytest

from agent import cli, config
from agent.config import SETTINGS

FILE = """settle = "5m"
[commands]
allow = ["gpu.reset"]
[kubernetes]
worker = true
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BCD_IMAGE_DIR", 'a"b\\c')
    path = tmp_path / "bcd.toml"
    path.write_text(FILE)
    return path


def test_its_text_is_a_configuration_file_with_the_same_values(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--config", str(file), "--rescan-interval", "90m"]) == 0
    said = capsys.readouterr().out
    values = config.parse(said, "said")
    assert values == {s.name: s.kind.parse(s.default) for s in SETTINGS} | {
        "settle": 300.0,
        "commands_allow": ("gpu.reset",),
        "kubernetes_worker": True,
        "image_dir": 'a"b\\c',
        "rescan_interval": 5400.0,
    }
    lines = {line.partition(" = ")[0]: line.rpartition("  # ")[2] for line in said.splitlines()[1:]}
    assert lines == {s.key: "default" for s in SETTINGS} | {
        "settle": f"{file}:1",
        "commands.allow": f"{file}:3",
        "kubernetes.worker": f"{file}:5",
        "image_dir": "environment variable BCD_IMAGE_DIR",
        "rescan.interval": "--rescan-interval",
    }


def test_json_has_values_of_their_type(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--config", str(file), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = {row["key"]: row for row in said["settings"]}
    assert said["file"] == str(file)
    assert rows["commands.allow"] == {"key": "commands.allow", "value": ["gpu.reset"], "source": f"{file}:3", "restart": False}
    assert (rows["settle"]["value"], rows["kubernetes.worker"]["value"]) == ("5m", True)
    assert [key for key, row in rows.items() if row["restart"]] == [s.key for s in SETTINGS if s.restart]
    assert len(rows) == len(SETTINGS)


def test_a_wrong_file_is_an_error_that_names_all_of_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('settle = "soon"\ncolour = "red"\n')
    assert cli.main(["config", "--config", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{file}:1: settle: 'soon'" in said.err
    assert f"{file}:2: unknown key 'colour'" in said.err
