"""The statuses of a node: SPEC B0's table, row by row."""

from dataclasses import replace

import pytest

from receiver.errors import Invalid, Refused
from receiver.planning import lifecycle
from receiver.planning.lifecycle import Rule
from receiver.planning.view import Atom, Booking, ConditionRow, Device, Draft, Facts, HardwareKey, Label, Node
from receiver.values import NODE_STATUSES
from tests.receiver.builders import NODE

FACTS = Facts(NODE, tenant_id="acme")
BOOKED = replace(FACTS, bookings=(Booking("book-1", "GPU-1", "GPU-1", 1),))
FAILED = ("AcceptanceFailed", "")
ORDERS: dict[str, Rule] = {
    "adopt": lifecycle.adopt("proven elsewhere"),
    "maintenance": lifecycle.maintenance("eva", "2026-12-01T00:00:00Z", "fan 3"),
    "retire": lifecycle.retire("sold"),
    "delete": lifecycle.delete("gone"),
    "rejoin": lifecycle.rejoin("tok_1"),
}
# From each status, by each order: the status that it leads to. What is not here is refused.
TABLE = {
    ("adopting", "adopt"): "adopting",
    ("adopting", "maintenance"): "maintenance",
    ("adopting", "retire"): "retired",
    ("adopted", "adopt"): "adopting",
    ("adopted", "maintenance"): "maintenance",
    ("adopted", "retire"): "retired",
    ("maintenance", "adopt"): "adopting",
    ("maintenance", "maintenance"): "maintenance",
    ("maintenance", "retire"): "retired",
    ("retired", "delete"): "deleted",
    ("adopting", "rejoin"): "adopting",
    ("adopted", "rejoin"): "adopted",
    ("maintenance", "rejoin"): "maintenance",
    ("retired", "rejoin"): "adopting",
}


def node(status: str = "adopted") -> Draft:
    """A node with a device, an atom, a trusted key, a label and a condition."""
    return Draft(
        node=Node(status=status, trust_epoch=4, pool_id="pool_1", plan_key={"digest": "d1"}),
        devices={"GPU-1": Device("GPU-1", serial="1650")},
        atoms={("GPU-1", 1): Atom("GPU-1", 1, "GPU-1", bookable=True)},
        labels={"rack": Label("rack", "r1", "operator")},
        conditions={FAILED: ConditionRow("AcceptanceFailed", reason="diag.nvml:ecc", no_schedule=True)},
        hardware=HardwareKey("k", trusted=True),
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("status", NODE_STATUSES)
def test_an_order_leads_where_the_table_says_and_is_refused_else(status: str, order: str) -> None:
    draft = node(status)
    to = TABLE.get((status, order))
    if to is None:
        with pytest.raises(Refused, match=f"a node that is {status} cannot be"):
            ORDERS[order](FACTS, draft)
        assert draft == node(status)
    else:
        ORDERS[order](FACTS, draft)
        assert draft.node.status == to
        told = [one.payload for one in draft.events if one.type == "node.status"]
        assert [(one["from"], one["to"]) for one in told] == ([(status, to)] if status != to else [])


@pytest.mark.parametrize(("order", "status"), [("retire", "adopted"), ("delete", "retired")])
def test_a_retire_or_delete_is_refused_while_a_booking_is_live(order: str, status: str) -> None:
    draft = node(status)
    with pytest.raises(Refused, match=f"{NODE} cannot be .* while a booking is live: book-1 on GPU-1"):
        ORDERS[order](BOOKED, draft)
    assert draft == node(status)


def test_a_booking_forbids_neither_adopt_nor_maintenance() -> None:
    for order in ("adopt", "maintenance"):
        ORDERS[order](BOOKED, node())


def test_a_maintenance_says_by_whom_why_and_until_when_and_adopt_ends_it() -> None:
    draft = node()
    ORDERS["maintenance"](FACTS, draft)
    said = (draft.node.maintenance_by, draft.node.maintenance_reason, draft.node.maintenance_until)
    assert said == ("eva", "fan 3", "2026-12-01T00:00:00Z")
    lifecycle.maintenance("max", None, "fan 4")(FACTS, draft)
    assert (draft.node.maintenance_by, draft.node.maintenance_reason, draft.node.maintenance_until) == ("max", "fan 4", None)
    ORDERS["adopt"](FACTS, draft)
    assert (draft.node.maintenance_by, draft.node.maintenance_reason) == (None, None)


def test_adopt_begins_another_attempt_and_ends_what_the_last_one_failed_by() -> None:
    draft = node()
    ORDERS["adopt"](FACTS, draft)
    assert draft.node.attempt == 2
    assert (draft.conditions[FAILED].status, draft.conditions[FAILED].reason) == ("false", "")


def test_retire_lets_devices_and_hardware_key_go_keeps_the_history_and_ends_the_session_s_word() -> None:
    draft = node()
    ORDERS["retire"](FACTS, draft)
    assert (draft.devices, draft.atoms, draft.released) == ({}, {}, {"GPU-1"})
    assert (draft.hardware, draft.key_released) == (HardwareKey("k", trusted=False), True)
    assert [(one.device_id, one.serial, one.event) for one in draft.history] == [("GPU-1", "1650", "released")]
    assert (draft.node.trust_epoch, draft.node.plan_key) == (5, None)


def test_delete_leaves_a_tombstone() -> None:
    draft = node("retired")
    ORDERS["delete"](FACTS, draft)
    assert (draft.labels, draft.conditions, draft.node.pool_id) == ({}, {}, None)


def test_a_move_is_into_a_pool_of_the_node_s_tenant_or_out_of_any() -> None:
    draft = node()
    lifecycle.move("pool_2", "acme")(FACTS, draft)
    assert draft.node.pool_id == "pool_2"
    with pytest.raises(Invalid, match=r"pool pool_3 is not of the node's tenant acme"):
        lifecycle.move("pool_3", "other")(FACTS, draft)
    lifecycle.move(None, None)(FACTS, draft)
    assert draft.node.pool_id is None
    with pytest.raises(Refused, match="retired"):
        lifecycle.move("pool_2", "acme")(FACTS, node("retired"))


def test_who_comes_back_is_believed_from_the_next_session_on_and_retired_proves_itself_anew() -> None:
    adopted, retired = node("adopted"), node("retired")
    for draft in (adopted, retired):
        lifecycle.rejoin("tok_1")(FACTS, draft)
        assert (draft.node.trust_epoch, draft.node.plan_key) == (5, None)
    assert (adopted.node.attempt, adopted.conditions[FAILED].status, adopted.events) == (1, "true", [])
    assert (retired.node.attempt, retired.conditions[FAILED].status) == (2, "false")
    assert [one.payload["reason"] for one in retired.events] == ["joined with tok_1"]
