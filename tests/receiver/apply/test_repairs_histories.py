"""Repairs over random histories of one node: whatever happens, in whichever order, what must never be so is not so."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.apply import command, nodes, repairs
from receiver.apply.health import clear_device_health
from receiver.errors import Refused
from receiver.store.database import Connection
from receiver.values import CommandResult
from tests.receiver.apply.repair_world import GPU, OFF, SECOND, in_service
from tests.receiver.builders import NODE, gpu, gpus
from tests.repetitions import times

STEPS = 40
GSP = replace(OFF, number=119, message="119, Timeout waiting for RPC from GSP")


class History:
    """What happens to a node, by chance."""

    def __init__(self, tx: Connection, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = in_service(tx)
        self.booked = 0
        self.count = 0
        self.rebooted: dict[str, list[str]] = {}  # by the opening of a fault: runs whose command the machine has carried out

    def happen(self) -> None:
        self.random.choice(HAPPENINGS)(self)

    def fault(self) -> None:
        self.count += 1
        one = self.random.choice((OFF, GSP, replace(OFF, number=48, message="48, DBE")))
        device = self.random.choice((GPU, SECOND))
        self.world.reports(replace(one, device_id=device, count=self.count))

    def collect(self) -> None:
        ill = self.random.choice(({}, {}, {"state": "lost"}, {"row_remap": pb.RowRemap(pending=True)}))
        self.world.collects(gpus(gpu(0, **ill), gpu(1)))

    def book(self) -> None:
        for atom in self.world.bookable()[:1]:
            self.booked += 1
            self.world.books(atom, f"booking_{self.booked}")

    def end(self) -> None:
        self.world.tx.execute("UPDATE bookings SET ended_at = bc_clock() WHERE ended_at IS NULL")

    def wait(self) -> None:
        self.world.later(minutes=self.random.choice((1, 10, 45, 300)))

    def crash(self) -> None:
        self.world.reboots(gpus(gpu(0), gpu(1)))

    def clear(self) -> None:
        try:
            clear_device_health(self.world.tx, GPU, "looked at")
        except Refused:
            return

    def adopt(self) -> None:
        if self.world.node()["status"] == "maintenance":
            nodes.adopt(self.world.tx, NODE, "alice", "done")

    def cancel(self) -> None:
        found = self.world.tx.execute("SELECT id FROM remediation_runs WHERE ended_at IS NULL ORDER BY id LIMIT 1").fetchone()
        if found is not None and self.random.random() < 0.2:
            repairs.cancel(self.world.tx, found[0], "alice")

    def obey(self) -> None:
        """The machine does what it is told, or does not."""
        for one in self.world.sent():
            status, reason = self.random.choice((("succeeded", ""), ("succeeded", ""), ("failed", "x"), ("refused", "node-busy")))
            if status == "succeeded" and one.kind == "node.reboot":
                self._carried_out(one.idempotency_key.split(":")[1])
                self.world.reboots(gpus(gpu(0), gpu(1)))
            if status == "succeeded" and one.kind == "gpu.reset":
                for code in [key for key in self.world.faults if key.endswith(str(one.payload["deviceId"]))]:
                    del self.world.faults[code]
            payload = {"group": [one.payload["deviceId"]]} if one.kind == "gpu.reset" else {}
            command.record_result(self.world.tx, NODE, CommandResult(one.id, status, reason, payload))

    def _carried_out(self, run_id: str) -> None:
        rows = self.world.tx.execute(
            """SELECT h.device_id || h.code || h.boot_id || h.since FROM remediation_runs r, jsonb_array_elements(r.causes) AS c
               JOIN device_health h
                 ON (h.device_id, h.source, h.code, h.boot_id) = (c ->> 'deviceId', c ->> 'source', c ->> 'code', c ->> 'bootId')
               WHERE r.id = %s AND h.closed_at IS NULL""",
            [run_id],
        )
        for (opening,) in rows:
            self.rebooted.setdefault(opening, []).append(run_id)

    # ---- what must never be so

    def check(self) -> None:
        tx = self.world.tx
        (one,) = tx.execute("SELECT count(*) FROM remediation_runs WHERE ended_at IS NULL AND kind = 'node.reboot'").fetchall()
        assert one[0] <= 1
        under_way = tx.execute(
            "SELECT id, kind, devices FROM remediation_runs WHERE state IN ('running', 'verifying') AND command_id IS NOT NULL"
        ).fetchall()
        assert len(under_way) <= 1
        assert [owner for owner, is_open in self.world.disruptions() if is_open] == [run_id for run_id, _, _ in under_way]
        for _, kind, devices in under_way:
            held = tx.execute("SELECT device_id FROM bookings WHERE ended_at IS NULL").fetchall()
            assert not [device for (device,) in held if kind == "node.reboot" or device in devices]
        reboots = [kind for _, kind, _ in under_way if kind == "node.reboot"]
        assert self.world.node()["draining"] == bool(reboots)
        drained = [row[0] for row in tx.execute("SELECT id FROM devices WHERE draining ORDER BY id").fetchall()]
        assert drained == sorted(device for _, kind, devices in under_way if kind == "gpu.reset" for device in devices)
        assert not [runs for runs in self.rebooted.values() if len(set(runs)) > 1], "one fault, one reboot"
        loose = tx.execute(
            """SELECT c.id FROM commands c JOIN remediation_runs r ON r.id = split_part(c.idempotency_key, ':', 2)
               WHERE c.finished_at IS NULL AND r.ended_at IS NOT NULL"""
        ).fetchall()
        assert loose == []


HAPPENINGS: tuple[Callable[[History], None], ...] = (
    History.fault, History.fault, History.collect, History.book, History.end, History.wait, History.crash, History.clear,
    History.adopt, History.cancel, History.obey, History.obey,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(times(60)))
def test_whatever_happens_no_fault_is_repaired_twice_and_nobody_is_hit(tx: Connection, seed: int) -> None:
    history = History(tx, seed)
    for _ in range(STEPS):
        history.happen()
        history.world.step()
        history.world.step()  # the gate is asked before a step: what one that has ended gives free is taken by the next
        history.check()
        before = tx.execute("SELECT (SELECT count(*) FROM remediation_steps), (SELECT count(*) FROM events)").fetchone()
        history.world.step()
        after = tx.execute("SELECT (SELECT count(*) FROM remediation_steps), (SELECT count(*) FROM events)").fetchone()
        assert after == before, "a step that is made again does nothing more"


def test_histories_come_to_everything_that_is_to_be_tried(tx: Connection) -> None:
    seen, wanted = set(), {("node.reboot", "succeeded"), ("gpu.reset", "succeeded"), ("node.reboot", "failed")}
    for seed in range(8):
        history = History(tx, seed)
        for _ in range(STEPS):
            history.happen()
            history.world.step()
        seen |= {tuple(row) for row in tx.execute("SELECT DISTINCT kind, state FROM remediation_runs").fetchall()}
        tx.rollback()
        if wanted <= seen:
            return
    raise AssertionError(f"of {sorted(wanted)} only {sorted(seen)}")
