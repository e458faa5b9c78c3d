"""How much waits in the database, and what is stopped: one statement, in which no count goes above MOST.

Each count walks along a partial index of what is open, never over a whole table; a fleet's size does not matter to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from receiver.store.database import Connection

MOST = 10_000
_STATEMENT_SECONDS = 2

Counts = Mapping[tuple[str, ...], int]


@dataclass(frozen=True, slots=True)
class Told:
    """How the webhook goes. `oldest`: the age of the first event that was not told, in seconds; 0: there is none."""

    oldest: float
    failures: int
    delivered: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Depths:
    """What is open: commands by state, runs of repairs by kind and state, stops by kind; nodes to plan again, checks that run."""

    replan: int
    commands: Counts
    repairs: Counts
    stops: Counts
    acceptances: int
    told: Told | None


def read(tx: Connection) -> Depths:
    """All of it."""
    tx.execute(f"SET LOCAL statement_timeout = '{_STATEMENT_SECONDS}s'")
    counts: dict[str, dict[tuple[str, ...], int]] = {}
    for what, one, other, count in tx.execute(_COUNTS, {"most": MOST}):
        counts.setdefault(what, {})[tuple(word for word in (one, other) if word is not None)] = count
    row = tx.execute(_TOLD).fetchone()
    return Depths(
        counts["replan"].get((), 0),
        counts.get("commands", {}),
        counts.get("repairs", {}),
        counts.get("stops", {}),
        counts["acceptances"].get((), 0),
        Told(*row) if row else None,
    )


_COUNTS = """
SELECT 'replan', NULL, NULL, count(*) FROM (SELECT FROM replan LIMIT %(most)s) r
UNION ALL SELECT 'acceptances', NULL, NULL, count(*)
  FROM (SELECT FROM acceptance_attempts WHERE state = 'running' LIMIT %(most)s) a
UNION ALL SELECT 'commands', state, NULL, count(*)
  FROM (SELECT state FROM commands WHERE finished_at IS NULL LIMIT %(most)s) c GROUP BY state
UNION ALL SELECT 'repairs', kind, state, count(*)
  FROM (SELECT kind, state FROM remediation_runs WHERE ended_at IS NULL LIMIT %(most)s) m GROUP BY kind, state
UNION ALL SELECT 'stops', kind, NULL, count(*)
  FROM (SELECT kind FROM pool_stops WHERE ended_at IS NULL AND confirmed_by IS NULL LIMIT %(most)s) s GROUP BY kind
"""
_TOLD = """
SELECT coalesce(extract(epoch FROM clock_timestamp() - e.time), 0)::float8, w.failures, w.delivered, w.skipped
FROM webhooks w LEFT JOIN LATERAL (
  SELECT time FROM events WHERE (xid, seq) > (w.xid, w.seq) ORDER BY xid, seq LIMIT 1) e ON true
"""
