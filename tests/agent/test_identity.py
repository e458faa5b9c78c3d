"""The node's identity is made once and never over a damaged file."""

import json
import stat
from pathlib import Path

import pytest

from agent import identity
from agent.errors import UserError


def test_is_made_once_private_and_kept(tmp_path: Path) -> None:
    first = identity.load_or_create(tmp_path)
    assert first.startswith("node_")
    assert len(first) == 31
    assert identity.load_or_create(tmp_path) == first
    assert stat.S_IMODE((tmp_path / "identity.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["identity.json"]


def test_ids_are_sorted_by_time_and_differ_by_entropy() -> None:
    assert identity.new_node_id(1, b"\xff" * 10) < identity.new_node_id(2, bytes(10))
    assert identity.new_node_id(1, bytes(10)) != identity.new_node_id(1, bytes(9) + b"\x01")
    assert identity.new_node_id((1 << 48) - 1, b"\xff" * 10) == "node_7" + "z" * 25


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 2, "nodeId": "node_01hz7pj0w80000000000000000"}',
        b'{"format": 1}',
        b'{"format": 1, "nodeId": 7}',
        b'{"format": 1, "nodeId": "node_SHORT"}',
        b'{"format": 1, "nodeId": "node_01hz7pj0w8000000000000000u"}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_an_error_and_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"identity\.json is damaged.*\n  restore the file"):
        identity.load_or_create(tmp_path)
    assert path.read_bytes() == content


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write the node's identity"):
        identity.load_or_create(tmp_path / "absent")


def test_the_wire_has_it_as_metadata() -> None:
    assert identity.metadata("node_x") == (("bc-node-id", "node_x"),)


def test_the_epoch_is_kept_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    assert identity.read_epoch(tmp_path) is None
    identity.write_epoch(tmp_path, 41)
    assert identity.read_epoch(tmp_path) == 41
    for content in ("", "{}", "[]", '{"epoch": "7"}', '{"epoch": -1}', '{"epoch": true}'):
        (tmp_path / "session.json").write_text(content)
        assert identity.read_epoch(tmp_path) is None
    identity.write_epoch(tmp_path, 42)
    assert json.loads((tmp_path / "session.json").read_text())["epoch"] == 42


def test_an_epoch_that_cannot_be_kept_does_not_stop_the_session(tmp_path: Path) -> None:
    identity.write_epoch(tmp_path / "absent", 1)
