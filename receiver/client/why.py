"""`nodes.why` for a person: one screen, a few lines an obstacle, so that what ends it can be copied whole.

What is the same of several GPUs is said once.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]
Cell = Callable[[Any], str]
LISTED = 3  # GPUs of one obstacle that are named; of more, their number and indices


def lines(value: Object, cell: Cell) -> Iterator[str]:
    """The answer of nodes.why but its GPUs. `cell` makes one value a text: times with their age, no control characters."""
    yield f"{cell(value.get('hostname'))}  {value['nodeId']}  {', '.join(_state(value, cell))}"
    yield cell(value["answer"])
    index = {one["deviceId"]: one["index"] for one in value.get("devices") or [] if one.get("index") is not None}
    for group in _alike(value.get("obstacles") or []):
        yield ""
        yield from _obstacle(group, index, cell)
    yield ""


def _state(value: Object, cell: Cell) -> Iterator[str]:
    yield str(value["status"])
    yield f"pool {cell(value.get('pool') or value['poolId'])} ({value['mode']})" if value.get("poolId") else "no pool"
    if value.get("trust") != "platform":
        yield str(value["trust"])
    yield "connected" if value.get("connected") else f"not connected, last seen {cell(value.get('lastSeenAt'))}"


def _alike(obstacles: list[Object]) -> list[list[Object]]:
    """Obstacles that differ in their GPU only, together, in the order of the first of each."""
    groups: dict[tuple[Any, ...], list[Object]] = {}
    for one in obstacles:
        key = (one["scope"], one["what"], one["by"], one["enforced"], _apart(one, "message"), _apart(one, "ends"))
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def _apart(one: Object, key: str) -> str:
    """A text without the ids of the GPU and atom that it is about."""
    text = str(one.get(key) or "")
    for name in ("atomId", "deviceId"):
        text = text.replace(one[name], f"<{name}>") if one.get(name) else text
    return text


def _obstacle(group: list[Object], index: Mapping[str, int], cell: Cell) -> Iterator[str]:
    first = group[0]
    times = [str(one["since"]) for one in group if one.get("since")]
    since = f", since {cell(min(times))}" if times else ""
    would = "" if first["enforced"] else " (would be, the pool observes)"
    yield f"{cell(first['what'])}{would}{_where(group, index)}  by {cell(first['by'])}{since}"
    shown = _apart if len(group) > 1 else lambda one, key: str(one.get(key) or "")
    if shown(first, "message"):
        yield f"  {cell(shown(first, 'message'))}"
    yield f"  ends: {cell(shown(first, 'ends'))}"


def _where(group: list[Object], index: Mapping[str, int]) -> str:
    """On which GPUs, or atoms of them."""
    named = [one.get("atomId") or one.get("deviceId") for one in group]
    if named == [None]:
        return ""
    if len(named) > LISTED:
        numbers = sorted(index[one["deviceId"]] for one in group if one.get("deviceId") in index)
        return f" on {len(named)} {'atoms' if group[0].get('atomId') else 'GPUs'}{_listed(numbers)}"
    return f" on {', '.join(_name(one, index) for one in group)}"


def _listed(numbers: list[int]) -> str:
    return f" (index {', '.join(str(one) for one in dict.fromkeys(numbers))})" if numbers else ""


def _name(one: Object, index: Mapping[str, int]) -> str:
    device, atom = one.get("deviceId") or "", one.get("atomId")
    number = f"GPU {index[device]}" if device in index else ""
    return f"{number} {atom or device}".strip()
