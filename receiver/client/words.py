"""Values within a sentence: changes, MIG layouts, objects."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

Object = Mapping[str, Any]


def change(one: Object) -> str:
    """A change of two inventories in words.

    >>> change({"type": "disk.replaced", "before": {"name": "sda", "serial": "A"}, "after": {"name": "sda", "serial": "B"}})
    'sda: serial A -> B'
    >>> change({"type": "gpu.missing", "deviceId": "GPU-1", "before": {"name": "NVIDIA H100", "index": 3}, "after": None})
    'GPU-1: NVIDIA H100, index 3'
    """
    before, after = one.get("before") or {}, one.get("after") or {}
    subject = one.get("deviceId") or (before or after).get("name") or ""
    if before and after:
        differ = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        words = [f"{key} {plain(before.get(key))} -> {plain(after.get(key))}" for key in differ]
    else:
        there = {**before, **after}
        words = [text for key, value in there.items() if (text := plain(value) if key == "name" else f"{key} {plain(value)}")]
        words.sort(key=lambda word: word != there.get("name"))
    return f"{subject}: {', '.join(words)}" if subject else ", ".join(words)


def counted(words: Iterable[str]) -> str:
    """
    >>> counted(["1g.10gb", "2g.20gb", "1g.10gb"])
    '2 x 1g.10gb, 1 x 2g.20gb'
    """
    return ", ".join(f"{count} x {word}" for word, count in Counter(words).items())


def plain(value: Any) -> str:
    """A value within a sentence: MIG instances as their profiles, other objects as their keys and values."""
    if isinstance(value, list):
        profiles = [one["profile"] for one in value if isinstance(one, Mapping) and "profile" in one]
        return (counted(profiles) if profiles else ", ".join(plain(one) for one in value)) or "none"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={plain(one)}" for key, one in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def typed(value: Any) -> str:
    """A value as it is typed on the command line: an object is JSON.

    >>> typed({"xid": {"109": {"policy": None}}}), typed("h100")
    ('{"xid": {"109": {"policy": null}}}', 'h100')
    """
    return json.dumps(value) if isinstance(value, Mapping | list) else plain(value)
