"""faults.json: what was read and what was found stand together; whatever happens to the file, bcd goes on."""

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import fault_store
from agent.fault_store import ASIDE, FILE, load, recover, save
from agent.faults import Ledger, Places, Seen

BUS = "00000000:18:00.0"
HERE = Places(shown={BUS: "GPU-1"}, inventory=True)


def ledger(count: int = 1) -> Ledger:
    found = Ledger("boot-1").read(0).name("00000000:2A:00.0", "GPU-2", HERE)
    for seq in range(1, count + 1):
        seen = Seen("Xid", 43, BUS, "43, pid=1, name=caf\u00e9 \u2028, Ch 8", seq, 100.25 + seq, gi=7, ci=0)
        found = found.read(seq).add(seen, HERE)
    switch = Seen("SXid", 20034, "00000000:C4:00.0", "20034, Fatal, Link 48 LTSSM Fault Up", count + 3, 200.0)
    return found.read(count + 3).add(switch, HERE)


def test_what_is_saved_is_loaded_in_the_same_boot(tmp_path: Path) -> None:
    save(tmp_path, ledger(3))
    stored = load(tmp_path, "boot-1")
    assert stored.faults == ledger(3)
    assert (stored.cursor, stored.complete, stored.damaged) == (6, False, None)


def test_the_file_is_the_owner_s_alone_and_versioned(tmp_path: Path) -> None:
    save(tmp_path, ledger())
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / FILE).read_bytes())["version"] == 1


def test_another_boot_s_faults_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    save(tmp_path, ledger())
    assert recover(tmp_path, "boot-2") == Ledger("boot-2")
    assert "2 faults of an earlier boot are dropped" in caplog.text
    assert not (tmp_path / ASIDE).exists()


def test_nothing_stored_is_an_empty_ledger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert recover(tmp_path, "boot-1") == Ledger("boot-1")
    assert load(tmp_path / "nowhere", "boot-1").faults == Ledger("boot-1")
    assert caplog.text == ""


def changed(**keys: object) -> Callable[[Path], None]:
    return lambda path: write(path, json.dumps(json.loads(path.read_bytes()) | keys).encode())


def fault(**keys: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        value = json.loads(path.read_bytes())
        value["faults"][0] |= keys
        write(path, json.dumps(value).encode())

    return change


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (lambda path: write(path, b""), "Expecting value"),
    "half-written": (lambda path: write(path, path.read_bytes()[:100]), "Unterminated string|Expecting|delimiter"),
    "zeros": (lambda path: write(path, bytes(512)), "Expecting value|it is not UTF-8"),
    "not-utf-8": (lambda path: write(path, b'{"version": "\xff\xfe"}'), "it is not UTF-8 text"),
    "huge": (lambda path: write(path, b" " * (5 << 20)), "more than 4194304 bytes"),
    "deep": (lambda path: write(path, b"[" * 200_000), "nested too deeply|Expecting value"),
    "no-object": (lambda path: write(path, b"[]"), "it holds no object"),
    "newer-version": (changed(version=2), "it has version 2, this bcd knows 1"),
    "no-version": (changed(version=None), "version is None"),
    "wrong-cursor": (changed(cursor="7"), "cursor is '7'"),
    "negative-cursor": (changed(cursor=-1), "cursor is -1"),
    "true-is-no-number": (changed(lost=True), "lost is True"),
    "no-faults": (changed(faults=None), "faults is None"),
    "no-fault": (changed(faults=[1]), "faults holds what is no object"),
    "no-uuid": (changed(named={BUS: 1}), "named holds what is no UUID"),
    "no-boot": (changed(bootId=None), "bootId is None"),
    "fault-without-count": (fault(count=None), "count is None"),
    "fault-at-no-time": (fault(firstAt=float("nan")), "firstAt is nan"),
    "fault-of-another-kind": (fault(kind="Yid"), "kind is 'Yid'"),
    "directory": (directory, os.strerror(errno.EISDIR)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_moved_aside_logged_and_shown_and_bcd_goes_on(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    break_it, words = DAMAGES[damage]
    save(tmp_path, ledger())
    break_it(tmp_path / FILE)
    looked_at = load(tmp_path, "boot-1").damaged
    assert looked_at is not None
    assert FILE in looked_at
    assert (tmp_path / FILE).exists(), "whoever only looks changes nothing"

    assert recover(tmp_path, "boot-1") == Ledger("boot-1")
    assert not (tmp_path / FILE).exists()
    assert (tmp_path / ASIDE).exists()
    assert re.search(words, caplog.text), caplog.text
    assert ASIDE in caplog.text

    save(tmp_path, ledger())
    stored = load(tmp_path, "boot-1")
    assert stored.faults == ledger()
    assert stored.damaged is not None, "shown until the file that was moved aside is taken away"
    assert ASIDE in stored.damaged


def test_a_good_file_without_faults_does_not_take_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / ASIDE).write_text("garbage")
    save(tmp_path, Ledger("boot-0", cursor=7))
    assert recover(tmp_path, "boot-1") == Ledger("boot-1")
    assert (tmp_path / ASIDE).read_text() == "garbage"
    assert (tmp_path / FILE).exists()


def test_a_file_that_may_not_be_read_is_moved_aside_by_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    save(tmp_path, ledger())
    monkeypatch.setattr(fault_store, "_read", refuse)
    stored = load(tmp_path, "boot-1")
    assert (stored.damaged, stored.refused) == (None, f"cannot read {tmp_path / FILE}: Permission denied")
    assert recover(tmp_path, "boot-1") == Ledger("boot-1")
    assert (tmp_path / ASIDE).exists()
    assert "Permission denied; moved aside" in caplog.text


def test_a_file_that_cannot_be_moved_aside_does_not_stop_bcd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    write(tmp_path / FILE, b"{")
    monkeypatch.setattr(os, "replace", refuse)
    assert recover(tmp_path, "boot-1") == Ledger("boot-1")
    assert "it cannot be moved aside: Read-only file system" in caplog.text


def test_what_a_kill_left_half_written_is_cleared_away(tmp_path: Path) -> None:
    save(tmp_path, ledger())
    write(tmp_path / f".{FILE}.x7f3a", b"{")
    assert recover(tmp_path, "boot-1") == ledger()
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save(tmp_path, ledger(1))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, ledger(2))
    assert load(tmp_path, "boot-1").faults == ledger(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE]


def test_a_full_ledger_stays_below_a_mebibyte(tmp_path: Path) -> None:
    found = Ledger("boot-1")
    for code in range(400):
        found = found.read(code).add(Seen("Xid", code, BUS, "é" * 3000, code, 1.0), HERE)
    save(tmp_path, found)
    assert (tmp_path / FILE).stat().st_size < 1 << 20
    assert load(tmp_path, "boot-1").faults == found
