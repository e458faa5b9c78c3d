"""DOOR: gRPC. The daemon's channel to one receiver: TLS as this node, or plain on this machine with --insecure."""

import grpc.aio
from bettercompute.contract.settings import is_local

from agent.identity import Access, metadata

_OPTIONS: tuple[tuple[str, int], ...] = (
    # A dead peer is found by the unacknowledged status report (TCP_USER_TIMEOUT, set from the keepalive timeout); pings go no
    # more often than any server allows by default, and cost an idle node one wake in five minutes.
    ("grpc.keepalive_time_ms", 301_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.use_local_subchannel_pool", 1),  # each attempt is fresh: the wait between two is ours alone
    ("grpc.enable_retries", 0),
)


def of_server(server: str) -> tuple[tuple[str, int | str], ...]:
    """What a channel to this address needs: nothing on this machine goes by a proxy, and a unix socket has no name of its own."""
    proxy = (("grpc.enable_http_proxy", 0),) if is_local(server) else ()
    name = (("grpc.ssl_target_name_override", "localhost"),) if server.startswith("unix:") else ()
    return (*proxy, *name)


def connect(server: str, access: Access) -> grpc.aio.Channel:
    """A channel to "host:port" or "unix:/path", whose certificate must be for that name (a unix socket's: for localhost)."""
    options = (*_OPTIONS, *of_server(server))
    if access.joined is None:
        return grpc.aio.insecure_channel(server, options=options)
    ours = access.joined
    credentials = grpc.ssl_channel_credentials(ours.server_ca.encode(), ours.key.encode(), ours.certificate.encode())
    return grpc.aio.secure_channel(server, credentials, options=options)


def caller(access: Access) -> tuple[tuple[str, str], ...]:
    """The call's metadata: with a certificate it is the receiver's to read who calls."""
    return () if access.joined else metadata(access.node_id)
