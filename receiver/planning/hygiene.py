"""Hygiene (SPEC B6): what is wrong with a node by what the receiver knows of it, without a word of the node's. Pure.

RULES has a row a condition. `wanted` says what is to be true of a node, `guard` what a sweep may raise in a pool.
"""

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from receiver.planning.condition_types import types_of
from receiver.planning.view import ConditionRow, Draft, set_conditions
from receiver.values import PROTOCOL, rfc3339

TYPES = types_of("hygiene")
REPORTS = 10  # intervals without a report, and for which a receiver must have been serving
RESCANS = 3  # rescan intervals without a collection
JITTER = 1.1  # a node may let its rescan interval be a tenth longer
GUARD_SHARE, GUARD_NODES = 5, 5  # a sweep may not hit more than a fifth of a pool, and at least five nodes
_BEFORE = "a|b|c|rc|alpha|beta|pre|preview|dev"
_VERSION = re.compile(rf"v?(\d{{1,9}}(?:\.\d{{1,9}})*)(?!\.?\d)(?:[-._]?({_BEFORE})(?![a-z]).*|[-+._][a-z0-9].*)?", re.IGNORECASE)
_PROTOCOL = re.compile(r"(\d{1,9})(?:\.(\d{1,9}))?")

Version = tuple[tuple[int, ...], bool]  # the numbers, and whether it is the release: what comes before it is less
PoolKey = tuple[str, str]  # tenant and pool; pool "": the tenant's nodes that are in none
Key = tuple[PoolKey, str]  # and the condition


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of hygiene. Times in seconds; `status_interval`, `rescan_interval`: how often nodes report and collect."""

    batch: int = 500
    min_daemon_version: str = ""
    protocol_max: str = PROTOCOL
    cert_expiring_fraction: float = 0.1
    cert_expiring_min_seconds: float = 86_400.0
    status_interval: float = 30.0
    rescan_interval: float = 43_200.0

    @property
    def silence(self) -> timedelta:
        """How long a node may be silent."""
        return timedelta(seconds=REPORTS * self.status_interval)

    @property
    def staleness(self) -> timedelta:
        """How old a collection may be."""
        return timedelta(seconds=RESCANS * JITTER * self.rescan_interval)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a node. `last_seen` None: it has had no session. `believed`: its last session's word counts."""

    daemon_version: str | None = None
    protocol_version: str | None = None
    certificate_from: datetime | None = None
    certificate_until: datetime | None = None
    connected: bool = False
    collected_at: datetime | None = None
    last_seen: datetime | None = None
    believed: bool = True


@dataclass(frozen=True, slots=True)
class Moment:
    """When it is judged, and since when there was always a receiver to report to; None: nobody has kept count."""

    now: datetime
    serving_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """A condition that is not raised in a pool, because one sweep would have hit too many of its nodes."""

    seq: int
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class Guarded:
    """What a sweep is held to. `begin`: what is suspended from now on, for so many nodes; `end`: what is suspended no more."""

    suspended: frozenset[Key] = frozenset()
    begin: tuple[tuple[Key, int], ...] = ()
    end: tuple[int, ...] = ()


Cause = tuple[str, str]  # reason and message


@lru_cache(4096)
def version(text: str) -> Version | None:
    """A version as it can be compared; None for what is none.

    >>> version("0.2.0rc1") < version("0.2") == version("v0.2.0+g12ab")
    True
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), match[2] is None


@lru_cache(4096)
def protocol(text: str) -> tuple[int, int] | None:
    """A protocol's version: major and minor; None for what is none."""
    match = _PROTOCOL.fullmatch(text.strip())
    return (int(match[1]), int(match[2] or 0)) if match else None


def is_outdated(daemon_version: str, options: Options) -> bool:
    """Whether bcd is below the oldest version that is supported. What is no version is not below any."""
    least, found = version(options.min_daemon_version), version(daemon_version)
    return least is not None and found is not None and found < least


def is_unsupported(protocol_version: str, options: Options) -> bool:
    """Whether a protocol is above the highest that is supported, or of another major; what is none is not supported."""
    most, found = protocol(options.protocol_max), protocol(protocol_version)
    return most is not None and (found is None or found[0] != most[0] or found > most)


def _outdated(seen: Seen, moment: Moment, options: Options, stands: bool) -> Cause | None:
    if not seen.daemon_version or not is_outdated(seen.daemon_version, options):
        return None
    return "Outdated", f"bcd {seen.daemon_version} is older than {options.min_daemon_version}"


def _unsupported(seen: Seen, moment: Moment, options: Options, stands: bool) -> Cause | None:
    if not seen.protocol_version or not is_unsupported(seen.protocol_version, options):
        return None
    return "Unsupported", f"bcd speaks protocol {seen.protocol_version}, supported is {options.protocol_max} at most"


def _expiring(seen: Seen, moment: Moment, options: Options, stands: bool) -> Cause | None:
    """With less left than a share of its life, or than a time."""
    if seen.certificate_until is None:
        return None
    least = timedelta(seconds=options.cert_expiring_min_seconds)
    if seen.certificate_from is not None:
        least = max(least, options.cert_expiring_fraction * (seen.certificate_until - seen.certificate_from))
    left = seen.certificate_until - moment.now
    if left >= least:
        return None
    word, verb = ("Expired", "ended") if left <= timedelta(0) else ("Expiring", "ends")
    return word, f"its certificate {verb} {rfc3339(seen.certificate_until)}"


def _stale(seen: Seen, moment: Moment, options: Options, stands: bool) -> Cause | None:
    """Connected, and too long since the last collection; told once nodes have had the time to say of a later one."""
    if not seen.connected or seen.collected_at is None or moment.now - seen.collected_at <= options.staleness:
        return None
    if not stands and moment.now < _settled(moment, options):
        return None
    return "NotCollected", f"it has not collected its inventory since {rfc3339(seen.collected_at)}"


def _silent(seen: Seen, moment: Moment, options: Options, stands: bool) -> Cause | None:
    """Silent for too long, counted from when receivers had been there for long enough; only a report ends it."""
    if seen.last_seen is None:
        return None
    since = seen.last_seen if stands else max(seen.last_seen, _settled(moment, options))
    if moment.now - since <= options.silence:
        return None
    return "NoReport", f"no status report since {rfc3339(seen.last_seen)}"


def _settled(moment: Moment, options: Options) -> datetime:
    """When receivers had been serving for REPORTS intervals."""
    return datetime.min.replace(tzinfo=UTC) if moment.serving_since is None else moment.serving_since + options.silence


@dataclass(frozen=True, slots=True)
class Rule:
    """When a condition is true. `told`: it is judged by what the node's session says."""

    cause: Callable[[Seen, Moment, Options, bool], Cause | None]
    told: bool = True


RULES: Mapping[str, Rule] = {
    "DaemonOutdated": Rule(_outdated),
    "ProtocolUnsupported": Rule(_unsupported),
    "CertificateExpiring": Rule(_expiring, told=False),
    "InventoryStale": Rule(_stale),
    "NotReporting": Rule(_silent, told=False),
}


def wanted(seen: Seen, moment: Moment, options: Options, stands: Mapping[str, Cause]) -> dict[str, Cause]:
    """What is to be true of a node, by condition, where `stands` is true now.

    What a session says that is not believed any more changes nothing.
    """
    found: dict[str, Cause] = {}
    for name, rule in RULES.items():
        judged = seen.believed or not rule.told
        cause = rule.cause(seen, moment, options, name in stands) if judged else stands.get(name)
        if cause is not None:
            found[name] = cause
    return found


def guard(newly: Mapping[Key, int], sizes: Mapping[PoolKey, int], stops: Mapping[Key, Stop]) -> Guarded:
    """Holds a sweep that would newly raise conditions of so many nodes to what may be believed; `sizes`: of the pools.

    What is suspended stays so until it is fewer nodes, or somebody confirms that it is so.
    """
    over = {key: count for key, count in newly.items() if count >= GUARD_NODES and GUARD_SHARE * count > sizes.get(key[0], 0)}
    return Guarded(
        suspended=frozenset(key for key in over if key not in stops or not stops[key].confirmed),
        begin=tuple(sorted((key, count) for key, count in over.items() if key not in stops)),
        end=tuple(sorted(stop.seq for key, stop in stops.items() if key not in over)),
    )


def settle(draft: Draft, causes: Mapping[str, Cause], suspended: Set[str] = frozenset()) -> None:
    """The conditions of a node's row are exactly these; those that are suspended are not newly true."""
    stands = {name for name in TYPES if (row := draft.conditions.get((name, ""))) is not None and row.status == "true"}
    rows = [
        ConditionRow(name, reason=reason, message=message)
        for name, (reason, message) in causes.items()
        if name in stands or name not in suspended
    ]
    set_conditions(draft, TYPES, rows)
