"""The settings of bcd: one row each (bettercompute/contract/settings.py says how they are read)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bettercompute.contract import settings
from bettercompute.contract.settings import (
    DURATION,
    LOG_FORMAT,
    OPTIONAL_LISTEN,
    SECONDS,
    TARGETS,
    TEXT,
    WORDS,
    Found,
    Kind,
    is_local,
    words,
)
from bettercompute.contract.settings import FLAG as FLAG

from agent.errors import UserError

DEFAULT_FILE = Path("/etc/bcd/bcd.toml")
FILE_VARIABLE = "BCD_CONFIG"
# The kinds of commands that there are (A7; agent/commands holds what they do).
COMMAND_KINDS = ("inventory.refresh", "diag.nvml", "diag.dcgm", "gpu.reset", "node.reboot")
COMMANDS = words(*COMMAND_KINDS)
_INSECURE_SERVER = "127.0.0.1:7443"


def _absolute(text: str) -> Path:
    if not text:
        raise ValueError("expected a path")
    return Path(text).absolute()


PATH = Kind(_absolute)
_row: Any = partial(settings.row, "BCD")


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force. Durations are seconds."""

    server: str = _row(
        "server",
        TARGETS,
        "",
        "Receivers, tried in turn: host:port or unix:/path, commas between them. Empty: as told at joining.",
    )
    insecure: bool = _row(
        "insecure", FLAG, "false", "Without TLS and joining, to a receiver on this machine that was started so: for tests.", True
    )
    data_dir: Path = _row(  # noqa: RUF009
        "data_dir", PATH, "/var/lib/bcd", "Where bcd keeps its identity and last inventory (mode 0700).", restart=True
    )
    socket: str = _row(
        "socket", TEXT, "", "The local socket of `bcd status` and `bcd refresh`. Empty: bcd.sock in data_dir.", restart=True
    )
    image_dir: str = _row("image_dir", TEXT, "/var/lib/bcd/images", "The node's image directory, listed in section `images`.")
    cri_socket: str = _row("cri_socket", TEXT, "", "The container runtime's CRI socket, for its images. Empty: it is not asked.")
    nvml_library: str = _row("nvml.library", TEXT, "", "The libnvidia-ml.so.1 to load. Empty: the one that the loader finds.")
    collect_limit: float = _row("collect.limit", DURATION, "1m", "How long a collection may take before it is ended.")
    settle: float = _row("settle", SECONDS, "10m", "How long after boot bcd waits for the NVIDIA driver and fabric to settle.")
    kmsg_trust_userspace: bool = _row(
        "kmsg.trust_userspace", FLAG, "false", "Take XIDs that a process wrote to /dev/kmsg for real: tests and fault injection."
    )
    rescan_interval: float = _row(
        "rescan.interval", SECONDS, "12h", "How often all is collected anyway, with 10 % jitter. 0: never."
    )
    probe_interval: float = _row("probe.interval", SECONDS, "5m", "How often the health probe asks NVML for a little. 0: never.")
    mps_enabled: bool = _row(
        "mps.enabled", FLAG, "false", "CUDA MPS runs on this node: MPSDown when its control does not answer."
    )
    mps_pipe_directory: str = _row("mps.pipe_directory", TEXT, "/tmp/nvidia-mps", "Where MPS has its control pipe.")
    host_managed_marker: str = _row(
        "host_managed.marker", TEXT, "", "A file whose presence says that something else manages this host's driver. Empty: none."
    )
    kubernetes_worker: bool = _row(
        "kubernetes.worker", FLAG, "false", "This node is a Kubernetes worker: what else reaches its GPUs is looked for."
    )
    kubernetes_socket: str = _row(
        "kubernetes.socket", TEXT, "/var/lib/kubelet/pod-resources/kubelet.sock", "The kubelet's PodResources socket."
    )
    kubernetes_resources: str = _row(
        "kubernetes.resources",
        TEXT,
        "",
        "How our own device plugin's resources and DRA driver begin. Empty: there is none of ours.",
    )
    commands_allow: tuple[str, ...] = _row(
        "commands.allow", COMMANDS, ",".join(COMMAND_KINDS[:2]),
        'Kinds of commands that this node accepts. There are also "diag.dcgm", "gpu.reset" and "node.reboot".',
    )  # fmt: skip
    reset_pause: tuple[str, ...] = _row(
        "reset.pause",
        WORDS,
        "nvidia-persistenced,nvidia-dcgm",
        "Services that hold GPUs open: stopped for a GPU reset, and started again after it.",
    )
    helper: str = _row(
        "helper",
        TEXT,
        "",
        "The socket of bcd-helper, which resets and reboots for a bcd that is not root. Empty: bcd does it itself.",
    )
    tools_systemctl: str = _row("tools.systemctl", TEXT, "systemctl", "The program that stops, starts and reboots: name or path.")
    tools_nvidia_smi: str = _row("tools.nvidia_smi", TEXT, "nvidia-smi", "The program that resets GPUs: name or path.")
    tools_dcgmi: str = _row("tools.dcgmi", TEXT, "dcgmi", "The program of DCGM's diagnostics: name or path.")
    tools_mps_control: str = _row(
        "tools.mps_control", TEXT, "nvidia-cuda-mps-control", "The program that asks MPS for its servers: name or path."
    )
    metrics_listen: str = _row(
        "metrics.listen", OPTIONAL_LISTEN, "", "Where Prometheus asks: HOST:PORT, over plain HTTP. Empty: nowhere.", restart=True
    )
    log_format: str = _row("log.format", LOG_FORMAT, "text", "How events are logged to stderr: text or json, one a line.")

    @property
    def servers(self) -> tuple[str, ...]:
        """The receivers that are named; empty: those that joining told."""
        named = self.server or (_INSECURE_SERVER if self.insecure else "")
        return tuple(named.split(",")) if named else ()

    @property
    def socket_path(self) -> Path:
        """Where the local socket is."""
        return Path(self.socket).absolute() if self.socket else self.data_dir / "bcd.sock"


SETTINGS = settings.settings_of(Config)


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings in force and where each came from: attribute of Config -> `default`, `FILE:LINE`, a variable or a flag."""

    config: Config
    sources: Mapping[str, str]


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """The settings in force. `file` None: the variable's or the default one, which may be absent. `flags`: name -> text.

    Raises UserError for whatever is wrong with any of them: one that names all of it.
    """
    return effective(file, environ, flags).config


def effective(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Effective:
    """As load() has them, with where each came from. Raises UserError."""
    found = settings.load(SETTINGS, file, DEFAULT_FILE, environ, flags)
    config = Config(**_right(found))
    _check(config)
    return Effective(config, {setting.name: found.sources.get(setting.name, "default") for setting in SETTINGS})


def parse(text: str, name: str) -> dict[str, Any]:
    """A configuration file's text as attribute -> value. `name` is the file's, for messages. Raises UserError."""
    found = Found()
    settings.parse(SETTINGS, text, name, found)
    return _right(found)


def _right(found: Found) -> dict[str, Any]:
    if found.wrong:
        raise UserError("\n".join(found.wrong))
    return found.values


def _check(config: Config) -> None:
    """What several settings say together."""
    if config.insecure and (far := [server for server in config.servers if not is_local(server)]):
        raise UserError(
            f"server {', '.join(far)} is not on this machine and with --insecure nothing is encrypted",
            "join it instead (bcd join), or connect over loopback or a unix socket",
        )


def reloaded(old: Config, new: Config) -> tuple[Config, list[str]]:
    """The settings that hold once `new` is read while `old` are in force, and the keys of those that wait for the next start.

    Raises UserError when what may change does not go with what may not.
    """
    later = [s for s in SETTINGS if s.restart and getattr(old, s.name) != getattr(new, s.name)]
    held = replace(new, **{s.name: getattr(old, s.name) for s in later})
    _check(held)
    return held, [s.key for s in later]


def render() -> str:
    """The shipped bcd.toml."""
    return settings.render("bcd", SETTINGS)
