"""Text of nodes as Postgres takes it: a NUL, which protobuf strings may hold and Postgres refuses, becomes U+FFFD."""

import json
from collections.abc import Iterable
from typing import Any

from psycopg.types.json import Jsonb


def text(value: str) -> str:
    """The text without NULs."""
    return value.replace("\0", "\ufffd")


def listed(values: Iterable[object]) -> str:
    """Ids or numbers as one text, for `string_to_array(%s, ' ')`. As a list, 15,000 ids take psycopg 22 ms, in which no stream is
    heard; so they take less than one.
    """
    return " ".join(map(str, values))


def jsonb(value: Any) -> Jsonb:
    """A jsonb argument in which no text, key or value, holds a NUL."""
    return Jsonb(value, dumps=_dumps)


def differ(one: Any, other: Any) -> bool:
    """Whether two values of JSON differ once they are stored: a tuple comes back as a list, and a NUL as what it has become.

    >>> differ({"a": (1, "\\0")}, {"a": [1, "\\ufffd"]})
    False
    """
    return bool(one != other) and _dumps(one, sort_keys=True) != _dumps(other, sort_keys=True)


def _dumps(value: Any, sort_keys: bool = False) -> str:
    dumped = json.dumps(value, sort_keys=sort_keys)
    return json.dumps(_clean(value), sort_keys=sort_keys) if "\\u0000" in dumped else dumped


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(key): _clean(one) for key, one in value.items()}
    return [_clean(one) for one in value] if isinstance(value, list | tuple) else value
