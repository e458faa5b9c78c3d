"""Remediation (SPEC B8): which repairs are queued for a node's faults, joined, swallowed, ordered and cancelled. Pure.

`queue` runs behind every writer of a node, so a repair is queued in the transaction that opens its fault. There is one run a node
for reboots, and one a reset group for resets, however many causes; what opens meanwhile joins them. What becomes of a run then is
planning/repairing.py's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

from receiver.events import event
from receiver.ids import Mint
from receiver.planning import modes
from receiver.planning.remedies import AUTOMATIC, Remedy, action_of, remedies
from receiver.planning.reset_group import group
from receiver.planning.verdicts import is_switch
from receiver.planning.view import Cause, Draft, Facts, HealthKey, Order, Run, RunKind, RunState, Step
from receiver.values import Payload

REBOOT: RunKind = "node.reboot"
RESET: RunKind = "gpu.reset"
REPAIRS = (REBOOT, RESET)
NODE = ""  # as a whole, among its GPUs
KINDS = {"reboot-node": REBOOT, "reset-gpu": RESET}  # by remedy
_TOLD = {"queued": "queued", "running": "started", "succeeded": "succeeded", "failed": "failed"}  # states in events


@dataclass(frozen=True, slots=True)
class Need:
    """A repair that open faults call for. `devices`, `causes`: as Run's; sorted."""

    kind: RunKind
    devices: tuple[str, ...]
    causes: tuple[Cause, ...]


# ---- runs as rows


def place(draft: Draft, mint: Mint) -> None:
    """Makes runs of the draft's orders, with ids, and tells of them."""
    for order in draft.orders:
        run = Run(mint("run"), pool_id=draft.node.pool_id, **{one.name: getattr(order, one.name) for one in fields(Order)})
        advance(draft, run, "queued", order.reason)


def advance(draft: Draft, run: Run, state: RunState, reason: str = "") -> Run:
    """The run is in this state, for this reason: a line in its history, and an event unless it only observes."""
    now = replace(run, state=state, reason=reason)
    draft.put("runs", now)
    draft.steps.append(Step(now.id, state, reason))
    if state in _TOLD and not now.observed:
        told = {"runId": now.id, "kind": now.kind, **({"reason": reason} if reason else {})}
        draft.events.append(event(f"node.remediation.{_TOLD[state]}", told))
    return now


def drain(draft: Draft, run: Run, draining: bool) -> None:
    """Takes no bookings from now on, or does again: the node, or a reset's GPUs. What another run is at still takes none."""
    at_it = [one for one in draft.runs.values() if one.id != run.id and one.under_way and not draining]
    for place in _drained(run).difference(*(_drained(one) for one in at_it)):
        if place == NODE:
            draft.node = replace(draft.node, draining=draining)
        elif place in draft.devices:
            draft.put("devices", replace(draft.devices[place], draining=draining))


def _drained(run: Run) -> frozenset[str]:
    """What takes no bookings while a run is under way: GPUs, or the NODE. A diagnosis by NVML disturbs nobody."""
    return frozenset(run.devices) if run.kind == RESET else frozenset([NODE] if run.kind != "diag.nvml" else [])


def open_runs(draft: Draft, *kinds: RunKind) -> list[Run]:
    """Runs of these kinds that have not ended, oldest first."""
    return [run for _, run in sorted(draft.runs.items()) if run.kind in kinds and not run.ended]


def is_open(draft: Draft, key: HealthKey) -> bool:
    """Whether a fault or finding is still open; a switch's is a condition of this boot."""
    device_id, _, code, boot_id = key
    if is_switch(code):
        row = draft.conditions.get((code, device_id))
        return row is not None and row.status == "true" and row.evidence.get("bootId", "") == boot_id
    health = draft.health.get(key)
    return health is not None and health.open


# ---- what faults queue


def queue(facts: Facts, before: Draft, draft: Draft) -> None:
    """Queues a repair for what is open and has not had one, or has it join one that is not through yet.

    A node in no pool is under no policy: nothing is repaired there by itself.
    """
    if facts.pool is None or modes.barred(facts, draft):
        return
    for need in needs(facts, draft):
        _serve(facts, draft, need)


def needs(facts: Facts, draft: Draft) -> list[Need]:
    """The repairs that open faults call for, those left out that a run was for since they opened: a person has them.

    A reboot repairs what a reset would.
    """
    tried = _tried(facts, draft)
    wanted = [(one, causes_of(facts, draft, one)) for one in remedies(facts, draft) if one.automatic]
    due = [(one, causes) for one, causes in wanted if not all(cause.key in tried for cause in causes)]
    causes = [cause for _, mine in due for cause in mine]
    if any(KINDS[one.action] == REBOOT for one, _ in due):
        return [Need(REBOOT, _concerned(draft, causes), _sorted(causes))]
    groups = {group(draft, one.device_id) for one, _ in due}
    return [Need(RESET, mine, _sorted(cause for cause in causes if cause.device_id in mine)) for mine in sorted(groups)]


def causes_of(facts: Facts, draft: Draft, remedy: Remedy) -> tuple[Cause, ...]:
    """What is open of a device and ends by its remedy: what calls for a repair by itself; else, where the driver's word has
    raised the remedy, everything."""
    if is_switch(remedy.codes[0]):
        rows = [draft.conditions[code, remedy.device_id] for code in remedy.codes]
        return tuple(Cause(remedy.device_id, "xid", row.type, row.evidence.get("bootId", "")) for row in rows)
    mine = [row for row in draft.health.values() if row.device_id == remedy.device_id and row.open and row.code in remedy.codes]
    chosen = [row for row in mine if action_of(row) in AUTOMATIC] or mine
    return tuple(Cause(row.device_id, row.source, row.code, row.boot_id) for row in chosen)


def _tried(facts: Facts, draft: Draft) -> frozenset[HealthKey]:
    """Faults that had their repair, or, where it is only observed, that were told of."""
    observing = modes.observing(facts)
    stored = {key for key, observed in facts.tried if observing or not observed}
    ended = [run for run in draft.runs.values() if run.ended and (run.state != "cancelled" or run.escalated or run.observed)]
    return frozenset(stored.union(*(run.cause_keys for run in ended)))


def _concerned(draft: Draft, causes: Iterable[Cause]) -> tuple[str, ...]:
    """The GPUs that a reboot has to bring back: those with a cause, and all of them for a fault of a switch."""
    named = {cause.device_id for cause in causes if not is_switch(cause.code)}
    if any(is_switch(cause.code) for cause in causes):
        named |= {device.id for device in draft.devices.values() if device.present}
    return tuple(sorted(named))


def _sorted(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    return tuple(sorted(set(causes), key=lambda cause: cause.key))


def _serve(facts: Facts, draft: Draft, need: Need) -> None:
    """Has a need join the run that repairs it anyway, or orders one."""
    observing = modes.observing(facts)
    running = [run for run in open_runs(draft, *REPAIRS) if run.observed == observing]
    reboot = next((run for run in running if run.kind == REBOOT), None)
    same = reboot or next((run for run in running if run.kind == need.kind and set(run.devices) & set(need.devices)), None)
    if same is not None:
        _join(facts, draft, same, need)
        return
    swallowed = _swallow(draft, running) if need.kind == REBOOT else ()
    causes = _sorted((*need.causes, *swallowed))
    draft.orders.append(
        Order(
            need.kind,
            _concerned(draft, causes) if need.kind == REBOOT else need.devices,
            [cause.as_json() for cause in causes],
            payload={"deviceId": causes[0].device_id} if need.kind == RESET else {},
            observed=observing,
            reason=", ".join(sorted({cause.code for cause in causes})),
            boot_id=_boot_of(facts, draft, causes),
        )
    )


def _join(facts: Facts, draft: Draft, run: Run, need: Need) -> None:
    """What opens while a run is not yet verified ends with it. What is of another boot by then waits for its end."""
    if run.state == "verifying":
        return
    new = [cause for cause in need.causes if cause.key not in run.cause_keys]
    if run.state == "running":
        new = [cause for cause in new if cause.boot_id in ("", run.boot_id)]
    if not new:
        return
    causes = [*run.causes, *(cause.as_json() for cause in new)]
    devices = tuple(sorted({*run.devices, *need.devices})) if run.kind == REBOOT else run.devices
    boot = run.boot_id if run.state == "running" else _boot_of(facts, draft, _causes(causes))
    draft.put("runs", replace(run, causes=causes, devices=devices, boot_id=boot))
    draft.steps.append(Step(run.id, run.state, f"{', '.join(sorted({cause.code for cause in new}))} joined it"))


def _swallow(draft: Draft, runs: Iterable[Run]) -> Iterator[Cause]:
    """Ends the resets that have not begun; answers what they were for."""
    for run in runs:
        if run.kind == RESET and not run.begun:
            advance(draft, run, "cancelled", "the node is to be rebooted")
            yield from _causes(run.causes)


def _boot_of(facts: Facts, draft: Draft, causes: Iterable[Cause]) -> str:
    """The boot that a repair is to end: the present one where a cause is of it; else that of the faults, which is over."""
    boots = {cause.boot_id or draft.node.inventory_boot or facts.boot_id for cause in causes}
    return facts.boot_id if facts.boot_id in boots or not boots else max(boots)


def _causes(stored: Iterable[Payload]) -> tuple[Cause, ...]:
    return tuple(Cause(one["deviceId"], one["source"], one["code"], one["bootId"]) for one in stored)
