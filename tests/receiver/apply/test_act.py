"""The one way in which operators, re-plans and clears change a node."""

from dataclasses import replace

import psycopg
import pytest

from receiver.apply.act import act
from receiver.planning.view import (
    Atom,
    Booking,
    ConditionRow,
    Counted,
    Device,
    Draft,
    Facts,
    Generation,
    HardwareKey,
    Health,
    Label,
)
from receiver.store import view
from receiver.store.database import Connection
from tests.receiver.builders import NODE, OTHER, apply, count, host, join

GPU = "GPU-00000000"


def whole(facts: Facts, draft: Draft) -> None:
    """A row in every table."""
    draft.put("devices", Device(GPU, "1650", attributes={"gpuModel": "H100", "nvlinkPeers": ["GPU-1"]}))
    draft.put("atoms", Atom(GPU, 1, GPU, bookable=True))
    draft.put("generations", Generation("MIG-1", 2, GPU, "1g.10gb", {"start": 0, "size": 1}, "boot-1"))
    draft.put("health", Health(GPU, "xid", "Xid79", "boot-1", 3, detail={"message": "79, fallen off"}))
    draft.put("conditions", ConditionRow("Xid79", GPU, "00000000:18:00.0", count=3, no_schedule=True))
    draft.put("faults", Counted("Xid79", GPU, "boot-1", 3, 2, "00000000:18:00.0", "79, fallen off"))
    draft.put("labels", Label("gpu.model", "H100", "inventory"))
    draft.hardware = HardwareKey("ab" * 32, True, identifiers={"gpus": [GPU]})
    draft.node = replace(draft.node, would_no_schedule=("Xid79",), baseline={"gpus": [GPU]}, inventory_boot="boot-1")


def nothing(facts: Facts, draft: Draft) -> None:
    """Changes nothing."""


def rows(draft: Draft) -> list[object]:
    """All that is stored of a node."""
    return [
        draft.node,
        draft.hardware,
        *(getattr(draft, name) for name in ("conditions", "devices", "atoms", "health", "faults")),
    ]


def test_what_is_written_is_what_is_loaded(tx: Connection) -> None:
    join(tx)
    written = act(tx, NODE, whole)
    _, loaded = view.load(tx, NODE)
    assert rows(loaded) == rows(written)
    assert (loaded.labels, loaded.generations) == (written.labels, written.generations)


def test_nothing_amended_is_nothing_written(tx: Connection) -> None:
    join(tx)
    act(tx, NODE, whole)
    before = tx.execute("SELECT plan_rev, xmin FROM nodes WHERE id = %s", [NODE]).fetchone()
    act(tx, NODE, nothing)
    assert tx.execute("SELECT plan_rev, xmin FROM nodes WHERE id = %s", [NODE]).fetchone() == before


def test_rows_that_a_rule_takes_away_are_deleted(tx: Connection) -> None:
    join(tx)
    act(tx, NODE, whole)

    def away(facts: Facts, draft: Draft) -> None:
        for table in (draft.devices, draft.atoms, draft.labels, draft.health, draft.faults, draft.generations):
            table.clear()
        draft.hardware = None

    act(tx, NODE, away)
    assert [count(tx, name) for name in ("devices", "atoms", "node_labels", "device_health", "node_faults")] == [0] * 5
    assert tx.execute("SELECT FROM hardware_keys WHERE replaced_at IS NULL").rowcount == 0


def test_reasons_of_other_owners_are_left_alone(tx: Connection) -> None:
    join(tx)
    theirs = '[{"owner": "placement", "type": "Xid79"}, {"owner": "spec", "type": "Drift"}]'
    tx.execute("UPDATE nodes SET no_schedule_reasons = %s WHERE id = %s", [theirs, NODE])

    def bar(facts: Facts, draft: Draft) -> None:
        draft.put("conditions", ConditionRow("FabricManagerDown"))
        draft.node = replace(draft.node, no_schedule_reasons=("FabricManagerDown",))

    def unbar(facts: Facts, draft: Draft) -> None:
        draft.put("conditions", ConditionRow("FabricManagerDown", status="false"))
        draft.node = replace(draft.node, no_schedule_reasons=())

    act(tx, NODE, bar)
    named = "SELECT jsonb_path_query_array(no_schedule_reasons, '$[*].owner') FROM nodes WHERE id = %s"
    assert tx.execute(named, [NODE]).fetchone() == (["health", "placement", "spec"],)
    act(tx, NODE, unbar)
    assert tx.execute(named, [NODE]).fetchone() == (["placement", "spec"],)


def test_a_device_that_another_node_has_meanwhile_taken_is_an_error_and_not_stolen(tx: Connection) -> None:
    join(tx)
    join(tx, OTHER)
    act(tx, OTHER, lambda facts, draft: draft.put("devices", Device(GPU)))
    with pytest.raises(psycopg.errors.UniqueViolation):
        act(tx, NODE, lambda facts, draft: draft.put("devices", Device(GPU)))


def test_live_bookings_and_no_ended_ones_are_facts(tx: Connection) -> None:
    join(tx)
    insert = "INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation, ended_at) VALUES"
    tx.execute(
        insert + " ('b1', 't', %(n)s, 'GPU-1', 'GPU-1', 1, NULL), ('b2', 't', %(n)s, 'GPU-2', 'GPU-2', 1, now())", {"n": NODE}
    )
    facts, _ = view.load(tx, NODE)
    assert facts.bookings == (Booking("b1", "GPU-1", "GPU-1", 1),)


def test_planning_again_is_made_from_the_sections_as_applied(tx: Connection) -> None:
    join(tx)
    apply(tx, host(2))
    seen: list[Facts] = []
    act(tx, NODE, lambda facts, draft: seen.append(facts), inventory_too=True)
    assert seen[0].sections is not None
    assert seen[0].sections.keys() == seen[0].fresh == {"system", "os", "cpu", "memory", "gpus", "disks", "nics", "images"}


def test_node_that_does_not_exist_is_a_lookup_error(tx: Connection) -> None:
    with pytest.raises(LookupError, match="node_00000000000000000000000000"):
        act(tx, "node_00000000000000000000000000", nothing)
