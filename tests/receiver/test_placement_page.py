"""The SQL that docs/placement.md shows, run as it stands there."""

import re
from pathlib import Path

from receiver.store import database as db
from tests.receiver import placement
from tests.receiver.builders import apply, host, join

PAGE = Path(__file__).resolve().parents[2] / "docs/placement.md"


def statements() -> list[str]:
    blocks = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    bare = re.sub(r"--.*", "", "".join(blocks))
    return [re.sub(r":(\w+)", r"%(\1)s", one).strip() for one in bare.split(";") if one.strip() not in ("", "BEGIN", "COMMIT")]


def test_an_atom_is_booked_and_its_booking_ends(tx: db.Connection) -> None:
    join(tx)
    apply(tx, host(1))
    (free,) = placement.find(tx)
    values = {"node_id": free.node_id, "atom_id": free.atom_id, "generation": free.generation, "booking_id": "book-1"}
    *booking, end = statements()
    assert [tx.execute(one, values).rowcount for one in booking] == [1, 1, 1, 1]
    assert placement.find(tx) == []
    assert tx.execute(booking[2], values).rowcount == 0, "no row: look for another"
    assert tx.execute(end, values).rowcount == 1
    assert placement.find(tx) == [free]
