"""Hashes of sections as Postgres keeps them: 32 bytes, and those of a snapshot packed into one column. Elsewhere: 64 hex digits.

Packed: the names, sorted, with a space between two; a zero byte; the hashes in the order of the names. A fleet's history is
mostly hashes: so a snapshot takes half as much as with `{name: hex}` in jsonb. SQL sees rows: `section_hashes(sections)`.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import LargeBinary
from sqlalchemy.types import TypeDecorator

_DIGITS = 64


def binary(hash: str) -> bytes:
    """A hash as it is stored."""
    return bytes.fromhex(hash)


def pack(hashes: Mapping[str, str]) -> bytes:
    """Section name to hash, as inventory_snapshots.sections holds it.

    >>> pack({"os": "22" * 32, "cpu": "11" * 32}) == b"cpu os\\0" + b"\\x11" * 32 + b"\\x22" * 32
    True
    """
    names = sorted(hashes)
    return " ".join(names).encode() + b"\0" + binary("".join(hashes[name] for name in names))


def unpack(packed: bytes) -> dict[str, str]:
    """What was packed.

    >>> unpack(pack({"os": "22" * 32, "cpu": "11" * 32})) == {"os": "22" * 32, "cpu": "11" * 32}
    True
    """
    names, _, hashes = packed.partition(b"\0")
    digits = hashes.hex()
    return {name: digits[place * _DIGITS : (place + 1) * _DIGITS] for place, name in enumerate(names.decode().split())}


class Hash(TypeDecorator[str]):
    """A column of a hash."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> bytes | None:
        """To Postgres."""
        return None if value is None else binary(value)

    def process_result_value(self, value: Any, dialect: Any) -> str | None:
        """From Postgres."""
        return None if value is None else bytes(value).hex()


class Packed(TypeDecorator[dict[str, str]]):
    """A column of the hashes of a snapshot."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, str] | None, dialect: Any) -> bytes | None:
        """To Postgres."""
        return None if value is None else pack(value)

    def process_result_value(self, value: Any, dialect: Any) -> dict[str, str] | None:
        """From Postgres."""
        return None if value is None else unpack(bytes(value))
