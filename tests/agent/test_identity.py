"""The node's identity is made once and never over a damaged file."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from agent import identity
from agent.errors import UserError
from agent.identity import Access, Certificate, Identity, NotJoined


def test_is_made_once_private_and_kept(tmp_path: Path) -> None:
    first = identity.load_or_create(tmp_path)
    assert first.node_id.startswith("node_")
    assert (len(first.node_id), first.joined) == (31, None)
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
        b'{"format": 3, "nodeId": "node_01hz7pj0w80000000000000000"}',
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


# -- joined

NODE = "node_01hz7pj0w80000000000000000"


def pem(kind: str) -> str:
    return f"-----BEGIN {kind}-----\nMA==\n-----END {kind}-----\n"


def joined(**changed: Any) -> Identity:
    known: dict[str, Any] = {"server": "gw-1:7443,gw-2:7443", "certificate": pem("CERTIFICATE"), "key": pem("PRIVATE KEY")}
    life: dict[str, Any] = {"server_ca": pem("CERTIFICATE") * 2, "not_before": 1000.0, "not_after": 4000.0}
    return Identity(NODE, Certificate(**(known | life | changed)))


def test_what_joining_gave_is_one_private_file_that_comes_back_the_same(tmp_path: Path) -> None:
    identity.write(tmp_path, joined())
    assert identity.read(tmp_path) == joined()
    assert stat.S_IMODE((tmp_path / "identity.json").stat().st_mode) == 0o600
    assert identity.access(tmp_path, (), insecure=False) == Access(NODE, ("gw-1:7443", "gw-2:7443"), joined().joined)
    assert identity.access(tmp_path, ("lb:1",), insecure=False).servers == ("lb:1",)
    assert identity.access(tmp_path, ("unix:/g",), insecure=True) == Access(NODE, ("unix:/g",), None)


def test_no_repr_shows_a_key() -> None:
    assert "PRIVATE" not in repr(joined()) + repr(joined().joined) + repr(Access(NODE, (), joined().joined))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"key": None}, "key missing or no text"),
        ({"server": "", "serverCa": 7}, "server, serverCa missing or no text"),
        ({"key": "secret"}, "key is no PEM text of a PRIVATE KEY"),
        ({"certificate": pem("CERTIFICATE")[:30]}, "certificate is no PEM text of a CERTIFICATE"),
        ({"notAfter": "soon"}, "Invalid isoformat string"),
        ({"notAfter": "1970-01-01T00:00:00Z"}, "notAfter is not after notBefore"),
    ],
)
def test_a_damaged_certificate_says_what_is_damaged(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    identity.write(tmp_path, joined())
    path = tmp_path / "identity.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(UserError, match=rf"identity\.json is damaged: {said}") as raised:
        identity.read(tmp_path)
    assert "secret" not in str(raised.value)


def test_a_node_that_has_not_joined_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotJoined, match=r"^not joined\n  bcd join --token-file FILE"):
        identity.access(tmp_path, (), insecure=False)
    identity.load_or_create(tmp_path)
    with pytest.raises(NotJoined, match="was made with --insecure and has no certificate"):
        identity.access(tmp_path, (), insecure=False)


def test_a_certificate_is_renewed_at_two_thirds_and_says_what_is_wrong_with_it() -> None:
    ours = joined().joined
    assert ours is not None
    assert (ours.renew_at, ours.remaining(1000.0), ours.remaining(4000.0)) == (3000.0, 1.0, 0.0)
    assert ours.trouble(3999.0) == ""
    assert ours.trouble(4000.0).startswith("the certificate expired on 1970-01-01T01:06:40Z: join again")
    assert "not valid yet" in ours.trouble(999.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for another user")
def test_root_writes_for_the_directory_s_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 23456)
    identity.write(tmp_path, joined())
    there = (tmp_path / "identity.json").stat()
    assert (there.st_uid, there.st_gid, stat.S_IMODE(there.st_mode)) == (12345, 23456, 0o600)


def test_one_join_at_a_time(tmp_path: Path) -> None:
    under_way = pytest.raises(UserError, match="another `bcd join` or renewal is under way")
    with identity.only_writer(tmp_path), under_way, identity.only_writer(tmp_path):
        pass
    with identity.only_writer(tmp_path):
        pass
