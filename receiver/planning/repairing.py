"""What becomes of a run (SPEC B8): queued -> waiting -> running -> verifying -> succeeded, failed or cancelled. Pure.

`step` takes the runs of a node as far as they go now. It is called again whenever something may have changed, and every few
seconds: what it needs is in rows, so whoever calls it next goes on where the last one was. Effects follow from the rows that it
changes: a run that is `running` without a command is to be sent one (apply/repairs.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from receiver.planning import health, modes
from receiver.planning.escalation import Past, escalate, too_many
from receiver.planning.policy import REBOOT_TIMEOUT
from receiver.planning.remediation import REBOOT, REPAIRS, RESET, advance, drain, is_open, open_runs
from receiver.planning.view import CommandState, Draft, Facts, Run, RunState, Step

TIMEOUT = timedelta(seconds=REBOOT_TIMEOUT)  # from the start of a repair to its proof, where no policy says another
BUSY = ("node-busy", "gpu-busy")  # reasons of bcd: something still uses what no booking has any more
BUSY_AGAIN = timedelta(minutes=1)  # until it is asked again, and
BUSY_PATIENCE = timedelta(minutes=15)  # for how long
CLOSED = "repaired by run"  # why a fault is closed


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come. `command`: its last one; `answered`: when that ended; `inventory_rev`: the node's at its queuing.

    (A node that connects again may say what it has collected after a reset before it says how that ended.)
    """

    queued: datetime
    began: datetime | None = None
    command: CommandState | None = None
    answered: datetime | None = None
    inventory_rev: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What is beside a node's rows. `past`: runs that began in the last 7 days and have ended. `inventory_rev`: of the node.

    `gate`: why no repair of the pool may begin now, in words; None: one may.
    """

    now: datetime
    progress: Mapping[str, Progress] = field(default_factory=dict)
    past: Sequence[Past] = ()
    inventory_rev: int = 0
    gate: str | None = None


def step(facts: Facts, draft: Draft, seen: Seen) -> None:
    """Takes the open runs on: those under way first, then those that wait, reboots before resets; as far as they go, for what
    one comes to is what another waits for."""
    before: dict[str, Run] = {}
    while before != draft.runs:
        before = dict(draft.runs)
        for run in sorted(before.values(), key=lambda run: (not run.under_way, run.kind != REBOOT, run.id)):
            if not (now := draft.runs[run.id]).ended:
                STATES[now.state](facts, draft, now, seen)


def _end(facts: Facts, draft: Draft, run: Run, state: RunState, reason: str, to_person: bool = False) -> None:
    now = advance(draft, run, state, reason)
    drain(draft, now, False)
    if to_person:
        escalate(facts, draft, now)


# ---- before it begins


def _wait(facts: Facts, draft: Draft, run: Run, seen: Seen) -> None:
    if (why := _pointless(facts, draft, run)) is not None:
        _end(facts, draft, run, "cancelled", why)
    elif run.observed:
        _observe(facts, draft, run, seen)
    elif run.kind in REPAIRS and _other_boot(facts, run):
        advance(draft, run, "verifying", "the node has come back with another boot id meanwhile")
    elif not run.by and (why := _too_many(run, seen)) is not None:
        _end(facts, draft, run, "cancelled", why, to_person=True)
    elif (why := _held(facts, draft, run, seen)) is not None:
        if (run.state, run.reason) != ("waiting", why):
            advance(draft, run, "waiting", why)
    else:
        if run.state == "queued":
            run = advance(draft, run, "waiting", "nothing to wait for")
        drain(draft, run, True)
        advance(draft, replace(run, boot_id=facts.boot_id), "running", ", ".join(sorted({one["code"] for one in run.causes})))


def _pointless(facts: Facts, draft: Draft, run: Run) -> str | None:
    """Why a run that has not begun is not to begin at all, in words."""
    if (why := modes.not_ours(facts, draft)) is not None:
        return why
    if modes.in_maintenance(facts, draft) and not run.force and run.kind in REPAIRS:
        return "the node is in maintenance"
    if run.observed != modes.observing(facts) and not run.by:
        return "the pool does not only observe any more" if run.observed else "the pool only observes"
    if not run.by and facts.pool is None:
        return "the node is in no pool any more"
    if not run.by and not any(is_open(draft, key) for key in run.cause_keys):
        return "what it was for is closed"
    return None


def _other_boot(facts: Facts, run: Run) -> bool:
    return bool(facts.boot_id) and bool(run.boot_id) and facts.boot_id != run.boot_id


def _too_many(run: Run, seen: Seen) -> str | None:
    return too_many(run, seen.past, seen.progress[run.id].queued, seen.now)


def _held(facts: Facts, draft: Draft, run: Run, seen: Seen) -> str | None:
    """Why it does not begin yet, in words."""
    if not facts.online:
        return "the node is not connected"
    for other in open_runs(draft, *REPAIRS, "diag.nvml", "diag.dcgm"):
        if other.id != run.id and other.under_way:
            return f"{other.kind} {other.id} is under way"
    if run.force:
        return None
    held = [one for one in facts.bookings if run.kind != RESET or one.device_id in run.devices]
    if held:
        return f"{len(held)} live bookings: {', '.join(sorted(one.booking_id for one in held)[:3])}"
    return seen.gate


def _observe(facts: Facts, draft: Draft, run: Run, seen: Seen) -> None:
    """Says what would be done, and is over."""
    if (why := _too_many(run, seen)) is not None:
        would = f"would be left to a person: {why}"
    elif (why := _held(facts, draft, run, seen)) is not None:
        would = f"would wait: {why}"
    else:
        would = f"would send {run.kind}"
    _end(facts, draft, advance(draft, run, "waiting", would), "cancelled", f"only observed: {would}")


# ---- while it runs


def _run(facts: Facts, draft: Draft, run: Run, seen: Seen) -> None:
    progress = seen.progress[run.id]
    command = progress.command if run.command_id is not None else None
    ended = command is not None and command.state not in ("queued", "sent")
    if (why := modes.not_ours(facts, draft)) is not None:
        _end(facts, draft, run, "cancelled", why)
    elif run.kind in REPAIRS and _other_boot(facts, run):
        advance(draft, run, "verifying", "the node has another boot id")
    elif command is not None and command.state == "succeeded" and run.kind != REBOOT:
        if run.kind == RESET:
            advance(draft, run, "verifying", "the node has reset and checked it")
        else:
            _end(facts, draft, run, "succeeded", _diagnosis(command))
    elif _late(facts, run, seen):
        said = f"not done within {_minutes(_limit(facts, run))}"
        _end(facts, draft, run, "failed", said, to_person=_concerns_a_person(run, command))
    elif command is not None and command.state == "cancelled" and modes.in_maintenance(facts, draft) and not run.force:
        _end(facts, draft, run, "cancelled", "the node is in maintenance")
    elif command is not None and ended and command.state != "succeeded":
        _not_done(facts, draft, run, progress, command, seen)


def _not_done(facts: Facts, draft: Draft, run: Run, progress: Progress, command: CommandState, seen: Seen) -> None:
    """The node refused the command, or could not do it. One that reached it too late, or while something was busy just after its
    last booking, is given again."""
    said = f"{command.state}: {command.reason}" if command.reason else command.state
    if command.state == "expired":
        if facts.online:
            _ask_again(draft, run, said)
        return
    if command.state == "refused" and command.reason in BUSY:
        if seen.now - (progress.began or seen.now) < BUSY_PATIENCE:
            if progress.answered is not None and seen.now - progress.answered >= BUSY_AGAIN:
                _ask_again(draft, run, said)
            return
        said += f", for {_minutes(BUSY_PATIENCE)}"
    _end(facts, draft, run, "failed", said, to_person=_concerns_a_person(run, command))


def _ask_again(draft: Draft, run: Run, said: str) -> None:
    """The run is to be sent another command."""
    draft.put("runs", replace(run, command_id=None))
    draft.steps.append(Step(run.id, run.state, f"{said}: it is asked again"))


def _concerns_a_person(run: Run, command: CommandState | None) -> bool:
    """Whether a run that failed speaks against its node: no diagnosis does, nor what was ordered of a sound one and not done."""
    undone = command is None or command.state in ("queued", "refused", "expired", "cancelled")
    return run.kind in REPAIRS and not (run.by and not run.causes and undone)


def _diagnosis(command: CommandState) -> str:
    found = command.result.get("passed") if isinstance(command.result, dict) else None
    return {True: "the diagnosis passed", False: "the diagnosis found what is wrong"}[found] if isinstance(found, bool) else ""


def _late(facts: Facts, run: Run, seen: Seen) -> bool:
    began = seen.progress[run.id].began
    return began is not None and seen.now - began >= _limit(facts, run)


def _limit(facts: Facts, run: Run) -> timedelta:
    """From the start of a run to its proof: of a reboot as the pool's policy says."""
    if run.kind != REBOOT or facts.pool is None:
        return TIMEOUT
    return timedelta(seconds=facts.pool.policy.reboot_timeout)


def _minutes(time: timedelta) -> str:
    return f"{time / timedelta(minutes=1):g} min"


# ---- the proof


def _verify(facts: Facts, draft: Draft, run: Run, seen: Seen) -> None:
    if (why := modes.not_ours(facts, draft)) is not None:
        _end(facts, draft, run, "cancelled", why)
    elif again := _faults_since(facts, draft, run):
        _end(facts, draft, run, "failed", f"{', '.join(again)} again", to_person=True)
    elif (lacking := _unproven(facts, draft, run, seen)) is None:
        _close(facts, draft, run)
        _end(facts, draft, run, "succeeded", "the inventory shows its GPUs without a finding")
    elif _late(facts, run, seen):
        _end(facts, draft, run, "failed", f"{lacking}, {_minutes(_limit(facts, run))} after it began", to_person=True)


def _faults_since(facts: Facts, draft: Draft, run: Run) -> list[str]:
    """Codes of the open faults that the run's devices have had since: in this boot, or, where it is the same, since their reset:
    a node that has reset a GPU counts its faults from the start again."""
    mine = {*run.devices, *(one["deviceId"] for one in run.causes)}
    counted = [one for one in draft.faults.values() if one.device_id in mine and not one.foreign]
    return sorted({one.code for one in counted if is_open(draft, (one.device_id, "xid", one.code, one.boot_id))})


def _unproven(facts: Facts, draft: Draft, run: Run, seen: Seen) -> str | None:
    """What is lacking of the proof, in words: an inventory that was collected after, and shows the GPUs in health."""
    if "gpus" not in facts.fresh:
        return "there is no inventory with its GPUs"
    if _other_boot(facts, run):
        if draft.node.inventory_boot != facts.boot_id:
            return "no inventory of this boot has been applied"
    elif seen.inventory_rev <= (seen.progress[run.id].inventory_rev or 0):
        return "no inventory has been applied since"
    for device_id in _proven_by(run):
        device = draft.devices.get(device_id)
        if device is None or not device.present:
            return f"{device_id} is not there"
        found = {
            row.code for row in draft.health.values() if row.device_id == device_id and row.source == "inventory" and row.open
        }
        if device.lost or found:
            return f"{device_id} has {', '.join(sorted(found)) or 'not come back'}"
    return None


def _proven_by(run: Run) -> Sequence[str]:
    """The GPUs that have to be sound: of a reset those that it was for, and not what else was reset with them."""
    if run.kind == REBOOT:
        return run.devices
    return sorted({one["deviceId"] for one in run.causes} or {run.payload.get("deviceId", one) for one in run.devices})


def _close(facts: Facts, draft: Draft, run: Run) -> None:
    """Closes the faults that the run was for. (Findings close with the inventory.) A node that has reset a GPU counts its faults
    from one again: so does their row."""
    for device_id, source, code, boot_id in sorted(run.cause_keys):
        if source != "xid":
            continue
        health.clear(facts, draft, device_id, f"{CLOSED} {run.id}", code=code)
        row = draft.health.get((device_id, source, code, boot_id))
        if row is not None and boot_id == facts.boot_id and (code, device_id) not in draft.faults:
            draft.put("health", replace(row, count=0, cleared_count=0))


STATES: Mapping[RunState, Callable[[Facts, Draft, Run, Seen], None]] = {
    "queued": _wait,
    "waiting": _wait,
    "running": _run,
    "verifying": _verify,
}
