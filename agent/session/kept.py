"""What a session leaves for the next one (SPEC B1, "Alternation"): `data_dir/session.json`.

    {"format": 2, "nodeId": "node_...", "epoch": 41, "instance": "<32 hexadecimal digits>", "open": true}

By (boot, instance) and epoch a receiver tells one bcd that comes back from two machines with one identity. So that an honest bcd
is never taken for two, however it is killed: before each Hello `open` is kept, and the epoch once it is known. A run that finds
`open` may have had a session whose epoch it does not know, so it goes on under that run's instance id. A bcd that was superseded
takes a new instance id, since who superseded it may be a copy of its memory, and says what it was until then. A run whose disk
takes nothing goes on under the instance id that the disk has, as each such run after it.
"""

import json
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

from agent.host import write_atomic

_log = logging.getLogger("bcd.session")


@dataclass(frozen=True, slots=True)
class Kept:
    """One session's trace. `epoch`: of the last session of this node that was welcomed; `open`: Hello is out, no Welcome seen."""

    node_id: str = ""
    epoch: int | None = None
    instance: str = ""
    open: bool = False


class Trace:
    """This run's part in the file. `previous`: the instance id of the run before, while its session may be the current one."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "session.json"
        before = _read(self._path)
        self.previous = before.instance
        self._on_disk = before.instance
        self.now = before if before.open and before.instance else replace(before, instance=_new())

    def opening(self, node_id: str) -> None:
        """Hello is about to go out. Another node's epoch says nothing."""
        kept = self._keep(replace(self.now, node_id=node_id, epoch=self.now.epoch if self._is_of(node_id) else None, open=True))
        if not kept and self._on_disk:
            self.now = replace(self.now, instance=self._on_disk)

    def welcomed(self, epoch: int) -> None:
        """The session is the current one, with this epoch."""
        self.previous = ""
        self._keep(replace(self.now, epoch=epoch, open=False))

    def superseded(self) -> None:
        """Another bcd has this node's session; or it was the last word of a run of this one that was killed, come late. So the
        instance until now is told once more: it costs who looks for a copy one turn, and an honest bcd nothing."""
        self.previous, self._on_disk = self.now.instance, ""
        self._keep(replace(self.now, instance=_new(), open=False))

    def _is_of(self, node_id: str) -> bool:
        return self.now.node_id in ("", node_id)  # empty: of an earlier version

    def _keep(self, new: Kept) -> bool:
        """Whether it is kept. A full disk is logged: the session goes on."""
        if new == self.now and self._path.exists():
            return True
        self.now = new
        value = {"format": 2, "nodeId": new.node_id, "epoch": new.epoch, "instance": new.instance, "open": new.open}
        try:
            write_atomic(self._path, json.dumps(value).encode() + b"\n")
        except OSError as error:
            _log.warning("cannot keep the session's epoch in %s: %s", self._path, error)
            return False
        self._on_disk = new.instance
        return True


def _new() -> str:
    return os.urandom(16).hex()


def _read(path: Path) -> Kept:
    """A damaged file is logged and says nothing."""
    try:
        value = json.loads(path.read_bytes())
        epoch, instance, node_id = (value.get(name) for name in ("epoch", "instance", "nodeId"))
        if epoch is not None and (type(epoch) is not int or epoch < 0):
            raise ValueError("the epoch is no number")
        if not isinstance(instance or "", str) or not isinstance(node_id or "", str):
            raise ValueError("the instance id or the node id is no text")
        return Kept(node_id or "", epoch, instance or "", value.get("open") is True)
    except FileNotFoundError:
        return Kept()
    except (OSError, ValueError, AttributeError) as error:
        _log.warning("the last session's epoch in %s is lost: %s", path, error)
        return Kept()
