"""The floor of an idle daemon: a bare grpc.aio client with the stubs and one stream, that reports each 30 s."""

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc.aio
from bettercompute.agent.v1 import inventory_pb2, session_pb2
from bettercompute.agent.v1.session_pb2_grpc import AgentServiceStub

assert inventory_pb2


async def main(target: str) -> None:
    """Says Hello and then a status report every 30 s; reads what comes."""

    async def talk() -> AsyncIterator[session_pb2.SessionRequest]:
        hello = session_pb2.Hello(protocol_version="0.3", daemon_version="0.0.0", boot_id="floor", instance_id="floor")
        yield session_pb2.SessionRequest(hello=hello)
        seq = 0
        while True:
            seq += 1
            yield session_pb2.SessionRequest(status_report=session_pb2.StatusReport(seq=seq))
            await asyncio.sleep(30)

    async with grpc.aio.insecure_channel(target) as channel:
        metadata = (("bc-node-id", "node_00000000000000000000000000"),)
        async for _ in AgentServiceStub(channel).Session(talk(), metadata=metadata):
            pass


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
