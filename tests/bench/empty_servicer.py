"""The floor of a receiver: a grpc.aio server that says Welcome and reads: `python -m tests.bench.empty_servicer PLAN.json`.

PLAN: {target, key?, certificate?, nodeCa?}. An offer is refused at once, as the receiver refuses one of a digest that is none.
"""

import asyncio
import itertools
import json
import resource
import sys
from pathlib import Path
from typing import Any

import grpc
from bettercompute.agent.v1 import session_pb2 as pb

from receiver.gateway.server import AGENT_SERVICE, OPTIONS

REFUSED = pb.SessionResponse(inventory_result=pb.InventoryResult(status=pb.INVENTORY_STATUS_REFUSED))


EPOCHS = itertools.count(1)


async def session(_: Any, context: Any) -> None:
    """Reads until the stream ends."""
    while isinstance(message := await context.read(), pb.SessionRequest):
        if message.HasField("hello"):
            await context.write(pb.SessionResponse(welcome=pb.Welcome(node_id="node", epoch=next(EPOCHS))))
        elif message.HasField("inventory_offer"):
            await context.write(REFUSED)


async def main(plan: dict[str, str]) -> None:
    """Serves until it is killed."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    server = grpc.aio.server(options=list(OPTIONS.items()))
    handler: Any = grpc.stream_stream_rpc_method_handler(
        session, pb.SessionRequest.FromString, pb.SessionResponse.SerializeToString
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(AGENT_SERVICE, {"Session": handler})])
    if "key" in plan:
        pairs = [(plan["key"].encode(), plan["certificate"].encode())]
        server.add_secure_port(plan["target"], grpc.ssl_server_credentials(pairs, plan["nodeCa"].encode(), True))
    else:
        server.add_insecure_port(plan["target"])
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
