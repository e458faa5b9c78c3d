"""How bcd and bc-receiver read their settings: one row each, and all that is said of them (file, variable, flag, help) from it.

A value comes from the first that has it: flag, environment variable, configuration file (TOML), default. What is wrong is said
with its place, and all of it at once. Both sides use this; one more setting is a row of its side's Config.
"""

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

_CAPITAL = re.compile("[A-Z]")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)")
_TRUTH = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_TYPES = {bool: "a boolean", str: "a string", int: "an integer", float: "a float", list: "an array", dict: "a table"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of setting: its value from text (raises ValueError), the TOML types it may have, and a value as text."""

    parse: Callable[[str], Any]
    toml: tuple[type, ...] = (str,)
    text: Callable[[Any], str] = str
    expects: str = "a string"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `key` is its place in the file: `nvml.library` is `library` in table `[nvml]`. `default`: as text.

    >>> one = Setting("BC", "minDaemonVersion", Kind(str), "", "")
    >>> one.name, one.variable, one.flag
    ('min_daemon_version', 'BC_MIN_DAEMON_VERSION', '--min-daemon-version')
    """

    prefix: str
    key: str
    kind: Kind
    default: str
    help: str
    restart: bool = False  # another value holds from the next start only, not from SIGHUP

    @property
    def name(self) -> str:
        """The attribute of Config."""
        return _CAPITAL.sub(lambda match: f"_{match[0].lower()}", self.key).replace(".", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"{self.prefix}_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The command line's option."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def toml(self) -> str:
        """The default as it stands in the file."""
        return self.as_toml(self.kind.parse(self.default))

    def as_toml(self, value: Any) -> str:
        """A value as it stands in the file."""
        text = self.kind.text(value)
        if self.kind.toml == (list,):
            return json.dumps([word for word in text.split(",") if word])
        if self.kind.toml == (dict,):
            return "{ " + ", ".join(" = ".join(pair.split("=")) for pair in text.split(",")) + " }"
        return json.dumps(text, ensure_ascii=False) if str in self.kind.toml else text


def row(prefix: str, key: str, kind: Kind, default: str, text: str, restart: bool = False) -> Any:
    """A field of Config."""
    setting = Setting(prefix, key, kind, default, text, restart)
    return field(default_factory=lambda: kind.parse(default), metadata={"setting": setting})


def settings_of(config: Any) -> tuple[Setting, ...]:
    """The rows of a Config."""
    return tuple(one.metadata["setting"] for one in fields(config))


# ---------------------------------------------------------------- reading


@dataclass(slots=True)
class Found:
    """Attribute of Config -> value, and where it is from: `FILE:LINE`, a variable or a flag; and all that is wrong, in words."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def take(self, setting: Setting, source: str, value: Callable[[], Any]) -> None:
        """Takes a value from a place that counts for more than those before."""
        try:
            self.values[setting.name], self.sources[setting.name] = value(), source
        except ValueError as error:
            self.wrong.append(str(error))


def load(
    settings: Sequence[Setting], file: Path | None, default: Path, environ: Mapping[str, str], flags: Mapping[str, str]
) -> Found:
    """What is set. `file` None: the one that the variable PREFIX_CONFIG names, or the default one, which may be absent.

    `flags`: attribute of Config -> text.
    """
    found, variable = Found(), f"{settings[0].prefix}_CONFIG"
    named = file or (Path(environ[variable]) if environ.get(variable) else None)
    try:
        parse(settings, _read(named or default, required=named is not None), str(named or default), found)
    except ValueError as error:
        found.wrong.append(str(error))
    for setting in settings:
        if setting.variable in environ:
            place = f"environment variable {setting.variable}"
            found.take(setting, place, partial(_from_text, setting, environ[setting.variable], place))
        if setting.name in flags:
            found.take(setting, setting.flag, partial(_from_text, setting, flags[setting.name], setting.flag))
    return found


def parse(settings: Sequence[Setting], text: str, name: str, found: Found) -> None:
    """Takes what a configuration file says. `name` is the file's, for messages."""
    import tomllib

    known = {setting.key: setting for setting in settings}
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found.wrong.append(f"{name}: not valid TOML: {error}\n  see the shipped file for the form, or https://toml.io")
        return
    for key, value in _flatten(tree, known):
        place = f"{name}:{line}" if (line := _line(text, key)) else name
        if setting := known.get(key):
            found.take(setting, place, partial(_from_toml, setting, value, place))
        else:
            found.wrong.append(f"{place}: unknown key {key!r}\n  {_meant(key, known)}")


def render(program: str, settings: Sequence[Setting]) -> str:
    """The file to ship: every key with its meaning and its default, commented out."""
    lines = [
        f"# {program}'s configuration. Each key also has an environment variable and a flag; the lines below show the defaults."
    ]
    table = ""
    for setting in sorted(settings, key=lambda one: one.key.split(".")[0] if "." in one.key else ""):
        head, _, leaf = setting.key.rpartition(".")
        if head != table:
            lines += ["", f"[{head}]"]
            table = head
        lines += ["", f"# {setting.help}", f"# {setting.variable}, {setting.flag}", f"#{leaf} = {setting.toml}"]
    return "\n".join(lines) + "\n"


def _read(path: Path, required: bool) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        if not required and isinstance(error, FileNotFoundError | NotADirectoryError):
            return ""
        raise ValueError(f"cannot read the configuration {path}: {error.strerror}\n  name another one with --config") from error


def _flatten(tree: Mapping[str, Any], known: Mapping[str, Setting], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and name not in known and any(one.startswith(name + ".") for one in known):
            yield from _flatten(value, known, name + ".")
        else:
            yield name, value


def _line(text: str, key: str) -> int | None:
    """The line on which a key begins: tomllib does not tell. None when it is written in a form that is not looked for."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            named = table = _bare(header[1]) + "."
        elif entry := re.match(r"\s*([\w.\-\"' ]+?)\s*=", line):
            named = table + _bare(entry[1]) + "."
        else:
            continue
        if named.startswith(key + "."):
            return number
    return None


def _bare(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _meant(key: str, known: Mapping[str, Setting]) -> str:
    import difflib

    near = difflib.get_close_matches(key, known, 3)
    return f"perhaps {' or '.join(near)}" if near else f"the keys are {', '.join(sorted(known))}"


def _from_toml(setting: Setting, value: Any, place: str) -> Any:
    if type(value) not in setting.kind.toml:
        found = _TYPES.get(type(value), f"a {type(value).__name__}")
        raise ValueError(f"{place}: {setting.key} is {found}; expected {setting.kind.expects}")
    if isinstance(value, list):
        if not all(isinstance(word, str) for word in value):
            raise ValueError(f"{place}: {setting.key} holds something else than strings; expected {setting.kind.expects}")
        value = ",".join(value)
    elif isinstance(value, dict):
        value = ",".join(f"{name}={one}" for name, one in value.items())
    return _from_text(setting, value if isinstance(value, str) else str(value), f"{place}: {setting.key}")


def _from_text(setting: Setting, text: str, place: str) -> Any:
    try:
        return setting.kind.parse(text)
    except ValueError as error:
        raise ValueError(f"{place}: {text!r}: {error}\n  {setting.help}") from error


# ---------------------------------------------------------------- kinds


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
    if text.lower() not in _TRUTH:
        raise ValueError("expected true or false")
    return _TRUTH[text.lower()]


def target(text: str) -> str:
    """A gRPC target. Raises ValueError."""
    if text.startswith("unix:") and len(text) > len("unix:"):
        if len(text.removeprefix("unix:").encode()) > 107:
            raise ValueError("expected a socket path of at most 107 bytes")
        return text
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError('expected "host:port" or "unix:/path"')
    return text


def is_local(target: str) -> bool:
    """Whether a gRPC target cannot leave this machine: a unix socket or a loopback address.

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


def _listen(text: str) -> str:
    if text and target(text).startswith("unix:"):
        raise ValueError('expected "host:port"')
    return text


def _choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected {' or '.join(words)}")
        return text

    return parse


def words(*known: str) -> Kind:
    """Words between commas, a list in the file; only those of `known`, when it names some."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(word.strip() for word in text.split(",") if word.strip())
        if known and (other := [word for word in found if word not in known]):
            raise ValueError(f"{', '.join(other)}: expected some of {', '.join(known)}")
        return found

    return Kind(parse, (list,), ",".join, "a list of strings")


TEXT = Kind(str)
# Targets with commas between them, or none.
TARGETS = Kind(lambda text: ",".join(target(one.strip()) for one in text.split(",")) if text.strip() else "")
OPTIONAL_LISTEN = Kind(_listen)
SECONDS = Kind(duration, (str, int, float), duration_text, 'a duration such as "12h"')
DURATION = Kind(_positive, (str, int, float), duration_text, 'a duration such as "60s"')
FLAG = Kind(_truth, (bool,), lambda value: str(value).lower(), "true or false")
LOG_FORMAT = Kind(_choice("text", "json"))
WORDS = words()
