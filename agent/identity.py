"""Who this node is: `data_dir/identity.json` (mode 0600), all of its identity in one file that is replaced in one step.

    {"format": 2, "nodeId": "node_...", "server": "gw.example:7443", "certificate": "<PEM>", "key": "<PEM>",
     "serverCa": "<PEM>", "notBefore": "2026-03-01T11:00:00Z", "notAfter": "2026-03-31T12:00:00Z"}   joined
    {"format": 1, "nodeId": "node_..."}                                                              made with --insecure

`bcd join` and `bcd renew` write it; the daemon reads it at each attempt to connect. With --insecure a node makes its id itself,
and says it as gRPC metadata. No file is ever made anew over one that is there: a damaged one is a person's to repair, since a new
identity is another node to the receiver.
"""

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bettercompute.contract.ids import is_id, ulid

from agent.errors import UserError
from agent.host import write_atomic

METADATA_KEY = "bc-node-id"
RENEW_AT = 2 / 3  # of a certificate's life

_log = logging.getLogger("bcd.identity")


class NotJoined(UserError):
    """This node has no certificate. The text says what to do."""

    def __init__(self, why: str = "not joined") -> None:
        super().__init__(why, "bcd join --token-file FILE (a token: better-compute api joinTokens.create)")


@dataclass(frozen=True, slots=True, repr=False)
class Certificate:
    """What joining gave: PEM texts, where sessions are ("host:port", several with commas), the life in Unix seconds."""

    server: str
    certificate: str
    key: str
    server_ca: str
    not_before: float
    not_after: float

    def remaining(self, now: float) -> float:
        """What is left of its life, as a share; 0 and less: expired."""
        return (self.not_after - now) / (self.not_after - self.not_before)

    def trouble(self, now: float) -> str:
        """What is wrong with it by this machine's clock; empty: nothing."""
        if now >= self.not_after:
            return f"the certificate expired on {moment(self.not_after)}: join again with a token that is bound to this node"
        if now < self.not_before:
            return f"by this machine's clock, {moment(now)}, the certificate is not valid yet: see that NTP runs"
        return ""

    @property
    def renew_at(self) -> float:
        """When it should be renewed, in Unix seconds."""
        return self.not_before + RENEW_AT * (self.not_after - self.not_before)


@dataclass(frozen=True, slots=True)
class Identity:
    """This node. `joined` is None for an id that was made with --insecure. Its repr has no key."""

    node_id: str
    joined: Certificate | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """How to a receiver as this node: its addresses, and the certificate; None with --insecure."""

    node_id: str
    servers: tuple[str, ...]
    joined: Certificate | None


def access(data_dir: Path, servers: tuple[str, ...], insecure: bool) -> Access:
    """As the file and the settings have it now. Raises NotJoined, or UserError as `read` does."""
    if insecure:
        return Access(load_or_create(data_dir).node_id, servers, None)
    node_id, joined = read_joined(data_dir)
    return Access(node_id, servers or tuple(joined.server.split(",")), joined)


def new_node_id(milliseconds: int, entropy: bytes) -> str:
    """`node_` and a lower-case ULID: 48 bits of Unix time, 80 of entropy (10 bytes).

    >>> new_node_id(1717171717000, bytes(10))
    'node_01hz7pj0w80000000000000000'
    """
    return f"node_{ulid(milliseconds, entropy)}"


def path_of(data_dir: Path) -> Path:
    """Where it is kept."""
    return data_dir / "identity.json"


def load_or_create(data_dir: Path) -> Identity:
    """For --insecure: this node, its id made on the first start. Raises UserError when the file is damaged or cannot be used."""
    found = read(data_dir)
    if found is None:
        found = Identity(new_node_id(time.time_ns() // 1_000_000, os.urandom(10)))
        write(data_dir, found)
        _log.info("new node identity %s in %s", found.node_id, path_of(data_dir))
    return found


def read(data_dir: Path) -> Identity | None:
    """This node; None when it has no identity yet. Raises UserError when the file is damaged or cannot be read."""
    path = path_of(data_dir)
    try:
        return _parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(
            f"cannot read the node's identity {path}: {error.strerror}", "run as the user that owns data_dir"
        ) from error
    except ValueError as error:
        raise UserError(
            f"the node's identity {path} is damaged: {error}",
            "restore the file, or join again: with a token that is bound to this node it stays the same node",
        ) from error


def read_joined(data_dir: Path) -> tuple[str, Certificate]:
    """Node id and certificate of a node that has joined. Raises NotJoined, or UserError as `read` does."""
    found = read(data_dir)
    if found is None:
        raise NotJoined
    if found.joined is None:
        raise NotJoined(f"not joined: {path_of(data_dir)} was made with --insecure and has no certificate")
    return found.node_id, found.joined


def write(data_dir: Path, identity: Identity) -> None:
    """Keeps it in one step (0600, of data_dir's owner: root may join for a daemon of another user). Raises UserError."""
    path = path_of(data_dir)
    try:
        write_atomic(path, _text(identity).encode(), owner=owner_of(data_dir))
    except OSError as error:
        raise UserError(
            f"cannot write the node's identity {path}: {error.strerror}", "data_dir must be bcd's to write, and have room"
        ) from error


def owner_of(data_dir: Path) -> tuple[int, int] | None:
    """User and group of the directory where they are others than ours and we are root; else None."""
    there = data_dir.stat()
    return (there.st_uid, there.st_gid) if os.geteuid() == 0 and there.st_uid != 0 else None


@contextlib.contextmanager
def only_writer(data_dir: Path) -> Iterator[None]:
    """Holds the identity for one join or renewal. Raises UserError when another one is under way, or there is no directory."""
    try:
        fd = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"cannot use the data directory {data_dir}: {error.strerror}", "name another with --data-dir") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another `bcd join` or renewal is under way in {data_dir}", "try again in a minute") from error
        yield
    finally:
        os.close(fd)


def metadata(node_id: str) -> tuple[tuple[str, str], ...]:
    """What tells a gateway without TLS who calls, as gRPC metadata."""
    return ((METADATA_KEY, node_id),)


def moment(seconds: float) -> str:
    """Unix seconds as RFC 3339 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


_TEXTS = ("server", "certificate", "key", "serverCa", "notBefore", "notAfter")


def _text(identity: Identity) -> str:
    value: dict[str, object] = {"format": 1, "nodeId": identity.node_id}
    if j := identity.joined:
        texts = (j.server, j.certificate, j.key, j.server_ca, moment(j.not_before), moment(j.not_after))
        value |= {"format": 2, **dict(zip(_TEXTS, texts, strict=True))}
    return json.dumps(value, indent=1) + "\n"


def _parse(data: bytes) -> Identity:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})" if data.strip() else "the file is empty") from error
    if not isinstance(value, dict) or value.get("format") not in (1, 2):
        raise ValueError("expected an object of format 1 or 2")
    node_id = value.get("nodeId")
    if not isinstance(node_id, str) or not is_id(node_id, "node"):
        raise ValueError(f"nodeId is {node_id!r}, not node_ and a lower-case ULID")
    return Identity(node_id, _certificate(value) if value["format"] == 2 else None)


def _certificate(value: dict[str, object]) -> Certificate:
    texts = {name: text for name in _TEXTS if isinstance(text := value.get(name), str) and text}
    if lacking := [name for name in _TEXTS if name not in texts]:
        raise ValueError(f"{', '.join(lacking)} missing or no text")
    for name, kind in (("certificate", "CERTIFICATE"), ("key", "PRIVATE KEY"), ("serverCa", "CERTIFICATE")):
        if f"-----BEGIN {kind}-----" not in texts[name] or f"-----END {kind}-----" not in texts[name]:
            raise ValueError(f"{name} is no PEM text of a {kind}")
    start, end = (datetime.fromisoformat(texts[name]).timestamp() for name in ("notBefore", "notAfter"))
    if end <= start:
        raise ValueError("notAfter is not after notBefore")
    return Certificate(texts["server"], texts["certificate"], texts["key"], texts["serverCa"], start, end)
