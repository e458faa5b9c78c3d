"""The types of settings: what a value must look like, and what it is then. One more costs a function and a line at the end."""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The kinds of commands that there are (A7; agent/commands holds what they do), and what stands still around a GPU reset.
COMMAND_KINDS = ("inventory.refresh", "diag.nvml", "diag.dcgm", "gpu.reset", "node.reboot")
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


def _listen(text: str) -> str:
    if text and _target(text).startswith("unix:"):
        raise ValueError('expected "host:port"')
    return text


def _targets(text: str) -> str:
    """One target or several with commas between them, or none."""
    return ",".join(_target(one.strip()) for one in text.split(",")) if text.strip() else ""


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


def is_local(target: str) -> bool:
    """Whether a gRPC target cannot leave this machine: a unix socket or a loopback address."""
    host = target.rpartition(":")[0].strip("[]")
    if target.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of setting: its value from text (raises ValueError), the TOML types it may have, and a value as text."""

    parse: Callable[[str], Any]
    toml: tuple[type, ...] = (str,)
    text: Callable[[Any], str] = str
    expects: str = "a string"


TEXT = Kind(str)
PATH = Kind(_absolute)
TARGETS = Kind(_targets)
SECONDS = Kind(duration, (str, int, float), duration_text, 'a duration such as "12h"')
OPTIONAL_LISTEN = Kind(_listen)
LIMIT = Kind(_positive, (str, int, float), duration_text, 'a duration such as "60s"')
FLAG = Kind(_truth, (bool,), lambda value: str(value).lower(), "true or false")
LOG_FORMAT = Kind(_choice("text", "json"))
WORDS = Kind(_words(), (list,), ",".join, "a list of strings")
COMMANDS = Kind(_words(*COMMAND_KINDS), (list,), ",".join, "a list of strings")
