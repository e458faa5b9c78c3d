"""Records of commands in `data_dir/commands/<id>.json`: on disk before the effect, kept until acknowledged and at least 7 days.

So each id runs once, whatever happens to bcd or to the session. The files are bounded: beyond MAX_RECORDS the oldest that has
ended and is a week old goes, acknowledged or not; when there is none, no further command is taken.
"""

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent.errors import FieldError
from agent.host import write_atomic
from agent.session.messages import CommandResult

FORMAT = 1
KEPT = 7 * 86400.0  # seconds
MAX_RECORDS = 1000
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # also a file's name
_log = logging.getLogger("bcd.commands")


class Damaged(FieldError):
    """A record that cannot be read: nobody knows whether its command had its effect."""


class Full(FieldError):
    """No record can be written, so no command may run."""


@dataclass(frozen=True, slots=True)
class Record:
    """One command. `started` is Unix seconds, `began` when its effect did, on `subjects`; `result` None: it runs."""

    id: str
    kind: str
    payload: str
    key: str
    started: float
    boot_id: str
    began: float | None = None
    subjects: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    result: CommandResult | None = None
    acknowledged: bool = False


def is_id(text: str) -> bool:
    """Whether a command's id can be recorded: up to 100 letters, digits and `_.-`, no dot or hyphen first."""
    return _ID.fullmatch(text) is not None


class Store:
    """The records on disk; nothing is kept in memory. The directory is made when the first one is written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, command_id: str) -> Record | None:
        """The record of a command; None when there is none. Raises Damaged."""
        try:
            return _parse((self._directory / f"{command_id}.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Damaged(f"the record of command {command_id} in {self._directory} is damaged: {error}") from error

    def put(self, record: Record) -> None:
        """Writes a record; on disk when it returns. Raises Full."""
        path = self._directory / f"{record.id}.json"
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            write_atomic(path, json.dumps(asdict(record) | {"format": FORMAT}).encode() + b"\n")
        except OSError as error:
            raise Full(f"cannot write {path}: {error.strerror}") from error

    def all(self) -> Iterator[Record]:
        """Every record that can be read, oldest file first; of the others the log tells."""
        for path in self._paths():
            try:
                record = self.get(path.stem)
            except Damaged as error:
                _log.warning("%s", error)
                continue
            if record is not None:
                yield record

    def make_room(self, now: float) -> None:
        """Drops what is acknowledged and old; beyond the bound, what is old. Raises Full when too many are left."""
        paths = self._paths()
        old = [path for path in paths if self._age(path, now) >= KEPT]
        droppable = [path for path in old if self._ended(path, acknowledged=True)]
        if len(paths) - len(droppable) >= MAX_RECORDS:
            droppable = [path for path in old if self._ended(path, acknowledged=False)][: len(paths) - MAX_RECORDS + 1]
        for path in droppable:
            path.unlink(missing_ok=True)
        if len(paths) - len(droppable) >= MAX_RECORDS:
            raise Full(f"{MAX_RECORDS} commands of the last 7 days are recorded in {self._directory}; no more are taken")

    def _paths(self) -> list[Path]:
        try:
            found = [(path.stat().st_mtime, path.name, path) for path in self._directory.glob("*.json") if is_id(path.stem)]
        except OSError:
            return []
        return [path for _, _, path in sorted(found)]

    def _age(self, path: Path, now: float) -> float:
        try:
            return now - path.stat().st_mtime
        except OSError:
            return 0.0

    def _ended(self, path: Path, acknowledged: bool) -> bool:
        try:
            record = self.get(path.stem)
        except Damaged:
            return True
        return record is None or (record.result is not None and (record.acknowledged or not acknowledged))


def _parse(data: bytes) -> Record:
    """A record's bytes. Raises ValueError, KeyError, TypeError."""
    value = json.loads(data)
    if not isinstance(value, dict) or value.pop("format", None) != FORMAT:
        raise ValueError(f"not an object of format {FORMAT}")
    result = value.pop("result")
    record = Record(**value | {"subjects": tuple(value["subjects"])}, result=CommandResult(**result) if result else None)
    if not isinstance(record.started, float | int) or not isinstance(record.facts, dict):
        raise ValueError("started or facts is of another type")
    return record
