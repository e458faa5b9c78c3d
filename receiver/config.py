"""The settings of the receiver: one row each (bettercompute/contract/settings.py says how they are read)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bettercompute.contract import settings
from bettercompute.contract.settings import FLAG, LOG_FORMAT, OPTIONAL_LISTEN, TARGETS, TEXT, WORDS, Found
from bettercompute.contract.settings import is_local as is_local

from receiver.config_kinds import (
    COUNT,
    DURATION,
    HANDLERS,
    LEVELS,
    OPTIONAL_PATH,
    OPTIONAL_TARGET,
    PATH,
    PROTOCOL_VERSION,
    SHARE,
    TARGET,
    VERSION,
    WORD,
)
from receiver.errors import ReceiverError
from receiver.planning.pressure import MEASURES, RAISE
from receiver.values import PROTOCOL, STATUS_HANDLERS

DEFAULT_FILE = Path("/etc/better-compute/receiver.toml")
FILE_VARIABLE = "BC_CONFIG"
_row: Any = partial(settings.row, "BC")


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force. Durations are seconds."""

    database_url: str = _row("database.url", TEXT, "", "The Postgres to use (libpq URL, 15 or newer). None: an embedded one.")
    database_connections: int = _row(
        "database.connections", COUNT, "8", "How many connections at most, for writing and for reading each."
    )
    database_migrate: bool = _row("database.migrate", FLAG, "false", "Run migrations at start; an embedded Postgres always is.")
    data_dir: str = _row("data_dir", PATH, "/var/lib/bc-receiver", "Where the embedded Postgres lives (mode 0700).")
    listen_join: str = _row("listen.join", TARGET, "127.0.0.1:7442", "Where nodes join, and a load balancer asks for health.")
    listen_session: str = _row(
        "listen.session", TARGET, "127.0.0.1:7443", "Where nodes report, with their certificates: HOST:PORT."
    )
    listen_api: str = _row("listen.api", TARGET, "127.0.0.1:7701", "Where better-compute asks: HOST:PORT or unix:/PATH.")
    advertise_join: str = _row(
        "advertise.join", OPTIONAL_TARGET, "", "Where nodes are told to join. Empty: where this receiver listens."
    )
    advertise_session: str = _row(
        "advertise.session",
        TARGETS,
        "",
        "Where nodes are told to report, several with commas. Empty: where this receiver listens.",
    )
    insecure: bool = _row(
        "insecure",
        FLAG,
        "false",
        "No certificates and no tokens: nodes and callers are taken at their word. To try things out on one machine, which is "
        "also all that can reach it.",
    )
    tls_dir: str = _row("tls.dir", OPTIONAL_PATH, "", "Where `init` puts both CAs. Empty: tls in data_dir.")
    tls_names: tuple[str, ...] = _row(
        "tls.names",
        WORDS,
        "",
        "More names and addresses for the receiver's certificate, beside its host name and what it advertises.",
    )
    tls_certificate: str = _row(
        "tls.certificate", OPTIONAL_PATH, "", "The receiver's certificate with its chain (PEM). Empty: the server CA signs one."
    )
    tls_key: str = _row("tls.key", OPTIONAL_PATH, "", "Its key.")
    tls_server_ca: str = _row(
        "tls.serverCa", OPTIONAL_PATH, "", "The CA of receivers, which nodes pin (PEM). Empty: server-ca.pem in tls.dir."
    )
    tls_server_ca_key: str = _row("tls.serverCaKey", OPTIONAL_PATH, "", "Its key. Empty: server-ca.key in tls.dir.")
    tls_server_life: float = _row("tls.serverLife", DURATION, "90d", "How long a certificate that the server CA signs lives.")
    tls_node_ca: str = _row("tls.nodeCa", OPTIONAL_PATH, "", "The CA of nodes (PEM). Empty: node-ca.pem in tls.dir.")
    tls_node_ca_key: str = _row("tls.nodeCaKey", OPTIONAL_PATH, "", "Its key. Empty: node-ca.key in tls.dir.")
    tls_node_life: float = _row(
        "tls.nodeLife", DURATION, "30d", "How long a node's certificate lives; it is renewed after two thirds."
    )
    tenant: str = _row("tenant", WORD, "default", "The tenant that unknown nodes are created in.")
    status_interval: float = _row("status.interval", DURATION, "30s", "How often nodes report their status.")
    status_handlers: tuple[str, ...] = _row(
        "status.handlers", HANDLERS, ",".join(STATUS_HANDLERS), "What status reports are judged for; the rest of them is ignored."
    )
    dry_run: bool = _row(
        "dry_run",
        FLAG,
        "false",
        "Repair no node: record what would be done, as in a pool that observes. For all receivers or none.",
    )
    pressure_raise: Mapping[str, float] = _row(
        "pressure.raise",
        LEVELS,
        ",".join(f"{name}={share:g}" for name, share in RAISE.items()),
        f"Percent from which {', '.join(one.type for one in MEASURES)} are raised; they are cleared below half of it.",
    )
    pressure_samples: int = _row(
        "pressure.samples", COUNT, "2", "For how many samples in a row a level must hold to raise or clear a condition."
    )
    hygiene_every: float = _row(
        "hygiene.every", DURATION, "5m", "How often all nodes are looked over for what goes wrong in silence."
    )
    hygiene_batch: int = _row("hygiene.batch", COUNT, "500", "How many nodes at most such a sweep writes in one transaction.")
    min_daemon_version: str = _row(
        "minDaemonVersion",
        VERSION,
        "",
        "The oldest bcd that is supported: nodes with an older one are DaemonOutdated. Empty: any.",
    )
    protocol_max: str = _row(
        "protocolMax",
        PROTOCOL_VERSION,
        PROTOCOL,
        "The highest session protocol that is supported: nodes above it, or of another major, are ProtocolUnsupported.",
    )
    cert_expiring_fraction: float = _row(
        "certExpiringFraction", SHARE, "0.1", "CertificateExpiring: with less left than this share of its life."
    )
    cert_expiring_min_seconds: float = _row(
        "certExpiringMinSeconds", DURATION, "86400", "CertificateExpiring: with less left than this, whatever its life."
    )
    rescan_interval: float = _row(
        "rescan.interval", DURATION, "12h", "How often nodes collect their inventory anyway; three times that is InventoryStale."
    )
    models: str = _row(
        "models",
        OPTIONAL_PATH,
        "",
        "A table of GPU names in place of this version's: gpu_models.json with newer parts and a higher version.",
    )
    webhook_url: str = _row("webhook.url", TEXT, "", "Where all events are told to: https://HOST/PATH. Empty: nowhere.")
    webhook_secret_file: str = _row(
        "webhook.secretFile",
        OPTIONAL_PATH,
        "",
        "A file with the secret that signs them; several, one a line, while it is rotated.",
    )
    webhook_ca: str = _row(
        "webhook.ca", OPTIONAL_PATH, "", "The CAs that the endpoint's certificate may be of (PEM). Empty: the system's."
    )
    metrics_listen: str = _row(
        "metrics.listen", OPTIONAL_LISTEN, "127.0.0.1:7702", "Where Prometheus asks, in the clear: HOST:PORT. Empty: nowhere."
    )
    drain: float = _row("drain", DURATION, "10s", "How long open calls may take to end on SIGTERM.")
    log_format: str = _row("log.format", LOG_FORMAT, "text", "How events are logged to stderr: text or json, one a line.")


SETTINGS = settings.settings_of(Config)


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """The settings in force. `file` None: the one that FILE_VARIABLE names, or the default one, which may be absent.

    `flags`: attribute of Config -> text. Raises ReceiverError for whatever is wrong with any of them: one that names all of it.
    """
    return Config(**_right(settings.load(SETTINGS, file, DEFAULT_FILE, environ, flags)))


def parse(text: str, name: str) -> dict[str, Any]:
    """A configuration file's text as attribute -> value. `name` is the file's, for messages. Raises ReceiverError."""
    found = Found()
    settings.parse(SETTINGS, text, name, found)
    return _right(found)


def _right(found: Found) -> dict[str, Any]:
    if found.wrong:
        raise ReceiverError("read the settings", "\n".join(found.wrong))
    return found.values


def render() -> str:
    """The shipped receiver.toml."""
    return settings.render("bc-receiver", SETTINGS)


def check_listeners(config: Config) -> None:
    """Raises ReceiverError when a listener of an insecure receiver can be reached from elsewhere."""
    if not config.insecure:
        return
    for setting in (one for one in SETTINGS if one.key in ("listen.session", "listen.api", "metrics.listen")):
        target = getattr(config, setting.name)
        socket = "" if setting.kind is OPTIONAL_LISTEN else " or unix:/PATH"
        if target and not is_local(target):
            raise ReceiverError(
                f"listen on {target}",
                "with --insecure nothing on this connection is encrypted or authenticated, and it is not loopback",
                f"give {setting.flag} a loopback address{socket}, or leave out --insecure",
            )
