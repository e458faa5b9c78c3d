"""Holds by rule (B11): what holds, what is stale, and that whatever cannot be read holds every GPU."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent import holds
from agent.holds import BadHold, Hold

NOW = 1_780_000_000.0
GOOD = {"id": "alloc-7", "owner": "metal", "kind": "allocation", "devices": ["GPU-1"]}


def put(directory: Path, name: str, **changes: Any) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps(GOOD | changes))


def reasons(found: holds.Holds) -> str:
    return " ".join(why for _, why in found.unreadable)


def test_no_directory_is_no_hold(tmp_path: Path) -> None:
    assert holds.read(tmp_path / "holds", "boot-1", NOW) == holds.Holds()


def test_a_hold_holds_its_devices_in_its_boot_until_its_end(tmp_path: Path) -> None:
    put(tmp_path / "holds", "a.json", bootId="boot-1", expiresAt="2026-12-01T12:00:00Z")
    found = holds.read(tmp_path / "holds", "boot-1", NOW)
    assert found.held == (Hold("alloc-7", "metal", "allocation", ("GPU-1",), "boot-1", 1796126400.0),)
    assert (found.stale, found.unreadable) == ((), ())


@pytest.mark.parametrize(
    ("changes", "why"), [({"bootId": "boot-0"}, "of another boot"), ({"expiresAt": "2026-01-01T00:00:00+01:00"}, "expired")]
)
def test_a_hold_of_another_boot_or_past_its_end_is_stale_and_does_not_hold(
    tmp_path: Path, changes: dict[str, str], why: str
) -> None:
    put(tmp_path / "holds", "a.json", **changes)
    found = holds.read(tmp_path / "holds", "boot-1", NOW)
    assert (found.held, found.unreadable) == ((), ())
    assert [reason for _, reason in found.stale] == [why]
    assert found.describe()[0]["state"] == "stale"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "not JSON"),
        (b'{"id": ', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (json.dumps(GOOD | {"devices": "GPU-1"}).encode(), "devices is 'GPU-1'"),
        (json.dumps(GOOD | {"devices": [1]}).encode(), "devices is"),
        (json.dumps(GOOD | {"id": 7}).encode(), "id is 7"),
        (json.dumps(GOOD | {"owner": ""}).encode(), "owner is ''"),
        (json.dumps(GOOD | {"expiresAt": "tomorrow"}).encode(), "expiresAt is 'tomorrow'"),
        (json.dumps(GOOD | {"expiresAt": "2026-12-01T12:00:00"}).encode(), "without a time zone"),
        (json.dumps(GOOD | {"bootId": 3}).encode(), "bootId is 3"),
    ],
)
def test_what_is_no_hold_says_what_is_wrong(data: bytes, what: str) -> None:
    with pytest.raises(BadHold, match=what.replace("[", r"\[")):
        holds.parse(data)


def test_a_hold_that_cannot_be_read_is_named_and_counts_beside_the_good_ones(tmp_path: Path) -> None:
    directory = tmp_path / "holds"
    put(directory, "good.json")
    (directory / "broken.json").write_text("{")
    (directory / "large.json").write_bytes(b" " * (holds.MAX_BYTES + 1))
    (directory / "folder.json").mkdir()
    os.mkfifo(directory / "pipe.json")
    (directory / "link.json").symlink_to(directory / "good.json")
    open_before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        found = holds.read(directory, "boot-1", NOW)
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert [hold.id for hold in found.held] == ["alloc-7"]
    assert [name for name, _ in found.unreadable] == ["broken.json", "folder.json", "large.json", "link.json", "pipe.json"]
    assert "a link" in reasons(found)
    assert f"larger than {holds.MAX_BYTES} bytes" in reasons(found)
    assert "not a regular file" in reasons(found)


def test_a_file_in_the_making_is_not_looked_at(tmp_path: Path) -> None:
    directory = tmp_path / "holds"
    put(directory, ".alloc-8.json.tmp")
    put(directory, ".alloc-8.json")
    put(directory, "alloc-8")
    assert holds.read(directory, "boot-1", NOW) == holds.Holds()


def test_more_files_than_may_be_is_unreadable_as_a_whole(tmp_path: Path) -> None:
    for number in range(holds.MAX_FILES + 1):
        put(tmp_path / "holds", f"{number:04}.json")
    found = holds.read(tmp_path / "holds", "boot-1", NOW)
    assert len(found.held) == holds.MAX_FILES
    assert "257 files, at most 256 are read" in reasons(found)


def test_a_directory_that_is_none_holds_everything(tmp_path: Path) -> None:
    (tmp_path / "holds").write_text("")
    found = holds.read(tmp_path / "holds", "boot-1", NOW)
    assert reasons(found) == "Not a directory"
    assert found.describe() == [
        {"id": str(tmp_path / "holds"), "state": "unreadable", "reason": "Not a directory", "devices": ["*"]}
    ]


def test_the_directory_is_for_its_group_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        holds.make(tmp_path / "holds")
        holds.make(tmp_path / "holds")
    finally:
        os.umask(before)
    assert (tmp_path / "holds").stat().st_mode & 0o7777 == 0o770
