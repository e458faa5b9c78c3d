"""`data_dir/faults.json`: the fault ledger and how far the kernel log was read, in one file and one write (SPEC A4).

    {"version": 1, "bootId": "...", "cursor": 1227, "fromStart": true, "lost": 0, "overflow": 0, "named": {},
     "faults": [{"kind": "Xid", "code": 79, "busId": "00000000:18:00.0", "deviceId": "GPU-...", "count": 1, ...}]}

A crash before a write re-reads the records behind the old cursor, and so counts none twice. A file of another boot is dropped;
one that does not read (damaged, half-written, of another version, no permission) is moved aside, and bcd goes on without it.
"""

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.faults import Fault, Ledger
from agent.host import write_atomic

VERSION = 1
FILE = "faults.json"
ASIDE = "faults.json.damaged"
_LIMIT = 4 << 20  # bytes: six times what a full ledger takes
_MOST = 1 << 64  # no number in it is as large

_log = logging.getLogger("bcd.faults")


@dataclass(frozen=True, slots=True)
class Stored:
    """What the file tells of this boot. `faults` is empty when there is no file, or one of another boot (`dropped`: its faults).

    `damaged`: what is wrong with the file, or with one that was moved aside, in one sentence. `refused`: why the file, though
    there, may not be read by this user. `stands`: the file reads, or is not there.
    """

    faults: Ledger
    damaged: str | None = None
    refused: str | None = None
    dropped: int = 0
    stands: bool = True

    @property
    def cursor(self) -> int | None:
        """The last record's sequence number; None: nothing was read yet."""
        return self.faults.cursor

    @property
    def complete(self) -> bool:
        """Nothing of this boot's kernel log was missed."""
        return self.faults.complete


def load(data_dir: Path, boot_id: str) -> Stored:
    """Reads the file and changes nothing: for whoever looks while the daemon runs, or does not. Never raises."""
    path = data_dir / FILE
    try:
        ledger = parse(_read(path))
    except FileNotFoundError:
        return Stored(Ledger(boot_id), damaged=_aside(data_dir))
    except PermissionError as error:
        return Stored(Ledger(boot_id), refused=f"cannot read {path}: {error.strerror}", stands=False)
    except (OSError, ValueError) as error:
        return Stored(Ledger(boot_id), damaged=f"{path} is damaged: {_words(error)}", stands=False)
    if ledger.boot_id != boot_id:
        return Stored(Ledger(boot_id), damaged=_aside(data_dir), dropped=len(ledger.faults))
    return Stored(ledger, damaged=_aside(data_dir))


def recover(data_dir: Path, boot_id: str) -> Ledger:
    """The daemon's start: the ledger of this boot. What does not read is moved aside and logged; never raises."""
    with contextlib.suppress(OSError):
        for half in data_dir.glob(f".{FILE}.*"):  # of writes that a kill cut short
            half.unlink()
    stored = load(data_dir, boot_id)
    path = data_dir / FILE
    if stored.dropped:
        _log.info("%d faults of an earlier boot are dropped", stored.dropped)
    if not stored.stands:
        wrong = stored.refused or stored.damaged
        try:
            os.replace(path, data_dir / ASIDE)
        except OSError as error:
            _log.error("%s; it cannot be moved aside: %s", wrong, error.strerror)
        else:
            _log.error("%s; moved aside to %s, the kernel log is read from its oldest record", wrong, ASIDE)
    return stored.faults


def save(data_dir: Path, ledger: Ledger) -> None:
    """Replaces the file in one step, on disk before it returns. Raises OSError; the old one then stands."""
    write_atomic(data_dir / FILE, render(ledger))


def render(ledger: Ledger) -> bytes:
    """The ledger as the file has it."""
    value = {
        "version": VERSION,
        "bootId": ledger.boot_id,
        "cursor": ledger.cursor,
        "fromStart": ledger.from_start,
        "lost": ledger.lost,
        "overflow": ledger.overflow,
        "named": dict(sorted(ledger.named.items())),
        "faults": [_entry(fault) for _, fault in sorted(ledger.faults.items())],
    }
    return json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n"


def parse(data: bytes) -> Ledger:
    """A file's bytes as a ledger. Raises ValueError that names the key."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it holds no object")
    version = _get(value, "version", int)
    if version != VERSION:
        raise ValueError(f"it has version {version}, this bcd knows {VERSION}")
    faults = [_fault(entry) for entry in _get(value, "faults", list)]
    named = _get(value, "named", dict)
    if not all(isinstance(uuid, str) for uuid in named.values()):
        raise ValueError("named holds what is no UUID")
    return Ledger(
        boot_id=_get(value, "bootId", str),
        cursor=None if value.get("cursor") is None else _get(value, "cursor", int),
        from_start=_get(value, "fromStart", bool),
        lost=_get(value, "lost", int),
        overflow=_get(value, "overflow", int),
        faults={fault.key: fault for fault in faults},
        named=named,
    )


def _entry(fault: Fault) -> Mapping[str, Any]:
    entry = {
        "kind": fault.kind,
        "code": fault.code,
        "busId": fault.bus_id,
        "deviceId": fault.device_id,
        "message": fault.message,
        "count": fault.count,
        "firstSeq": fault.first_seq,
        "lastSeq": fault.last_seq,
        "firstAt": fault.first_at,
        "lastAt": fault.last_at,
        "remembered": fault.remembered,
    }
    return entry | {key: mig for key, mig in (("gi", fault.gi), ("ci", fault.ci)) if mig is not None}


def _fault(entry: object) -> Fault:
    if not isinstance(entry, dict):
        raise ValueError("faults holds what is no object")
    kind = _get(entry, "kind", str)
    if kind not in ("Xid", "SXid"):
        raise ValueError(f"kind is {kind!r}")
    return Fault(
        kind=kind,
        code=_get(entry, "code", int),
        bus_id=_get(entry, "busId", str),
        message=_get(entry, "message", str),
        count=_get(entry, "count", int),
        first_seq=_get(entry, "firstSeq", int),
        last_seq=_get(entry, "lastSeq", int),
        first_at=float(_get(entry, "firstAt", int, float)),
        last_at=float(_get(entry, "lastAt", int, float)),
        device_id=_get(entry, "deviceId", str),
        gi=_get(entry, "gi", int) if "gi" in entry else None,
        ci=_get(entry, "ci", int) if "ci" in entry else None,
        remembered=_get(entry, "remembered", bool),
    )


def _get(entry: Mapping[str, Any], key: str, *types: type) -> Any:
    value: Any = entry.get(key)
    wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
    if wrong or (int in types and not 0 <= value < _MOST):
        raise ValueError(f"{key} is {value!r:.100}")
    return value


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_LIMIT + 1)
    if len(data) > _LIMIT:
        raise ValueError(f"it has more than {_LIMIT} bytes")
    return data


def _aside(data_dir: Path) -> str | None:
    """What was wrong with a file that was moved aside; None when there is none."""
    path = data_dir / ASIDE
    try:
        parse(_read(path))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError) as error:
        return f"a damaged {FILE} was moved aside to {path}: {_words(error)}"
    return f"a {FILE} that could not be read was moved aside to {path}"


def _words(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
