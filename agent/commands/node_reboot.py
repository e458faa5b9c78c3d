"""`node.reboot`: reboots the machine, and answers when it has come up again. Payload: `{"force": true}` or nothing.

The answer comes from another run of bcd: the record on disk has the boot id of before, and the next start finds another one
(runner.py, AfterCrash.BY_BOOT). What is seen here is only that the machine does not go down.
"""

import asyncio

from agent.commands import busy, privileged
from agent.commands.order import Node, Order, Payload, bad
from agent.errors import Failed

SPACING = 3600.0  # at most one reboot an hour, whoever asks
ASKING = 30.0  # seconds that systemd may take to accept
GOING_DOWN = 240.0  # seconds within which bcd is stopped, if the machine goes down at all


async def run(order: Order, node: Node) -> Payload:
    """Asks systemd. Never succeeds in this boot: bcd is stopped meanwhile, or the machine does not go down."""
    force = order.payload.get("force", False)
    if not isinstance(force, bool):
        raise bad("force", force, "true or false")
    if not force:
        # Every user counts, VMs without a GPU too.
        busy.refuse("node-busy", await busy.users(node, node.gpus(), node.config.reset_pause))
    privileged.check(node, "systemctl")
    order.begin(("node",), SPACING)
    ran = await privileged.reboot(node, ASKING)
    if ran.code != 0:
        raise Failed("RebootFailed", f"systemctl reboot ended with {ran.code}: {ran.said}")
    await asyncio.sleep(GOING_DOWN)
    raise Failed("NotRebooted", f"systemd accepted the reboot, and the machine still runs {GOING_DOWN:g} s later")
