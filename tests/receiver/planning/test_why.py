"""Why nothing is booked (`nodes.why`): what stands against it, by whom, since when, what ends it."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.planning import node, why_ends
from receiver.planning.condition_types import NODE_CONDITION_TYPES
from receiver.planning.findings import FINDINGS
from receiver.planning.policy import Policy
from receiver.planning.verdicts import ACTIONS
from receiver.planning.view import Atom, Booking, ConditionRow, Counted, Device, Draft, Facts, Health, Node, Pool, Run
from receiver.planning.why import Answer, Known, Obstacle, why
from receiver.values import NODE_STATUSES
from tests.receiver.builders import NODE, gpu, gpus
from tests.receiver.planning import scenes

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
IN_SERVICE = Node(status="adopted", inventory_boot="boot-1")


def known(facts: Facts, draft: Draft, **more: Any) -> Known:
    """What a reader finds of these rows."""
    rows: dict[str, Any] = {
        "node": draft.node,
        "kind": facts.kind,
        "online": facts.online,
        "boot_id": facts.boot_id,
        "pool": facts.pool,
        "conditions": tuple(draft.conditions.values()),
        "devices": tuple(draft.devices.values()),
        "atoms": tuple(draft.atoms.values()),
        "health": tuple(row for row in draft.health.values() if row.open),
        "bookings": facts.bookings,
    }
    return Known(facts.node_id, **{**rows, **more})


def planned(facts: Facts, *faults: Counted, status: str = "adopted", trust: str = "platform") -> Draft:
    """The rows that all rules make of a node that is in service."""
    before = Draft(node=replace(IN_SERVICE, status=status, trust=trust), faults={one.key: one for one in faults})
    draft = before.copy()
    node.plan_sections(facts, draft)
    node.conclude(facts, before, draft)
    return draft


def told(section: pb.GpusSection, *faults: Counted, device_id: str | None = None, **facts: Any) -> Answer:
    seen = scenes.reports(section, online=True, boot_id="boot-1", **facts)
    return why(known(seen, planned(seen, *faults)), device_id)


def of_node(row: Node, **more: Any) -> Obstacle:
    """The one obstacle of a node like this."""
    found = why(Known(NODE, row, **more)).obstacles
    assert len(found) == 1, found
    return found[0]


def xid(code: str, number: int, count: int = 1) -> Counted:
    return Counted(code, gpu(number).uuid, "boot-1", count, message=f"{code[3:]}, pid=7, name=secret, what the driver says")


# ---- the answer in one sentence


def test_a_node_in_good_order_is_bookable_and_has_no_obstacle() -> None:
    answer = told(scenes.of_gpus(0, 1, 2))
    assert answer.sentence == "All 3 atoms can be booked."
    assert (answer.bookable, answer.obstacles) == (True, ())
    assert [(one.atoms, one.bookable, one.booked, one.against) for one in answer.devices] == [(1, 1, 0, ())] * 3


def test_what_takes_the_whole_node_out_is_named_first() -> None:
    answer = told(scenes.of_gpus(0, 1), xid("Xid79", 0), xid("Xid48", 1))
    assert answer.sentence == "Nothing can be booked: Xid79 on GPU-00000000."
    assert not answer.bookable
    assert [(one.scope, one.what) for one in answer.obstacles] == [("node", "Xid79"), ("device", "Xid48")]
    assert [one.against for one in answer.devices] == [("Xid79",), ("Xid48",)]


def test_what_is_of_several_gpus_is_named_once() -> None:
    answer = told(scenes.of_gpus(0, 1, 2), *(xid("Xid79", number) for number in range(3)))
    assert answer.sentence == "Nothing can be booked: Xid79 on 3 GPUs."
    assert [one.device_id for one in answer.obstacles] == [gpu(number).uuid for number in range(3)]


def test_a_single_atom_is_not_counted() -> None:
    assert told(scenes.of_gpus(0)).sentence == "Its one atom can be booked."
    assert told(scenes.of_gpus(0), xid("Xid48", 0)).sentence == "Its one atom cannot be booked: Xid48 on GPU-00000000."


def test_a_fault_of_one_gpu_leaves_the_others() -> None:
    answer = told(scenes.of_gpus(0, 1, 2), xid("Xid48", 1))
    assert answer.sentence == "2 of 3 atoms can be booked: Xid48 on GPU-00000001."
    assert [one.bookable for one in answer.devices] == [1, 0, 1]


def test_many_obstacles_are_counted_not_listed() -> None:
    reasons = tuple(f"Xid{number}" for number in range(100, 109))
    assert why(Known(NODE, replace(IN_SERVICE, no_schedule_reasons=reasons))).sentence.endswith("Xid105 and 3 more.")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"kind": "site-agent"}, "a site agent has no GPUs"),
        ({"missing": {"gpus": "settling"}}, "its gpus section did not come (settling)"),
        ({}, "its inventory shows no GPU"),
        ({"node": replace(IN_SERVICE, inventory_boot=None)}, "no inventory of it has been applied"),
        ({"devices": (Device("GPU-1"),)}, "its GPUs have no atoms"),
    ],
)
def test_a_node_with_nothing_to_book_says_why(more: dict[str, Any], says: str) -> None:
    answer = why(Known(**{"node_id": NODE, "node": IN_SERVICE, **more}))
    assert answer.sentence == f"There is nothing to book: {says}."
    assert not answer.bookable


# ---- the node


@pytest.mark.parametrize(
    ("more", "ends"),
    [
        ({"online": False}, "when its bcd connects"),
        ({"missing": {"gpus": "settling"}}, "when its gpus section comes (settling)"),
        ({"node": Node()}, "when its first inventory is applied"),
        ({"boot_id": "boot-2"}, "when an inventory of its present boot is applied"),
        ({"pool": Pool("p", policy=Policy(acceptance=({"kind": "diag.nvml"},)))}, "when its checks pass: diag.nvml"),
        ({}, "at its next report: nothing is left to prove"),
    ],
)
def test_an_adopting_node_says_what_it_waits_for(more: dict[str, Any], ends: str) -> None:
    row = replace(IN_SERVICE, status="adopting")
    found = of_node(**{"row": more.pop("node", row), "boot_id": "boot-1", "since": {("node", "status"): NOON}, **more})
    assert (found.scope, found.what, found.by, found.since, found.ends) == ("node", "adopting", "acceptance", NOON, ends)


def test_an_adopting_node_that_has_failed_waits_for_a_person() -> None:
    failed = ConditionRow("AcceptanceFailed", reason="Expired", message="diag.nvml did not start", no_schedule=True)
    row = replace(IN_SERVICE, status="adopting", no_schedule_reasons=("AcceptanceFailed",))
    status, condition = why(Known(NODE, row, boot_id="boot-1", conditions=(failed,))).obstacles
    again = f"better-compute api nodes.adopt nodeId={NODE} reason=..."
    assert status.ends == again
    assert (condition.what, condition.by, condition.message) == ("AcceptanceFailed", "acceptance", "diag.nvml did not start")
    assert condition.ends == f"{again} begins another attempt"


def test_a_maintenance_says_who_has_it_why_and_until_when() -> None:
    row = replace(
        IN_SERVICE,
        status="maintenance",
        maintenance_by="ana",
        maintenance_reason="new DIMMs",
        maintenance_until="2026-12-01T08:00:00Z",
    )
    found = of_node(row, since={("node", "maintenance"): NOON})
    assert (found.what, found.by, found.since) == ("maintenance", "ana", NOON)
    assert found.message == "new DIMMs, until 2026-12-01T08:00:00Z"
    assert found.ends == f"better-compute api nodes.adopt nodeId={NODE} reason=..."


@pytest.mark.parametrize(("status", "ends"), [("retired", "a join with a token"), ("deleted", "nothing")])
def test_a_node_that_is_out_says_what_brings_it_back(status: str, ends: str) -> None:
    found = of_node(Node(status=status))
    assert found.what == status
    assert found.ends.startswith(ends)


def test_a_tenants_node_says_so_and_how_it_ends() -> None:
    found = of_node(replace(IN_SERVICE, trust="tenant-controlled", lease_id="lease-7"))
    assert (found.what, found.by) == ("tenant-controlled", "operator")
    assert "lease-7" in str(found.message)
    assert found.ends == f"better-compute api nodes.setTrust nodeId={NODE} trust=platform reason=..."


def test_a_reason_of_another_owner_is_that_owners_to_take_back() -> None:
    answer = why(
        Known(NODE, IN_SERVICE, others=(("metal", "Wiping"),), devices=(Device("G"),), atoms=(Atom("G", 1, "G", bookable=True),))
    )
    (found,) = answer.obstacles
    assert (found.scope, found.what, found.by, found.ends) == ("node", "Wiping", "metal", "metal takes its reason back")
    assert not answer.bookable


def test_a_condition_has_its_writer_its_words_and_its_time() -> None:
    row = ConditionRow("FabricManagerDown", reason="NotRunning", message="nvidia-fabricmanager is not active", no_schedule=True)
    found = of_node(
        replace(IN_SERVICE, no_schedule_reasons=("FabricManagerDown",)),
        conditions=(row, ConditionRow("RebootRequired"), ConditionRow("MPSDown", status="false")),
        since={("conditions", row.key): NOON},
    )
    assert (found.what, found.by, found.since, found.enforced) == ("FabricManagerDown", "status", NOON, True)
    assert found.message == "nvidia-fabricmanager is not active"
    assert "nvidia-fabricmanager runs" in found.ends


def test_a_reason_that_stood_when_the_lease_began_is_told_by_its_name() -> None:
    word = ConditionRow("FabricManagerDown", status="true", advisory=True, message="a tenant's word")
    found = of_node(replace(IN_SERVICE, no_schedule_reasons=("FabricManagerDown",)), conditions=(word,))
    assert (found.what, found.by, found.message, found.ends) == ("FabricManagerDown", "health", None, why_ends.FROZEN)


def test_in_a_pool_that_observes_a_reason_is_told_and_keeps_nothing_out() -> None:
    pool = Pool("p", mode="observe")
    answer = told(scenes.of_gpus(0, 1), xid("Xid79", 0), pool=pool)
    assert answer.sentence == (
        "1 of 2 atoms can be booked: Xid79 on GPU-00000000. The pool only observes: else Xid79 on GPU-00000000 would keep it out."
    )
    assert [(one.scope, one.what, one.enforced) for one in answer.obstacles] == [
        ("node", "Xid79", False),
        ("device", "Xid79", True),
    ]


def test_duplicate_identity_names_the_other_node() -> None:
    answer = told(scenes.of_gpus(0, 1), owners={gpu(0).uuid: "node_2"})
    (found,) = [one for one in answer.obstacles if one.what == "DuplicateIdentity"]
    assert (found.by, found.device_id) == ("identity", gpu(0).uuid)
    assert found.ends == (
        f"node_2 lets go of it, or better-compute api devices.transfer deviceId={gpu(0).uuid} toNode={NODE} reason=..., or "
        f"better-compute api nodes.resolveIdentity nodeId={NODE} action=keep|reject reason=..."
    )


def test_a_duplicate_session_ends_by_a_join_with_a_bound_token() -> None:
    row = ConditionRow("DuplicateIdentity", reason="DuplicateSession", no_schedule=True)
    found = of_node(replace(IN_SERVICE, no_schedule_reasons=("DuplicateIdentity",)), conditions=(row,))
    assert found.ends == (
        f"a join with a token that is bound to the node (better-compute api joinTokens.create nodeId={NODE} reason=...), or "
        f"better-compute api nodes.resolveIdentity nodeId={NODE} action=keep|reject reason=..."
    )


def test_a_node_wide_xid_is_told_in_the_tables_words_and_the_drivers() -> None:
    row = ConditionRow("Xid79", "GPU-1", message="79, pid=7, GPU has fallen off the bus.", count=2, no_schedule=True)
    for message, driver in ((row.message, f"; the driver: {row.message}"), ("79", "")):
        known = Known(NODE, Node("adopted", no_schedule_reasons=("Xid79",)), conditions=(replace(row, message=message),))
        assert why(known).obstacles[0].message == f"GPU has fallen off the bus; seen 2 times{driver}"


# ---- devices and atoms


def test_an_xid_says_what_repairs_it_and_how_it_is_cleared() -> None:
    (found,) = told(scenes.of_gpus(0), xid("Xid48", 0, count=3)).obstacles
    assert (found.scope, found.what, found.by) == ("device", "Xid48", "xid")
    assert (
        found.ends == "drain the node and reset its GPUs, then better-compute api devices.clear deviceId=GPU-00000000 reason=..."
    )
    assert str(found.message).endswith("seen 3 times")
    assert "secret" not in str(found.message), "the driver's text names a tenant's processes"


def test_a_switchs_fault_is_cleared_by_its_bus_id_and_node() -> None:
    row = ConditionRow("SXid20034", "00000000:05:00.0", "00000000:05:00.0", evidence={"action": "reboot-node"}, no_schedule=True)
    found = of_node(replace(IN_SERVICE, no_schedule_reasons=("SXid20034",)), conditions=(row,))
    clear = f"better-compute api devices.clear deviceId=00000000:05:00.0 nodeId={NODE} reason=..."
    assert found.ends == f"reboot the node, then {clear}"


def test_a_finding_closes_with_the_inventory_that_does_not_show_it() -> None:
    section = gpus(gpu(0, row_remap=pb.RowRemap(pending=True)), gpu(1, row_remap=pb.RowRemap(failure=True)))
    pending, failure = told(section).obstacles
    assert (pending.what, pending.by) == ("RowRemapPending", "inventory")
    assert pending.ends.startswith("reset the GPU; it closes when no inventory shows it")
    assert failure.ends.startswith("replace the GPU; no inventory of this GPU closes it")
    assert failure.ends.endswith("devices.clear deviceId=GPU-00000001 reason=... force=true)")


def test_a_lost_gpu_is_told_once() -> None:
    answer = told(gpus(gpu(0), gpu(1, state="lost")))
    assert [(one.scope, one.what, one.device_id) for one in answer.obstacles] == [("node", "GpuLost", gpu(1).uuid)]
    assert answer.devices[1].against == ("GpuLost",)


@pytest.mark.parametrize(
    ("state", "what", "by"),
    [
        ({"present": False, "healthy": False}, "missing", "inventory"),
        ({"assigned": True}, "assigned", "inventory"),
        ({"partition_pending": True}, "partitionPending", "inventory"),
        ({"draining": True}, "draining", "remediation"),
        ({"lost": True}, "lost", "inventory"),
    ],
)
def test_what_a_device_is_in_is_told_with_what_ends_it(state: dict[str, bool], what: str, by: str) -> None:
    rows = Known(NODE, IN_SERVICE, devices=(Device("GPU-1", **state),), since={("devices", "GPU-1"): NOON})  # type: ignore[arg-type]
    (found,) = why(rows).obstacles
    assert (found.scope, found.what, found.by, found.device_id) == ("device", what, by, "GPU-1")
    assert found.ends
    assert found.since == (NOON if what == "missing" else None)


def test_a_gpu_without_its_pools_layout_says_which_it_has() -> None:
    section = gpus(scenes.mig_gpu(0, scenes.instance("a", "3g.40gb")), gpu(1))
    answer = told(section, pool=scenes.pool("mig", mig_layout=("1g.10gb",)))
    assert [one.what for one in answer.obstacles] == ["MigLayoutMismatch"] * 2
    assert "3g.40gb" in str(answer.obstacles[0].message)
    assert answer.sentence == "Its one atom cannot be booked: MigLayoutMismatch on 2 GPUs."


def test_bookings_are_a_line_a_gpu_and_one_an_atom_where_a_gpu_is_asked_for() -> None:
    held = scenes.booked("GPU-00000000/GPU-00000000::1", "GPU-00000000/GPU-00000000::3")
    section, pool = scenes.of_gpus(0, 1), scenes.pool("timeslice")
    facts = scenes.reports(section, online=True, boot_id="boot-1", pool=pool, bookings=held)
    rows = known(facts, planned(facts), since={("bookings", ("GPU-00000000::3", 1)): NOON})
    whole, one = why(rows), why(rows, "GPU-00000000")
    assert whole.sentence == "6 of 8 atoms can be booked: booked on GPU-00000000."
    assert [(o.scope, o.message, o.since) for o in whole.obstacles] == [("device", "2 of 4 atoms", NOON)]
    assert [(o.scope, o.atom_id, o.message) for o in one.obstacles] == [
        ("atom", "GPU-00000000::1", "booking b0"),
        ("atom", "GPU-00000000::3", "booking b1"),
    ]
    assert [(d.device.id, d.bookable, d.booked) for d in one.devices] == [("GPU-00000000", 2, 2)]


def test_a_booking_of_another_tenant_has_no_name() -> None:
    rows = Known(
        NODE,
        IN_SERVICE,
        devices=(Device("G"),),
        atoms=(Atom("G", 1, "G", bookable=True),),
        bookings=(Booking("", "G", "G", 1),),
    )
    (found,) = why(rows).obstacles
    assert found.message == "a booking of another tenant"


def test_a_booking_of_an_older_generation_does_not_hold_the_new_one() -> None:
    device, atom = Device("G"), Atom("MIG-a", 2, "G", "1g.10gb", bookable=True)
    old = Atom("MIG-a", 1, "G", "1g.10gb", reason="MigInstanceGone", healthy=False)
    answer = why(Known(NODE, IN_SERVICE, devices=(device,), atoms=(atom, old), bookings=(Booking("b", "G", "MIG-a", 1),)))
    assert (answer.devices[0].atoms, answer.devices[0].bookable, answer.devices[0].booked) == (2, 1, 1)
    assert [(one.scope, one.what) for one in answer.obstacles] == [("atom", "MigInstanceGone"), ("device", "booked")]


def test_gpus_come_in_the_order_of_their_indices() -> None:
    order = told(gpus(gpu(0, index=2), gpu(1, index=0), gpu(2, index=1))).devices
    assert [one.device.id for one in order] == [gpu(1).uuid, gpu(2).uuid, gpu(0).uuid]


def test_about_one_gpu_what_the_node_has_against_all_is_told_too() -> None:
    answer = told(scenes.of_gpus(0, 1), xid("Xid79", 0), device_id=gpu(1).uuid)
    assert [(one.what, one.device_id) for one in answer.obstacles] == [("Xid79", gpu(0).uuid)]
    assert [one.device.id for one in answer.devices] == [gpu(1).uuid]


# ---- what ends it


def test_every_condition_says_what_ends_it() -> None:
    assert set(why_ends.CONDITIONS) == {row.type for row in NODE_CONDITION_TYPES.values() if row.writer != "xid"}
    for kind in why_ends.CONDITIONS:
        text = why_ends.of_condition(NODE, ConditionRow(kind, evidence={"otherNode": "node_2"}))
        assert text
        assert "{" not in text


def test_every_finding_and_every_action_says_what_ends_it() -> None:
    for finding in FINDINGS.values():
        assert "devices.clear" in why_ends.of_health(
            Health("GPU-1", "inventory", finding.code, detail={"recoveryAction": "gpu-reset"})
        )
    for action in ACTIONS:
        text = why_ends.of_health(Health("GPU-1", "xid", "Xid1", "boot", detail={"action": action}))
        assert text.endswith("better-compute api devices.clear deviceId=GPU-1 reason=...")
        assert action not in text, "in words"


# ---- over random nodes


def _random(chance: random.Random) -> Known:
    """A node as the rules leave it, after a random inventory, faults, bookings, pool and status."""
    count = chance.randint(0, 4)
    changes: list[Callable[[int], pb.Gpu]] = [
        *[lambda n: gpu(n)] * 12,
        lambda n: gpu(n, state="lost"),
        lambda n: gpu(n, assigned=True),
        lambda n: gpu(n, name="NVIDIA New"),
        lambda n: gpu(n, row_remap=pb.RowRemap(pending=True)),
        lambda n: scenes.mig_gpu(n, scenes.instance(f"{n}-a"), scenes.instance(f"{n}-b", start=1)),
        lambda n: scenes.mig_gpu(n, pending=False),
    ]
    section = gpus(*(chance.choice(changes)(number) for number in range(count)))
    sharing = chance.choice(("exclusive", "exclusive", "mig", "timeslice"))
    pool = replace(scenes.pool(sharing), mode=chance.choice(("enforce", "enforce", "observe")))
    facts = scenes.reports(section, online=chance.random() < 0.9, boot_id="boot-1", pool=chance.choice((None, pool)))
    free = planned(facts)
    held = [Booking(f"b{n}", one.device_id, *one.key) for n, one in enumerate(free.atoms.values()) if chance.random() < 0.3]
    facts = replace(facts, bookings=tuple(held))
    faults = [xid(chance.choice(("Xid79", "Xid48", "Xid48", "Xid31")), n) for n in range(count) if chance.random() < 0.2]
    trust = chance.choice(("platform",) * 9 + ("tenant-controlled",))
    status = chance.choice(("adopted",) * 9 + NODE_STATUSES)
    others = (("metal", "Wiping"),) if chance.random() < 0.1 else ()
    return known(facts, planned(facts, *faults, status=status, trust=trust), others=others)


@pytest.mark.parametrize("seed", range(300))
def test_what_cannot_be_booked_has_an_obstacle_and_what_can_has_none(seed: int) -> None:
    """The definition of SPEC B0, beside the answer."""
    rows = _random(random.Random(seed))
    placeable = rows.node.status == "adopted" and rows.node.trust == "platform" and not rows.others
    placeable = placeable and not rows.node.no_schedule_reasons
    held = {(one.atom_id, one.atom_generation) for one in rows.bookings}
    free = {atom.key for atom in rows.atoms if placeable and atom.bookable and atom.key not in held}
    answer = why(rows)
    assert sum(one.bookable for one in answer.devices) == len(free)
    assert answer.bookable is bool(free)
    stands = [one for one in answer.obstacles if one.enforced and one.scope == "node"]
    assert bool(stands) is not placeable
    for atom in rows.atoms:
        detailed = why(rows, atom.device_id).obstacles
        against = [
            one for one in detailed if one.enforced and atom.id == (one.atom_id or atom.id) and one.device_id == atom.device_id
        ]
        assert (atom.key in free) is not bool(stands or [one for one in against if one.scope != "node"])
    for one in answer.obstacles:
        assert one.what
        assert one.by
        assert one.ends


def test_the_random_nodes_cover_what_there_is() -> None:
    seen = [why(_random(random.Random(seed))) for seed in range(300)]
    words = {one.what for answer in seen for one in answer.obstacles}
    assert {
        "Xid79", "Xid48", "GpuLost", "GpuModelUnknown", "RowRemapPending", "assigned", "booked", "partitionPending",
        "MigLayoutMismatch", "adopting", "maintenance", "retired", "deleted", "tenant-controlled", "Wiping",
    } <= words  # fmt: skip
    assert sum(answer.bookable for answer in seen) > 50
    assert any(not one.enforced for answer in seen for one in answer.obstacles)


# ---- repairs


def test_a_node_that_drains_names_the_repair_and_since_when() -> None:
    runs = (Run("run_1", "gpu.reset", observed=True), Run("run_2", "node.reboot", state="waiting", reason="2 bookings"))
    one = of_node(replace(IN_SERVICE, draining=True), runs=runs, since={("runs", "run_2"): NOON})
    assert (one.scope, one.what, one.by, one.since) == ("node", "draining", "remediation", NOON)
    assert one.message == "node.reboot run_2 waiting: 2 bookings"
    assert "remediation.get runId=run_2" in one.ends
    assert "remediation.cancel runId=run_2" in one.ends


def test_a_node_that_drains_is_not_bookable_although_its_atoms_are() -> None:
    facts = scenes.reports(scenes.of_gpus(0, 1), online=True, boot_id="boot-1")
    draft = planned(facts)
    answer = why(known(facts, draft, node=replace(draft.node, draining=True)))
    assert (answer.bookable, answer.sentence) == (False, "Nothing can be booked: draining.")
    assert [one.bookable for one in answer.devices] == [0, 0]
    assert [one.scope for one in answer.obstacles] == ["node"], "the node says it for its GPUs"


def test_a_gpu_that_drains_names_the_reset_of_its_group() -> None:
    facts = scenes.reports(scenes.of_gpus(0, 1), online=True, boot_id="boot-1")
    draft = planned(facts)
    draft.put("devices", replace(draft.devices[gpu(0).uuid], draining=True))
    runs = (Run("run_1", "gpu.reset", devices=(gpu(1).uuid,)), Run("run_2", "gpu.reset", devices=(gpu(0).uuid,), state="running"))
    (one,) = why(known(facts, draft, runs=runs)).obstacles
    assert (one.scope, one.what, one.device_id) == ("device", "draining", gpu(0).uuid)
    assert one.message == "gpu.reset run_2 running: a repair waits for its bookings to end, or runs"


def test_a_fault_that_a_repair_is_for_is_ended_by_that() -> None:
    facts = scenes.reports(scenes.of_gpus(0, 1), online=True, boot_id="boot-1")
    draft = planned(facts, xid("Xid79", 0), xid("Xid48", 1))
    cause = {"code": "Xid79", "deviceId": gpu(0).uuid, "source": "xid", "bootId": "boot-1"}
    run = Run("run_1", "node.reboot", state="waiting", reason="2 bookings", causes=[cause])
    ends = {one.what: one.ends for one in why(known(facts, draft, runs=(run,))).obstacles}
    assert ends["Xid79"] == "the node.reboot that is waiting: 2 bookings; better-compute api remediation.get runId=run_1"
    assert "run_1" not in ends["Xid48"]
    watched = {one.what: one.ends for one in why(known(facts, draft, runs=(replace(run, observed=True),))).obstacles}
    assert "devices.clear" in watched["Xid79"], "what only observes ends nothing"
