"""Captured logs: every envelope of data/kmsg, and logs of any size."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kmsg import captured
from agent.kmsg.captured import Captured, parse, scan
from agent.kmsg.xid import Xid
from tests.agent.kmsg import LINES, STREAMS, Line, as_sxid, as_xid, sidecar

TEXT = "NVRM: Xid (PCI:0000:18:00): 43, pid=2863, name=python, Ch 00000010"
FAULT = Xid(43, "00000000:18:00.0", "43, pid=2863, name=python, Ch 00000010")

# What stands in front of the text -> the time that it tells.
ENVELOPES = {
    "": None,
    "4,1227,5678901,c;": "5.678901",
    "4,1227,5678901,-,caller=T1946;": "5.678901",
    "[   12.345678] ": "12.345678",
    "[   12.345678] [  T1946] ": "12.345678",
    "[   12.345678][   C12] ": "12.345678",
    "[Tue Mar  5 09:14:02 2024] ": "Tue Mar  5 09:14:02 2024",
    "[  +6.010643] ": "+6.010643",
    "[Mar 5 09:14] ": "Mar 5 09:14",
    "<4>[ 12.345678] ": "12.345678",
    "<4>": None,
    "kern  :warn  : [ 12.345678] ": "12.345678",
    "kern  :warn  : ": None,
    "Mar  5 09:14:02 host kernel: ": "Mar  5 09:14:02",
    "Mar 05 09:14:02.123456 host kernel: ": "Mar 05 09:14:02.123456",
    "Mar  5 09:14:02 host kernel: [ 12.345678] ": "Mar  5 09:14:02",
    "2024-03-05T09:14:02+0000 host kernel: ": "2024-03-05T09:14:02+0000",
    "2024-03-05T09:14:02.123456+00:00 host kernel: ": "2024-03-05T09:14:02.123456+00:00",
    "2024-03-05T09:14:02Z host kernel: [ 12.345678] ": "2024-03-05T09:14:02Z",
    "2024-03-05T09:14:02,123456+01:00 ": "2024-03-05T09:14:02,123456+01:00",
    "10.1.2.3: kern: warning: [2025-01-17T14:55:41.1Z]: ": "2025-01-17T14:55:41.1Z",
}

# Lines of a process that names itself as one, by the facility that the envelope tells.
USERSPACE = [
    "12,1,2,-;",
    "30,1,2,-;",
    "<12>[ 1.5] ",
    "user  :warn  : [ 1.5] ",
    "10.1.2.3: user: warning: [2025-01-17T14:55:41Z]: ",
]

# A program that quotes: no XID, whoever is trusted.
QUOTED = [
    "Mar  5 09:14:02 host python[48122]: ",
    "Mar  5 09:14:02 host kernel[1]: ",
    "2024-03-05T09:14:02Z host gpud[2210]: ",
    "[gpu-health] ",
    "[python] [ 1.5] ",
    "[ 1.5] [ 2.5] ",
    "[ 1.5] x ",
    "kern  :warn  : kern  :warn  : ",
    " ",
    ">",
    "4,1,2,c;[ 1.5] ",
    "2024-03-05 09:14:02 host kernel: ",
]


def run(data: bytes, numbered: bool = False, trust_userspace: bool = False, pieces: int = 1 << 16) -> list[Captured]:
    return [found for found in scan(Pieces(data, pieces), numbered, trust_userspace) if found is not None]


class Pieces:
    """A log that gives at most so many bytes at a time, as a pipe does."""

    def __init__(self, data: bytes, size: int) -> None:
        self.data = data
        self.size = size

    def read1(self, size: int = -1, /) -> bytes:
        given, self.data = self.data[: self.size], self.data[self.size :]
        assert size > 0
        return given


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.note)
def test_a_line_of_the_corpus_is_what_it_says(line: Line) -> None:
    found = parse(line.text.encode())
    fault = found.fault if found else None
    assert as_xid(fault) == line.expect
    assert as_sxid(fault) == line.sxid
    trusted = parse(line.text.encode(), trust_userspace=True)
    assert as_xid(trusted.fault if trusted else None) == line.trusted


@pytest.mark.parametrize(("envelope", "time"), ENVELOPES.items())
def test_an_envelope_is_taken_off_and_tells_the_time(envelope: str, time: str | None) -> None:
    assert parse((envelope + TEXT).encode()) == Captured(FAULT, time)
    assert parse((envelope + TEXT + "\r").encode()) == Captured(FAULT, time)


@pytest.mark.parametrize("envelope", [envelope for envelope in ENVELOPES if not envelope.startswith("4,")])
def test_every_text_is_the_same_in_every_envelope(envelope: str) -> None:
    for line in LINES:
        if line.form == "kmsg-text" and "\n" not in line.text:
            found = parse((envelope + line.text).encode())
            fault = found.fault if found else None
            assert as_xid(fault) == line.expect, line.text
            assert as_sxid(fault) == line.sxid, line.text


@pytest.mark.parametrize("envelope", USERSPACE)
def test_what_a_process_wrote_counts_only_when_user_space_is_trusted(envelope: str) -> None:
    line = (envelope + TEXT).encode()
    assert parse(line) is None
    found = parse(line, trust_userspace=True)
    assert found is not None
    assert found.fault == FAULT


@pytest.mark.parametrize("envelope", QUOTED)
def test_a_quotation_is_no_fault(envelope: str) -> None:
    assert parse((envelope + TEXT).encode(), trust_userspace=True) is None


@pytest.mark.parametrize("stream", STREAMS, ids=lambda path: path.stem)
@pytest.mark.parametrize("trusted", [False, True])
def test_a_stream_of_records_tells_its_form_by_itself(stream: Path, trusted: bool) -> None:
    expected = sidecar(stream)
    wanted: dict[tuple[str, int, str], int] = {}
    for kind, key in (("xid", "faults"), ("sxid", "sxids"), *([("xid", "faultsIfUserspaceTrusted")] if trusted else [])):
        for fault in expected.get(key, ()):
            at = (kind, fault[kind], fault["busId"])
            wanted[at] = wanted.get(at, 0) + fault["count"]
    counts: dict[tuple[str, int, str], int] = {}
    for found in run(stream.read_bytes(), trust_userspace=trusted):
        at = ("xid" if isinstance(found.fault, Xid) else "sxid", found.fault.code, found.fault.bus_id)
        counts[at] = counts.get(at, 0) + 1
    assert counts == wanted


LOG = "".join(f"[ {n}.0] {TEXT if n % 3 == 0 else 'usb 1-1: new device Xid ('}\n" for n in range(1, 40)).encode()
NUMBERS = list(range(3, 40, 3))


@given(st.integers(1, 700))
def test_lines_may_be_cut_anywhere(pieces: int) -> None:
    found = run(LOG, numbered=True, pieces=pieces)
    assert [one.line for one in found] == NUMBERS
    assert [one.time for one in found] == [f"{n}.0" for n in NUMBERS]
    assert {one.fault for one in found} == {FAULT}


def test_a_last_line_without_a_newline_counts() -> None:
    assert [one.line for one in run(b"x\n" + TEXT.encode(), numbered=True)] == [2]


def test_lines_are_not_numbered_unless_asked() -> None:
    assert {one.line for one in run(LOG)} == {None}


def test_details_of_a_switchs_event_are_no_further_events() -> None:
    head = "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 12028, "
    log = "".join(f"{head}{rest}\n" for rest in ("Fatal, x", "Severity 0 Engine", "Data {0x0}", "Non-fatal, y"))
    assert [one.line for one in run(log.encode(), numbered=True)] == [1, 4]


def test_a_mark_twice_in_a_line_is_one_fault() -> None:
    assert len(run(f"{TEXT} Xid ( Xid (\n{TEXT}".encode())) == 2


def test_a_line_without_end_is_passed_over_and_the_next_ones_are_read() -> None:
    endless = b"[ 1.5] " + TEXT.encode() + b"x" * (3 * captured.LINE_MAX) + TEXT.encode() + b"\n"
    found = run(endless + TEXT.encode() + b"\n", numbered=True)
    assert [one.line for one in found] == [1, 2]
    assert found[0].fault.message.startswith(FAULT.message + "xxx")
    assert len(found[0].fault.message) < captured.LINE_MAX
    assert found[1].fault == FAULT


@given(st.binary(max_size=400), st.integers(1, 50))
def test_no_bytes_raise_or_hide_the_line_behind_them(data: bytes, pieces: int) -> None:
    found = run(data + b"\n" + TEXT.encode() + b"\n", numbered=True, pieces=pieces)
    assert found[-1] == Captured(FAULT, None, data.count(b"\n") + 2)


class Repeated:
    """A log of `left` blocks."""

    def __init__(self, block: bytes, left: int) -> None:
        self.block = block
        self.left = left

    def read1(self, size: int = -1, /) -> bytes:
        self.left -= 1
        return self.block if self.left >= 0 else b""


@pytest.mark.parametrize("newline", [b"\n", b" "])
def test_a_log_of_any_size_is_read_in_constant_memory(newline: bytes) -> None:
    block = (LOG + b"[ 1.5] usb 1-1: new device\n" * 2300).replace(b"\n", newline)
    peaks = []
    for blocks in (10, 200):
        tracemalloc.start()
        found = sum(1 for one in scan(Repeated(block, blocks)) if one)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found == (blocks * len(NUMBERS) if newline == b"\n" else 0)
    assert peaks[1] < peaks[0] + captured.CHUNK
