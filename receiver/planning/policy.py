"""A pool's policy (SPEC B0): what operators may set, as values with defaults, and how it is written in JSON.

One more setting is a field of Policy and a row of KEYS.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from receiver.values import Json

REPLICAS = (1, 48)  # slots of a GPU; 48 clients are what MPS takes
GPUS = 1024  # of a node: no machine has as many
REBOOT_TIMEOUT = 1800  # seconds
LISTED = 64  # entries of a list
_PROFILE = re.compile(r"[0-9a-z][0-9a-z.+-]{0,31}")
_CHECK_KIND = re.compile(r"[a-z][a-z0-9-]*(\.[a-z0-9-]+)*")
_PERCENT = re.compile(r"(100|[0-9]{1,2})(\.[0-9]{1,3})?%")
_XID = re.compile(r"0|[1-9][0-9]{0,5}")


@dataclass(frozen=True, slots=True)
class Policy:
    """`policy` of a pool. What is not set has the SPEC's default."""

    acceptance: tuple[Mapping[str, Json], ...] = ()  # [{"kind": "diag.nvml"}]
    expect_gpu_count: int | None = None  # expect.gpuCount
    replicas: int | None = None  # sharing.replicas, 1 to 48; None: 4 for timeslice, 10 for mps
    mig_layout: tuple[str, ...] = ()  # mig.layout: the profiles that each GPU is to have, sorted; empty: any
    row_remap_pending: bool = True  # quarantine.rowRemapPending
    xid: Mapping[int, str | None] = field(default_factory=dict)  # {"109": {"policy": null}}: verdict `node`, `device` or None
    links: str = "no"  # whether NvLinkDegraded and IbLinkDown are NoSchedule: "no", "node"
    on_gpu_missing: str | None = None  # onGpuMissing: "node", "no"; None: `node` where the node's GPUs have NVLink peers
    escalate_to: str = "node"  # remediation.escalateTo: whom a failed reset takes out, "node" or "device"
    reboot_timeout: int = REBOOT_TIMEOUT  # remediation.rebootTimeout: seconds from a reboot's start to its proof
    breaker_min_nodes: int = 2  # breaker.minNodes
    disruption_budget: str | int = "5%"  # of the nodes in service, or a number of them; 0: nothing is disrupted


class PolicyError(Exception):
    """A policy that cannot be taken. `str()` names the key by its path, what it is, and what it may be."""


class _Wrong(Exception):
    """A value is not what its key takes; `str()`: a path below the key, or nothing."""


@dataclass(frozen=True, slots=True)
class Key:
    """A setting: its path in the JSON, its field of Policy, how it is read (raises _Wrong), and what it may be, in words."""

    path: str
    field: str
    read: Callable[[Json], Any]
    takes: str


def parse(policy: Json, strict: bool = False) -> Policy:
    """A policy from its JSON. Raises PolicyError that names the key.

    `strict`: also for a key that there is not. (One that is stored may be a newer receiver's, and is passed over.)

    >>> parse({"expect": {"gpuCount": 8}, "xid": {"109": {"policy": None}}}).xid
    {109: None}
    """
    values = {}
    for path, value in _leaves(policy, "", strict):
        key = KEYS[path]
        try:
            values[key.field] = key.read(value)
        except _Wrong as wrong:
            raise PolicyError(f"policy.{path}{wrong} is {_shown(value)}; it may be {key.takes}") from None
    return Policy(**values)


def _leaves(part: Json, path: str, strict: bool) -> Iterator[tuple[str, Json]]:
    """The settings of a policy: path and value. Raises PolicyError, for a key that there is not with those that there are."""
    if not isinstance(part, Mapping):
        raise PolicyError(f"policy{'.' * bool(path)}{path} is {_shown(part)}; it may be an object")
    for name, value in part.items():
        inner = f"{path}.{name}" if path else str(name)
        if inner in KEYS:
            yield inner, value
        elif any(key.startswith(f"{inner}.") for key in KEYS):
            yield from _leaves(value, inner, strict)
        elif strict:
            near = difflib.get_close_matches(inner, KEYS, 1)
            there = f"did you mean {near[0]}?" if near else f"there are {', '.join(KEYS)}"
            raise PolicyError(f"policy.{inner[:64]} is no key of a policy: {there}")


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _whole(least: int, most: int) -> Callable[[Json], int]:
    def read(value: Json) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _Wrong
        return value

    return read


def _word(*words: str) -> Callable[[Json], str]:
    def read(value: Json) -> str:
        if value not in words or not isinstance(value, str):
            raise _Wrong
        return value

    return read


def _flag(value: Json) -> bool:
    if not isinstance(value, bool):
        raise _Wrong
    return value


def _list(value: Json) -> Sequence[Json]:
    if not isinstance(value, list | tuple) or len(value) > LISTED:
        raise _Wrong
    return value


def _checks(value: Json) -> tuple[Mapping[str, Json], ...]:
    for place, one in enumerate(_list(value)):
        if not isinstance(one, Mapping) or set(one) != {"kind"} or not _matches(_CHECK_KIND, one["kind"]):
            raise _Wrong(f"[{place}]")
    return tuple(value)


def _profiles(value: Json) -> tuple[str, ...]:
    for place, one in enumerate(_list(value)):
        if not _matches(_PROFILE, one):
            raise _Wrong(f"[{place}]")
    return tuple(sorted(value))


def _xids(value: Json) -> dict[int, str | None]:
    if not isinstance(value, Mapping):
        raise _Wrong
    for number, one in value.items():
        known = isinstance(one, Mapping) and set(one) == {"policy"} and one["policy"] in ("node", "device", None)
        if not known or not _XID.fullmatch(str(number)):
            raise _Wrong(f".{number}")
    return {int(number): one["policy"] for number, one in value.items()}


def _budget(value: Json) -> str | int:
    return value if _matches(_PERCENT, value) else _whole(0, 1_000_000)(value)


def _matches(pattern: re.Pattern[str], value: Json) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


KEYS: Mapping[str, Key] = {
    key.path: key
    for key in (
        Key("acceptance", "acceptance", _checks, 'a list of checks: [{"kind": "diag.nvml"}]'),
        Key("expect.gpuCount", "expect_gpu_count", _whole(0, GPUS), f"a whole number, 0 to {GPUS}"),
        Key("sharing.replicas", "replicas", _whole(*REPLICAS), "a whole number, 1 to 48"),
        Key("mig.layout", "mig_layout", _profiles, 'a list of MIG profiles: ["3g.40gb", "3g.40gb"]'),
        Key("quarantine.rowRemapPending", "row_remap_pending", _flag, "true or false"),
        Key("xid", "xid", _xids, '{"<number>": {"policy": "node", "device" or null}}'),
        Key("links", "links", _word("no", "node"), '"no" or "node"'),
        Key("onGpuMissing", "on_gpu_missing", _word("no", "node"), '"no" or "node"'),
        Key("remediation.escalateTo", "escalate_to", _word("node", "device"), '"node" or "device"'),
        Key("remediation.rebootTimeout", "reboot_timeout", _whole(60, 86_400), "a whole number of seconds, 60 to 86400"),
        Key("breaker.minNodes", "breaker_min_nodes", _whole(1, 1_000_000), "a whole number, 1 or more"),
        Key("disruptionBudget", "disruption_budget", _budget, 'a percentage such as "5%", or a number of nodes'),
    )
}
