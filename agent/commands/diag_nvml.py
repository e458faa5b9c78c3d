"""`diag.nvml`: every check of agent/checks, as `bcd diag nvml` runs them. Succeeds with `passed` true or false; fails only when
the diagnosis could not run.

Payload: `{"expect": {"gpuCount": 8}}`, or nothing.
"""

from agent.commands.order import Node, Order, Payload, bad


async def run(order: Order, node: Node) -> Payload:
    """Answers `passed` and each check with its result and reason."""
    return await node.diagnose(_expected(order.payload))


def _expected(payload: Payload) -> int | None:
    expect = payload.get("expect", {})
    if not isinstance(expect, dict):
        raise bad("expect", expect, 'an object such as {"gpuCount": 8}')
    count = expect.get("gpuCount")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
        raise bad("expect.gpuCount", count, "how many GPUs there must be")
    return count
