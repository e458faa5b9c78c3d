"""Repairs and diagnoses that a person orders (SPEC B8, `nodes.reboot`, `nodes.diag`, `devices.reset`), and cancels. Pure.

They wait in the same queue, for the same budget, as those that faults queue, unless they are forced. Each function gives a rule
for receiver/apply/repairs.py.
"""

from dataclasses import replace

from receiver.errors import Invalid, NotFound, Refused
from receiver.planning import modes
from receiver.planning.escalation import escalate
from receiver.planning.lifecycle import Rule, refuse_out
from receiver.planning.remediation import REBOOT, RESET, advance, drain, is_open, needs, open_runs
from receiver.planning.reset_group import group
from receiver.planning.view import Draft, Facts, Order, RunKind, Step
from receiver.values import Payload

_DONE = {"node.reboot": "rebooted", "gpu.reset": "reset", "diag.nvml": "diagnosed", "diag.dcgm": "diagnosed"}


def reboot(by: str, reason: str, force: bool = False) -> Rule:
    """The node is to be rebooted. It has to come back with the GPUs that are sound now, and without the faults that this ends."""

    def rule(facts: Facts, draft: Draft) -> None:
        _check(facts, draft, REBOOT, reason, force)
        sound = {device.id for device in draft.devices.values() if device.healthy}
        found = needs(facts, draft)
        devices = sorted(sound.union(*(need.devices for need in found)))
        causes = [cause.as_json() for need in found for cause in need.causes]
        payload: Payload = {"force": True} if force else {}
        _order(facts, draft, Order(REBOOT, devices, causes, payload, by, force, False, reason, facts.boot_id))

    return rule


def reset(device_id: str, by: str, reason: str, force: bool = False) -> Rule:
    """A GPU of the node is to be reset, with its group."""

    def rule(facts: Facts, draft: Draft) -> None:
        _check(facts, draft, RESET, reason, force)
        if device_id not in draft.devices:
            raise NotFound(f"no device {device_id} on node {facts.node_id}")
        if not draft.devices[device_id].present:
            raise Refused(f"device {device_id} is not in the node any more")
        devices = group(draft, device_id)
        mine = [
            cause for need in needs(facts, draft) if need.kind == RESET for cause in need.causes if cause.device_id in devices
        ]
        causes = [cause.as_json() for cause in mine]
        payload = {"deviceId": device_id}
        _order(facts, draft, Order(RESET, devices, causes, payload, by, force, False, reason, facts.boot_id))

    return rule


def diagnose(kind: RunKind, payload: Payload, by: str, reason: str, force: bool = False) -> Rule:
    """The node is to be diagnosed, by a command of this kind and payload. It may be in maintenance. `diag.nvml` is told how many
    GPUs there are to be: what the pool says, else those that are present.
    """

    def rule(facts: Facts, draft: Draft) -> None:
        _check(facts, draft, kind, reason, force)
        devices = sorted(device.id for device in draft.devices.values() if device.present)
        told = {**_expected(facts, len(devices)), **payload} if kind == "diag.nvml" else payload
        _order(facts, draft, Order(kind, devices, (), told, by, force, False, reason, facts.boot_id))

    return rule


def _expected(facts: Facts, present: int) -> Payload:
    said = facts.pool.policy.expect_gpu_count if facts.pool is not None else None
    count = present if said is None else said
    return {"expect": {"gpuCount": count}} if count or said is not None else {}


def cancel(run_id: str, by: str, reason: str) -> Rule:
    """A run is to go no further. What it was for and is still open is a person's from then on. What the node has begun goes on
    there: a repair that is under way leaves it to a person too, for nobody may book it before that has come to its end."""

    def rule(facts: Facts, draft: Draft) -> None:
        run = draft.runs.get(run_id)
        if run is None:
            raise Refused(f"run {run_id} has ended")
        now = advance(draft, run, "cancelled", f"cancelled by {by}" + (f": {reason}" if reason else ""))
        drain(draft, now, False)
        under_way = run.under_way and run.kind in (REBOOT, RESET)
        if not now.observed and not facts.advisory and (under_way or any(is_open(draft, key) for key in now.cause_keys)):
            escalate(facts, draft, now)

    return rule


def _check(facts: Facts, draft: Draft, kind: RunKind, reason: str, force: bool) -> None:
    """Raises Refused where the node may not be touched, Invalid where it may be only by force, which takes a reason."""
    done = _DONE[kind]
    refuse_out(draft, done)
    if facts.advisory or draft.node.trust != "platform":
        raise Refused(f"node {facts.node_id} is tenant-controlled: it cannot be {done} until that ends")
    if force and not reason:
        raise Invalid("reason is needed with force")
    diagnosis = kind not in (REBOOT, RESET)
    if not force and not diagnosis and (modes.in_maintenance(facts, draft) or modes.observing(facts)):
        why = "is in maintenance" if modes.in_maintenance(facts, draft) else "is in a pool that only observes"
        raise Refused(f"node {facts.node_id} {why}: it is {done} with force and a reason only")


def _order(facts: Facts, draft: Draft, order: Order) -> None:
    """Orders a run, or has one of the kind that has not begun be this person's. Raises Refused for one that is under way."""
    for run in open_runs(draft, order.kind):
        if run.observed or (order.kind == RESET and not set(run.devices) & set(order.devices)):
            continue
        if run.begun:
            raise Refused(f"{run.id} is at it: {run.state}")
        payload = run.payload if order.kind == RESET else order.payload
        draft.put("runs", replace(run, by=order.by, force=run.force or order.force, payload=payload))
        draft.steps.append(Step(run.id, run.state, f"ordered by {order.by}" + (f": {order.reason}" if order.reason else "")))
        return
    draft.orders.append(order)
