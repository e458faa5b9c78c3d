"""Records of commands: on disk before anything else, kept, bounded, and never taken for nothing when damaged."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.commands import store
from agent.commands.store import Damaged, Full, Record, Store, is_id
from agent.session.messages import CommandResult

RECORD = Record("cmd_1", "gpu.reset", '{"deviceId": "GPU-1"}', "key", 1000.5, "boot-1", 1001.0, ("GPU-1",), {"paused": ["a"]})
DONE = replace(RECORD, result=CommandResult("cmd_1", "succeeded", "", "{}"))
WEEK = store.KEPT


def write(records: Store, number: int, age: float, now: float, acknowledged: bool = True, done: bool = True) -> Path:
    """A record whose file was last written `age` seconds ago."""
    name = f"cmd_{number:04}"
    record = replace(RECORD, id=name, result=CommandResult(name, "succeeded") if done else None, acknowledged=acknowledged)
    records.put(record)
    path = records._directory / f"{name}.json"
    os.utime(path, (now - age, now - age))
    return path


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    records = Store(tmp_path / "commands")
    assert records.get("cmd_1") is None
    for record in (RECORD, DONE, replace(DONE, acknowledged=True)):
        records.put(record)
        assert records.get("cmd_1") == record
        assert list(records.all()) == [record]
    assert (tmp_path / "commands").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "commands/cmd_1.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["../etc/passwd", "", ".hidden", "-rf", "a/b", "a" * 101, "x\n", "ü"])
def test_what_could_be_another_file_is_no_id(name: str) -> None:
    assert not is_id(name)


@pytest.mark.parametrize("name", ["cmd_01jd8z0b8m3v2k4q5r6s7t8w9x", "c1", "A.b-c_d"])
def test_ids(name: str) -> None:
    assert is_id(name)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1, "id": "cmd_1", "result": null}', b"\xff"])
def test_a_damaged_record_is_no_absent_one(tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    records = Store(tmp_path)
    (tmp_path / "cmd_1.json").write_bytes(data)
    with pytest.raises(Damaged, match=r"cmd_1 in .* is damaged"):
        records.get("cmd_1")
    records.put(replace(RECORD, id="cmd_2"))
    assert [record.id for record in records.all()] == ["cmd_2"]
    assert "cmd_1" in caplog.text


def test_a_record_that_cannot_be_written_is_said_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "commands").write_text("a file where the directory should be")
    with pytest.raises(Full, match=r"commands/cmd_1\.json"):
        Store(tmp_path / "commands").put(RECORD)


def test_only_what_is_acknowledged_and_a_week_old_goes(tmp_path: Path) -> None:
    records, now = Store(tmp_path / "commands"), 1e9
    old = write(records, 1, WEEK, now)
    kept = [
        write(records, 2, WEEK - 60, now),
        write(records, 3, 2 * WEEK, now, acknowledged=False),
        write(records, 4, 2 * WEEK, now, acknowledged=False, done=False),
    ]
    records.make_room(now)
    assert not old.exists()
    assert all(path.exists() for path in kept)


def test_beyond_the_bound_old_ones_go_unacknowledged_and_else_no_more_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_RECORDS", 3)
    records, now = Store(tmp_path / "commands"), 1e9
    paths = [write(records, number, WEEK + 60 - number, now, acknowledged=False) for number in range(4)]
    records.make_room(now)
    assert [path.exists() for path in paths] == [False, False, True, True], "the oldest, and as few as make room for one"
    for number in (5, 6, 7):
        write(records, number, 60.0, now, acknowledged=False)
    with pytest.raises(Full, match="3 commands of the last 7 days"):
        records.make_room(now)
