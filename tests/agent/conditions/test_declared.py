"""conditions.d: what is taken, what is refused, and what becomes unknown."""

import contextlib
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.conditions.declared import MAX_BYTES, MAX_FILES, MOST, Directory, parse
from agent.conditions.table import Verdict

STUCK = {"type": "KubernetesReleaseStuck", "status": "true", "reason": "PodsRemain", "message": "2 pods", "deviceId": "GPU-1"}
TOLD = ("KubernetesReleaseStuck", Verdict("true", "PodsRemain", "2 pods", "GPU-1"))
DRIFT = {"type": "KubernetesTaintsDrift", "status": "false"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Directory(tmp_path / "conditions.d").make()
    return tmp_path / "conditions.d"


def declare(folder: Path, *entries: Any, name: str = "kubernetes.json", age: float = 0.0, **more: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({"conditions": list(entries), **more}))
    os.utime(path, (time.time() - age,) * 2)
    return path


def read(folder: Path) -> list[tuple[str, Verdict]]:
    return list(Directory(folder).read(time.time()))


def test_the_directory_is_the_groups(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        Directory(tmp_path / "conditions.d").make()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "conditions.d").stat().st_mode) == 0o770


def test_what_is_declared_is_a_condition(folder: Path) -> None:
    declare(folder, STUCK, DRIFT)
    assert read(folder) == [TOLD, ("KubernetesTaintsDrift", Verdict("false"))]


def test_a_directory_without_files_or_none_declares_nothing(tmp_path: Path, folder: Path) -> None:
    assert read(folder) == []
    assert read(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("age", "more", "stale"),  # a negative age: the clock was set back
    [
        (590, {}, False),
        (610, {}, True),
        (50, {"validFor": 60}, False),
        (70, {"validFor": 60}, True),
        (-300, {}, False),
        (-700, {}, True),
    ],
)
def test_a_file_that_is_not_written_again_is_unknown(folder: Path, age: float, more: dict[str, Any], stale: bool) -> None:
    declare(folder, STUCK, age=age, **more)
    [(kind, verdict)] = read(folder)
    assert (kind, verdict.device_id) == ("KubernetesReleaseStuck", "GPU-1")
    assert (verdict.status, verdict.reason) == (("unknown", "Stale") if stale else ("true", "PodsRemain"))


def test_a_file_that_went_bad_leaves_what_it_said_unknown(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = declare(folder, STUCK)
    directory = Directory(folder)
    assert list(directory.read(time.time())) == [TOLD]
    path.write_text('{"conditions": [')
    for _ in range(3):
        [(kind, verdict)] = directory.read(time.time())
        assert (kind, verdict.status, verdict.reason) == ("KubernetesReleaseStuck", "unknown", "Unreadable")
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    declare(folder, STUCK)
    assert list(directory.read(time.time())) == [TOLD]


def test_a_file_that_is_gone_declares_nothing(folder: Path) -> None:
    path = declare(folder, STUCK)
    directory = Directory(folder)
    directory.read(time.time())
    path.unlink()
    assert directory.read(time.time()) == ()


def test_links_pipes_and_directories_are_refused(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"conditions": [STUCK]}))
    (folder / "link.json").symlink_to(secret)
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    open_before = len(os.listdir("/proc/self/fd"))
    directory = Directory(folder)
    for _ in range(5):
        assert directory.read(time.time()) == ()
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert len(caplog.records) == 3, "each is complained of once"


def test_more_conditions_than_may_be_leave_room_for_others(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in "abc":
        declare(folder, *({**DRIFT, "deviceId": f"GPU-{name}-{n}"} for n in range(40)), name=f"{name}.json")
    declare(folder, STUCK, name="z.json")
    directory = Directory(folder)
    for _ in range(3):
        told = directory.read(time.time())
    assert len(told) == MOST
    assert TOLD in told
    assert [record.message for record in caplog.records] == [f"{folder} declares 121 conditions: 64 are told, true ones first"]


def test_large_files_are_refused(folder: Path) -> None:
    path = declare(folder, STUCK)
    text = path.read_text()
    path.write_text(text + " " * (MAX_BYTES - len(text)))
    assert read(folder) == [TOLD]
    path.write_text(text + " " * (MAX_BYTES - len(text) + 1))
    assert read(folder) == []


def test_only_the_first_files_count(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MAX_FILES):
        declare(folder, name=f"{number:03}.json")
    declare(folder, STUCK, name="zzz.json")
    assert read(folder) == []
    assert "257 files" in caplog.text
    (folder / "000.json").unlink()
    assert read(folder) == [TOLD]


def test_other_files_are_not_looked_at(folder: Path) -> None:
    for name in ("kubernetes.json.tmp", ".kubernetes.json", "README"):
        declare(folder, STUCK, name=name)
    assert read(folder) == []


def test_of_two_files_the_worse_stands(folder: Path) -> None:
    declare(folder, {**STUCK, "status": "false"}, name="a.json")
    declare(folder, {**STUCK, "status": "unknown"}, name="b.json")
    assert [verdict.status for _, verdict in read(folder)] == ["unknown"]
    declare(folder, STUCK, name="c.json")
    assert read(folder) == [TOLD]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", "not an object"),
        ('{"conditions": {}}', "not an object with a list"),
        ('{"conditions": [{"type": "FabricManagerDown", "status": "true"}]}', "type is none of KubernetesReleaseStuck"),
        ('{"conditions": [7]}', "type is none of"),
        ('{"conditions": [{"type": "KubernetesReleased", "status": true}]}', "status of KubernetesReleased is True"),
        ('{"conditions": [{"type": "KubernetesReleased", "status": "true", "message": "a\\nb"}]}', "texts of one line"),
        ('{"conditions": [{"type": "KubernetesReleased", "status": "true", "reason": 5}]}', "texts of one line"),
        ('{"conditions": [], "validFor": 0}', "validFor is 0"),
        ('{"conditions": [], "validFor": "10m"}', "validFor is '10m'"),
        ('{"conditions": [], "validFor": 1e9}', "at most a day"),
        ('{"conditions": [], "validFor": NaN}', "validFor is nan"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        parse(text.encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse(data)
