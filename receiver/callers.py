"""What gRPC tells of who calls: read once, at the beginning of a call, here alone.

When a call's handler has ended gRPC has let go of the call, and to ask for its peer or its certificate then (from a thread, or a
task that outlives the handler) is the end of the process: grpcio 1.85 does not check. What is here may be kept.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

VERSION = b"TLSv1.3"  # the only one that is spoken: a newer one would have to be looked at first

Metadata = Iterable[tuple[str, str | bytes]]
Auth = Mapping[str, Iterable[bytes]]  # of the transport; its keys are gRPC's


class NoIdentity(Exception):
    """Who calls does not say who it is, or not so that it is believed. `str()` says what is wrong."""


@dataclass(frozen=True, slots=True)
class Caller:
    """`address`: as gRPC writes it, "ipv4:192.0.2.7:50312"; "unix:" of a unix socket."""

    metadata: Metadata
    auth: Auth
    address: str


def caller(context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
    """Who calls. For a call's handler, before it awaits anything."""
    return Caller(tuple(context.invocation_metadata() or ()), context.auth_context(), context.peer())


def check_version(auth: Auth) -> None:
    """Raises NoIdentity for a peer that has negotiated another version of TLS than ours. grpcio before 1.75 does not tell it.

    >>> check_version({"ssl_tls_version": [b"TLSv1.3"]}), check_version({})
    (None, None)
    """
    versions = list(auth.get("ssl_tls_version", ()))
    if versions and versions != [VERSION]:
        raise NoIdentity(f"TLS 1.3 is needed, not {shown(versions)}")


def shown(values: Iterable[bytes]) -> str:
    """What a peer's certificate or transport says, for a person; not too much of it."""
    return ", ".join(one[:64].decode("ascii", "replace") for one in list(values)[:4])
