"""Holds: a provisioner's files in `data_dir/holds/` that say which GPUs are in use (SPEC B11).

    {"id": "alloc-7", "owner": "metal", "kind": "allocation", "devices": ["GPU-6e1f...", "MIG-0c22..."],
     "bootId": "f3b6...", "expiresAt": "2026-03-01T12:00:00Z"}

`kind` is `allocation`, `vm` or `kubernetes`; `devices` are GPU or MIG UUIDs, `*` is every GPU. A hold of another boot or past
its end is stale and does not hold. What cannot be read holds every GPU: others write these files, and bcd cannot rule it out.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.errors import FieldError

MAX_FILES = 256
MAX_BYTES = 64 << 10
EVERY = "*"


class BadHold(FieldError):
    """A file that is no hold; says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold. `boot_id` and `expires_at` (Unix seconds) None: in every boot, without an end."""

    id: str
    owner: str
    kind: str
    devices: tuple[str, ...]
    boot_id: str | None = None
    expires_at: float | None = None

    def stale(self, boot_id: str, now: float) -> str:
        """Why it does not hold (any more); empty when it holds."""
        if self.boot_id is not None and self.boot_id != boot_id:
            return "of another boot"
        return "expired" if self.expires_at is not None and self.expires_at <= now else ""


@dataclass(frozen=True, slots=True)
class Holds:
    """What the directory says: holds, stale ones with the reason, and (file, reason) of what cannot be read."""

    held: tuple[Hold, ...] = ()
    stale: tuple[tuple[Hold, str], ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()

    def describe(self) -> list[dict[str, Any]]:
        """For `bcd status`, lowerCamelCase; `state` is `held`, `stale` or `unreadable`."""
        rows = [_row(hold, "held") for hold in self.held]
        rows += [_row(hold, "stale") | {"reason": why} for hold, why in self.stale]
        rows += [{"id": name, "state": "unreadable", "reason": why, "devices": [EVERY]} for name, why in self.unreadable]
        return rows


def _row(hold: Hold, state: str) -> dict[str, Any]:
    return {"id": hold.id, "owner": hold.owner, "kind": hold.kind, "devices": list(hold.devices), "state": state}


def parse(data: bytes) -> Hold:
    """A file's bytes as a hold. Raises BadHold. Keys that are not known here are a newer provisioner's."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadHold(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadHold("not a JSON object")
    devices = value.get("devices")
    if not isinstance(devices, list) or not all(isinstance(device, str) and device for device in devices):
        raise BadHold(f"devices is {devices!r}; expected a list of GPU or MIG UUIDs, or *")
    expires = _text(value, "expiresAt", optional=True)
    return Hold(
        id=_text(value, "id") or "",
        owner=_text(value, "owner") or "",
        kind=_text(value, "kind") or "",
        devices=tuple(devices),
        boot_id=_text(value, "bootId", optional=True),
        expires_at=None if expires is None else _moment(expires),
    )


def _text(value: dict[str, Any], key: str, optional: bool = False) -> str | None:
    found = value.get(key)
    if found is None and optional:
        return None
    if not isinstance(found, str) or not found:
        raise BadHold(f"{key} is {found!r}; expected a text")
    return found


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadHold(f"expiresAt is {text!r}; expected a time such as 2026-03-01T12:00:00Z") from error
    if moment.tzinfo is None:
        raise BadHold(f"expiresAt is {text!r}: without a time zone")
    return moment.timestamp()


def read(directory: Path, boot_id: str, now: float) -> Holds:
    """The holds in a directory; none when it is absent. Never raises: what fails is in `unreadable`. `now`: Unix seconds.

    Names that begin with a dot or do not end in `.json` are files in the making. Links are not followed.
    """
    held, stale, unreadable = [], [], []
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".json") and not name.startswith("."))
    except FileNotFoundError:
        return Holds()
    except OSError as error:
        return Holds(unreadable=((str(directory), error.strerror or str(error)),))
    if len(names) > MAX_FILES:
        unreadable.append((str(directory), f"{len(names)} files, at most {MAX_FILES} are read"))
    for name, outcome in _each(directory, names[:MAX_FILES]):
        if isinstance(outcome, str):
            unreadable.append((name, outcome))
        elif why := outcome.stale(boot_id, now):
            stale.append((outcome, why))
        else:
            held.append(outcome)
    return Holds(tuple(held), tuple(stale), tuple(unreadable))


def make(directory: Path) -> None:
    """Makes a directory that others write into, with mode 0770 whatever the umask is. Raises OSError."""
    directory.mkdir(mode=0o770, exist_ok=True)
    if stat.S_IMODE(directory.lstat().st_mode) != 0o770:
        directory.chmod(0o770)


def _each(directory: Path, names: list[str]) -> Iterator[tuple[str, Hold | str]]:
    for name in names:
        try:
            yield name, parse(_regular(directory / name))
        except FileNotFoundError:
            continue  # released since it was listed
        except BadHold as error:
            yield name, str(error)
        except OSError as error:
            yield name, "a link" if error.errno == errno.ELOOP else error.strerror or str(error)


def _regular(path: Path) -> bytes:
    """The bytes of a regular file of at most MAX_BYTES. Raises OSError, BadHold."""
    with open(path, "rb", buffering=0, opener=_open) as file:  # the opener's descriptor is closed even when it is a directory's
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadHold("not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadHold(f"larger than {MAX_BYTES} bytes")
    return data


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
