"""The types of settings that only the receiver has; the others are bettercompute/contract/settings.py's."""

from pathlib import Path

from bettercompute.contract.settings import DURATION as DURATION
from bettercompute.contract.settings import Kind, target, words

from receiver.planning import hygiene
from receiver.planning.pressure import RAISE
from receiver.values import STATUS_HANDLERS


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise ValueError("expected a whole number from 1 to 1000")
    return int(text)


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("expected a path")
    return str(Path(text).absolute())


def _word(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("expected a word")
    return text


def _levels(text: str) -> dict[str, float]:
    """Percent by measure; those that are not named have their default."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    try:
        levels = {**RAISE, **{name.strip(): float(share) for name, _, share in pairs}}
    except ValueError:
        levels = {}
    if levels.keys() != RAISE.keys() or not all(0 < share <= 100 for share in levels.values()):
        raise ValueError(f"expected percent above 0 and at most 100 for some of {', '.join(RAISE)}")
    return levels


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError("expected a share from 0 to below 1, such as 0.1")
    return share


def _version(text: str) -> str:
    if text and hygiene.version(text) is None:
        raise ValueError('expected a version, such as "0.2.0"')
    return text


def _protocol(text: str) -> str:
    if hygiene.protocol(text) is None:
        raise ValueError('expected MAJOR.MINOR, such as "0.3"')
    return text


WORD = Kind(_word)
PATH = Kind(_path)
OPTIONAL_PATH = Kind(lambda text: _path(text) if text else "")
TARGET = Kind(target)
OPTIONAL_TARGET = Kind(lambda text: target(text) if text else "")
COUNT = Kind(_count, (int,), expects="a whole number")
HANDLERS = words(*STATUS_HANDLERS)
LEVELS = Kind(
    _levels, (dict,), lambda levels: ",".join(f"{name}={share:g}" for name, share in levels.items()), "a table of percents"
)
SHARE = Kind(_share, (float, int), expects="a share such as 0.1")
VERSION = Kind(_version)
PROTOCOL_VERSION = Kind(_protocol)
