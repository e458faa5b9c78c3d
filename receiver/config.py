"""The settings: one row each, and all that is said of them (file, environment, flag, help) from that row.

A value comes from the first that has it: flag, environment variable, configuration file (TOML), default. One more setting costs
one line of Config. Unknown keys and wrong types are ReceiverErrors that name the file and the line.
"""

import ipaddress
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from receiver.config_kinds import (
    COUNT,
    DURATION,
    FLAG,
    FORMAT,
    HANDLERS,
    LEVELS,
    OPTIONAL_PATH,
    OPTIONAL_TARGET,
    PATH,
    PROTOCOL_VERSION,
    SHARE,
    TARGET,
    TARGETS,
    TEXT,
    VERSION,
    WORD,
    WORDS,
    Kind,
)
from receiver.errors import ReceiverError
from receiver.planning.pressure import MEASURES, RAISE
from receiver.values import PROTOCOL, STATUS_HANDLERS

DEFAULT_FILE = Path("/etc/better-compute/receiver.toml")
FILE_VARIABLE = "BC_CONFIG"
_CAPITAL = re.compile("[A-Z]")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `key` is its place in the file: `listen.api` is `api` in table `[listen]`; "" shows as no default.

    >>> Setting("minDaemonVersion", TEXT, "", "").variable
    'BC_MIN_DAEMON_VERSION'
    """

    key: str
    kind: Kind
    default: str
    help: str

    @property
    def name(self) -> str:
        """The attribute of Config."""
        return _CAPITAL.sub(lambda match: f"_{match[0].lower()}", self.key).replace(".", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"BC_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The command line's option."""
        return f"--{self.name.replace('_', '-')}"

    def read(self, value: Any, where: str) -> Any:
        """The value from what a file, a variable or a flag has. Raises ReceiverError that names `where`."""
        value = [f"{name}={one}" for name, one in value.items()] if isinstance(value, dict) else value
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        text = text.lower() if isinstance(value, bool) else text
        try:
            return self.kind.parse(text)
        except ValueError as error:
            raise ReceiverError(f"read the settings: {where}", f"{text!r} is not {error}", self.help) from error


def _row(key: str, kind: Kind, default: str, text: str) -> Any:
    setting = Setting(key, kind, default, text)
    return field(default_factory=lambda: kind.parse(default), metadata={"setting": setting})


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
        "metrics.listen", OPTIONAL_TARGET, "127.0.0.1:7702", "Where Prometheus asks, in the clear: HOST:PORT. Empty: nowhere."
    )
    drain: float = _row("drain", DURATION, "10s", "How long open calls may take to end on SIGTERM.")
    log_format: str = _row("log.format", FORMAT, "text", "How events are logged to stderr: text or json, one a line.")


SETTINGS: tuple[Setting, ...] = tuple(f.metadata["setting"] for f in fields(Config))
_BY_KEY = {setting.key: setting for setting in SETTINGS}


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """The settings in force. `file` None: the one that FILE_VARIABLE names, or the default one, which may be absent.

    `flags`: attribute of Config -> text. Raises ReceiverError for whatever is wrong with any of them.
    """
    named = file or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    values = _read_file(named or DEFAULT_FILE, required=named is not None)
    for setting in SETTINGS:
        if setting.variable in environ:
            values[setting.name] = setting.read(environ[setting.variable], f"environment variable {setting.variable}")
        if setting.name in flags:
            values[setting.name] = setting.read(flags[setting.name], setting.flag)
    return Config(**values)


def check_listeners(config: Config) -> None:
    """Raises ReceiverError when a listener of an insecure receiver can be reached from elsewhere."""
    if not config.insecure:
        return
    for setting in (_BY_KEY["listen.session"], _BY_KEY["listen.api"], _BY_KEY["metrics.listen"]):
        target = getattr(config, setting.name)
        if target and not is_local(target):
            raise ReceiverError(
                f"listen on {target}",
                "with --insecure nothing on this connection is encrypted or authenticated, and it is not loopback",
                f"give {setting.flag} a loopback address or unix:/PATH, or leave out --insecure",
            )


def is_local(target: str) -> bool:
    """Whether a gRPC target cannot be reached from another machine.

    >>> is_local("unix:/run/bc.sock"), is_local("[::1]:1"), is_local("0.0.0.0:1"), is_local("gpu-1:1")
    (True, True, False, False)
    """
    host = target.rpartition(":")[0].strip("[]")
    if target.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_file(path: Path, required: bool) -> dict[str, Any]:
    attempted = f"read the settings: {path}"
    try:
        text = path.read_text()
    except FileNotFoundError:
        if not required:
            return {}
        raise ReceiverError(attempted, "the file is not there") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReceiverError(attempted, str(error)) from error
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ReceiverError(attempted, str(error), "it is TOML: https://toml.io") from error
    return {setting.name: value for setting, value in _settings(tree, text, path)}


def _settings(tree: Mapping[str, Any], text: str, path: Path) -> Iterator[tuple[Setting, Any]]:
    for key, value in _flat(tree, ""):
        where = f"{path}:{_line(text, key)}"
        setting = _BY_KEY.get(key)
        if setting is None:
            raise ReceiverError(f"read the settings: {where}", f"unknown key {key}", f"keys: {', '.join(_BY_KEY)}")
        if type(value) not in setting.kind.toml:
            wanted = " or ".join(kind.__name__ for kind in setting.kind.toml)
            raise ReceiverError(
                f"read the settings: {where}", f"{key} is a {type(value).__name__}, expected {wanted}", setting.help
            )
        yield setting, setting.read(value, f"{where}: {key}")


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and prefix + key not in _BY_KEY:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _line(text: str, key: str) -> int:
    """The line on which a key is set, below `[listen]` or as `listen.api` or a table of its own; 1 when written otherwise."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            table = header[1].strip() + "."
            named = table
        elif found := re.match(r"\s*([\w.\"-]+)\s*=", line):
            named = table + found[1].replace('"', "") + "."
        else:
            continue
        if named.startswith(key + "."):
            return number
    return 1
