"""Remediation in the database, step by step, with time under the test's control (SPEC B8)."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from psycopg.types.json import Jsonb

from receiver.apply import command, nodes, repairs, replan
from receiver.apply.health import clear_device_health
from receiver.apply.inventory import apply_inventory
from receiver.apply.session import hello
from receiver.apply.status import record_status
from receiver.apply.trust import set_trust
from receiver.errors import Invalid, NotFound, Refused
from receiver.store.database import Connection
from receiver.values import Command, CommandResult, Fault, Status
from tests.receiver.builders import FACTS, NODE, gpu, gpus, host, offer

POOL = "pool_a"
GPU, SECOND = gpu(0).uuid, gpu(1).uuid
OFF = Fault("xid", 79, GPU, gpu(0).bus_id, 1, "79, pid=7, name=python, GPU has fallen off the bus.")
SXID = Fault("sxid", 11004, "", "00000000:05:00.0", 1, "11004, Fatal, Link 44")
LOST = gpus(gpu(0, state="lost"), gpu(1))
ILL = gpus(gpu(0, row_remap=pb.RowRemap(pending=True)), gpu(1))
START = datetime(2026, 11, 1, 12, tzinfo=UTC)


@dataclass
class World:
    """A node with two GPUs in a pool of its own, and a clock."""

    tx: Connection
    now: datetime = START
    boot: str = "boot-1"
    epoch: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)
    gpus: pb.GpusSection = field(default_factory=lambda: gpus(gpu(0), gpu(1)))
    collected: int = 0

    def later(self, **time: float) -> None:
        self.now += timedelta(**time)
        self.tx.execute(
            "CREATE OR REPLACE FUNCTION bc_clock() RETURNS timestamptz LANGUAGE sql STABLE AS "
            f"$$SELECT '{self.now.isoformat()}'::timestamptz$$"
        )

    def connects(self, boot: str | None = None) -> None:
        self.boot = boot or self.boot
        self.epoch = hello(self.tx, NODE, replace(FACTS, boot_id=self.boot, previous_epoch=self.epoch)).epoch

    def collects(self, section: pb.GpusSection | None = None) -> None:
        """Collects an inventory, offers and confirms it."""
        self.gpus = section or self.gpus
        self.collected += 1
        bodies = host(gpus=self.gpus)
        offered = replace(offer(bodies), boot_id=self.boot)
        apply_inventory(self.tx, NODE, offered, bodies)
        self.digest = offered.digest
        self.reports()

    def reports(self, *faults: Fault) -> None:
        self.faults |= {fault.code + fault.device: fault for fault in faults}
        at = START + timedelta(minutes=self.collected)
        assert record_status(self.tx, NODE, self.epoch, Status(self.digest, at, faults=tuple(self.faults.values())))

    def reboots(self, section: pb.GpusSection | None = None) -> None:
        """Comes up again, and has collected its inventory."""
        self.faults.clear()
        self.connects(f"boot-{int(self.boot[5:]) + 1}")
        self.collects(section)

    def step(self) -> None:
        repairs.step_node(self.tx, NODE)

    def sent(self) -> list[Command]:
        """What the node's session is handed."""
        return command.due(self.tx, NODE, self.epoch, [])

    def answers(self, status: str, reason: str = "", payload: object = None) -> None:
        (one,) = self.sent()
        assert command.record_result(self.tx, NODE, CommandResult(one.id, status, reason, payload))

    def runs(self) -> list[tuple[str, str]]:
        return self.tx.execute("SELECT kind, state FROM remediation_runs ORDER BY id").fetchall()

    def run(self) -> Any:
        """The last run, as a mapping."""
        row = self.tx.execute("SELECT to_jsonb(r) FROM remediation_runs r ORDER BY id DESC LIMIT 1").fetchone()
        assert row is not None
        return row[0]

    def steps(self) -> list[tuple[str, str]]:
        """Of the last run."""
        rows = self.tx.execute("SELECT state, reason FROM remediation_steps WHERE run_id = %s ORDER BY seq", [self.run()["id"]])
        return rows.fetchall()

    def told(self, prefix: str = "node.remediation.") -> list[str]:
        rows = self.tx.execute("SELECT type FROM events WHERE starts_with(type, %s) ORDER BY seq", [prefix])
        return [row[0].removeprefix(prefix) for row in rows]

    def node(self) -> Any:
        row = self.tx.execute("SELECT to_jsonb(n) FROM nodes n WHERE id = %s", [NODE]).fetchone()
        assert row is not None
        return row[0]

    def bookable(self) -> list[str]:
        return [row[0] for row in self.tx.execute("SELECT id FROM bookable_atoms ORDER BY id")]

    def opened(self) -> list[str]:
        rows = self.tx.execute("SELECT code FROM device_health WHERE closed_at IS NULL ORDER BY code")
        return [row[0] for row in rows]

    def disruptions(self) -> list[tuple[str, bool]]:
        """Whose, and whether they are open."""
        return self.tx.execute("SELECT owner, ended_at IS NULL FROM disruptions ORDER BY started_at, id").fetchall()

    def policy(self, mode: str = "enforce", **keys: object) -> None:
        self.tx.execute("UPDATE pools SET policy = %s, mode = %s, revision = revision + 1", [Jsonb(keys), mode])
        replan.queue(self.tx, [NODE], "the pool was edited")
        replan.drain(self.tx)

    def books(self, device: str = GPU, booking: str = "booking_1") -> None:
        self.tx.execute(
            """INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
               VALUES (%s, 'default', %s, %s, %s, 1)""",
            [booking, NODE, device, device],
        )

    def ends(self, booking: str = "booking_1") -> None:
        self.tx.execute("UPDATE bookings SET ended_at = bc_clock() WHERE booking_id = %s", [booking])

    def rebooted_well(self) -> None:
        """The fault's reboot, from the order to its proof."""
        self.step()
        self.answers_by_reboot()
        self.step()

    def answers_by_reboot(self) -> None:
        (one,) = self.sent()
        self.reboots(gpus(gpu(0), gpu(1)))
        assert command.record_result(self.tx, NODE, CommandResult(one.id, "succeeded", "", {"bootId": self.boot}))


@pytest.fixture
def world(tx: Connection) -> World:
    """In service."""
    made = World(tx)
    made.later()
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES (%s, 'default', 'a')", [POOL])
    made.connects()
    tx.execute("UPDATE nodes SET pool_id = %s", [POOL])
    made.collects()
    assert (made.node()["status"], made.bookable()) == ("adopted", [GPU, SECOND])
    return made


# ---- what queues


def test_a_fault_queues_its_repair_in_the_transaction_that_opens_it_and_wakes_who_repairs(world: World) -> None:
    world.tx.execute("LISTEN bc_remediation")
    world.reports(OFF)
    assert world.runs() == [("node.reboot", "queued")]
    assert (world.run()["devices"], world.run()["boot_id"], world.run()["by"]) == ([GPU], "boot-1", "")
    assert world.run()["causes"] == [{"code": "Xid79", "source": "xid", "bootId": "boot-1", "deviceId": GPU}]
    assert (world.told(), world.steps()) == (["queued"], [("queued", "Xid79")])
    world.tx.commit()
    assert NODE in [note.payload for note in world.tx.notifies(timeout=5, stop_after=1)]


def test_a_report_that_repeats_the_fault_queues_nothing_more(world: World) -> None:
    world.reports(OFF)
    world.reports(replace(OFF, count=7))
    world.collects()
    assert len(world.runs()) == 1
    assert world.told() == ["queued"]


@pytest.mark.parametrize(("section", "kind"), [(LOST, "node.reboot"), (ILL, "gpu.reset")])
def test_a_finding_queues_what_its_remedy_is(world: World, section: pb.GpusSection, kind: str) -> None:
    world.collects(section)
    assert world.runs() == [(kind, "queued")]


@pytest.mark.parametrize("number", [48, 31, 74])
def test_what_a_person_looks_at_queues_nothing(world: World, number: int) -> None:
    world.reports(replace(OFF, number=number, message=f"{number}, words"))
    assert world.runs() == []


def test_a_fault_of_a_whole_switch_queues_a_reboot_that_has_to_bring_all_gpus_back(world: World) -> None:
    world.reports(replace(SXID, number=12020, message="12020, Fatal, words"))
    found = world.run()
    assert (found["kind"], found["devices"]) == ("node.reboot", [GPU, SECOND])


def test_a_reboot_swallows_the_nodes_queued_resets(world: World) -> None:
    world.collects(ILL)
    world.reports(OFF)
    assert world.runs() == [("gpu.reset", "cancelled"), ("node.reboot", "queued")]
    assert [one["code"] for one in world.run()["causes"]] == ["RowRemapPending", "Xid79"]
    assert not world.run()["escalated"]
    assert world.node()["status"] == "adopted"


def test_what_opens_while_a_reboot_waits_joins_it(world: World) -> None:
    world.reports(OFF)
    world.collects(gpus(gpu(0), gpu(1, row_remap=pb.RowRemap(pending=True))))
    assert world.runs() == [("node.reboot", "queued")]
    assert world.run()["devices"] == [GPU, SECOND]
    assert world.steps()[-1] == ("queued", "RowRemapPending joined it")


def test_each_reset_group_has_its_run_and_a_group_has_one(world: World) -> None:
    pending = {"row_remap": pb.RowRemap(pending=True)}
    world.collects(gpus(gpu(0, architecture="hopper", **pending), gpu(1, architecture="hopper", **pending)))
    assert world.runs() == [("gpu.reset", "queued")] * 2

    linked = [pb.NvLink(link=0, active=True, peer_type="gpu", peer_bus_id=gpu(1 - number).bus_id) for number in range(2)]
    old = [gpu(number, architecture="volta", nvlinks=[linked[number]], **pending) for number in range(2)]
    world.tx.execute("DELETE FROM remediation_steps")
    world.tx.execute("DELETE FROM remediation_runs")
    world.collects(gpus(*old))
    assert world.runs() == [("gpu.reset", "queued")]
    assert world.run()["devices"] == [GPU, SECOND]


@pytest.mark.parametrize("where", ["maintenance", "paused", "pool-maintenance", "tenant"])
def test_nothing_queues_where_no_repair_may_begin(world: World, where: str) -> None:
    if where == "maintenance":
        nodes.maintenance(world.tx, NODE, None, "alice", "look")
    elif where == "tenant":
        set_trust(world.tx, NODE, "tenant-controlled", "lease_1", "alice")
    else:
        kind = "remediation" if where == "paused" else "maintenance"
        world.tx.execute("INSERT INTO pool_stops (pool_id, tenant_id, kind) VALUES (%s, 'default', %s)", [POOL, kind])
    world.reports(OFF)
    world.collects(LOST)
    assert world.runs() == []


def test_an_observing_pool_records_what_would_be_done_and_tells_nothing(world: World) -> None:
    world.policy("observe")
    world.reports(OFF)
    world.step()
    assert (world.runs(), world.run()["observed"], world.sent()) == ([("node.reboot", "cancelled")], True, [])
    assert world.steps()[1:] == [("waiting", "would send node.reboot"), ("cancelled", "only observed: would send node.reboot")]
    assert (world.told(), world.disruptions(), world.node()["draining"]) == ([], [], False)
    world.reports(replace(OFF, count=2))
    assert len(world.runs()) == 1, "once"
    world.policy("enforce")
    assert world.runs() == [("node.reboot", "cancelled"), ("node.reboot", "queued")], "it has had no repair"


# ---- waiting, and the start


def test_a_reboot_waits_until_the_whole_node_has_no_live_booking(world: World) -> None:
    world.books(SECOND)
    world.reports(OFF)
    world.step()
    world.step()
    assert world.runs() == [("node.reboot", "waiting")]
    assert world.steps()[1:] == [("waiting", "1 live bookings: booking_1")], "a reason is told once"
    world.ends()
    world.step()
    assert world.runs() == [("node.reboot", "running")]


def test_a_reset_waits_for_the_gpus_of_its_group_only(world: World) -> None:
    world.books(SECOND, "other")
    world.books(GPU, "mine")
    world.collects(ILL)
    world.step()
    assert world.run()["reason"] == "1 live bookings: mine"
    world.ends("mine")
    world.step()
    assert world.runs() == [("gpu.reset", "running")]


def test_a_start_drains_the_node_writes_its_disruption_and_hands_the_command_over(world: World) -> None:
    world.reports(OFF)
    world.step()
    found = world.run()
    assert (found["state"], world.node()["draining"], world.bookable()) == ("running", True, [])
    assert world.disruptions() == [(found["id"], True)]
    (one,) = world.sent()
    assert (one.id, one.kind, one.payload) == (found["command_id"], "node.reboot", {})
    assert one.idempotency_key == f"remediation:{found['id']}"
    assert one.start_within == pytest.approx(600, abs=30)
    assert world.told() == ["queued", "started"]


def test_a_start_of_a_reset_drains_its_group_and_leaves_the_rest_of_the_node(world: World) -> None:
    world.collects(ILL)
    world.step()
    (one,) = world.sent()
    assert (one.kind, one.payload) == ("gpu.reset", {"deviceId": GPU})
    drained = world.tx.execute("SELECT id FROM devices WHERE draining").fetchall()
    assert (drained, world.node()["draining"], world.bookable()) == ([(GPU,)], False, [SECOND])


def test_a_run_waits_for_the_budget_and_for_a_node_that_is_connected(world: World) -> None:
    world.policy(disruptionBudget=0)
    world.reports(OFF)
    world.step()
    assert world.run()["reason"] == "the pool's disruption budget is 0"
    world.policy(disruptionBudget=1)
    world.tx.execute("UPDATE nodes SET connected = false")
    world.step()
    assert (world.runs(), world.run()["reason"]) == ([("node.reboot", "waiting")], "the node is not connected")


def test_a_step_that_is_made_twice_starts_nothing_twice(world: World) -> None:
    world.reports(OFF)
    for _ in range(3):
        world.step()
    assert (len(world.sent()), len(world.disruptions()), world.told()) == (1, 1, ["queued", "started"])


def test_a_run_whose_fault_is_cleared_before_it_begins_is_cancelled_and_nobody_is_bothered(world: World) -> None:
    world.reports(OFF)
    clear_device_health(world.tx, GPU, "looked at")
    world.step()
    assert (world.runs(), world.node()["status"], world.run()["escalated"]) == ([("node.reboot", "cancelled")], "adopted", False)
    assert world.told() == ["queued"]


def test_a_waiting_run_of_a_tenants_machine_is_cancelled_and_one_under_way_goes_no_further(world: World) -> None:
    world.reports(OFF)
    world.step()
    set_trust(world.tx, NODE, "tenant-controlled", "lease_1", "alice")
    world.step()
    assert (world.runs(), world.run()["reason"]) == ([("node.reboot", "cancelled")], "the node is tenant-controlled")
    assert (world.disruptions()[0][1], world.node()["draining"], world.node()["status"]) == (False, False, "adopted")
    assert world.tx.execute("SELECT state FROM commands").fetchall() == [("cancelled",)]


def test_a_waiting_run_whose_node_came_back_with_another_boot_is_verified_and_nothing_is_rebooted(world: World) -> None:
    world.books(SECOND)
    world.reports(OFF)
    world.step()
    world.reboots()
    world.step()
    assert (world.runs(), world.sent(), world.opened()) == ([("node.reboot", "succeeded")], [], [])
    assert [state for state, _ in world.steps()] == ["queued", "waiting", "verifying", "succeeded"]


def test_a_fault_of_an_earlier_boot_that_queues_late_reboots_nothing(world: World) -> None:
    nodes.maintenance(world.tx, NODE, None, "alice", "look")
    world.reports(OFF)
    world.reboots()
    nodes.adopt(world.tx, NODE, "alice", "done")
    assert world.run()["boot_id"] == "boot-1"
    world.step()
    assert (world.runs(), world.sent()) == ([("node.reboot", "succeeded")], [])


# ---- the proof


def test_a_reboot_succeeds_by_an_inventory_of_the_new_boot_and_closes_what_it_was_for(world: World) -> None:
    world.reports(OFF)
    world.step()
    (one,) = world.sent()
    world.faults.clear()
    world.connects("boot-2")
    command.record_result(world.tx, NODE, CommandResult(one.id, "succeeded", "", {"bootId": "boot-2"}))
    world.step()
    assert (world.runs(), world.opened()) == ([("node.reboot", "verifying")], ["Xid79"]), "another boot id alone proves nothing"
    world.collects()
    world.step()
    assert (world.runs(), world.opened()) == ([("node.reboot", "succeeded")], [])
    assert world.told() == ["queued", "started", "succeeded"]
    assert (world.node()["draining"], world.disruptions()[0][1], world.bookable()) == (False, False, [GPU, SECOND])
    closed = world.tx.execute("SELECT closed_reason FROM device_health").fetchone()
    assert closed == (f"repaired by run {world.run()['id']}",)
    assert "cleared" in world.told("node.gpu.")


def test_a_reboot_after_which_the_gpu_is_still_gone_is_no_success(world: World) -> None:
    world.collects(LOST)
    world.step()
    world.reboots(LOST)
    for minutes in (0, 29):
        world.later(minutes=minutes)
        world.step()
        assert world.runs() == [("node.reboot", "verifying")]
    world.later(minutes=1)
    world.step()
    assert world.runs() == [("node.reboot", "failed")]
    assert world.run()["reason"] == f"{GPU} has GpuLost, 30 min after it began"
    assert (world.node()["status"], world.node()["maintenance_by"]) == ("maintenance", "remediation")


def test_a_gpu_that_is_on_no_list_after_the_reboot_is_no_success(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.reboots(gpus(gpu(1)))
    world.step()
    assert world.runs() == [("node.reboot", "verifying")]
    world.later(minutes=30)
    world.step()
    assert (world.runs(), world.opened()) == ([("node.reboot", "failed")], ["Xid79"])


def test_a_fault_with_a_policy_since_the_reboot_is_a_failure_at_once(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.faults.clear()
    world.connects("boot-2")
    world.reports(replace(OFF, number=48, message="48, DBE"))
    world.collects()
    world.step()
    assert (world.run()["state"], world.run()["reason"]) == ("failed", "Xid48 again")


def test_a_reset_succeeds_by_its_command_and_the_next_inventory_that_shows_the_gpu_in_health(world: World) -> None:
    world.collects(ILL)
    world.step()
    world.collects(ILL)
    world.answers("succeeded", "", {"group": [GPU]})
    world.step()
    assert world.runs() == [("gpu.reset", "verifying")]
    world.collects(gpus(gpu(0), gpu(1)))
    world.step()
    assert (world.runs(), world.bookable()) == ([("gpu.reset", "succeeded")], [GPU, SECOND])
    assert world.node()["status"] == "adopted"


def test_a_reset_is_not_proven_by_the_inventory_of_before(world: World) -> None:
    world.policy(xid={"95": {"policy": "device"}})
    world.reports(replace(OFF, number=119, message="119, Timeout waiting for RPC from GSP"))
    assert world.runs() == [("gpu.reset", "queued")]
    world.step()
    world.faults.clear()
    world.answers("succeeded", "", {"group": [GPU]})
    world.step()
    assert world.runs() == [("gpu.reset", "verifying")]
    world.collects()
    world.step()
    assert (world.runs(), world.opened()) == ([("gpu.reset", "succeeded")], [])


def test_a_fault_after_a_proven_reset_opens_although_the_node_counts_from_one_again(world: World) -> None:
    gsp = replace(OFF, number=119, count=5, message="119, Timeout waiting for RPC from GSP")
    world.reports(gsp)
    world.step()
    world.faults.clear()
    world.answers("succeeded", "", {"group": [GPU]})
    world.collects()
    world.step()
    assert (world.run()["state"], world.opened()) == ("succeeded", [])
    world.reports(replace(gsp, count=1))
    assert world.opened() == ["Xid119"]


def test_a_fault_between_a_reset_and_its_proof_is_a_failure(world: World) -> None:
    gsp = replace(OFF, number=119, count=5, message="119, Timeout waiting for RPC from GSP")
    world.reports(gsp)
    world.step()
    world.faults.clear()
    world.answers("succeeded", "", {"group": [GPU]})
    world.reports(replace(gsp, count=1))
    world.collects()
    world.step()
    assert (world.run()["state"], world.run()["reason"], world.opened()) == ("failed", "Xid119 again", ["Xid119"])


@pytest.mark.parametrize(
    ("status", "reason"),
    [("failed", "NotRebooted"), ("refused", "NotAllowed"), ("refused", "RateLimited"), ("expired", "NotStarted")],
)
def test_a_command_that_is_not_done_fails_the_run(world: World, status: str, reason: str) -> None:
    world.reports(OFF)
    world.step()
    world.answers(status, reason)
    world.step()
    assert (world.run()["state"], world.run()["reason"]) == ("failed", f"{status}: {reason}")
    assert (world.node()["status"], world.disruptions()[0][1], world.node()["draining"]) == ("maintenance", False, False)


def test_a_node_that_is_busy_just_after_its_last_booking_is_asked_again_for_a_while(world: World) -> None:
    world.collects(ILL)
    world.step()
    for _ in range(3):
        world.answers("refused", "gpu-busy")
        world.step()
        assert world.sent() == [], "not at once"
        world.later(minutes=1)
        world.step()
        assert len(world.sent()) == 1
    assert (world.runs(), len(world.disruptions())) == ([("gpu.reset", "running")], 1)
    world.later(minutes=12)
    world.answers("refused", "gpu-busy")
    world.step()
    assert world.run()["reason"] == "refused: gpu-busy, for 15 min"
    assert world.told() == ["queued", "started", "failed", "escalated"]


def test_a_run_that_nothing_comes_of_fails_after_its_time_and_its_command_is_sent_no_more(world: World) -> None:
    world.reports(OFF)
    world.step()
    assert len(world.sent()) == 1
    world.later(minutes=30)
    world.step()
    assert (world.run()["state"], world.run()["reason"], world.sent()) == ("failed", "not done within 30 min", [])


# ---- to a person


def test_an_escalation_takes_the_node_into_maintenance_with_the_evidence(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.answers("failed", "RebootFailed")
    world.step()
    found = world.run()
    assert found["escalated"]
    assert (world.node()["status"], world.node()["maintenance_by"]) == ("maintenance", "remediation")
    assert world.told() == ["queued", "started", "failed", "escalated"]
    row = world.tx.execute("SELECT payload FROM events WHERE type = 'node.remediation.escalated'").fetchone()
    assert row is not None
    payload = row[0]
    assert (payload["runs"], payload["reason"]) == ([found["id"]], "failed: RebootFailed")
    evidence = payload["evidence"]
    assert [(one["code"], one["message"]) for one in evidence["faults"]] == [("Xid79", OFF.message)]
    assert [one["uuid"] for one in evidence["gpus"]["gpus"]] == [GPU, SECOND]
    assert world.runs() == [("node.reboot", "failed")], "a person has it: nothing is queued again"


def test_the_evidence_has_the_last_diagnosis(world: World) -> None:
    queued = command.queue(world.tx, NODE, "diag.nvml", {}, "k")
    command.record_result(world.tx, NODE, CommandResult(queued, "succeeded", "", {"passed": False}))
    world.reports(OFF)
    world.step()
    world.answers("failed", "RebootFailed")
    world.step()
    row = world.tx.execute("SELECT payload -> 'evidence' -> 'diagnosis' FROM events WHERE type LIKE '%%escalated'").fetchone()
    assert row is not None
    assert (row[0]["commandId"], row[0]["result"]) == (queued, {"passed": False})


def test_a_failed_reset_can_leave_the_node_in_service_and_the_gpu_to_a_person(world: World) -> None:
    world.policy(remediation={"escalateTo": "device"})
    world.collects(ILL)
    world.step()
    world.answers("failed", "NotHealthyAfterReset", {"group": [GPU]})
    world.step()
    assert (world.node()["status"], world.bookable(), world.run()["escalated"]) == ("adopted", [SECOND], True)
    world.collects(ILL)
    world.later(hours=3)
    world.reports()
    assert world.runs() == [("gpu.reset", "failed")], "it is not tried again"
    world.collects(gpus(gpu(0), gpu(1)))
    world.later(hours=3)
    world.collects(ILL)
    assert world.runs() == [("gpu.reset", "failed"), ("gpu.reset", "queued")], "it was gone, and has come back"


def test_a_fault_that_a_person_has_is_not_repaired_again_when_the_node_is_back(world: World) -> None:
    world.reports(OFF)
    world.step()
    world.answers("failed", "RebootFailed")
    world.step()
    nodes.adopt(world.tx, NODE, "alice", "try again")
    world.reports(replace(OFF, count=3))
    assert world.runs() == [("node.reboot", "failed")]
    clear_device_health(world.tx, GPU, "seated anew")
    world.later(hours=1)
    world.reports(replace(OFF, count=4))
    assert world.runs() == [("node.reboot", "failed"), ("node.reboot", "queued")]


def test_a_node_that_faults_every_two_hours_is_a_persons_at_the_fourth_run(world: World) -> None:
    for _ in range(3):
        world.reports(OFF)
        world.rebooted_well()
        assert world.run()["state"] == "succeeded"
        world.later(hours=2)
    world.reports(OFF)
    world.step()
    assert [state for _, state in world.runs()] == ["succeeded"] * 3 + ["cancelled"]
    assert (world.run()["reason"], world.run()["escalated"]) == ("more than 3 runs on the node in 24 h", True)
    assert (world.node()["status"], world.sent()) == ("maintenance", [])
    row = world.tx.execute("SELECT payload -> 'runs' FROM events WHERE type LIKE '%%escalated'").fetchone()
    assert row is not None
    assert len(row[0]) == 4


def test_more_than_five_runs_in_seven_days_are_a_persons(world: World) -> None:
    for _ in range(5):
        world.reports(OFF)
        world.rebooted_well()
        world.later(hours=30)
    world.reports(OFF)
    world.step()
    assert (world.run()["reason"], world.node()["status"]) == ("more than 5 runs on the node in 168 h", "maintenance")


def test_two_runs_in_a_row_that_did_not_clear_the_fault_are_enough(world: World) -> None:
    for _ in range(2):
        world.reports(OFF)
        world.rebooted_well()
        world.later(minutes=20)
    world.reports(OFF)
    world.step()
    assert (world.run()["state"], world.run()["reason"]) == ("cancelled", "two runs in a row did not clear Xid79")
    assert world.node()["status"] == "maintenance"


# ---- what a person orders


def test_an_ordered_reboot_waits_in_the_same_queue_and_brings_the_sound_gpus_back(world: World) -> None:
    world.books()
    run_id = repairs.reboot(world.tx, NODE, "alice", "kernel")
    world.step()
    assert (world.run()["id"], world.run()["by"], world.run()["state"]) == (run_id, "alice", "waiting")
    world.ends()
    world.rebooted_well()
    assert (world.run()["state"], world.run()["devices"]) == ("succeeded", [GPU, SECOND])


def test_force_waits_for_nothing_and_takes_a_reason(world: World) -> None:
    world.books()
    world.policy(disruptionBudget=0)
    with pytest.raises(Invalid, match="reason"):
        repairs.reboot(world.tx, NODE, "alice", "", force=True)
    repairs.reboot(world.tx, NODE, "alice", "it hangs", force=True)
    world.step()
    (one,) = world.sent()
    assert (one.kind, one.payload) == ("node.reboot", {"force": True})


def test_an_order_of_what_a_fault_has_queued_makes_that_run_the_persons(world: World) -> None:
    world.books()
    world.reports(OFF)
    run_id = repairs.reboot(world.tx, NODE, "alice", "now", force=True)
    assert world.runs() == [("node.reboot", "queued")]
    world.step()
    assert (world.run()["id"], world.run()["state"], world.sent()[0].payload) == (run_id, "running", {"force": True})
    with pytest.raises(Refused, match="is at it"):
        repairs.reboot(world.tx, NODE, "bob", "now")


@pytest.mark.parametrize("where", ["maintenance", "observe"])
def test_a_node_in_maintenance_or_in_an_observing_pool_is_repaired_by_force_only(world: World, where: str) -> None:
    if where == "observe":
        world.policy("observe")
    else:
        nodes.maintenance(world.tx, NODE, None, "alice", "look")
    with pytest.raises(Refused, match="with force"):
        repairs.reset(world.tx, GPU, "alice", "")
    repairs.reset(world.tx, GPU, "alice", "needed", force=True)
    world.step()
    assert world.sent()[0].kind == "gpu.reset"


def test_orders_for_what_is_not_there_or_not_ours_are_refused(world: World) -> None:
    with pytest.raises(NotFound):
        repairs.reset(world.tx, "GPU-none", "alice", "")
    set_trust(world.tx, NODE, "tenant-controlled", "lease_1", "alice")
    with pytest.raises(Refused, match="tenant-controlled"):
        repairs.reboot(world.tx, NODE, "alice", "it hangs", force=True)


def test_a_diagnosis_is_a_run_too_and_no_failure_of_it_is_a_persons(world: World) -> None:
    run_id = repairs.diagnose(world.tx, NODE, "diag.dcgm", {"level": 1}, "alice", "")
    world.step()
    assert (world.sent()[0].kind, world.sent()[0].payload) == ("diag.dcgm", {"level": 1})
    world.answers("failed", "NotInstalled")
    world.step()
    assert (world.run()["id"], world.run()["state"], world.node()["status"]) == (run_id, "failed", "adopted")
    repairs.diagnose(world.tx, NODE, "diag.nvml", {}, "alice", "")
    world.step()
    world.answers("succeeded", "", {"passed": False})
    world.step()
    assert (world.run()["state"], world.run()["reason"]) == ("succeeded", "the diagnosis found what is wrong")


def test_an_ordered_run_that_the_node_refuses_takes_no_sound_node_out_of_service(world: World) -> None:
    repairs.reboot(world.tx, NODE, "alice", "")
    world.step()
    world.answers("refused", "NotAllowed")
    world.step()
    assert (world.run()["state"], world.node()["status"]) == ("failed", "adopted")


def test_a_cancelled_repair_leaves_its_open_fault_to_a_person(world: World) -> None:
    world.reports(OFF)
    repairs.cancel(world.tx, world.run()["id"], "alice", "I look")
    assert (world.run()["state"], world.run()["reason"]) == ("cancelled", "cancelled by alice: I look")
    assert (world.node()["status"], world.told()) == ("maintenance", ["queued", "escalated"])
    with pytest.raises(Refused, match="has ended"):
        repairs.cancel(world.tx, world.run()["id"], "alice")
    with pytest.raises(NotFound):
        repairs.cancel(world.tx, "run_none", "alice")


def test_an_ordered_run_without_a_fault_is_cancelled_without_consequence(world: World) -> None:
    run_id = repairs.reboot(world.tx, NODE, "alice", "")
    repairs.cancel(world.tx, run_id, "bob")
    assert (world.run()["state"], world.node()["status"]) == ("cancelled", "adopted")


# ---- the singleton


def test_the_work_takes_every_node_with_an_open_run_on_and_one_that_cannot_be_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.reports(OFF)
    seen = []

    def fails(tx: Connection, node_id: str) -> None:
        seen.append(node_id)
        tx.execute("SELECT 1/0")

    with monkeypatch.context() as patch:
        patch.setattr(repairs, "step_node", fails)
        repairs.work(lambda work: work(world.tx))
    assert seen == [NODE]
    repairs.work(lambda work: work(world.tx))
    assert world.runs() == [("node.reboot", "running")]
