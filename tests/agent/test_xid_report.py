"""`bcd xid` as an operator uses it on a bug report."""

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent import cli, xid_report
from tests.agent.kmsg import DATA, LINES, STREAMS, sidecar
from tests.hosts_catalog import HOSTS

HEAD = "Mar  5 09:14:0{n} gpu-node-1 kernel: [ 12.{n}] NVRM: Xid (PCI:0000:18:00): "
FELL = "79, pid=1234, name=python, GPU has fallen off the bus."
FLOOD = DATA / "streams/application-faults-flood.kmsg"
RETIRED = DATA / "streams/ecc-row-remap.kmsg"


def log(tmp_path: Path, *texts: str, name: str = "log") -> Path:
    path = tmp_path / name
    path.write_text("".join(HEAD.format(n=n) + text + "\n" for n, text in enumerate(texts)))
    return path


def rows(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    assert cli.main(["xid", "--json", *map(str, arguments)]) == code
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def each(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert cli.main(["xid", "--each", *map(str, arguments)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# ---- one row per XID and GPU


def test_a_row_has_times_count_and_meaning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rows(capsys, log(tmp_path, FELL, FELL, "79, again")) == [
        {
            "kind": "xid",
            "xid": 79,
            "busId": "00000000:18:00.0",
            "count": 3,
            "firstTime": "Mar  5 09:14:00",
            "lastTime": "Mar  5 09:14:02",
            "meaning": "GPU has fallen off the bus",
            "scope": "node",
            "severity": "fatal",
            "action": "reboot-node",
            "policy": "node",
            "known": True,
            "message": "79, again",
        }
    ]


def test_the_table_is_for_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", str(log(tmp_path, FELL, FELL))]) == 0
    _, columns, row = capsys.readouterr().out.splitlines()
    assert columns.split() == ["fault", "bus", "id", "count", "first", "last", "meaning", "scope", "action"]
    assert row.split()[:3] == ["Xid79", "00000000:18:00.0", "2"]
    assert "GPU has fallen off the bus" in row
    assert row.endswith("node   reboot-node")


@pytest.mark.parametrize("stream", STREAMS, ids=lambda path: path.stem)
@pytest.mark.parametrize("trusted", [False, True])
def test_a_stream_has_the_rows_of_its_sidecar(stream: Path, trusted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    expected = sidecar(stream)
    keys = ["faults", "sxids", *(["faultsIfUserspaceTrusted"] if trusted else [])]
    wanted = {(str(f.get("sxid", f.get("xid"))), f["busId"], f["count"]) for key in keys for f in expected.get(key, [])}
    found = rows(capsys, stream, *(["--trust-userspace"] if trusted else []))
    assert {(str(row["xid"]), row["busId"], row["count"]) for row in found} == wanted
    assert [row["kind"] for row in found].count("sxid") == len(expected["sxids"])


def test_rows_come_in_the_order_in_which_faults_appeared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["xid"] for row in rows(capsys, log(tmp_path, "74, x", "31, x", "74, x", "8, x"))] == [74, 31, 8]


def test_the_worst_record_says_what_a_row_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows(capsys, log(tmp_path, "149, NETIR Nonfatal XC0", "149, NETIR Fatal XC0", "149, NETIR Nonfatal XC1"))
    assert (row["severity"], row["action"], row["message"], row["count"]) == ("critical", "reset-gpu", "149, NETIR Fatal XC0", 3)


def test_154_says_what_the_driver_asks_for_now(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "154, GPU recovery action changed from {} to {}"
    (row,) = rows(capsys, log(tmp_path, said.format("0x0 (None)", "0x1 (GPU Reset Required)"), said.format("0x1", "0x0 (None)")))
    assert row["action"] == "none"


def test_an_unknown_number_shows_its_text_and_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    path.write_text("4,1,2,c;NVRM: Xid (PCI:0000:18:00): 4242, name=\\x1b[2J\\x0aevil, new\n")
    assert cli.main(["xid", str(path)]) == 0
    assert "not in the table: 4242, name=?[2J?evil, new" in capsys.readouterr().out
    (row,) = rows(capsys, path)
    assert (row["known"], "meaning" in row, row["message"]) == (False, False, "4242, name=\x1b[2J\nevil, new")


def test_a_log_without_times_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    path.write_text("NVRM: Xid (PCI:0000:18:00): 79, x\n")
    (row,) = rows(capsys, path)
    assert "firstTime" not in row
    assert "lastTime" not in row


def test_a_log_without_faults_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("nothing\n")
    assert cli.main(["xid", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().out == "no XIDs found\n"
    assert rows(capsys, tmp_path / "log") == []


def test_several_files_make_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows(capsys, log(tmp_path, FELL, name="a"), log(tmp_path, FELL, FELL, name="b"))
    assert row["count"] == 3


def test_pairs_that_no_host_has_are_counted_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xid_report, "MAX_ROWS", 2)
    assert cli.main(["xid", "--json", str(log(tmp_path, "1, x", "2, x", "3, x", "1, x", "4, x"))]) == 0
    captured = capsys.readouterr()
    assert [(row["xid"], row["count"]) for row in json.loads(captured.out)] == [(1, 2), (2, 1)]
    assert "2 more records" in captured.err


# ---- each


def test_each_prints_every_fault_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log(tmp_path, FELL)
    with path.open("a") as file:
        file.write("usb 1-1: new device\n[ 5.5] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 48\n")
        file.write("[ 5.6] nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Severity 1 Engine\n")
    assert each(capsys, path) == [
        {"line": 1, "kind": "xid", "xid": 79, "busId": "00000000:18:00.0", "message": FELL},
        {"line": 3, "kind": "sxid", "xid": 20034, "busId": "00000000:05:00.0", "message": "20034, Fatal, Link 48"},
    ]


@pytest.mark.parametrize("trusted", [False, True])
def test_each_tells_every_line_of_the_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str], trusted: bool) -> None:
    path = tmp_path / "log"
    wanted = []
    number = 1
    texts = []
    for line in LINES:
        expect = line.trusted if trusted else line.expect
        if expect is not None:
            wanted.append({"line": number, "kind": "xid", **expect})
        elif line.sxid is not None and not line.sxid["detail"]:
            wanted.append(
                {"line": number, "kind": "sxid", "xid": line.sxid["sxid"], **{k: line.sxid[k] for k in ("busId", "message")}}
            )
        texts.append(line.text + "\n")
        number += texts[-1].count("\n")
    path.write_text("".join(texts))
    assert each(capsys, path, *(["--trust-userspace"] if trusted else [])) == wanted


def test_each_names_the_file_when_there_are_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = log(tmp_path, FELL, name="a"), log(tmp_path, "31, x", FELL, name="b")
    assert [(one["file"], one["line"]) for one in each(capsys, first, second)] == [
        (str(first), 1),
        (str(second), 1),
        (str(second), 2),
    ]


# ---- where logs come from


def bcd(*arguments: object) -> Sequence[str]:
    return [sys.executable, "-m", "agent.cli", *map(str, arguments)]


@pytest.mark.parametrize("arguments", [["xid", "--json"], ["xid", "--json", "-"]])
def test_standard_input_is_read_when_no_file_is_named(arguments: list[str]) -> None:
    done = subprocess.run(bcd(*arguments), input=FLOOD.read_bytes(), capture_output=True, check=True, timeout=60)
    assert sum(row["count"] for row in json.loads(done.stdout)) == sum(fault["count"] for fault in sidecar(FLOOD)["faults"])


def test_a_live_log_is_told_as_it_comes(tmp_path: Path) -> None:
    """`journalctl -kf | bcd xid --each`."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(bcd("xid", "--each"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin
        assert process.stdout
        for text in ("79, one", "31, two"):
            process.stdin.write((HEAD.format(n=1) + text + "\n").encode())
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["message"] == text
        process.stdin.close()
        assert process.wait(30) == 0


def test_whoever_has_read_enough_may_close(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text((HEAD.format(n=1) + FELL + "\n") * 50_000)
    with subprocess.Popen(bcd("xid", "--each", path), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1


def test_a_bug_report_may_be_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nvidia-bug-report.log.gz"
    path.write_bytes(gzip.compress(RETIRED.read_bytes()))
    assert rows(capsys, path) == rows(capsys, RETIRED)


def test_a_recorded_hosts_own_log_is_read_when_no_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    host = HOSTS["lost-gpu"]
    assert rows(capsys, "--host", host) == rows(capsys, host / "kmsg") != []


def test_this_machines_kernel_log_ends_with_its_newest_record(capsys: pytest.CaptureFixture[str]) -> None:
    token = f"bcd-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        with open("/dev/kmsg", "w") as kmsg:
            kmsg.write(f"NVRM: Xid (PCI:0000:18:00): 79, {token}\n")
        os.close(os.open("/dev/kmsg", os.O_RDONLY))
    except OSError as error:
        pytest.skip(f"/dev/kmsg: {error.strerror}")
    assert token in [one["message"][4:] for one in each(capsys, "/dev/kmsg", "--trust-userspace")]
    assert token not in [one["message"][4:] for one in each(capsys, "/dev/kmsg")]
    with open("/dev/kmsg", "rb") as ring:
        done = subprocess.run(bcd("xid", "--each", "--trust-userspace"), stdin=ring, capture_output=True, check=True, timeout=60)
    assert token.encode() in done.stdout, "`bcd xid < /dev/kmsg` ends too"


# ---- what cannot be read


def test_other_files_are_read_when_one_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["xid", str(tmp_path / "missing"), str(log(tmp_path, FELL)), str(tmp_path)])
    captured = capsys.readouterr()
    assert code == 1
    assert captured.err.splitlines() == [
        f"bcd: xid: cannot read {tmp_path / 'missing'}: No such file or directory",
        f"bcd: xid: cannot read {tmp_path}: Is a directory",
    ]
    assert "Xid79" in captured.out


@pytest.mark.parametrize("form", [[], ["--json"], ["--each"]])
def test_nothing_is_said_of_logs_when_none_can_be_read(form: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", *form, "/nowhere", "/nowhere/else"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("cannot read /nowhere") == 2


@pytest.mark.parametrize("cut", [20, 3000])
def test_a_packed_log_that_is_cut_tells_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], cut: int) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(os.urandom(2000) + b"\n" + log(tmp_path, *[FELL] * 9).read_bytes() + os.urandom(9000))[:cut])
    code = cli.main(["xid", "--json", str(path)])
    captured = capsys.readouterr()
    assert code == 1
    assert f"cannot read {path} to its end" in captured.err
    assert sum(row["count"] for row in json.loads(captured.out)) == (9 if cut > 1000 else 0)


def test_json_and_each_are_one_or_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["xid", "--json", "--each"])
    assert caught.value.code == 2
