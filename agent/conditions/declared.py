"""Conditions that the node's Kubernetes binding declares in `data_dir/conditions.d/` (SPEC A6, A9).

Each file there whose name ends with `.json` is one component's, replaced as a whole (written beside it and renamed):

    {"conditions": [{"type": "KubernetesReleaseStuck", "status": "true", "reason": "PodsRemain",
                     "message": "2 pods hold GPU-...", "deviceId": "GPU-..."}],
     "validFor": 600}

`type` is one of TYPES, `status` is `true`, `false` or `unknown`; `reason`, `message` and `deviceId` may be left out. The file
stands for `validFor` seconds (default 600) after it was last written: who declares writes again before that, changed or not.
Afterwards (or when that time lies as far ahead: the clock was set back), and when it cannot be read or is damaged, what it last
declared is `unknown`; a file that is gone declares nothing. All files together have MOST conditions at most, so that they leave
room in the report for what bcd finds itself.

The directory is 0770, for the provisioner's group. So nothing in it is trusted: regular files only and no links, at most 64 KiB
and 256 files.
"""

import json
import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent import holds
from agent.conditions.table import FALSE, TRUE, UNKNOWN, Verdict

TYPES = ("KubernetesReleaseStuck", "KubernetesReleased", "KubernetesReleasesUnreadable", "KubernetesTaintsDrift")
VALID_FOR = 600.0  # seconds
MAX_BYTES, MAX_FILES = 64 << 10, 256
MOST = 64  # conditions of all files together
_MAX_TEXT = 1000

_log = logging.getLogger("bcd.conditions")

Declared = tuple[tuple[str, Verdict], ...]


@dataclass(frozen=True, slots=True)
class _File:
    """What a file said when it could be read last."""

    conditions: Declared = ()
    complaint: str = ""


class Directory:
    """The directory, read whenever it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: Mapping[str, _File] = {}
        self._complaint = ""

    def make(self) -> None:
        """Makes the directory where it is not there."""
        try:
            holds.make(self._path)
        except OSError as error:
            self._complain(f"cannot make {self._path}: {error.strerror}: no conditions can be declared there")

    def read(self, now: float) -> Declared:
        """What is declared, sorted; `now` is Unix seconds. What is wrong is logged once."""
        try:
            names = sorted(name for name in os.listdir(self._path) if name.endswith(".json") and not name.startswith("."))
        except FileNotFoundError:
            names = []
        except OSError as error:
            self._complain(f"cannot read {self._path}: {error.strerror}: what was declared is unknown")
            return _sorted([_unknown(v, "Unreadable", error.strerror or "") for f in self._files.values() for v in f.conditions])
        found: list[tuple[str, Verdict]] = []
        files = {}
        for name in names[:MAX_FILES]:
            files[name], of_file = self._one(name, now)
            found.extend(of_file)
        self._files = files
        declared = _sorted(found)
        many = f"{self._path} has {len(names)} files: only the first {MAX_FILES} count" if len(names) > MAX_FILES else ""
        more = (
            f"{self._path} declares {len(declared)} conditions: {MOST} are told, true ones first" if len(declared) > MOST else ""
        )
        self._complain(many or more)
        return tuple(sorted(sorted(declared, key=lambda one: _WORST[one[1].status])[:MOST], key=_order))

    def _one(self, name: str, now: float) -> tuple[_File, list[tuple[str, Verdict]]]:
        before = self._files.get(name, _File())
        try:
            data, written = read_regular(self._path / name)
            conditions, valid_for = parse(data)
        except (OSError, ValueError) as error:
            complaint = f"{self._path / name} cannot be used: {error}"
            if complaint != before.complaint:
                _log.warning("%s", complaint)
            return replace(before, complaint=complaint), [_unknown(v, "Unreadable", str(error)) for v in before.conditions]
        stale = f"{name} was not written again within {valid_for:g} s"
        declared = list(conditions) if abs(now - written) <= valid_for else [_unknown(v, "Stale", stale) for v in conditions]
        return _File(conditions), declared

    def _complain(self, text: str) -> None:
        if text and text != self._complaint:
            _log.warning("%s", text)
        self._complaint = text


def read_regular(path: Path) -> tuple[bytes, float]:
    """The bytes of a regular file that is no link, and when it was written. Raises OSError, and ValueError for another file."""
    with open(path, "rb", buffering=0, opener=_open) as file:  # the opener's descriptor is closed even when it is a directory's
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        return data, found.st_mtime


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)


def parse(data: bytes) -> tuple[Declared, float]:
    """A file's conditions, and for how long it stands. Raises ValueError that names what is wrong."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("conditions"), list):
        raise ValueError('it is not an object with a list "conditions"')
    valid_for = value.get("validFor", VALID_FOR)
    if isinstance(valid_for, bool) or not isinstance(valid_for, int | float) or not 0 < valid_for <= 86400:
        raise ValueError(f"validFor is {valid_for!r}; expected seconds, at most a day")
    if len(value["conditions"]) > MOST:
        raise ValueError(f"it declares {len(value['conditions'])} conditions; at most {MOST} are taken")
    return tuple(_condition(entry) for entry in value["conditions"]), float(valid_for)


def _condition(entry: Any) -> tuple[str, Verdict]:
    if not isinstance(entry, dict) or entry.get("type") not in TYPES:
        raise ValueError(f"a condition's type is none of {', '.join(TYPES)}")
    if entry.get("status") not in (TRUE, FALSE, UNKNOWN):
        raise ValueError(f"status of {entry['type']} is {entry.get('status')!r}; expected {TRUE}, {FALSE} or {UNKNOWN}")
    texts = [entry.get(key, "") for key in ("reason", "message", "deviceId")]
    if not all(isinstance(text, str) and len(text) <= _MAX_TEXT and text.isprintable() for text in texts):
        raise ValueError(f"reason, message and deviceId of {entry['type']} are texts of one line, at most {_MAX_TEXT} characters")
    return entry["type"], Verdict(entry["status"], *texts)


def _unknown(declared: tuple[str, Verdict], reason: str, message: str) -> tuple[str, Verdict]:
    return declared[0], replace(declared[1], status=UNKNOWN, reason=reason, message=message)


_WORST = {TRUE: 0, UNKNOWN: 1, FALSE: 2}


def _order(declared: tuple[str, Verdict]) -> tuple[str, str]:
    return declared[0], declared[1].device_id


def _sorted(found: list[tuple[str, Verdict]]) -> Declared:
    """By type and device; of what two files declare the worse stands."""
    best: dict[tuple[str, str], Verdict] = {}
    for kind, verdict in sorted(found, key=lambda f: (f[0], f[1].device_id, _WORST[f[1].status], f[1].reason, f[1].message)):
        best.setdefault((kind, verdict.device_id), verdict)
    return tuple((kind, verdict) for (kind, _), verdict in best.items())
