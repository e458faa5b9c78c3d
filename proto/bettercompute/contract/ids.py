"""Ids: a prefix that says what it names, and a lower-case ULID (SPEC, Names): `inv_01jdxk3v9w5q8m2r7t4y6n0pbc`.

A ULID is 48 bits of milliseconds since 1970 and 80 random bits in Crockford's base 32: 26 characters that sort by time.
"""

import re

PREFIXES = ("node", "inv", "cmd", "evt", "pool", "run", "tok")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_FORM = re.compile(rf"({'|'.join(PREFIXES)})_[0-7][{_ALPHABET}]{{25}}")


def ulid(millis: int, randomness: bytes) -> str:
    """26 characters. `millis` since 1970; `randomness` is 10 bytes. Raises ValueError when either does not fit.

    >>> ulid(1_700_000_000_000, bytes(10))
    '01hf7yat000000000000000000'
    """
    if len(randomness) != 10 or not 0 <= millis < 1 << 48:
        raise ValueError(f"a ULID is made of 48 bits of time and 10 random bytes, not {millis} and {len(randomness)} bytes")
    number = millis << 80 | int.from_bytes(randomness, "big")
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def is_id(text: str, prefix: str) -> bool:
    """Whether `text` is an id of this kind.

    >>> is_id("node_01hf7yat000000000000000000", "node"), is_id("node_1", "node")
    (True, False)
    """
    match = _FORM.fullmatch(text)
    return match is not None and match[1] == prefix
