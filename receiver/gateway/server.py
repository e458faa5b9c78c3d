"""The gRPC servers: where nodes join, where they report, and where `better-compute api` asks; health on each.

A load balancer has no client certificate: it asks for health where nodes join, or where callers ask, which start and stop with
the listener of sessions.
"""

import socket
from collections.abc import Callable, Mapping

import grpc
from bettercompute.agent.v1 import session_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from receiver.errors import ReceiverError
from receiver.gateway.limits import MESSAGE_BYTES
from receiver.gateway.session import Sessions

AGENT_SERVICE = session_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name

# Messages over the limit are refused by name in the codec; gRPC itself ends what is far over it, unread.
OPTIONS = {
    "grpc.max_receive_message_length": 2 * MESSAGE_BYTES.most,
    "grpc.max_send_message_length": -1,
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.min_ping_interval_without_data_ms": 10_000,
    "grpc.server_handshake_timeout_ms": 10_000,  # who connects and says nothing is sent away,
    "grpc.max_connection_idle_ms": 120_000,  # and so is who then asks for nothing: each connection is a file
    "grpc.so_reuseport": 0,  # a second receiver on the same port is an error, not a silent half of the nodes
}


class Server:
    """One listener with health; `services` are the full names that health and reflection tell of."""

    def __init__(self, target: str, credentials: grpc.ServerCredentials | None = None) -> None:
        """`credentials`: None where nothing is encrypted."""
        self.target = target
        self.credentials = credentials
        self.grpc = grpc.aio.server(options=list(OPTIONS.items()))
        self.health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.grpc)
        self.services = [""]

    def add_sessions(self, sessions: Sessions) -> None:
        """Serves AgentService. Its messages come as bytes: the codec says by name what is wrong with them."""
        handler: grpc.RpcMethodHandler[bytes, session_pb2.SessionResponse] = grpc.stream_stream_rpc_method_handler(
            sessions.serve, response_serializer=session_pb2.SessionResponse.SerializeToString
        )
        self.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(AGENT_SERVICE, {"Session": handler})])
        self.services.append(AGENT_SERVICE)

    def add_services(self, services: Mapping[str, Callable[[grpc.aio.Server], None]]) -> None:
        """Serves these, by full name. Reflection is added where only this machine can ask: on a unix socket (SPEC B10)."""
        for name, add in services.items():
            add(self.grpc)
            self.services.append(name)
        if self.target.startswith("unix:"):
            names = [*filter(None, self.services), health.SERVICE_NAME, reflection.SERVICE_NAME]
            reflection.enable_server_reflection(names, self.grpc)

    async def start(self) -> None:
        """Listens. Raises ReceiverError when the address cannot be had."""
        if self.target.startswith("unix:") and _is_answered(self.target.removeprefix("unix:")):
            raise ReceiverError(f"listen on {self.target}", "another process listens there", "give this one another path")
        try:
            if self.credentials is None:
                self.grpc.add_insecure_port(self.target)
            else:
                self.grpc.add_secure_port(self.target, self.credentials)
        except RuntimeError as error:
            hint = "is another receiver there, and does the directory of a unix socket exist?"
            raise ReceiverError(f"listen on {self.target}", "the address cannot be bound", hint) from error
        await self.grpc.start()
        await self._say(health_pb2.HealthCheckResponse.SERVING)

    async def stop_serving(self) -> None:
        """Tells the load balancer to send nothing new."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace: float) -> None:
        """Lets open calls end for `grace` seconds, then ends them."""
        await self.grpc.stop(grace)

    async def _say(self, status: int) -> None:
        for name in self.services:
            await self.health.set(name, status)


def _is_answered(path: str) -> bool:
    """Whether somebody listens on a unix socket. (gRPC would take its path over without a word.)"""
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(path) == 0
