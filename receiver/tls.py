"""The receiver's TLS: the files that it reads, the certificate that it shows, and how both change without a restart (SPEC B1).

Both CAs are files (`bc-receiver init` writes them, or an operator brings them) and the same on all receivers of one database. The
receiver's own certificate is made at start, held in memory only, and made again after two thirds of its life; an operator's
(`tls.certificate`, `tls.key`) is read again when its file changes, as the CAs are. What was read before stays in use while what
is there now is wrong: that is a warning, and at start an error.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import grpc
from cryptography import x509

from receiver.addresses import server_names, told_names
from receiver.authority import (
    BadCertificate,
    NodeAuthority,
    ServerAuthority,
    certificates,
    check_server,
    load_key,
)
from receiver.config import Config
from receiver.errors import ReceiverError
from receiver.values import rfc3339

LOG = logging.getLogger("receiver.tls")
EVERY = 10.0  # seconds: how soon a changed file is seen
SOON = timedelta(days=30)  # what ends within it, and is not renewed by itself, is warned of
DAY = timedelta(days=1)
_INIT = "`bc-receiver init` makes both CAs; the receivers of one database share them: copy the files"
_Stamp = tuple[int, int, int, int] | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Paths:
    """Where the CAs lie, each perhaps elsewhere than in `folder`. The keys are for the receiver's user alone."""

    folder: Path
    server_ca: Path
    server_ca_key: Path
    node_ca: Path
    node_ca_key: Path


def ca_paths(config: Config) -> Paths:
    """Where these settings say that the CAs lie."""
    folder = Path(config.tls_dir) if config.tls_dir else Path(config.data_dir) / "tls"
    return Paths(
        folder,
        Path(config.tls_server_ca or folder / "server-ca.pem"),
        Path(config.tls_server_ca_key or folder / "server-ca.key"),
        Path(config.tls_node_ca or folder / "node-ca.pem"),
        Path(config.tls_node_ca_key or folder / "node-ca.key"),
    )


def read_server_ca(config: Config) -> bytes:
    """The CAs of receivers that nodes are told to pin (PEM). Raises ReceiverError."""
    path = ca_paths(config).server_ca
    pem = _read(path)
    _checked(path, lambda: certificates(pem))
    return pem


@dataclass(frozen=True, slots=True)
class Material:
    """What was read and made at one moment. `key`, `chain`, `server_ca`: PEM. `renew_at`: None of an operator's certificate."""

    key: bytes
    chain: bytes
    server_ca: bytes  # what nodes pin
    nodes: NodeAuthority
    expires: dict[str, datetime]  # "server", "server-ca", "node-ca"
    renew_at: datetime | None
    stamps: tuple[_Stamp, ...]


def open_identity(config: Config) -> "Identity | None":
    """This receiver's identity; None when it runs with `insecure`. Raises ReceiverError."""
    return None if config.insecure else Identity(config)


class Identity:
    """Who this receiver is to nodes and callers, and by whom nodes are signed: `material`, always whole."""

    def __init__(self, config: Config, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Raises ReceiverError that names the file, what is wrong with it, and what to do."""
        self.config = config
        self.clock = clock
        self.paths = ca_paths(config)
        self.material = self._load()
        self.configurations = self._configured()
        self.complaint = ""  # what is wrong with what is there now
        self.warned: datetime | None = None

    # ---- what others use

    @property
    def nodes(self) -> NodeAuthority:
        """Who signs nodes, now."""
        return self.material.nodes

    @property
    def server_ca(self) -> str:
        """The CAs that nodes are told to pin (PEM), now."""
        return self.material.server_ca.decode()

    def credentials(self, of_nodes: bool) -> grpc.ServerCredentials:
        """For a listener. `of_nodes`: whoever connects must show a certificate of the CA of nodes.

        gRPC asks for them at each handshake, in a thread of its own: the answer is made beforehand.
        """
        shown = [self.configurations[of_nodes]]

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            latest = self.configurations[of_nodes]
            if latest is shown[0]:
                return None  # what gRPC has
            shown[0] = latest
            return latest

        # typeshed's fetcher may not answer None, gRPC's own documentation lets it.
        return grpc.dynamic_ssl_server_credentials(shown[0], fetch, of_nodes)  # type: ignore[arg-type]

    # ---- renewal

    async def watch(self) -> None:
        """Renews and reads again, for ever."""
        while True:
            renew_at = self.material.renew_at
            left = (renew_at - self.clock()).total_seconds() if renew_at else EVERY
            await asyncio.sleep(min(max(left, 0.1), EVERY))
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> bool:
        """Takes what is new: a certificate that was due, files that changed. Answers whether it did; what is wrong is logged."""
        now = self.clock()
        due = self.material.renew_at is not None and now >= self.material.renew_at
        if not due and self._stamps() == self.material.stamps:
            self.complaint = ""
            self._warn_of_ends(now)
            return False
        try:
            self.material = self._load()
        except ReceiverError as error:
            if str(error) != self.complaint:
                LOG.warning("the certificates that were read before stay in use", extra={"reason": str(error)})
            self.complaint = str(error)
            return False
        self.configurations = self._configured()
        self.complaint = ""
        LOG.info("certificates were renewed", extra={"until": rfc3339(self.material.expires["server"])})
        return True

    def _warn_of_ends(self, now: datetime) -> None:
        own = {"server"} if self.material.renew_at else set()
        ending = {what: end for what, end in self.material.expires.items() if what not in own and end - now < SOON}
        if not ending or (self.warned and now - self.warned < DAY):
            return
        self.warned = now
        for what, end in ending.items():
            LOG.warning("a certificate ends soon", extra={"certificate": what, "until": rfc3339(end)})

    def _configured(self) -> dict[bool, grpc.ServerCertificateConfiguration]:
        at = self.material
        pair = [(at.key, at.chain)]
        return {
            True: grpc.ssl_server_certificate_configuration(pair, root_certificates=at.nodes.ca_pem),
            False: grpc.ssl_server_certificate_configuration(pair),
        }

    # ---- reading

    def _files(self) -> list[Path]:
        more = [Path(name) for name in (self.config.tls_certificate, self.config.tls_key) if name]
        of_ca = [] if more else [self.paths.server_ca_key]
        return [self.paths.server_ca, self.paths.node_ca, self.paths.node_ca_key, *of_ca, *more]

    def _stamps(self) -> tuple[_Stamp, ...]:
        return tuple(_stamp(path) for path in self._files())

    def _load(self) -> Material:
        stamps, now = self._stamps(), self.clock()  # before anything is read: what changes meanwhile is seen the next time
        node_ca, server_ca = _read(self.paths.node_ca), _read(self.paths.server_ca)
        node_key = _read_key(self.paths.node_ca_key)
        nodes = _checked(self.paths.node_ca, lambda: NodeAuthority(node_ca, node_key), _key_is_in(self.paths.node_ca_key))
        _check_dates(self.paths.node_ca, [nodes.ca], now)
        pinned = _checked(self.paths.server_ca, lambda: certificates(server_ca))
        _check_dates(self.paths.server_ca, pinned, now)
        if set(pinned) & set(nodes.trusted):
            hint = "nodes and receivers need a CA each: " + _INIT
            raise ReceiverError(f"read {self.paths.server_ca}", f"the same CA is in {self.paths.node_ca}", hint)
        key, chain, until, renew_at = self._server(server_ca, pinned, now)
        expires = {"server": until, "server-ca": max(one.not_valid_after_utc for one in pinned)}
        return Material(key, chain, server_ca, nodes, expires | {"node-ca": nodes.ca.not_valid_after_utc}, renew_at, stamps)

    def _server(
        self, server_ca: bytes, pinned: Sequence[x509.Certificate], now: datetime
    ) -> tuple[bytes, bytes, datetime, datetime | None]:
        """The receiver's key and chain, when they end, and when to make others."""
        config = self.config
        if bool(config.tls_certificate) != bool(config.tls_key):
            raise ReceiverError("read the settings", "tls.certificate and tls.key go together", "give both, or neither")
        if config.tls_certificate:
            return *self._brought(Path(config.tls_certificate), Path(config.tls_key), pinned, now), None
        ca_key = _read_key(self.paths.server_ca_key)
        key_is = _key_is_in(self.paths.server_ca_key)
        authority = _checked(self.paths.server_ca, lambda: ServerAuthority(server_ca, ca_key), key_is)
        _check_dates(self.paths.server_ca, [authority.ca], now)
        life = timedelta(seconds=config.tls_server_life)
        named = "names are those of tls.names, advertise.*, listen.* and of this host"
        key, issued = _checked(self.paths.server_ca, lambda: authority.mint(server_names(config), now, life), named)
        return key, issued.pem.encode(), issued.not_after, now + (issued.not_after - now) * 2 / 3

    def _brought(
        self, path: Path, key_path: Path, pinned: Sequence[x509.Certificate], now: datetime
    ) -> tuple[bytes, bytes, datetime]:
        pem, key_pem = _read(path), _read_key(key_path)
        chain = _checked(path, lambda: certificates(pem))
        key = load_key(key_pem)
        _check_dates(path, chain[:1], now)
        good = [one for one in pinned if one.not_valid_after_utc > now]
        _checked(path, lambda: check_server(chain, key, good, told_names(self.config)), _hint_of(self.paths))
        return key_pem, pem, chain[0].not_valid_after_utc


def _key_is_in(path: Path) -> str:
    return f"its key is to be in {path}"


def _hint_of(paths: Paths) -> str:
    return (
        f"tls.certificate is for tls.key, with serverAuth, for the hosts of advertise.join and advertise.session, and signed by "
        f"{paths.server_ca} (tls.serverCa)"
    )


def _checked(path: Path, work: Callable[[], T], hint: str = "") -> T:
    """What `work` makes of a file. Raises ReceiverError that names the file."""
    try:
        return work()
    except BadCertificate as error:
        raise ReceiverError(f"read {path}", str(error), hint) from error


def _check_dates(path: Path, of: Sequence[x509.Certificate], now: datetime) -> None:
    """Raises ReceiverError when none of these is good now."""
    if any(one.not_valid_before_utc <= now < one.not_valid_after_utc for one in of):
        return
    one = of[0]
    begins, ends = one.not_valid_before_utc, one.not_valid_after_utc
    happened = f"it expired on {ends:%Y-%m-%d}" if ends <= now else f"it is not good before {begins:%Y-%m-%d %H:%M} UTC"
    raise ReceiverError(f"read {path}", happened, f"this host's clock says {now:%Y-%m-%d %H:%M} UTC; else put a new one there")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ReceiverError(f"read {path}", "it is not there", _INIT) from None
    except OSError as error:
        raise ReceiverError(f"read {path}", error.strerror or str(error), _readable(error)) from error


def _read_key(path: Path) -> bytes:
    """A key's file. Raises ReceiverError also when others may read it: by then they may have."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            text = file.read()
    except FileNotFoundError:
        raise ReceiverError(f"read {path}", "it is not there", _INIT) from None
    except OSError as error:
        raise ReceiverError(f"read {path}", error.strerror or str(error), _readable(error)) from error
    # As Postgres has it: of root's files a group may read, which is how a secret is shared with a service.
    allowed = 0o740 if found.st_uid == 0 and os.geteuid() != 0 else 0o700
    if stat.S_IMODE(found.st_mode) & ~allowed & 0o777:
        happened = f"others may read this key: its mode is {stat.S_IMODE(found.st_mode):04o}"
        raise ReceiverError(f"read {path}", happened, f"chmod 600 {path}")
    _checked(path, lambda: load_key(text))
    return text


def _readable(error: OSError) -> str:
    return f"it is to be readable by the receiver's user (uid {os.geteuid()})" if isinstance(error, PermissionError) else ""


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
