"""The types of settings: what a value must look like, and what it is then. One more costs a function and a line at the end."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from receiver.planning import hygiene
from receiver.planning.pressure import RAISE
from receiver.values import STATUS_HANDLERS

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ValueError('a duration above zero, such as "30s"')
    return float(match[1]) * _UNITS[match[2] or "s"]


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ValueError("true or false")
    return _TRUTH[text.lower()]


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise ValueError("a whole number from 1 to 1000")
    return int(text)


def _target(text: str) -> str:
    host, _, port = text.rpartition(":")
    if text.startswith("unix:") and len(text) > len("unix:"):
        if len(text.removeprefix("unix:").encode()) > 107:
            raise ValueError("a socket path of at most 107 bytes")
        return text
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError('"HOST:PORT" or "unix:/PATH"')
    return text


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("a path")
    return str(Path(text).absolute())


def _optional_path(text: str) -> str:
    return _path(text) if text else ""


def _format(text: str) -> str:
    if text not in ("text", "json"):
        raise ValueError("text or json")
    return text


def _word(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("a word")
    return text


def _handlers(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if set(words) - set(STATUS_HANDLERS):
        raise ValueError(f"a list of {', '.join(STATUS_HANDLERS)}")
    return words


def _levels(text: str) -> dict[str, float]:
    """Percent by measure; those that are not named have their default."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    try:
        levels = {**RAISE, **{name.strip(): float(share) for name, _, share in pairs}}
    except ValueError:
        levels = {}
    if levels.keys() != RAISE.keys() or not all(0 < share <= 100 for share in levels.values()):
        raise ValueError(f"percent above 0 and at most 100 for some of {', '.join(RAISE)}")
    return levels


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError("a share from 0 to below 1, such as 0.1")
    return share


def _version(text: str) -> str:
    if text and hygiene.version(text) is None:
        raise ValueError('a version, such as "0.2.0"')
    return text


def _protocol(text: str) -> str:
    if hygiene.protocol(text) is None:
        raise ValueError('MAJOR.MINOR, such as "0.3"')
    return text


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _targets(text: str) -> str:
    return ",".join(_target(word) for word in _words(text))


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of setting: its value from text (raises ValueError with what was expected), and the TOML types it may have."""

    parse: Callable[[str], Any]
    toml: tuple[type, ...] = (str,)


TEXT = Kind(str)
WORD = Kind(_word)
PATH = Kind(_path)
OPTIONAL_PATH = Kind(_optional_path)
TARGET = Kind(_target)
OPTIONAL_TARGET = Kind(lambda text: _target(text) if text else "")
TARGETS = Kind(_targets)
WORDS = Kind(_words, (list,))
DURATION = Kind(_duration, (str, int, float))
COUNT = Kind(_count, (int,))
FLAG = Kind(_truth, (bool,))
FORMAT = Kind(_format)
HANDLERS = Kind(_handlers, (list,))
LEVELS = Kind(_levels, (dict,))
SHARE = Kind(_share, (float, int))
VERSION = Kind(_version)
PROTOCOL_VERSION = Kind(_protocol)
