"""bcd's commands as a person or a script meets them."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import SECTIONS, encode

from agent import cli, command_line, doors, local
from agent.config import SETTINGS
from agent.errors import UserError
from agent.inventory import Store
from agent.known_gpus import Remembered
from agent.sections import Collected, Failed, Section
from tests.agent.test_inventory import everything, inventory
from tests.hosts_catalog import HOSTS
from tests.repetitions import within

H100 = str(HOSTS["h100-sxm-8"])


class Canned:
    """A collector that answers what a test wants."""

    def __init__(self, *failed: Failed) -> None:
        self.failed = failed
        self.known: tuple[pb.Gpu, ...] = ()

    async def collect(self, names: list[str], known: tuple[pb.Gpu, ...] = ()) -> Collected:
        self.known = known
        bodies = dict.fromkeys(names, b"") | {"os": encode(pb.OsSection(hostname="n1"))}
        told = [name for name in names if name not in {f.name for f in self.failed}]
        return Collected(tuple(Section(name, bodies[name]) for name in sorted(told)), self.failed)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the machine that runs the tests."""
    for name in list(os.environ):
        if name.startswith("BCD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BCD_DATA_DIR", str(tmp_path / "data"))


def canned(monkeypatch: pytest.MonkeyPatch, *failed: Failed) -> Canned:
    collector = Canned(*failed)
    monkeypatch.setattr(doors, "collector", lambda config, host_dir: collector)
    return collector


def uuids(collector: Canned) -> list[str]:
    """Of the GPUs that the collector was told to remember."""
    return [gpu.uuid for gpu in collector.known]


# ---- inventory


def test_json_is_one_object_keyed_by_section_with_default_valued_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inventory", "--json", "--host", H100]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == list(SECTIONS)
    assert len(shown["gpus"]["gpus"]) == 8
    assert shown["gpus"]["gpus"][0]["assigned"] is False, "a field without presence is shown with its default"
    assert shown["images"]["images"] == []
    assert isinstance(shown["memory"]["totalBytes"], str), "64-bit numbers are strings in proto3 JSON"


def test_hashes_are_lines_in_section_order_and_the_same_for_the_same_host(capsys: pytest.CaptureFixture[str]) -> None:
    outs = []
    for _ in range(2):
        assert cli.main(["--host", H100, "inventory", "--hashes"]) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1]
    assert [line.split()[0] for line in outs[0].splitlines()] == list(SECTIONS)
    assert all(re.fullmatch(r"[a-z]+ [0-9a-f]{64}", line) for line in outs[0].splitlines())


def test_only_the_named_sections_are_collected(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inventory", "os", "cpu", "--json", "--host", H100]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["os", "cpu"]


def test_an_unknown_section_names_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inventory", "gpu"]) == 2
    assert capsys.readouterr().err == (
        "bcd: inventory: no section is named gpu\n  the sections are system, os, cpu, memory, gpus, disks, nics, images\n"
    )


@pytest.mark.parametrize("form", [["--json"], ["--hashes"], []])
def test_a_failed_section_is_named_and_the_others_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    canned(monkeypatch, Failed("gpus", "Hang", "no answer within 60 s"))
    assert cli.main(["inventory", *form]) == 1
    out, err = capsys.readouterr()
    assert err == "bcd: collecting section gpus: Hang: no answer within 60 s\n"
    assert "os" in out
    assert "gpus" not in out


def test_nvml_that_does_not_answer_counts_as_a_missing_section_which_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inventory", "gpus", "--json", "--host", str(HOSTS["driver-not-loaded"])]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["gpus"]["error"]["reason"] == "DriverNotLoaded"
    assert err.startswith("bcd: collecting section gpus: NVML does not answer: DriverNotLoaded: ")


def test_a_pipe_gets_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inventory", "gpus", "--host", H100]) == 0
    out = capsys.readouterr().out
    assert "NVIDIA H100 80GB HBM3" in out
    assert "\x1b" not in out


def test_the_daemon_s_remembered_gpus_count_for_this_host_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    collector = canned(monkeypatch)
    store = Store(tmp_path / "data" / "inventory")
    (tmp_path / "data").mkdir()
    store.save(inventory(everything()), {"00000000:18:00.0": Remembered("b", pb.Gpu(uuid="GPU-1"))})
    (tmp_path / "bcd.toml").write_text(f'data_dir = "{tmp_path}/data"\n')
    of_another = ["inventory", "--hashes", "--host", H100]

    def known(*arguments: str) -> list[str]:
        cli.main(list(arguments))
        return uuids(collector)

    assert known(*of_another) == ["GPU-1"], "the environment names the directory for this command"
    assert known(*of_another, "--data-dir", str(tmp_path / "data")) == ["GPU-1"]
    monkeypatch.delenv("BCD_DATA_DIR")
    assert known("inventory", "--hashes", "--config", str(tmp_path / "bcd.toml")) == ["GPU-1"]
    assert known(*of_another, "--config", str(tmp_path / "bcd.toml")) == [], "what this machine's own has is another host's"


def test_what_is_no_recorded_host_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["inventory", "--host", str(tmp_path)]) == 2
    assert "is no recorded host" in capsys.readouterr().err
    (tmp_path / "root/proc").mkdir(parents=True)
    (tmp_path / "nvml.json").write_text("{")
    assert cli.main(["inventory", "os", "--host", str(tmp_path)]) == 2
    assert re.match(r"bcd: .*/nvml.json:1: not JSON: .*\n  record the host again", capsys.readouterr().err)


# ---- status, refresh


def answers(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | UserError) -> list[Any]:
    asked: list[Any] = []

    def call(path: Path, method: str, patience: float, /, **arguments: Any) -> dict[str, Any]:
        asked.append((path, method, arguments))
        if isinstance(answer, UserError):
            raise answer
        return answer

    monkeypatch.setattr(local, "call", call)
    return asked


REFRESHED: dict[str, Any] = {
    "applied": True,
    "reason": "",
    "digest": "abc",
    "collectedAt": "2026-03-01T12:00:00.000Z",
    "sections": [{"name": "os"}, {"name": "gpus"}],
    "missing": [],
}


def test_refresh_is_0_when_the_receiver_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = answers(monkeypatch, REFRESHED)
    assert cli.main(["refresh", "--timeout", "5s"]) == 0
    assert asked == [(tmp_path / "data" / "bcd.sock", "refresh", {"timeout": 5.0})]
    assert "the receiver has the inventory abc" in capsys.readouterr().out


def test_refresh_is_1_when_the_receiver_has_it_without_a_section(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, REFRESHED | {"sections": [{"name": "gpus", "error": "NVML does not answer: Error: x"}]})
    assert cli.main(["refresh"]) == 1
    out, err = capsys.readouterr()
    assert "the receiver has the inventory abc" in out
    assert err == "bcd: section gpus is missing: NVML does not answer: Error: x\n"


def test_refresh_is_1_when_it_does_not_and_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    missing = [{"name": "gpus", "error": "settling"}]
    answers(monkeypatch, REFRESHED | {"applied": False, "reason": "refused: too odd", "missing": missing})
    assert cli.main(["refresh"]) == 1
    err = capsys.readouterr().err
    assert "section gpus is missing: settling" in err
    assert "refused: too odd" in err


def test_a_wrong_timeout_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["refresh", "--timeout", "soon"]) == 2
    assert "refresh: --timeout 'soon'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "refresh"])
def test_without_a_daemon_they_are_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command]) == 2
    assert re.match(r"bcd: no bcd answers on .*\n  start it with `bcd run`", capsys.readouterr().err)


def test_status_json_is_the_daemon_s_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers(monkeypatch, {"nodeId": "node_1"})
    assert cli.main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"nodeId": "node_1"}


# ---- capture


def test_capture_warns_when_it_does_not_redact_and_what_it_makes_is_a_host(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["capture", str(tmp_path / "c"), "--host", H100]) == 0
    assert "--redact" in capsys.readouterr().err
    hashes = []
    for host in (H100, str(tmp_path / "c")):
        cli.main(["inventory", "--hashes", "--host", host])
        hashes.append(capsys.readouterr().out)
    assert hashes[0] == hashes[1]
    assert cli.main(["capture", str(tmp_path / "d"), "--redact", "--host", H100]) == 0
    assert capsys.readouterr().err == ""


def test_capture_says_what_it_was_not_allowed_to_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "root/sys/class/dmi/id").mkdir(parents=True)
    (source / "root/sys/class/dmi/id/product_serial").write_text("x")
    (source / "host.json").write_text('{"errors": {"/sys/class/dmi/id/product_serial": 13}}')
    assert cli.main(["capture", str(tmp_path / "c"), "--redact", "--host", str(source)]) == 0
    told = "1 files could not be read, /sys/class/dmi/id/product_serial the first"
    assert told in capsys.readouterr().err


# ---- arguments


def parsed(*argv: str) -> Any:
    return cli._parser().parse_args(argv)


def test_global_options_stand_before_the_command_or_behind_it(tmp_path: Path) -> None:
    before = parsed("--host", "h", "--data-dir", "d", "--insecure", "run")
    behind = parsed("run", "--host", "h", "--data-dir", "d", "--insecure")
    assert command_line.flags(before) == command_line.flags(behind) == {"data_dir": "d", "insecure": "true"}
    assert command_line.host_dir(before) == command_line.host_dir(behind) == Path("h")


def test_the_one_behind_wins() -> None:
    assert command_line.flags(parsed("--data-dir", "a", "status", "--data-dir", "b")) == {"data_dir": "b"}


def test_every_setting_is_in_the_help_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    shown = capsys.readouterr().out
    for setting in SETTINGS:
        assert setting.flag in shown
        assert setting.variable in shown


@pytest.mark.parametrize("command", ["", "run", "inventory", "capture", "refresh", "status"])
def test_help_tells_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*([command] if command else []), "--help"])
    assert ended.value.code == 0
    assert "exit codes:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv", [[], ["unheard-of"], ["run", "--colour"], ["inventory", "--json", "--hashes"], ["--hos", "x", "run"]]
)
def test_wrong_use_is_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2


def test_a_wrong_configuration_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bcd.toml"
    file.write_text("\nsettle = []\n")
    assert cli.main(["run", "--config", str(file)]) == 2
    assert f"bcd: {file}:2: settle is an array" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_second_daemon_on_the_same_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with local.only_daemon(tmp_path / "data"):
        assert cli.main(["run", "--host", H100]) == 2
    assert re.search(r"bcd: another bcd \(process \d+\) already runs on the data directory", capsys.readouterr().err)
    assert not (tmp_path / "data" / "identity.json").exists()


def test_a_daemon_ends_with_0_on_sigterm_and_leaves_no_child(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "agent.cli", "run", "--insecure", "--host", H100, "--server", f"unix:{tmp_path}/nobody.sock"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stderr
            assert "new node identity" in daemon.stderr.readline()
            assert "--insecure: nothing is encrypted" in daemon.stderr.readline()
            assert " runs as node_" in daemon.stderr.readline()
            started = time.monotonic()
            daemon.terminate()
            rest = daemon.stderr.read()
            assert daemon.wait(10) == 0
            assert time.monotonic() - started < within(2.0)
            assert "Traceback" not in rest
        finally:
            daemon.kill()
    assert not (tmp_path / "data" / "bcd.sock").exists()


def test_help_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys\nfrom agent import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'asyncio', 'grpc', 'google.protobuf', 'rich', 'tomllib'} & set(sys.modules)), file=sys.stderr)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert time.monotonic() - started < within(2.0)


def test_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert re.fullmatch(r"bcd \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_a_full_disk_below_standard_output_is_an_error_of_the_world() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "agent.cli", "inventory", "os", "--host", H100]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "bcd: writing to standard output: No space left on device\n")


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = f"{sys.executable} -m agent.cli inventory --json --host {H100} | head -c 10"
    done = subprocess.run(["bash", "-c", command + "; exit ${PIPESTATUS[0]}"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
