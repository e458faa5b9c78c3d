"""The kernel log. The lines and streams with what they mean are in tests/data/kmsg (its README: the project's data)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.kmsg.xid import Sxid, Xid

DATA = Path(__file__).parents[2] / "data" / "kmsg"
STREAMS = sorted((DATA / "streams").glob("*.kmsg"))


@dataclass(frozen=True)
class Line:
    """One line of the corpus: as captured, and what it is."""

    text: str
    form: str
    expect: Mapping[str, object] | None
    trusted: Mapping[str, object] | None
    sxid: Mapping[str, object] | None
    legacy: bool
    note: str


def _line(row: Mapping[str, Any]) -> Line:
    trusted = row.get("expectTrusted", row["expect"])
    return Line(row["line"], row["form"], row["expect"], trusted, row.get("expectSxid"), row.get("legacy", False), row["note"])


LINES = [_line(json.loads(text)) for text in (DATA / "xid-lines.jsonl").read_text().splitlines()]


def sidecar(stream: Path) -> Mapping[str, Any]:
    """What the stream holds."""
    found: Mapping[str, Any] = json.loads(stream.with_suffix(".expected.json").read_text())
    return found


def as_xid(found: Xid | Sxid | None) -> Mapping[str, object] | None:
    """A parsed XID as the corpus writes it."""
    return {"xid": found.code, "busId": found.bus_id, "message": found.message} if isinstance(found, Xid) else None


def as_sxid(found: Xid | Sxid | None) -> Mapping[str, object] | None:
    """A parsed SXid as the corpus writes it."""
    if not isinstance(found, Sxid):
        return None
    told = {"sxid": found.code, "busId": found.bus_id, "message": found.message}
    return told | {"fatal": found.fatal, "detail": found.detail}
