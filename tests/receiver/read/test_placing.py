"""What placement reads, on a few nodes: which atoms are bookable, which nodes are selected, who holds an image."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from sqlalchemy.engine import Connection as Reader

from receiver.errors import Invalid
from receiver.planning.selector import Requirement, Selector, matches
from receiver.read import placing, queries
from receiver.read.placing import Wanted
from receiver.read.tokens import Scope
from receiver.store.database import Connection
from tests.receiver.builders import apply, host, join

EVERYTHING, ACME = Scope("*"), Scope("acme")
ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def node_id(number: int) -> str:
    return f"node_01{number:024d}"


def node(tx: Connection, number: int, atoms: int = 2, tenant: str = "default", **columns: Any) -> str:
    """A node in service with GPUs of one atom each; `columns` are others."""
    given = {"id": node_id(number), "tenant_id": tenant, "status": "adopted", **columns}
    holders = ", ".join(f"%({name})s" for name in given)
    tx.execute(f"INSERT INTO nodes ({', '.join(given)}) VALUES ({holders})", given)
    for gpu in range(atoms):
        device = f"GPU-{number}-{gpu}"
        tx.execute("INSERT INTO devices (id, node_id, tenant_id) VALUES (%s, %s, %s)", [device, given["id"], tenant])
        atom(tx, number, gpu)
    return node_id(number)


def atom(tx: Connection, number: int, gpu: int, generation: int = 1, bookable: bool = True) -> None:
    tx.execute(
        "INSERT INTO atoms (id, generation, device_id, node_id, tenant_id, bookable)"
        " SELECT id, %s, id, node_id, tenant_id, %s FROM devices WHERE id = %s",
        [generation, bookable, f"GPU-{number}-{gpu}"],
    )


def book(tx: Connection, number: int, gpu: int, generation: int = 1) -> str:
    booking = f"booking-{number}-{gpu}-{generation}"
    tx.execute(
        "INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)"
        " SELECT %s, tenant_id, node_id, device_id, id, generation FROM atoms WHERE id = %s AND generation = %s",
        [booking, f"GPU-{number}-{gpu}", generation],
    )
    return booking


@contextmanager
def reading(tx: Connection, database: str) -> Iterator[Reader]:
    """What has been written, as the API reads it."""
    tx.commit()
    engine = queries.open_engine(database, 1)
    try:
        with engine.connect() as reader:
            yield reader
    finally:
        engine.dispose()


def bookable(tx: Connection, database: str, wanted: Wanted = Wanted(), scope: Scope = EVERYTHING) -> list[str]:  # noqa: B008
    with reading(tx, database) as reader:
        rows, cursor = placing.atom_page(reader, scope, wanted, None, 1000)
    assert cursor is None
    return [row.id if row.generation == 1 else f"{row.id}@{row.generation}" for row in rows]


def viewed(tx: Connection) -> list[str]:
    rows = tx.execute("SELECT id, generation FROM bookable_atoms ORDER BY node_id, id, generation")
    return [one if generation == 1 else f"{one}@{generation}" for one, generation in rows]


@pytest.mark.parametrize(
    "against",
    [
        {"status": "adopting"},
        {"status": "maintenance"},
        {"status": "retired"},
        {"trust": "tenant-controlled"},
        {"no_schedule_reasons": '[{"owner": "tester", "type": "Anything"}]'},
    ],
    ids=str,
)
def test_no_atom_of_a_node_is_bookable_when(tx: Connection, database: str, against: dict[str, Any]) -> None:
    node(tx, 1, **against)
    node(tx, 2)
    assert bookable(tx, database) == viewed(tx) == ["GPU-2-0", "GPU-2-1"]


def test_an_atom_is_bookable_while_it_is_so_and_has_no_live_booking(tx: Connection, database: str) -> None:
    node(tx, 1, atoms=3)
    tx.execute("UPDATE atoms SET bookable = false WHERE id = 'GPU-1-1'")
    booking = book(tx, 1, 0)
    assert bookable(tx, database) == viewed(tx) == ["GPU-1-2"]
    tx.execute("UPDATE bookings SET tenant_id = tenant_id")
    tx.execute("UPDATE atoms SET bookable = true")
    assert bookable(tx, database) == viewed(tx) == ["GPU-1-1", "GPU-1-2"]
    tx.execute("UPDATE bookings SET ended_at = now() WHERE booking_id = %s", [booking])
    assert bookable(tx, database) == viewed(tx) == ["GPU-1-0", "GPU-1-1", "GPU-1-2"]


def test_a_booking_is_of_one_generation(tx: Connection, database: str) -> None:
    node(tx, 1, atoms=1)
    book(tx, 1, 0)
    atom(tx, 1, 0, generation=2)
    assert bookable(tx, database) == viewed(tx) == ["GPU-1-0@2"]


def test_free_atoms_are_those_without_a_booking_whatever_is_done(tx: Connection) -> None:
    """Random acts: what the triggers keep is never less than what is bookable, and no more where nobody else was at work."""
    draw = random.Random(7)
    node(tx, 1, atoms=0)
    for gpu in range(4):
        tx.execute("INSERT INTO devices (id, node_id, tenant_id) VALUES (%s, %s, 'default')", [f"GPU-1-{gpu}", node_id(1)])
    acts: list[Callable[[int], object]] = [
        lambda gpu: atom(tx, 1, gpu, bookable=draw.random() < 0.5),
        lambda gpu: tx.execute("DELETE FROM atoms WHERE id = %s", [f"GPU-1-{gpu}"]),
        lambda gpu: tx.execute("UPDATE atoms SET bookable = NOT bookable WHERE id >= %s", [f"GPU-1-{gpu}"]),
        lambda gpu: book(tx, 1, gpu),
        lambda gpu: tx.execute("DELETE FROM bookings WHERE atom_id = %s", [f"GPU-1-{gpu}"]),
        lambda gpu: tx.execute("UPDATE bookings SET ended_at = now() WHERE atom_id >= %s", [f"GPU-1-{gpu}"]),
        lambda gpu: tx.execute("UPDATE bookings SET ended_at = NULL WHERE atom_id = %s", [f"GPU-1-{gpu}"]),
    ]
    seen = set()
    for _ in range(400):
        there = {row[0] for row in tx.execute("SELECT id FROM atoms")}
        taken = {row[0] for row in tx.execute("SELECT atom_id FROM bookings")}
        act, gpu = draw.choice(acts), draw.randrange(4)
        name = f"GPU-1-{gpu}"
        if (act is acts[0] and name in there) or (act is acts[3] and (name in taken or name not in there)):
            continue
        act(gpu)
        there = {row[0] for row in tx.execute("SELECT id FROM atoms")}
        free = {row[0] for row in tx.execute("SELECT atom_id FROM free_atoms")}
        wanted = {
            row[0]
            for row in tx.execute(
                "SELECT id FROM atoms a WHERE bookable AND NOT EXISTS"
                " (SELECT FROM bookings b WHERE b.atom_id = a.id AND b.atom_generation = a.generation AND b.ended_at IS NULL)"
            )
        }
        assert wanted <= free <= there
        assert set(viewed(tx)) == wanted
        seen.add(len(wanted))
    assert seen == {0, 1, 2, 3, 4}


def test_pages_of_any_size_are_the_whole_list(tx: Connection, database: str) -> None:
    for number in range(1, 6):
        node(tx, number, atoms=number % 3)
    whole = viewed(tx)
    with reading(tx, database) as reader:
        for limit in range(1, len(whole) + 2):
            found: list[str] = []
            cursor: str | None = ""
            while cursor is not None:
                rows, cursor = placing.atom_page(reader, EVERYTHING, Wanted(), placing.atom_place(cursor), limit)
                found += [row.id for row in rows]
            assert found == whole


def test_atoms_are_narrowed_to_pool_node_and_tenant(tx: Connection, database: str) -> None:
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_a', 'default', 'a')")
    node(tx, 1, atoms=1, pool_id="pool_a")
    node(tx, 2, atoms=1)
    node(tx, 3, atoms=1, tenant="acme")
    assert bookable(tx, database, Wanted(pool_id="pool_a")) == ["GPU-1-0"]
    assert bookable(tx, database, Wanted(node_id=node_id(2))) == ["GPU-2-0"]
    assert bookable(tx, database, scope=ACME) == ["GPU-3-0"]
    assert bookable(tx, database, Wanted(node_id=node_id(2)), ACME) == []


@pytest.mark.parametrize(
    "cursor", ["x", "node_x/GPU/1", f"{node_id(1)}/GPU", f"{node_id(1)}/GPU/x", f"{node_id(1)}/GPU/1/2", "7.1"]
)
def test_a_cursor_of_another_method_is_refused(cursor: str) -> None:
    with pytest.raises(Invalid, match="cursor"):
        placing.atom_place(cursor)


KEYS = ("gpu.model", "gpu.count", "rack", "tier", "nope")
VALUES = ("H100", "8", "16", "-3", "2.5", "", "1e3", "08", "x" * 63)


def some_selector(draw: random.Random) -> Selector:
    found = []
    for _ in range(draw.randint(0, 3)):
        key, operator = draw.choice(KEYS), draw.choice(("in", "notin", "exists", "absent", "gt", "lt"))
        values: tuple[str, ...] = ()
        if operator in ("in", "notin"):
            values = tuple(draw.sample(VALUES, draw.randint(1, 3)))
        elif operator in ("gt", "lt"):
            values = (draw.choice(("8", "-3", "2.49", "100")),)
        found.append(Requirement(key, operator, values))  # type: ignore[arg-type]
    return tuple(found)


def test_selectors_mean_in_the_database_what_they_mean_in_planning(tx: Connection, database: str) -> None:
    draw = random.Random(11)
    labels = {}
    for number in range(1, 31):
        labels[node(tx, number, atoms=1)] = {key: draw.choice(VALUES) for key in KEYS[:4] if draw.random() < 0.7}
    for owner, values in labels.items():
        for key, value in values.items():
            tx.execute("INSERT INTO node_labels VALUES (%s, %s, 'default', %s, 'operator')", [owner, key, value])
    selected = set()
    with reading(tx, database) as reader:
        for _ in range(300):
            selector, after = some_selector(draw), draw.choice(("", node_id(9)))
            meant = [owner for owner in sorted(labels) if matches(selector, labels[owner]) and owner > after]
            rows, _ = queries.node_page(reader, EVERYTHING, None, None, after, 1000, selector=selector)
            assert [row.id for row in rows] == meant, selector
            place = (after, "~", 1) if after else None
            atoms, _ = placing.atom_page(reader, EVERYTHING, Wanted(selector=selector), place, 1000)
            assert [row.node_id for row in atoms] == meant, selector
            selected.add(len(meant))
    assert len(selected) > 10, "selectors that told the nodes apart"


def test_nodes_are_listed_by_condition_status_and_without_tombstones(tx: Connection, database: str) -> None:
    for number, status in enumerate(("adopted", "adopted", "retired", "deleted"), 1):
        node(tx, number, atoms=0, status=status)
    for number, status in ((1, "true"), (2, "false"), (3, "unknown"), (4, "true")):
        tx.execute(
            "INSERT INTO conditions (node_id, type, device_id, tenant_id, status) VALUES (%s, 'GpuLost', 'GPU-x', 'default', %s)",
            [node_id(number), status],
        )

    def listed(status: str | None, condition: str | None, after: int = 0) -> list[int]:
        start = node_id(after) if after else ""
        rows, _ = queries.node_page(reader, EVERYTHING, None, status, start, 10, condition)
        return [int(row.id[-3:]) for row in rows]

    with reading(tx, database) as reader:
        assert listed(None, None) == [1, 2, 3]
        assert listed("deleted", None) == [4]
        assert listed(None, "GpuLost") == [1]
        assert listed("deleted", "GpuLost") == [4]
        assert listed("retired", "GpuLost") == []
        assert listed(None, "Other") == []
        assert listed(None, "GpuLost", after=1) == []


def images(*digests: str) -> pb.ImagesSection:
    return pb.ImagesSection(images=[pb.Image(digest=one, name="image", bytes=5) for one in digests])


def test_nodes_of_a_pool_that_hold_an_image(tx: Connection, database: str) -> None:
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_a', 'default', 'a'), ('pool_b', 'default', 'b')")
    held = {1: images(TWO, ONE), 2: images(ONE), 3: images(TWO), 4: images(ONE), 5: images(ONE), 6: images()}
    for number, section in held.items():
        join(tx, node_id(number))
        apply(tx, host(images=section), node_id(number))
    tx.execute("UPDATE nodes SET pool_id = CASE WHEN id = %s THEN 'pool_b' ELSE 'pool_a' END", [node_id(5)])
    tx.execute("UPDATE nodes SET trust = 'tenant-controlled' WHERE id = %s", [node_id(4)])

    def holding(digest: str | None, limit: int = 10, after: str = "") -> dict[int, list[str]]:
        rows, _ = placing.image_page(reader, EVERYTHING, "pool_a", digest, after, limit)
        return {int(owner[-3:]): [row.digest for row in found] for owner, found in rows}

    with reading(tx, database) as reader:
        assert holding(None) == {1: [ONE, TWO], 2: [ONE], 3: [TWO]}
        assert holding(ONE) == {1: [ONE], 2: [ONE]}
        assert holding("sha256:" + "3" * 64) == {}
        assert holding(ONE, limit=1) == {1: [ONE]}
        assert holding(ONE, after=node_id(1)) == {2: [ONE]}
        assert placing.image_page(reader, ACME, "pool_a", ONE, "", 10) == ([], None)
        with pytest.raises(Invalid, match="cursor"):
            holding(ONE, after="pool_a")


def test_an_image_that_a_node_holds_no_more_is_not_found_there(tx: Connection, database: str) -> None:
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_a', 'default', 'a')")
    join(tx, node_id(1))
    for section in (images(ONE), images(TWO)):
        apply(tx, host(images=section), node_id(1))
    tx.execute("UPDATE nodes SET pool_id = 'pool_a'")
    with reading(tx, database) as reader:
        found = {one: placing.image_page(reader, EVERYTHING, "pool_a", one, "", 10)[0] for one in (ONE, TWO)}
    assert not found[ONE]
    assert len(found[TWO]) == 1
