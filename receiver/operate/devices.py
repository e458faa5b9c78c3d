"""`devices.clear` and `devices.transfer`."""

from receiver.apply.devices import transfer_device
from receiver.apply.health import ClearOutcome, clear_device_health, node_of
from receiver.operate.call import Call


def node_with(call: Call) -> str:
    """The node of the device that a clear names: of an NVSwitch it has to be named too."""
    return node_of(call.tx, call.required("device_id"), call.given("node_id"))


def clear(call: Call, node_id: str) -> ClearOutcome:
    """Closes the faults of a GPU or an NVSwitch."""
    return clear_device_health(
        call.tx,
        call.required("device_id"),
        call.reason,
        call.request.force,
        code=call.given("code"),
        node_id=node_id,
        by=call.by,
        mint=call.mint,
    )


def transfer(call: Call, device_id: str) -> None:
    """Gives a GPU to the node that has it now."""
    to_node = call.required("to_node")
    call.about("node", to_node)
    transfer_device(call.tx, device_id, to_node, by=call.by, reason=call.reason, mint=call.mint)
