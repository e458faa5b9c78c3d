"""Who this node is, and the epoch of its last session. The one place that makes the node's identity on the wire.

Until nodes join with certificates the identity is a random id, made once and kept in `data_dir/identity.json`. It is never made
anew over a file that is there: a damaged one is a person's to repair, since a new identity is another node to the receiver.
"""

import json
import logging
import os
import time
from pathlib import Path

from bettercompute.contract.ids import is_id, ulid

from agent.errors import UserError
from agent.host import write_atomic

METADATA_KEY = "bc-node-id"

_log = logging.getLogger("bcd.identity")


def new_node_id(milliseconds: int, entropy: bytes) -> str:
    """`node_` and a lower-case ULID: 48 bits of Unix time, 80 of entropy (10 bytes).

    >>> new_node_id(1717171717000, bytes(10))
    'node_01hz7pj0w80000000000000000'
    """
    return f"node_{ulid(milliseconds, entropy)}"


def load_or_create(data_dir: Path) -> str:
    """This node's id, made on the first start (mode 0600). Raises UserError when the file is damaged or cannot be used."""
    path = data_dir / "identity.json"
    node_id = read(data_dir)
    if node_id is None:
        node_id = new_node_id(time.time_ns() // 1_000_000, os.urandom(10))
        try:
            write_atomic(path, json.dumps({"format": 1, "nodeId": node_id}).encode() + b"\n")
        except OSError as error:
            raise UserError(
                f"cannot write the node's identity {path}: {error.strerror}", "data_dir must be bcd's to write, and have room"
            ) from error
        _log.info("new node identity %s in %s", node_id, path)
    return node_id


def read(data_dir: Path) -> str | None:
    """This node's id; None when it has none yet. Raises UserError when the file is damaged or cannot be read."""
    path = data_dir / "identity.json"
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
            "restore the file; only if this machine is to become a new node to the receiver, remove it",
        ) from error


def metadata(node_id: str) -> tuple[tuple[str, str], ...]:
    """What tells the gateway who calls, as gRPC metadata."""
    return ((METADATA_KEY, node_id),)


def read_epoch(data_dir: Path) -> int | None:
    """The epoch of the last session (B1, alternation); None before the first one. A damaged file is logged and is None."""
    path = data_dir / "session.json"
    try:
        value = json.loads(path.read_bytes())
        epoch = value["epoch"] if isinstance(value, dict) else None
        if type(epoch) is not int or epoch < 0:
            raise ValueError("no epoch in it")
        return epoch
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        _log.warning("the last session's epoch in %s is lost: %s", path, error)
        return None


def write_epoch(data_dir: Path, epoch: int) -> None:
    """Keeps the epoch for the next session. A full disk is logged: the session goes on."""
    path = data_dir / "session.json"
    try:
        write_atomic(path, json.dumps({"format": 1, "epoch": epoch}).encode() + b"\n")
    except OSError as error:
        _log.warning("cannot keep the session's epoch in %s: %s", path, error)


def _parse(data: bytes) -> str:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})" if data.strip() else "the file is empty") from error
    if not isinstance(value, dict) or value.get("format") != 1:
        raise ValueError("expected an object of format 1")
    node_id = value.get("nodeId")
    if not isinstance(node_id, str) or not is_id(node_id, "node"):
        raise ValueError(f"nodeId is {node_id!r}, not node_ and a lower-case ULID")
    return node_id
