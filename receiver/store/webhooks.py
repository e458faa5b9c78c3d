"""The webhook's place in the log of events, and the batch that is due behind it. How events are ordered: schema.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from receiver.planning.webhook import Progress, Step
from receiver.store.database import Connection
from receiver.values import Payload

NAME = "events"
CHANNEL = "bc_events"  # notified by the trigger of table events


@dataclass(frozen=True, slots=True)
class Row:
    """An event as it is told."""

    xid: int
    seq: int
    id: str
    time: datetime
    tenant_id: str
    pool_id: str | None
    node_id: str | None
    type: str
    payload: Payload


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be sent now, at least one event; and how it goes."""

    events: Sequence[Row]
    place: tuple[int, int]
    progress: Progress


def due(tx: Connection) -> Due | None:
    """The next batch; None: nothing has happened, or it is too early for another try.

    The first time it begins with what happens from then on.
    """
    row = tx.execute(_ROW, [NAME]).fetchone()
    if row is None:
        tx.execute(_BEGIN, [NAME])
        return None
    xid, seq, size, failures, refusals, early = row
    events = [] if early else [Row(*found) for found in tx.execute(_NEXT, [xid, seq, size])]
    return Due(events, (xid, seq), Progress(size, failures, refusals)) if events else None


_ROW = """SELECT xid, seq, size, failures, refusals, coalesce(next_at > clock_timestamp(), false)
FROM webhooks WHERE name = %s"""
_HORIZON = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_BEGIN = f"INSERT INTO webhooks (name, xid, seq) VALUES (%s, {_HORIZON} - 1, 9223372036854775807) ON CONFLICT DO NOTHING"
_NEXT = f"""SELECT xid, seq, id, time, tenant_id, pool_id, node_id, type, payload FROM events
WHERE (xid, seq) > (%s, %s) AND xid < {_HORIZON} ORDER BY xid, seq LIMIT %s"""


def settle(tx: Connection, sent: Due, step: Step, error: str) -> None:
    """Writes what followed, unless another receiver has gone on meanwhile. `error`: why it did not go well."""
    place = (sent.events[-1].xid, sent.events[-1].seq) if step.done else sent.place
    count = len(sent.events) if step.done else 0
    values: dict[str, Any] = {
        "name": NAME,
        "xid": place[0],
        "seq": place[1],
        "size": step.progress.size,
        "failures": step.progress.failures,
        "refusals": step.progress.refusals,
        "delay": step.delay,
        "error": error,
        "delivered": 0 if step.skip else count,
        "skipped": count if step.skip else 0,
        "was_xid": sent.place[0],
        "was_seq": sent.place[1],
    }
    tx.execute(_SETTLE, values)


_SETTLE = """
UPDATE webhooks SET xid = %(xid)s, seq = %(seq)s, size = %(size)s, failures = %(failures)s, refusals = %(refusals)s,
  error = %(error)s, next_at = clock_timestamp() + make_interval(secs => %(delay)s),
  delivered = delivered + %(delivered)s, skipped = skipped + %(skipped)s
WHERE name = %(name)s AND (xid, seq) = (%(was_xid)s, %(was_seq)s)
"""
