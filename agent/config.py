"""The settings: one row each, and everything that is said of them (file, environment, flag, help, shipped file) from that row.

A value comes from the first that has it: flag, environment variable, configuration file (TOML), default. One more setting costs
one line of Config. Unknown keys and wrong types are UserErrors that name the file and the line.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from agent.config_kinds import COMMAND_KINDS as COMMAND_KINDS
from agent.config_kinds import COMMANDS, LIMIT, LOG_FORMAT, OPTIONAL_LISTEN, PATH, SECONDS, TARGETS, TEXT, WORDS, Kind
from agent.config_kinds import FLAG as FLAG
from agent.config_kinds import duration as duration
from agent.config_kinds import is_local as is_local
from agent.errors import UserError

DEFAULT_FILE = Path("/etc/bcd/bcd.toml")
FILE_VARIABLE = "BCD_CONFIG"
_DATA_DIR = Path("/var/lib/bcd")
_INSECURE_SERVER = "127.0.0.1:7443"
_ALLOWED = COMMAND_KINDS[:2]
_PAUSED = ("nvidia-persistenced", "nvidia-dcgm")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `key` is its place in the file: `nvml.library` is `library` in table `[nvml]`."""

    key: str
    kind: Kind
    default: Any
    help: str
    restart: bool = False  # another value holds from the next start only, not from SIGHUP

    @property
    def name(self) -> str:
        """The attribute of Config."""
        return self.key.replace(".", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"BCD_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The command line's option."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def toml(self) -> str:
        """The default as it stands in the file."""
        return self.as_toml(self.default)

    def as_toml(self, value: Any) -> str:
        """A value as it stands in the file."""
        if self.kind.toml == (list,):
            return str(list(value)).replace("'", '"')
        text = self.kind.text(value)
        return text if self.kind.toml == (bool,) else json.dumps(text, ensure_ascii=False)


def _row(key: str, kind: Kind, default: Any, text: str, restart: bool = False) -> Any:
    return field(default=default, metadata={"setting": Setting(key, kind, default, text, restart)})


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
        "insecure", FLAG, False, "Without TLS and joining, to a receiver on this machine that was started so: for tests.", True
    )
    data_dir: Path = _row(  # noqa: RUF009
        "data_dir", PATH, _DATA_DIR, "Where bcd keeps its identity and last inventory (mode 0700).", restart=True
    )
    socket: str = _row(
        "socket", TEXT, "", "The local socket of `bcd status` and `bcd refresh`. Empty: bcd.sock in data_dir.", restart=True
    )
    image_dir: str = _row("image_dir", TEXT, "/var/lib/bcd/images", "The node's image directory, listed in section `images`.")
    cri_socket: str = _row("cri_socket", TEXT, "", "The container runtime's CRI socket, for its images. Empty: it is not asked.")
    nvml_library: str = _row("nvml.library", TEXT, "", "The libnvidia-ml.so.1 to load. Empty: the one that the loader finds.")
    collect_limit: float = _row("collect.limit", LIMIT, 60.0, "How long a collection may take before it is ended.")
    settle: float = _row("settle", SECONDS, 600.0, "How long after boot bcd waits for the NVIDIA driver and fabric to settle.")
    kmsg_trust_userspace: bool = _row(
        "kmsg.trust_userspace", FLAG, False, "Take XIDs that a process wrote to /dev/kmsg for real: tests and fault injection."
    )
    rescan_interval: float = _row(
        "rescan.interval", SECONDS, 43200.0, "How often all is collected anyway, with 10 % jitter. 0: never."
    )
    probe_interval: float = _row("probe.interval", SECONDS, 300.0, "How often the health probe asks NVML for a little. 0: never.")
    mps_enabled: bool = _row("mps.enabled", FLAG, False, "CUDA MPS runs on this node: MPSDown when its control does not answer.")
    mps_pipe_directory: str = _row("mps.pipe_directory", TEXT, "/tmp/nvidia-mps", "Where MPS has its control pipe.")
    host_managed_marker: str = _row(
        "host_managed.marker", TEXT, "", "A file whose presence says that something else manages this host's driver. Empty: none."
    )
    kubernetes_worker: bool = _row(
        "kubernetes.worker", FLAG, False, "This node is a Kubernetes worker: what else reaches its GPUs is looked for."
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
        "commands.allow", COMMANDS, _ALLOWED,
        'Kinds of commands that this node accepts. There are also "diag.dcgm", "gpu.reset" and "node.reboot".',
    )  # fmt: skip
    reset_pause: tuple[str, ...] = _row(
        "reset.pause", WORDS, _PAUSED, "Services that hold GPUs open: stopped for a GPU reset, and started again after it."
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


SETTINGS: tuple[Setting, ...] = tuple(f.metadata["setting"] for f in fields(Config))
_BY_KEY = {setting.key: setting for setting in SETTINGS}


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
    named = file or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    found = _Found({}, {}, [])
    _take_text(_read_file(named or DEFAULT_FILE, required=named is not None), str(named or DEFAULT_FILE), found)
    for setting in SETTINGS:
        if setting.variable in environ:
            place = f"environment variable {setting.variable}"
            found.take(setting, place, partial(_from_text, setting, environ[setting.variable], place))
        if setting.name in flags:
            found.take(setting, setting.flag, partial(_from_text, setting, flags[setting.name], setting.flag))
    found.settle()
    config = Config(**found.values)
    _check(config)
    return Effective(config, {setting.name: found.sources.get(setting.name, "default") for setting in SETTINGS})


@dataclass(slots=True)
class _Found:
    """What was found so far, from the weakest source to the strongest, and all that is wrong with it."""

    values: dict[str, Any]
    sources: dict[str, str]
    wrong: list[UserError]

    def take(self, setting: Setting, source: str, value: Callable[[], Any]) -> None:
        try:
            self.values[setting.name], self.sources[setting.name] = value(), source
        except UserError as error:
            self.wrong.append(error)

    def settle(self) -> None:
        if len(self.wrong) == 1:
            raise self.wrong[0]
        if self.wrong:
            raise UserError("\n".join(str(error) for error in self.wrong))


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


def parse(text: str, name: str) -> dict[str, Any]:
    """A configuration file's text as attribute -> value. `name` is the file's, for messages. Raises UserError."""
    found = _Found({}, {}, [])
    _take_text(text, name, found)
    found.settle()
    return found.values


def _take_text(text: str, name: str, found: "_Found") -> None:
    import tomllib

    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found.wrong.append(UserError(f"{name}: not valid TOML: {error}", "see the shipped bcd.toml for the form"))
        return
    for key, value in _flatten(tree):
        place = f"{name}:{line}" if (line := _line(text, key)) else name
        if setting := _BY_KEY.get(key):
            found.take(setting, place, partial(_from_toml, setting, value, place))
        else:
            found.wrong.append(UserError(f"{place}: unknown key {key!r}", f"the keys are {', '.join(sorted(_BY_KEY))}"))


def render() -> str:
    """The shipped bcd.toml: every key with its meaning and its default, commented out."""
    lines = ["# bcd's configuration. Each key also has an environment variable and a flag; the lines below show the defaults."]
    table = ""
    for setting in sorted(SETTINGS, key=lambda s: ("." in s.key and s.key.split(".")[0]) or ""):
        head, _, leaf = setting.key.rpartition(".")
        if head != table:
            lines += ["", f"[{head}]"]
            table = head
        lines += ["", f"# {setting.help}", f"# {setting.variable}, {setting.flag}", f"#{leaf} = {setting.toml}"]
    return "\n".join(lines) + "\n"


def _read_file(path: Path, required: bool) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        if not required and isinstance(error, FileNotFoundError | NotADirectoryError):
            return ""
        raise UserError(f"cannot read the configuration {path}: {error.strerror}", "name another one with --config") from error


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and name not in _BY_KEY and any(known.startswith(name + ".") for known in _BY_KEY):
            yield from _flatten(value, name + ".")
        else:
            yield name, value


def _line(text: str, key: str) -> int | None:
    """The line on which a key stands: tomllib does not tell. None when it is written in a form that is not looked for."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            table = _bare(header[1]) + "."
            if _bare(header[1]) == key:
                return number
        elif (entry := re.match(r"\s*([\w.\-\"' ]+?)\s*=", line)) and table + _bare(entry[1]) == key:
            return number
    return None


def _bare(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _from_toml(setting: Setting, value: object, place: str) -> Any:
    wrong = not isinstance(value, setting.kind.toml) or (isinstance(value, bool) and bool not in setting.kind.toml)
    if wrong:
        raise UserError(f"{place}: {setting.key} is {_toml_type(value)}; expected {setting.kind.expects}")
    if isinstance(value, list):
        if not all(isinstance(word, str) for word in value):
            raise UserError(f"{place}: {setting.key} holds something else than strings; expected {setting.kind.expects}")
        value = ",".join(value)
    return _from_text(setting, value if isinstance(value, str) else str(value), f"{place}: {setting.key}")


def _toml_type(value: object) -> str:
    names = {bool: "a boolean", str: "a string", int: "an integer", float: "a float", list: "an array", dict: "a table"}
    return names.get(type(value), f"a {type(value).__name__}")


def _from_text(setting: Setting, text: str, place: str) -> Any:
    try:
        return setting.kind.parse(text)
    except ValueError as error:
        raise UserError(f"{place}: {text!r}: {error}", setting.help) from error
