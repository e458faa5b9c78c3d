"""A placement system in small: it books what is bookable as SPEC B0 asks of one, for tests that need live bookings and races."""

from dataclasses import dataclass

from receiver.store.database import Connection


@dataclass(frozen=True, slots=True)
class Candidate:
    """A generation of an atom that was bookable when it was looked for."""

    node_id: str
    atom_id: str
    generation: int
    device_id: str


_FIND = "SELECT node_id, id, generation, device_id FROM bookable_atoms ORDER BY random() LIMIT %s"
_AGAIN = "SELECT FROM bookable_atoms WHERE (node_id, id, generation, device_id) = (%s, %s, %s, %s)"
_BOOK = """
INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
SELECT %s, tenant_id, node_id, device_id, id, generation FROM atoms WHERE (id, generation) = (%s, %s)
"""


def find(tx: Connection, most: int = 1) -> list[Candidate]:
    """Some of what is bookable now, at random. Nothing is locked: it may not be so any more when it is booked."""
    return [Candidate(*row) for row in tx.execute(_FIND, [most])]


def book(tx: Connection, booking_id: str, one: Candidate) -> bool:
    """Locks the node's row and then the atom's, reads again, and books. False: it is not bookable any more."""
    tx.execute("SELECT FROM nodes WHERE id = %s FOR UPDATE", [one.node_id])
    tx.execute("SELECT FROM atoms WHERE (id, generation) = (%s, %s) FOR UPDATE", [one.atom_id, one.generation])
    if tx.execute(_AGAIN, [one.node_id, one.atom_id, one.generation, one.device_id]).rowcount == 0:
        return False
    return tx.execute(_BOOK, [booking_id, one.atom_id, one.generation]).rowcount == 1


def end(tx: Connection, booking_id: str) -> None:
    """A booking ends."""
    tx.execute("UPDATE bookings SET ended_at = clock_timestamp() WHERE booking_id = %s AND ended_at IS NULL", [booking_id])
