"""`bcd doctor` and `bcd diag nvml` as a person or a script meets them: with and without a daemon, as root and as nobody."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import session_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from agent import cli, fault_store
from agent.faults import Ledger
from agent.recorded import open_host
from tests import hosts_catalog
from tests.agent.doctor.test_hosts import GOLDEN
from tests.agent.session.fake_gateway import FakeGateway, Stream, until
from tests.hosts_catalog import HOSTS

H100, L4 = str(HOSTS["h100-sxm-8"]), str(HOSTS["l4-cloud-vm"])


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine that runs the tests."""
    for name in list(os.environ):
        if name.startswith("BCD_"):
            monkeypatch.delenv(name)


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    """Exit code and `--json` of doctor, its lines by subject (the last of several)."""
    code = cli.main(["doctor", "--json", *argv])
    shown = json.loads(capsys.readouterr().out)
    assert shown["exitCode"] == code
    return code, {line["subject"]: line for line in shown["lines"]}


def test_prints_the_page_and_answers_with_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--host", H100]) == 0
    assert capsys.readouterr().out == (GOLDEN / "h100-sxm-8.txt").read_text()
    assert cli.main(["--host", str(HOSTS["lost-gpu"]), "doctor"]) == 2


@pytest.mark.parametrize(("strict", "code"), [((), 1), (("--strict",), 2)])
def test_strict_changes_the_exit_code_of_what_cannot_be_told(
    strict: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, "--host", L4, *strict)[0] == code


def test_a_configuration_that_does_not_read_is_a_line_and_the_rest_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bcd.toml").write_text('sever = "x:1"\n')
    code, lines = told(capsys, "--host", H100, "--config", str(tmp_path / "bcd.toml"))
    assert code == 2
    assert lines["configuration"]["text"] == f"{tmp_path}/bcd.toml:1: unknown key 'sever'"
    assert lines["gpu"]["shown"] == "ok"


def test_a_directory_that_is_no_recorded_host_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--host", str(tmp_path)]) == 2
    assert "is no recorded host" in capsys.readouterr().err


def test_without_a_daemon_this_host_is_told_from_the_ring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(capsys, "--server", "127.0.0.1:1", "--data-dir", str(tmp_path / "data"))
    assert code == 2  # nothing listens on port 1
    assert lines["receiver"]["text"] == "127.0.0.1:1 cannot be reached: Connection refused"
    assert lines["data_dir"]["text"] == f"{tmp_path}/data is not there yet; the daemon makes it"
    assert lines["daemon"]["shown"] == "warn"


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[str]:
    """Something that listens where the receiver should, and never says a word."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "receiver.sock"))
        server.listen()
        yield f"unix:{tmp_path}/receiver.sock"


def test_a_receiver_that_listens_is_reached(listener: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "--host", H100, "--server", listener)[1]["receiver"]["shown"] == "ok"


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def ahead(stream: Stream) -> None:
    """A gateway whose clock is a minute ahead, and that wants nothing."""
    await stream.next("hello")
    await stream.say(welcome=pb.Welcome(node_id="n", epoch=1, now=Timestamp(seconds=int(time.time()) + 60)))
    await stream.stay()


def test_while_a_daemon_runs_its_session_and_its_ledger_are_told(tmp_path: Path) -> None:
    host, data = hosts_catalog.copy("h100-sxm-8", tmp_path), tmp_path / "data"
    hosts_catalog.wear_out_gpu(host, 3)
    records = (host / "kmsg").read_bytes()
    (host / "kmsg").unlink()
    os.mkfifo(host / "kmsg")  # what the daemon has read of it is gone

    async def run() -> dict[str, Any]:
        async with FakeGateway(tmp_path / "gateway.sock", ahead) as gateway:
            common = [
                sys.executable,
                "-m",
                "agent.cli",
                "--host",
                str(host),
                "--data-dir",
                str(data),
                "--server",
                gateway.target,
                "--insecure",
            ]
            with subprocess.Popen([*common, "run"], stderr=subprocess.DEVNULL) as daemon:
                try:
                    await until(lambda: gateway.streams and "status_report" in gateway.streams[0].kinds(), 30)
                    await asyncio.to_thread((host / "kmsg").write_bytes, records)
                    await until(lambda: "Xid" in _text(data / "faults.json"), 30)
                    doctor = await asyncio.create_subprocess_exec(*common, "doctor", "--json", stdout=subprocess.PIPE)
                    said, _ = await doctor.communicate()
                finally:
                    daemon.terminate()
        return {line["subject"]: line for line in json.loads(said)["lines"] if line["shown"] != "ok" or line["subject"] != "gpu"}

    lines = asyncio.run(run())
    assert {
        subject: lines[subject]["shown"] for subject in ("daemon", "data_dir", "kernel log", "receiver", "clock", "xid", "gpu")
    } == {
        "daemon": "ok",
        "kernel log": "ok",
        "data_dir": "ok",
        "receiver": "ok",
        "clock": "warn",
        "xid": "fail",
        "gpu": "fail",
    }
    assert lines["clock"]["text"].endswith("s behind the receiver's")
    assert "Xid 64" in lines["gpu"]["text"]


def test_a_data_dir_that_others_may_enter_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    line = told(capsys, "--host", H100, "--data-dir", str(tmp_path / "open"))[1]["data_dir"]
    assert (line["shown"], line["todo"]) == ("warn", f"chmod 700 {tmp_path}/open")


def test_damaged_faults_are_told_and_the_ring_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data/faults.json").write_text('{"version": 1, "bootId"')
    code, lines = told(capsys, "--host", H100, "--data-dir", str(tmp_path / "data"))
    assert lines["data_dir"]["text"].startswith(f"{tmp_path}/data/faults.json is damaged")
    assert (lines["kernel log"]["shown"], lines["xid"]["shown"], code) == (
        "ok",
        "ok",
        2 if lines["receiver"]["shown"] == "fail" else 1,
    )


@pytest.fixture
def overrun(tmp_path: Path) -> tuple[str, ...]:
    """The H100 host with this machine's own ring, of which records were overwritten that the daemon had not read yet."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        first = int(os.read(fd, 16384).split(b",")[1])
        os.close(fd)
    except OSError as error:
        pytest.skip(f"/dev/kmsg: {error.strerror}")
    if first < 2:
        pytest.skip("nothing of this machine's ring was overwritten yet")
    host, data = hosts_catalog.copy("h100-sxm-8", tmp_path), tmp_path / "data"
    (host / "kmsg").unlink()
    (host / "kmsg").symlink_to("/dev/kmsg")
    data.mkdir(mode=0o700)
    fault_store.save(data, Ledger(open_host(host).boot_id(), cursor=0, from_start=True))
    return "--host", str(host), "--data-dir", str(data)


def test_records_that_the_kernel_overwrote_leave_xids_unknown(
    overrun: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = told(capsys, *overrun)
    assert code != 0
    assert re.fullmatch(r"read, but \d+ records of this boot were lost", lines["kernel log"]["text"])
    assert (lines["kernel log"]["result"], lines["xid"]["result"]) == ("unknown", "unknown")
    assert cli.main(["diag", "nvml", "--json", *overrun]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert {c["result"] for c in shown["checks"] if c["check"] == "xid.recent"} == {"unknown"}
    assert {c["check"] for c in shown["checks"] if c["result"] != "pass"} == {"xid.recent"}


def test_colour_is_for_terminals_only(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agent.cli", "doctor", "--host", L4]
    piped = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (piped.returncode, "\x1b" in piped.stdout) == (1, False)
    ours, theirs = os.openpty()
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL):
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while part := os.read(ours, 4096):
                said += part
    os.close(ours)
    assert b"\x1b[33mwarn\x1b[0m" in said


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, which gives up its rights")
def test_without_rights_less_is_told_and_what_it_needs(tmp_path: Path) -> None:
    """Root without any capability reads what an ordinary user reads; the interpreter may be root's own."""
    (tmp_path / "data").mkdir(mode=0o700)
    os.chown(tmp_path / "data", 12345, 12345)
    command = [sys.executable, "-m", "agent.cli", "doctor", "--json", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(["setpriv", "--bounding-set", "-all", *command], capture_output=True, text=True, timeout=60)
    lines = {line["subject"]: line for line in json.loads(done.stdout)["lines"]}
    assert lines["data_dir"]["text"] == f"{tmp_path}/data may not be entered by this user"
    assert (lines["data_dir"]["result"], lines["data_dir"]["todo"]) == ("unknown", "run doctor as root")
    assert (lines["daemon"]["result"], lines["daemon"]["todo"]) == ("unknown", "run doctor as root")
    assert lines["kernel"]["shown"] == "ok"


# -- diag


def test_diag_prints_every_check_and_answers_whether_it_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diag", "nvml", "--host", H100, "--expect-gpus", "8"]) == 0
    page = capsys.readouterr().out.splitlines()
    assert page[-2:] == ["42 ok", "passed"]
    assert cli.main(["diag", "nvml", "--host", H100, "--expect-gpus", "7"]) == 1
    page = capsys.readouterr().out.splitlines()
    assert page[1].startswith("fail  gpu.count")
    assert page[-1] == "not passed"
    host = hosts_catalog.copy("h100-sxm-8", tmp_path)
    hosts_catalog.wear_out_gpu(host, 3)
    assert cli.main(["diag", "nvml", "--host", str(host), "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    bad = {check["check"] for check in shown["checks"] if check["result"] == "fail"}
    assert (shown["passed"], bad) == (False, {"ecc.uncorrectable", "row-remap.failure", "xid.recent"})


def test_diag_of_a_host_without_a_log_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diag", "nvml", "--host", L4, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert {c["check"] for c in shown["checks"] if c["result"] == "unknown"} == {"xid.recent"}


@pytest.mark.parametrize("number", ["-1", "eight", "8.5", ""])
def test_diag_refuses_what_is_no_number_of_gpus(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["diag", "nvml", "--host", H100, f"--expect-gpus={number}"])
    assert f"{number!r} is no number of GPUs" in capsys.readouterr().err


def test_diag_refuses_another_kind(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["diag", "dcgm"])
    assert "invalid choice: 'dcgm'" in capsys.readouterr().err
