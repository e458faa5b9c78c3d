"""DOOR: sockets. Whether a receiver is there and is the one whose CA we pin, told in words that name the cause.

gRPC tells of every failed handshake the same; so `bcd join` (before a token's use is spent) and doctor look for themselves.
"""

import os
import socket
import ssl
from datetime import UTC, datetime

from agent.errors import UserError
from agent.identity import Certificate

# OpenSSL's verify codes (x509_vfy.h): what happened, and what to do.
_NOT_YET, _EXPIRED, _NAME, _ADDRESS = 9, 10, 62, 64
_CLOCK = "set this machine's clock (NTP), or the receiver's; if both are right, the receiver's certificate is to be renewed"
_CAUSES = {
    _NOT_YET: ("its certificate is not valid yet by this machine's clock, {now}", _CLOCK),
    _EXPIRED: ("its certificate is expired by this machine's clock, {now}", _CLOCK),
    _NAME: ("its certificate is not for this name", "use a name that is in it, or add this one to the receiver's tls.names"),
    _ADDRESS: (
        "its certificate is not for this address",
        "use a name that is in it, or add this one to the receiver's tls.names",
    ),
}
_OTHER_CA = (
    "its certificate is not signed by the CA that is pinned here",
    "another receiver answers there, or its CA was made anew: see that the address is right, then join with a new token",
)


class NotReached(UserError):
    """The receiver is not there, or is not the one that is meant. `cause` is the happening alone."""

    def __init__(self, server: str, cause: str, hint: str) -> None:
        super().__init__(f"the receiver {server} cannot be reached: {cause}", hint)
        self.cause = cause
        self.hint = hint


def reach(server: str, ca: str, patience: float, client: Certificate | None = None) -> None:
    """A TLS 1.3 handshake with `server` ("host:port" or "unix:/path"), whose certificate one of `ca` (PEM) has signed; with
    `client`, also as this node. Raises NotReached. Blocks up to `patience` seconds a step.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(cadata=ca)
        if client is not None:
            _present(context, client)
        with _connect(server, patience) as plain, context.wrap_socket(plain, server_hostname=_name(server)) as secure:
            if client is not None and not secure.recv(1):  # a refusal comes after the handshake; gRPC's server speaks first
                raise NotReached(server, "it ended the connection", "see the receiver's log")
    except ssl.SSLCertVerificationError as error:
        cause, hint = _CAUSES.get(error.verify_code, _OTHER_CA)
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        raise NotReached(server, cause.format(now=now), hint) from error
    except ssl.SSLError as error:
        raise NotReached(server, *_tls_words(error, client)) from error
    except TimeoutError as error:
        raise NotReached(server, f"no answer within {patience:g} s", ABSENT) from error
    except OSError as error:
        raise NotReached(server, _words(error), ABSENT) from error


ABSENT = "see that bc-receiver runs there, that the address is right, and what stands between"


def _tls_words(error: ssl.SSLError, client: Certificate | None) -> tuple[str, str]:
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if client is not None and "alert" in reason:
        return f"it refuses this node's certificate ({reason})", "join again with a token that is bound to this node"
    return f"the TLS handshake failed ({reason})", "see that the address is a receiver's, and that it was not started --insecure"


def _connect(server: str, patience: float) -> socket.socket:
    if not server.startswith("unix:"):
        host, _, port = server.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), patience)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(patience)
        connection.connect(server.removeprefix("unix:"))
    except OSError:
        connection.close()
        raise
    return connection


def _name(server: str) -> str:
    """What the certificate must be for. gRPC takes a unix socket for localhost."""
    return "localhost" if server.startswith("unix:") else server.rpartition(":")[0].strip("[]")


def _present(context: ssl.SSLContext, client: Certificate) -> None:
    """The key goes by memory: `ssl` reads files alone."""
    fd = os.memfd_create("bcd", os.MFD_CLOEXEC)
    try:
        os.write(fd, f"{client.certificate}\n{client.key}\n".encode())
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _words(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"its name is not known ({error.strerror})"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
