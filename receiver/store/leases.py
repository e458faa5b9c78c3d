"""Leases on singletons' work, and the memory of since when receivers have been serving (SPEC B6, B10).

A lease is a row: its holder, a token that rises with every other holder, and the time until which nobody else may take it. A
transaction of the work begins with `fence`: it holds the row to its end, so nobody takes the lease meanwhile, and whoever was
suspended and has lost it writes nothing. These times are the server's, not the fleet's: they are about processes.
"""

from dataclasses import dataclass
from datetime import timedelta

from receiver.store.database import Connection

SECONDS = 15.0  # how long a lease holds without a heartbeat


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was taken."""

    name: str
    holder: str
    token: int


class LeaseLost(Exception):
    """Another receiver has the lease by now."""


def take(tx: Connection, name: str, holder: str, seconds: float = SECONDS) -> Lease | None:
    """Takes a lease, or holds it for longer. None: another holder has it, or is at work with it at the moment."""
    tx.execute(_MAKE, {"name": name})
    row = tx.execute(_TAKE, {"name": name, "holder": holder, "seconds": seconds}).fetchone()
    return Lease(name, holder, row[0]) if row else None


# (ON CONFLICT alone would wait for a holder that is at work.)
_MAKE = """
INSERT INTO leases (name, expires_at) SELECT %(name)s, '-infinity' WHERE NOT EXISTS (SELECT FROM leases WHERE name = %(name)s)
ON CONFLICT DO NOTHING
"""
_TAKE = """
WITH free AS MATERIALIZED (
  SELECT name FROM leases WHERE name = %(name)s AND (holder = %(holder)s OR expires_at <= clock_timestamp())
  FOR UPDATE SKIP LOCKED)
UPDATE leases l SET holder = %(holder)s, token = l.token + (l.holder <> %(holder)s)::int,
  expires_at = clock_timestamp() + make_interval(secs => %(seconds)s)
FROM free WHERE l.name = free.name RETURNING l.token
"""


def fence(tx: Connection, lease: Lease, seconds: float = SECONDS) -> None:
    """To be called first in a transaction: from here to its end nobody else takes the lease. Raises LeaseLost.

    A holder that is suspended within the transaction loses that first, and then the lease.
    """
    tx.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", [f"{seconds:.3f}s"])
    held = tx.execute(_FENCE, {"name": lease.name, "holder": lease.holder, "token": lease.token, "seconds": seconds})
    if held.rowcount != 1:
        raise LeaseLost(f"another receiver has the lease on {lease.name}")


_FENCE = """
UPDATE leases SET expires_at = clock_timestamp() + make_interval(secs => %(seconds)s)
WHERE name = %(name)s AND holder = %(holder)s AND token = %(token)s
"""


def release(tx: Connection, holder: str) -> None:
    """Lets go whatever this holder has: others need not wait."""
    tx.execute("UPDATE leases SET expires_at = '-infinity' WHERE holder = %s", [holder])


def beat(tx: Connection, gap: timedelta) -> None:
    """A receiver serves. After longer than `gap` in which none said so, nodes had nobody to report to: it begins anew."""
    tx.execute(_BEAT, [gap])


_BEAT = """
INSERT INTO serving AS s (name) VALUES ('receivers') ON CONFLICT (name) DO UPDATE SET
  since = CASE WHEN s.beat_at < bc_clock() - %s::interval THEN bc_clock() ELSE s.since END, beat_at = bc_clock()
"""
