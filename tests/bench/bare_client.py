"""The floor of an idle daemon: a bare grpc.aio client with the stubs and one stream, that reports each 30 s."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
from bettercompute.agent.v1 import inventory_pb2, session_pb2
from bettercompute.agent.v1.session_pb2_grpc import AgentServiceStub

assert inventory_pb2


async def main(identity: Path) -> None:
    """Says Hello and then a status report every 30 s; reads what comes. `identity`: identity.json of a node that has joined."""
    told = json.loads(identity.read_text())
    credentials = grpc.ssl_channel_credentials(*(told[name].encode() for name in ("serverCa", "key", "certificate")))

    async def talk() -> AsyncIterator[session_pb2.SessionRequest]:
        hello = session_pb2.Hello(protocol_version="0.3", daemon_version="0.0.0", boot_id="floor", instance_id="floor")
        yield session_pb2.SessionRequest(hello=hello)
        seq = 0
        while True:
            seq += 1
            yield session_pb2.SessionRequest(status_report=session_pb2.StatusReport(seq=seq))
            await asyncio.sleep(30)

    async with grpc.aio.secure_channel(told["server"], credentials) as channel:
        async for _ in AgentServiceStub(channel).Session(talk()):
            pass


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
