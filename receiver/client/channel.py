"""How `better-compute` reaches the receiver and says who asks: TLS with a CA, and a token; neither on a unix socket or, on this
machine alone, with --insecure."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

import grpc
from bettercompute.contract.settings import is_local
from bettercompute.contract.tokens import BadToken, parse

from receiver.client.methods import UsageError

MESSAGE_LIMIT = 64 << 20  # an answer holds up to eight sections of 8 MiB
LARGEST_FILE = 1 << 20  # bytes of a token's or a CA's file
CA, TOKEN, TOKEN_FILE, INSECURE = (f"BETTER_COMPUTE_{word}" for word in ("CA", "TOKEN", "TOKEN_FILE", "INSECURE"))
_OPTIONS = [("grpc.max_receive_message_length", MESSAGE_LIMIT)]
_YES = ("1", "true", "yes")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say how to reach a receiver."""
    parser.add_argument(
        "--ca", metavar="FILE", help=f"the CA of the receiver's certificate, PEM (default: ${CA}, else those of this system)"
    )
    parser.add_argument("--token-file", metavar="FILE", help=f"a file with the token to ask with (default: ${TOKEN_FILE})")
    parser.add_argument("--token", metavar="TOKEN", help=f"the token itself: others may see it in `ps` (default: ${TOKEN})")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help=f"no TLS, for a receiver on this machine that runs with --insecure (default: ${INSECURE}=1)",
    )


def channel(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> grpc.Channel:
    """A channel to the receiver. Raises UsageError that says what to give."""
    server = arguments.server
    if server.startswith("unix:"):
        return grpc.insecure_channel(server, options=_OPTIONS)
    if arguments.insecure or environ.get(INSECURE, "").lower() in _YES:
        if not is_local(server):
            hint = "leave out --insecure and give the receiver's CA with --ca"
            raise UsageError(f"{server} is not on this machine: nothing would be encrypted", hint)
        return grpc.insecure_channel(server, options=_OPTIONS)
    path = arguments.ca or environ.get(CA)
    roots = _read(Path(path), "--ca" if arguments.ca else f"${CA}") if path else None
    if roots is not None and b"-----BEGIN CERTIFICATE-----" not in roots:
        raise UsageError(f"{path} holds no certificate", "--ca wants PEM: server-ca.pem of `bc-receiver init`")
    return grpc.secure_channel(server, grpc.ssl_channel_credentials(roots), options=_OPTIONS)


def metadata(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> tuple[tuple[str, str], ...]:
    """Who asks, as metadata of a call: nothing where no token is given. A flag goes before the environment. Raises UsageError."""
    for text, file, named in (
        (arguments.token, arguments.token_file, ("--token", "--token-file")),
        (environ.get(TOKEN), environ.get(TOKEN_FILE), (f"${TOKEN}", f"${TOKEN_FILE}")),
    ):
        if text and file:
            raise UsageError(f"{named[0]} and {named[1]} are both given", "give one")
        if text or file:
            where = named[0] if text else f"{named[1]} {file}"
            return (("authorization", f"Bearer {_token(text or _text(Path(file or ''), where), where)}"),)
    return ()


def unreachable(details: str) -> str:
    """What to do where a server cannot be reached, from what gRPC says of it.

    >>> unreachable("Ssl handshake failed: CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate")[:20]
    'give its CA with --c'
    """
    return next((hint for word, hint in _HINTS if word in details), _HINTS[-1][1])


# The first whose word stands in gRPC's error. The last one is of any.
_HINTS = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "give its CA with --ca or BETTER_COMPUTE_CA: server-ca.pem of `bc-receiver init`; is it current?",
    ),
    (
        "Hostname Verification Check failed",
        "its certificate is not for that name: use one that it is for, or add it to tls.names",
    ),
    ("WRONG_VERSION_NUMBER", "it serves without TLS: ask with --insecure on its own machine"),
    ("handshake failed", "is it the API of a receiver, and with TLS? One that runs with --insecure is asked with --insecure"),
    ("Connection refused", "nobody listens there: name the receiver with --server or BETTER_COMPUTE_SERVER"),
    ("", "name it with --server or BETTER_COMPUTE_SERVER; does it want TLS (then without --insecure)?"),
)


def _token(text: str, where: str) -> str:
    """A token that looks like one: what is pasted wrongly is told here, and never shown."""
    if text.strip().startswith("bcjoin1."):
        raise UsageError(f"{where}: this is for nodes to join with", "the API wants one of tokens.create, which begins with tok_")
    try:
        return parse(text).text
    except BadToken as error:
        raise UsageError(f"{where}: {error}", "make one with tokens.create, or with `bc-receiver token create`") from error


def _text(path: Path, where: str) -> str:
    return _read(path, where).decode(errors="replace")


def _read(path: Path, where: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_FILE)
    except OSError as error:
        raise UsageError(f"{where}: {path} cannot be read: {error.strerror or error}") from error
