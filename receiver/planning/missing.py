"""Sections that a node does not have at present: which rows to write for them, from an offer or a status report."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Source = Literal["report", "section"]  # bcd left it out, or it came with an error of its own


@dataclass(frozen=True, slots=True)
class MissingRow:
    """One such section. `last_snapshot_id`: the last snapshot that has it without an error, where there is one."""

    name: str
    error: str
    source: Source
    last_snapshot_id: str | None


@dataclass(frozen=True, slots=True)
class SetMissing:
    """Write this row."""

    row: MissingRow
    reason: str


@dataclass(frozen=True, slots=True)
class ClearMissing:
    """Delete the row of this section."""

    name: str
    reason: str


def plan_missing(
    stored: Mapping[str, MissingRow],
    now: Mapping[str, tuple[str, Source]],
    last_seen: Mapping[str, str],
    judged: frozenset[Source],
) -> Iterator[SetMissing | ClearMissing]:
    """Steps from the stored rows to the sections that are missing `now` (name to error and source).

    `last_seen`: the last good snapshot of sections that were not missing until now. Rows of a source outside `judged` are not
    this report's to clear: a status report does not say what a section says of itself.
    """
    for name, (error, source) in sorted(now.items()):
        before = stored.get(name)
        last = before.last_snapshot_id if before is not None else last_seen.get(name)
        row = MissingRow(name, error, source, last)
        if before is None:
            yield SetMissing(row, "it is missing now")
        elif before != row:
            yield SetMissing(row, "the error is another")
    for name, row in sorted(stored.items()):
        if name not in now and row.source in judged:
            yield ClearMissing(name, "it is there again")
