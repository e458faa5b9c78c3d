"""DOOR: gRPC. How a node gets its certificate (SPEC B1): `bcd join` once, `bcd renew` in time.

Keys are made here and never leave the machine. The daemon does not import this (`cryptography` alone is 10 MiB): it renews by a
child. Nothing that is kept is touched before the new certificate is here and was found to be ours.
"""

import asyncio
import os
import random
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from bettercompute.agent.v1 import inventory_pb2 as sections_pb
from bettercompute.agent.v1 import join_pb2 as pb
from bettercompute.agent.v1.join_pb2_grpc import JoinServiceStub
from bettercompute.agent.v1.session_pb2_grpc import AgentServiceStub
from bettercompute.contract.hardware_key import identifiers
from bettercompute.contract.ids import is_id
from bettercompute.contract.sections import decode
from bettercompute.contract.tokens import JoinString
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agent import __version__, doors, identity, tls
from agent.config import Config
from agent.errors import FieldError, UserError
from agent.identity import Certificate, Identity
from agent.sections import Section
from agent.session.channel import of_server

PATIENCE = 20.0  # seconds, for the receiver
ROOM = 64 << 10  # bytes that must be free for the identity
CLAIMS_LIMIT = 20.0  # seconds, for what the machine says of itself

_Credentials = pb.Credentials
_REJOIN = "join again with a token that is bound to this node: better-compute api joinTokens.create nodeId=..."
_TOKEN_HINT = "create another token (better-compute api joinTokens.create), and use it before it expires"
# A code of Join or Renew -> what a person can do. The receiver's own words say what happened.
_HINTS = {
    grpc.StatusCode.UNAUTHENTICATED: _TOKEN_HINT,
    grpc.StatusCode.RESOURCE_EXHAUSTED: "wait a minute and try again",
    grpc.StatusCode.DEADLINE_EXCEEDED: "try again; the token may have been used meanwhile: then create another",
    grpc.StatusCode.UNIMPLEMENTED: "that address is no receiver's for this: see its listen.join and listen.session",
}


@dataclass(frozen=True, slots=True)
class Joined:
    """What a join has done. `before`: the node that this machine was until now."""

    identity: Identity
    before: str | None = None

    @property
    def certificate(self) -> Certificate:
        """The new one."""
        assert self.identity.joined is not None
        return self.identity.joined


def join(config: Config, host_dir: Path | None, token: JoinString, address: str, *, force: bool) -> Joined:
    """Joins this machine with a token at `address`. Raises UserError; the old identity then stands."""
    ca = "".join(_pem(der) for der in token.server_ca)
    if not ca:
        raise UserError("join: the token carries no CA of the receiver's certificate", _TOKEN_HINT)
    prepare(config.data_dir)
    with identity.only_writer(config.data_dir):
        before = _before(config.data_dir, force)
        tls.reach(address, ca, PATIENCE)
        claims = asyncio.run(_claims(config, host_dir))
        key = ec.generate_private_key(ec.SECP256R1())
        request = pb.JoinRequest(token=token.token.text, csr=_csr(key), claims=claims, daemon_version=__version__)
        with _channel(address, grpc.ssl_channel_credentials(ca.encode())) as channel:
            given = _call("join", address, lambda: JoinServiceStub(channel).Join(request, timeout=PATIENCE))
        new = _identity(given.credentials, key, ca)
        identity.write(config.data_dir, new)
        return Joined(new, before)


def renew(config: Config) -> Identity:
    """A certificate for a new key of this node, from the first receiver that answers. Raises UserError; the old one stands."""
    with identity.only_writer(config.data_dir):
        node_id, old = identity.read_joined(config.data_dir)
        if time.time() >= old.not_after:
            raise UserError(f"renew: the certificate of {node_id} expired on {identity.moment(old.not_after)}", _REJOIN)
        key = ec.generate_private_key(ec.SECP256R1())
        credentials = grpc.ssl_channel_credentials(old.server_ca.encode(), old.key.encode(), old.certificate.encode())
        given = _first(config.servers or tuple(old.server.split(",")), credentials, pb.RenewRequest(csr=_csr(key)))
        new = _identity(given.credentials, key, old.server_ca, old.server)
        if new.node_id != node_id:
            raise UserError(f"renew: the receiver answered with the certificate of another node, {new.node_id}", "report it")
        identity.write(config.data_dir, new)
        return new


def _first(servers: tuple[str, ...], credentials: grpc.ChannelCredentials, request: pb.RenewRequest) -> pb.RenewResponse:
    """The answer of the first receiver that gives one, in random order."""
    for server in random.sample(servers, len(servers)):
        try:
            with _channel(server, credentials) as channel:
                answer: pb.RenewResponse = AgentServiceStub(channel).Renew(request, timeout=PATIENCE)
                return answer
        except grpc.RpcError as error:
            failed = _refused("renew", server, error)
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise failed from error
    raise failed


def prepare(data_dir: Path) -> None:
    """Makes sure, before a token's use is spent, that an identity can be kept: the directory is there, 0700, writable, with room.

    Raises UserError.
    """
    hint = "run as the user that owns it (or root), or name another with --data-dir"
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (mode := stat.S_IMODE(data_dir.stat().st_mode)) & 0o077:
            raise UserError(
                f"join: others may enter the data directory {data_dir}: its mode is {mode:o}", f"chmod 700 {data_dir}"
            )
        with tempfile.TemporaryFile(dir=data_dir) as file:
            file.write(bytes(ROOM))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"join: the data directory {data_dir} cannot be written: {error.strerror}", hint) from error


def _before(data_dir: Path, force: bool) -> str | None:
    """The node that this machine is by now. Raises UserError where that must not be overwritten."""
    try:
        found = identity.read(data_dir)
    except UserError as error:
        if force:
            return None
        raise UserError(f"join: {str(error).splitlines()[0]}", "restore the file, or join over it with --force") from error
    if found is None or found.joined is None:
        return found.node_id if found else None
    left = found.joined.remaining(time.time())
    if left > 0 and not force:
        raise UserError(
            f"join: this machine has joined already, as {found.node_id}, until {identity.moment(found.joined.not_after)}",
            "--force joins again: with a token that is bound to that node it stays that node, with any other it is a new one",
        )
    return found.node_id


async def _claims(config: Config, host_dir: Path | None) -> pb.Claims:
    """What the machine says of itself, as far as it can be collected in time: it opens nothing, so no error where it fails."""
    host = doors.host(host_dir)
    claims = pb.Claims(hostname=host.uname().hostname)
    found: dict[str, Any] = {}
    try:
        asked = await doors.collector(config, host_dir).run(["system", "nics", "gpus"], (), {}, CLAIMS_LIMIT)
        found = {name: decode(name, section.data) for name, section in asked.items() if isinstance(section, Section)}
    except FieldError:
        return claims
    known = identifiers(found.get("system"), found.get("nics"), found.get("gpus"))
    system = found.get("system") or sections_pb.SystemSection()
    claims.MergeFrom(
        pb.Claims(product_uuid=system.product_uuid, serial=known.serial or "", macs=known.macs, gpu_uuids=known.gpus)
    )
    return claims


def _csr(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Only its public key counts (B1)."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.DER)


def _identity(given: _Credentials, key: ec.EllipticCurvePrivateKey, ca: str, server: str = "") -> Identity:
    """What was given, with our key. Raises UserError when it is not for this key or lacks something."""
    try:
        certificate = x509.load_pem_x509_certificate(given.certificate.encode())
        if certificate.public_key() != key.public_key():
            raise ValueError("the certificate is of another key")
        if not is_id(given.node_id, "node"):
            raise ValueError(f"{given.node_id!r} is no node id")
        x509.load_pem_x509_certificates((given.server_ca or ca).encode())
        if not (given.session or server):
            raise ValueError("it does not say where sessions are")
    except ValueError as error:
        raise UserError(f"the receiver's answer cannot be used: {error}", "report it to who runs the receiver") from error
    start, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return Identity(
        given.node_id, Certificate(given.session or server, given.certificate, private, given.server_ca or ca, start, end)
    )


def _pem(der: bytes) -> str:
    try:
        return x509.load_der_x509_certificate(der).public_bytes(serialization.Encoding.PEM).decode()
    except ValueError as error:
        raise UserError(f"join: the token's CA certificate is damaged: {error}", _TOKEN_HINT) from error


def _channel(server: str, credentials: grpc.ChannelCredentials) -> grpc.Channel:
    return grpc.secure_channel(server, credentials, options=[("grpc.enable_retries", 0), *of_server(server)])


def _call(what: str, server: str, call: Callable[[], pb.JoinResponse]) -> pb.JoinResponse:
    try:
        return call()
    except grpc.RpcError as error:
        raise _refused(what, server, error) from error


def _refused(what: str, server: str, error: Any) -> UserError:
    code, details = error.code(), error.details()
    if code is grpc.StatusCode.UNAVAILABLE:
        # Where a join goes has just been reached, and without a certificate.
        hint = "is that its listen.join, where no certificate is needed?" if what == "join" else "see that bc-receiver runs there"
        return UserError(f"{what}: the receiver {server} cannot be reached: {details}", hint)
    hint = _REJOIN if what == "renew" and code is grpc.StatusCode.UNAUTHENTICATED else _HINTS.get(code, "")
    return UserError(f"{what}: the receiver {server} says: {details} ({code.name})", hint)
