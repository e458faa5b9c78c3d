"""What nodes are ordered to do: `inventory.refresh`, `commands.cancel`."""

from receiver.apply import command
from receiver.operate.call import Call


def refresh(call: Call, node_id: str) -> str:
    """Has a node collect and offer its inventory; the command's id."""
    return command.refresh(call.tx, node_id, by=call.by, mint=call.mint)


def cancel_command(call: Call, command_id: str) -> None:
    """Ends a command that was not sent."""
    command.cancel(call.tx, command_id, call.reason)
