"""The settings: one row each, and everything that is said of them (file, environment, flag, help, shipped file) from that row.

A value comes from the first that has it: flag, environment variable, configuration file (TOML), default. One more setting costs
one line of Config. Unknown keys and wrong types are UserErrors that name the file and the line.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from agent.errors import UserError

DEFAULT_FILE = Path("/etc/bcd/bcd.toml")
FILE_VARIABLE = "BCD_CONFIG"
_DATA_DIR = Path("/var/lib/bcd")

# The kinds of commands that there are (A7; agent/commands holds what they do), and what stands still around a GPU reset.
COMMAND_KINDS = ("inventory.refresh", "diag.nvml", "diag.dcgm", "gpu.reset", "node.reboot")
_ALLOWED = COMMAND_KINDS[:2]
_PAUSED = ("nvidia-persistenced", "nvidia-dcgm")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)")


def duration(text: str) -> float:
    """`12h`, `90s`, `1h30m`, or a plain number of seconds, as seconds. Raises ValueError."""
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        return float(text)
    rest = _DURATION.sub("", text).strip()
    if rest or not text.strip():
        raise ValueError('expected a duration such as "12h", "10m" or "90s"')
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))


def duration_text(seconds: float) -> str:
    """Seconds in the largest unit that fits: 43200 is `12h`."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0 and (unit != "d" or seconds > size):
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def _positive(text: str) -> float:
    seconds = duration(text)
    if seconds == 0:
        raise ValueError("expected a duration above zero")
    return seconds


def _truth(text: str) -> bool:
    try:
        return {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}[
            text.lower()
        ]
    except KeyError:
        raise ValueError("expected true or false") from None


def _target(text: str) -> str:
    if text.startswith("unix:") and len(text) > len("unix:"):
        return text
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError('expected "host:port" or "unix:/path"')
    return text


def _choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected {' or '.join(words)}")
        return text

    return parse


def _words(*known: str) -> Callable[[str], tuple[str, ...]]:
    """Words between commas; only those of `known`, when it names some."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in text.split(",") if word.strip())
        if known and (other := [word for word in words if word not in known]):
            raise ValueError(f"{', '.join(other)}: expected some of {', '.join(known)}")
        return words

    return parse


def _absolute(text: str) -> Path:
    if not text:
        raise ValueError("expected a path")
    return Path(text).absolute()


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of setting: its value from text (raises ValueError), the TOML types it may have, and a value as text."""

    parse: Callable[[str], Any]
    toml: tuple[type, ...] = (str,)
    text: Callable[[Any], str] = str
    expects: str = "a string"


TEXT = Kind(str)
PATH = Kind(_absolute)
TARGET = Kind(_target)
SECONDS = Kind(duration, (str, int, float), duration_text, 'a duration such as "12h"')
LIMIT = Kind(_positive, (str, int, float), duration_text, 'a duration such as "60s"')
FLAG = Kind(_truth, (bool,), lambda value: str(value).lower(), "true or false")
LOG_FORMAT = Kind(_choice("text", "json"))
WORDS = Kind(_words(), (list,), ",".join, "a list of strings")
COMMANDS = Kind(_words(*COMMAND_KINDS), (list,), ",".join, "a list of strings")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `key` is its place in the file: `nvml.library` is `library` in table `[nvml]`."""

    key: str
    kind: Kind
    default: Any
    help: str

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
        if self.kind.toml == (list,):
            return str(list(self.default)).replace("'", '"')
        text = self.kind.text(self.default)
        return text if self.kind.toml == (bool,) else f'"{text}"'


def _row(key: str, kind: Kind, default: Any, text: str) -> Any:
    return field(default=default, metadata={"setting": Setting(key, kind, default, text)})


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force. Durations are seconds."""

    server: str = _row("server", TARGET, "127.0.0.1:7443", "The receiver: host:port, or unix:/path.")
    insecure: bool = _row("insecure", FLAG, False, "Allow a server that is not on this machine, although nothing is encrypted.")
    data_dir: Path = _row("data_dir", PATH, _DATA_DIR, "Where bcd keeps its identity and last inventory (mode 0700).")  # noqa: RUF009
    socket: str = _row("socket", TEXT, "", "The local socket of `bcd status` and `bcd refresh`. Empty: bcd.sock in data_dir.")
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
    tools_systemctl: str = _row("tools.systemctl", TEXT, "systemctl", "The program that stops, starts and reboots: name or path.")
    tools_nvidia_smi: str = _row("tools.nvidia_smi", TEXT, "nvidia-smi", "The program that resets GPUs: name or path.")
    tools_dcgmi: str = _row("tools.dcgmi", TEXT, "dcgmi", "The program of DCGM's diagnostics: name or path.")
    tools_mps_control: str = _row(
        "tools.mps_control", TEXT, "nvidia-cuda-mps-control", "The program that asks MPS for its servers: name or path."
    )
    log_format: str = _row("log.format", LOG_FORMAT, "text", "How events are logged to stderr: text or json, one a line.")

    @property
    def socket_path(self) -> Path:
        """Where the local socket is."""
        return Path(self.socket).absolute() if self.socket else self.data_dir / "bcd.sock"


SETTINGS: tuple[Setting, ...] = tuple(f.metadata["setting"] for f in fields(Config))
_BY_KEY = {setting.key: setting for setting in SETTINGS}


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> Config:
    """The settings in force. `file` None: the variable's or the default one, which may be absent. `flags`: name -> text.

    Raises UserError for whatever is wrong with any of them.
    """
    named = file or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    values = _read_file(named or DEFAULT_FILE, required=named is not None)
    for setting in SETTINGS:
        if setting.variable in environ:
            values[setting.name] = _from_text(setting, environ[setting.variable], f"environment variable {setting.variable}")
        if setting.name in flags:
            values[setting.name] = _from_text(setting, flags[setting.name], setting.flag)
    config = Config(**values)
    if not config.insecure and not is_local(config.server):
        raise UserError(
            f"server {config.server} is not on this machine and the connection would not be encrypted",
            "connect over loopback or a unix socket, or accept that with --insecure",
        )
    return config


def is_local(target: str) -> bool:
    """Whether a gRPC target cannot leave this machine: a unix socket or a loopback address."""
    host = target.rpartition(":")[0].strip("[]")
    if target.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse(text: str, name: str) -> dict[str, Any]:
    """A configuration file's text as attribute -> value. `name` is the file's, for messages. Raises UserError."""
    import tomllib

    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name}: not valid TOML: {error}", "see the shipped bcd.toml for the form") from error
    values = {}
    for key, value in _flatten(tree):
        place = f"{name}:{line}" if (line := _line(text, key)) else name
        if key not in _BY_KEY:
            raise UserError(f"{place}: unknown key {key!r}", f"the keys are {', '.join(sorted(_BY_KEY))}")
        values[_BY_KEY[key].name] = _from_toml(_BY_KEY[key], value, place)
    return values


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


def _read_file(path: Path, required: bool) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        if not required and isinstance(error, FileNotFoundError | NotADirectoryError):
            return {}
        raise UserError(f"cannot read the configuration {path}: {error.strerror}", "name another one with --config") from error
    return parse(text, str(path))


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
