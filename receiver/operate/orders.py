"""What nodes are ordered to do: `nodes.reboot`, `nodes.diag`, `devices.reset`, `inventory.refresh`, and what is called off."""

from receiver.apply import command, repairs
from receiver.errors import Invalid
from receiver.operate.call import Call
from receiver.planning.view import RunKind
from receiver.values import Payload

NVML: RunKind = "diag.nvml"
DCGM: RunKind = "diag.dcgm"
KINDS: dict[str, RunKind] = {kind: kind for kind in (NVML, DCGM)}
LEVELS = (1, 2, 3)  # of diag.dcgm


def reboot(call: Call, node_id: str) -> str:
    """Orders a reboot; the run's id."""
    return repairs.reboot(call.tx, node_id, by=call.by, reason=call.reason, force=call.request.force, mint=call.mint)


def reset(call: Call, device_id: str) -> str:
    """Orders a reset of a GPU and its group; the run's id."""
    return repairs.reset(call.tx, device_id, by=call.by, reason=call.reason, force=call.request.force, mint=call.mint)


def diag(call: Call, node_id: str) -> str:
    """Orders a diagnosis; the run's id."""
    kind = KINDS[call.word("kind", tuple(KINDS))] if call.given("kind") is not None else NVML
    payload = _level(kind, call.request.level)
    return repairs.diagnose(
        call.tx, node_id, kind, payload, by=call.by, reason=call.reason, force=call.request.force, mint=call.mint
    )


def _level(kind: RunKind, level: int) -> Payload:
    if not level:
        return {}
    if kind != DCGM:
        raise Invalid(f"level is of {DCGM} only; {kind} has none")
    if level not in LEVELS:
        raise Invalid(f"level {level} is none of {', '.join(map(str, LEVELS))}")
    return {"level": level}


def cancel_run(call: Call, run_id: str) -> None:
    """A repair goes no further."""
    repairs.cancel(call.tx, run_id, by=call.by, reason=call.reason, mint=call.mint)


def refresh(call: Call, node_id: str) -> str:
    """Has a node collect and offer its inventory; the command's id."""
    return command.refresh(call.tx, node_id, by=call.by, mint=call.mint)


def cancel_command(call: Call, command_id: str) -> None:
    """Ends a command that was not sent."""
    command.cancel(call.tx, command_id, call.reason)
