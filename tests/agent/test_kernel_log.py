"""A look at the kernel log: what is there now, behind the daemon's cursor; one that cannot be read is never taken for empty."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from agent import kernel_log
from agent.fault_store import Stored
from agent.faults import Ledger
from agent.kernel_log import Look, look
from agent.kmsg.record import Record
from tests.repetitions import within

NOTHING = Stored(Ledger("boot"))
XID = "NVRM: Xid (PCI:0000:18:00): {}, pid=1, name=x"


def write(path: Path, *texts: str, first: int = 0, priority: int = 4) -> Path:
    """A log of these texts, numbered from `first`."""
    path.write_text("".join(f"{priority},{first + n},{n * 1000000},-;{text}\n" for n, text in enumerate(texts)))
    return path


def at(path: Path, stored: Stored = NOTHING, **options: bool) -> Look:
    return asyncio.run(look(path, stored, booted_at=1000.0, **options))


def codes(found: Look) -> dict[int, int]:
    """Code -> count."""
    assert found.ledger is not None
    return {fault.code: fault.count for fault in found.ledger.faults.values()}


def test_reads_the_log_from_the_boots_first_record(tmp_path: Path) -> None:
    found = at(write(tmp_path / "kmsg", "Linux version 6.8", XID.format(79), XID.format(79), "other"))
    assert (codes(found), found.error) == ({79: 2}, "")
    assert found.ledger is not None
    assert found.ledger.complete
    fault = next(iter(found.ledger.faults.values()))
    assert (fault.first_at, fault.bus_id) == (1001.0, "00000000:18:00.0")


def test_a_log_whose_beginning_is_gone_or_that_has_a_hole_is_not_complete(tmp_path: Path) -> None:
    late = at(write(tmp_path / "late", "x", first=7)).ledger
    hole = tmp_path / "hole"
    write(hole, "x")
    hole.write_text(hole.read_text() + "4,5,9,-;y\n")
    gap = at(hole).ledger
    assert late is not None
    assert gap is not None
    assert (late.complete, gap.complete, gap.lost) == (False, False, 4)


def test_goes_on_behind_the_daemons_cursor_and_counts_nothing_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "kmsg", "start", XID.format(48))
    first = at(path).ledger
    assert first is not None
    path.write_text(path.read_text() + f"4,2,9000000,c;{XID.format(48)}\n4,3,9000001,c;{XID.format(79)}\n")
    assert codes(at(path, Stored(first))) == {48: 2, 79: 1}


def test_a_fault_that_the_daemon_has_cleared_does_not_come_back(tmp_path: Path) -> None:
    path = write(tmp_path / "kmsg", "start", XID.format(48))
    first = at(path).ledger
    assert first is not None
    assert codes(at(path, Stored(replace(first, faults={})))) == {}


def test_switches_and_the_names_of_gpus_are_taken_and_details_are_not(tmp_path: Path) -> None:
    uuid = "GPU-5f3a8c21-7b94-1e0d-a6c2-93d41b7e2f08"
    found = at(
        write(
            tmp_path / "kmsg",
            f"NVRM: GPU at PCI:0000:18:00: {uuid}",
            XID.format(79),
            "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
            "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Severity 1 Engine instance 48 Sub-engine instance 00",
        )
    )
    assert codes(found) == {79: 1, 20034: 1}
    assert found.ledger is not None
    assert [fault.code for fault in found.ledger.of(uuid)] == [79]


@pytest.mark.parametrize(("trust", "expected"), [(False, {}), (True, {79: 1})])
def test_only_the_kernel_is_believed(tmp_path: Path, trust: bool, expected: dict[int, int]) -> None:
    path = write(tmp_path / "kmsg", "start", XID.format(79), priority=12)
    assert codes(at(path, trust_userspace=trust)) == expected


def test_a_log_that_is_absent_leaves_the_daemons_ledger_and_says_why(tmp_path: Path) -> None:
    assert at(tmp_path / "kmsg").ledger is None
    ledger = Ledger("boot", cursor=4, from_start=True)
    found = at(tmp_path / "kmsg", Stored(ledger))
    assert found.ledger == ledger
    assert found.error.startswith(f"reading the kernel log {tmp_path}/kmsg: No such file or directory")


def test_a_pipe_is_left_to_the_daemon(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    found = at(tmp_path / "kmsg")
    assert found == Look(None, f"{tmp_path}/kmsg is a pipe, which only one can read")


class Endless:
    """A log that stays open, as /dev/kmsg does: `count` records, `pause` seconds before each, and then nothing."""

    def __init__(self, count: int, pause: float = 0.0) -> None:
        self._count, self._pause = count, pause
        self.taken = 0

    def __call__(self, path: Path, after: int | None) -> "Endless":
        return self

    async def records(self) -> AsyncGenerator[Record, None]:
        for number in range(self._count):
            await asyncio.sleep(self._pause)
            self.taken += 1
            yield Record(number, 4, 0, "-", XID.format(79))
        await asyncio.Event().wait()


def test_ends_when_nothing_more_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "Reader", Endless(3))
    begin = time.monotonic()
    found = at(tmp_path)
    assert (codes(found), found.error) == ({79: 3}, "")
    assert time.monotonic() - begin < within(1)


def test_the_records_that_the_daemon_has_read_already_do_not_look_like_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_log, "_QUIET", 0.001)  # a ring of 16 MiB takes seconds to pass over
    path = write(tmp_path / "kmsg", *["other"] * 5000, XID.format(79))
    found = at(path, Stored(Ledger("boot", cursor=4999, from_start=True)))
    assert (codes(found), found.error) == ({79: 1}, "")


def test_a_log_in_which_records_keep_coming_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "Reader", Endless(1000, 0.01))
    monkeypatch.setattr(kernel_log, "_PATIENCE", 0.3)
    found = at(tmp_path)
    assert 0 < codes(found)[79] < 1000
    assert found.error == f"{tmp_path} was not read to its end within 0.3 s"


def test_this_hosts_log_is_read_or_refused_within_a_moment() -> None:
    begin = time.monotonic()
    found = at(kernel_log.path_of(None))
    assert found.ledger is not None or found.error
    assert time.monotonic() - begin < within(6)
