"""Whether GPUs are in use: what `gpu.reset`, `node.reboot` and the deeper levels of `diag.dcgm` are refused over."""

import asyncio
from collections.abc import Collection, Sequence

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import usage
from agent.commands import privileged
from agent.commands.order import Node
from agent.errors import Refused
from agent.usage import User


async def users(node: Node, gpus: Sequence[pb.Gpu], ignore: Collection[str]) -> tuple[User, ...]:
    """Who uses GPUs or runs a VM now; services `ignore` do not count. In a thread: a node may have 100,000 open files."""
    host, holds, opened = node.host, node.holds(), await privileged.opened(node)
    return await asyncio.to_thread(usage.users, host, holds, gpus, ignore, opened)


def refuse(reason: str, found: Sequence[User]) -> None:
    """Raises Refused with the list when there are any."""
    if found:
        names = ", ".join(f"{user.what} {user.name}" for user in found[:8])
        raise Refused(reason, f"in use by {names}", users=[user.describe() for user in found[:100]])
