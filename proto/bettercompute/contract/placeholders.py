"""What firmware writes where an identity should be: rows of firmware-placeholders.tsv, and rules for what rows show a pattern of.

A placeholder identifies nothing: two machines that share it need not be the same machine. Compared without blanks at the ends
and without case. One more placeholder costs a row there, one more pattern a row in RULES.
"""

import functools
import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path

_FILE = Path(__file__).with_name("firmware-placeholders.tsv")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_PREFIX = re.compile(r"^(?:sn|sys|mb|s/n)[-: ]*")
_FIELD_NAME = re.compile(r"(system|chassis|base ?board|board|product|enclosure|oem|type ?[0-9])[\s_.-]*.*serial")


def is_serial(value: str) -> bool:
    """Whether a serial tells a machine: there, and no placeholder."""
    text = value.strip().lower()
    return text not in _rows()["serial"] and not any(rule(text) for rule in RULES.values())


def is_uuid(value: str) -> bool:
    """Whether an SMBIOS UUID tells a machine. Zeros before a MAC are such a UUID (Supermicro, Oracle)."""
    text = value.strip().lower()
    if not _UUID.fullmatch(text):
        return False
    octets = bytes.fromhex(text.replace("-", ""))
    return not any(form in _rows()["uuid"] or _repeats(form) or _rises(form) for form in (octets, _swapped(octets)))


def _run(text: str) -> bool:
    """`0123456789`, `1234567890`, `123456`, `9876543210`."""
    digits = _PREFIX.sub("", text)
    if len(digits) < 3 or not digits.isdecimal() or not digits.isascii():
        return False
    steps = {(int(b) - int(a)) % 10 for a, b in itertools.pairwise(digits)}
    return steps in ({1}, {9})


# What a text without case and without blanks at its ends shows -> whether it does.
RULES: Mapping[str, Callable[[str], bool]] = {
    "no letter or digit": lambda text: not re.search(r"[^\W_]", text),
    "one character repeated": lambda text: len(set(_PREFIX.sub("", text))) <= 1,
    "one byte repeated": lambda text: re.fullmatch(r"(?:0x)?([0-9a-f]{2})\1{2,}", text) is not None,
    "a run of digits": _run,
    "to be filled": lambda text: re.search(r"to[\W_]*be[\W_]*filled|\btbd\b", text) is not None,
    "default string": lambda text: re.search(r"default[\s_-]*string", text) is not None,
    "a word for none": lambda text: (
        re.fullmatch(
            r"\W*(none|null|n/?a|unknown|invalid|undefined|empty|o\.?e\.?m\.?|no (asset|serial|enclosure).*"
            r"|not[\s_-]?(specified|available|applicable|defined|present|settable|set|provided))\W*",
            text,
        )
        is not None
    ),
    "the field's own name": lambda text: _FIELD_NAME.match(text) is not None or text.rstrip(" #:") in ("serial", "serial number"),
    "a build variable": lambda text: re.search(r"\$\(.*\)", text) is not None,
}


@functools.cache
def _rows() -> Mapping[str, frozenset[str | bytes]]:
    """The rows for serials and for UUIDs. A serial may hold what is listed for any field but a DIMM's: the words are the same."""
    rows = [line.split("\t")[:2] for line in _FILE.read_text().splitlines()[1:]]
    return {
        "serial": frozenset(_plain(value) for field, value in rows if not field.startswith(("dimm.", "system.uuid"))),
        "uuid": frozenset(bytes.fromhex(value.replace("-", "")) for field, value in rows if field == "system.uuid"),
    }


def _plain(value: str) -> str:
    """A row's value: `\\e` is empty, `\\t` a tab, `\\\\` a backslash."""
    return re.sub(r"\\(.)", lambda found: {"e": "", "t": "\t"}.get(found[1], found[1]), value).strip().lower()


def _swapped(octets: bytes) -> bytes:
    """The other spelling: the first three groups were stored the other way round before SMBIOS 2.6."""
    return octets[3::-1] + octets[5:3:-1] + octets[7:5:-1] + octets[8:]


def _repeats(octets: bytes) -> bool:
    return len(set(octets)) == 1


def _rises(octets: bytes) -> bool:
    """00 01 02 ... or 00 11 22 ..."""
    return len({(b - a) % 256 for a, b in itertools.pairwise(octets)}) == 1
