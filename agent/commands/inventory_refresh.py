"""`inventory.refresh`: collects everything and offers it; succeeds when the receiver has answered the offer."""

from agent.commands.order import Node, Order, Payload


async def run(order: Order, node: Node) -> Payload:
    """Answers the digest, the receiver's word on it, and which sections are missing. No payload is needed."""
    return await node.refresh()
