"""The sweep of hygiene (SPEC B6) over all nodes: who is concerned is found in one statement, only changes are written.

What is true of a node is decided by planning/hygiene.py, from one row of SEEN: when it is looked for, and again under the node's
lock, because a report may have come meanwhile.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Engine

from receiver import ids
from receiver.apply.conditions import settle_all
from receiver.errors import Invalid, Refused
from receiver.events import event
from receiver.planning import hygiene
from receiver.planning.hygiene import TYPES, Cause, Guarded, Key, Moment, Options, PoolKey, Seen, Stop
from receiver.planning.view import Draft, Facts
from receiver.singletons import Run
from receiver.store.conditions import plainly
from receiver.store.database import NO_ANSWER, Connection, again
from receiver.store.leases import LeaseLost
from receiver.store.words import jsonb

T = TypeVar("T")
LOG = logging.getLogger("receiver.hygiene")
GAP = 2  # status intervals without a receiver after which nodes had nobody to report to

# Whose conditions of hygiene change: every node but one that is out for good, or is a tenant's (SPEC B2, Trust).
_SWEPT = "n.status NOT IN ('retired', 'deleted') AND n.trust = 'platform'"
_SEEN = """n.daemon_version, n.protocol_version, n.certificate_from, n.certificate_until, n.connected, n.collected_at,
  CASE WHEN n.epoch > 0 THEN n.last_seen END, n.session_trust_epoch >= n.trust_epoch"""
_POOL = "coalesce(p.tenant_id, n.tenant_id), coalesce(p.id, '')"
_HELD = "n.status <> 'maintenance'"  # whom the guard counts and holds: who is in maintenance serves nobody, and alarms nobody
_TRUE = """SELECT node_id, jsonb_object_agg(type, jsonb_build_array(reason, message)) AS causes FROM conditions
  WHERE status = 'true' AND type = ANY(%(types)s) AND device_id = '' {} GROUP BY node_id"""
# All of whom something is or may be true: what is so exactly, and what has changed, is for planning/hygiene.py to say.
_CONCERNED = f"""
SELECT n.id, {_POOL}, {_HELD}, t.causes, {_SEEN}
FROM nodes n LEFT JOIN pools p ON p.id = n.pool_id LEFT JOIN ({_TRUE.format("")}) t ON t.node_id = n.id
WHERE {_SWEPT} AND (t.node_id IS NOT NULL OR n.daemon_version = ANY(%(outdated)s) OR n.protocol_version = ANY(%(unsupported)s)
  OR n.certificate_until < bc_clock() + greatest(%(least)s, %(share)s * (n.certificate_until - n.certificate_from))
  OR n.connected AND n.collected_at < bc_clock() - %(staleness)s OR n.epoch > 0 AND n.last_seen < bc_clock() - %(silence)s)
"""
_LOCKED = f"""
SELECT n.id, t.causes, {_SEEN} FROM nodes n LEFT JOIN ({_TRUE.format("AND node_id = ANY(%(nodes)s)")}) t ON t.node_id = n.id
WHERE n.id = ANY(%(nodes)s) AND {_SWEPT}
"""
_VERSIONS = "SELECT DISTINCT daemon_version, protocol_version FROM nodes"
# A receiver that has not said for longer than GAP that it serves serves no more.
_MOMENT = """SELECT bc_clock(), CASE WHEN s.beat_at < bc_clock() - %s THEN bc_clock() ELSE s.since END
FROM (SELECT) AS always LEFT JOIN serving s ON s.name = 'receivers'"""
_SIZES = f"SELECT {_POOL}, count(*) FROM nodes n LEFT JOIN pools p ON p.id = n.pool_id WHERE {_SWEPT} AND {_HELD} GROUP BY 1, 2"
_STOPS = (
    "SELECT tenant_id, pool_id, kind, seq, confirmed_by IS NOT NULL FROM pool_stops WHERE ended_at IS NULL AND kind = ANY(%s)"
)
_BEGIN = "INSERT INTO pool_stops (tenant_id, pool_id, kind, detail) VALUES (%s, %s, %s, %s)"
_END = "UPDATE pool_stops SET ended_at = bc_clock() WHERE seq = ANY(%s)"
# Nobody is called for a pool that a person has (planning/modes.py).
_PUBLISH = """INSERT INTO events (id, tenant_id, pool_id, type, payload)
SELECT %(id)s, %(tenant)s, nullif(%(pool)s, ''), %(type)s, %(payload)s || CASE WHEN EXISTS (
  SELECT FROM pool_stops WHERE pool_id = %(pool)s AND kind = 'maintenance' AND ended_at IS NULL)
  THEN '{"maintenance": true}'::jsonb ELSE '{}' END"""
_CONFIRM = """UPDATE pool_stops SET confirmed_by = %s
WHERE tenant_id = %s AND pool_id = %s AND kind = %s AND ended_at IS NULL AND confirmed_by IS NULL"""


@dataclass(slots=True)
class Swept:
    """What a sweep came to: nodes written, conditions raised and cleared by type, what was suspended, nodes that failed."""

    nodes: int = 0
    raised: Counter[str] = field(default_factory=Counter)
    cleared: Counter[str] = field(default_factory=Counter)
    suspended: frozenset[Key] = frozenset()
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """Whose conditions are other than they should be, with the pool whose guard holds the node, and what that holds back."""

    nodes: Mapping[str, PoolKey | None]
    guarded: Guarded


def run_hygiene(engine: Engine, options: Options = Options(), mint: ids.Mint = ids.mint) -> Swept:  # noqa: B008 - it is frozen
    """Sweeps all nodes once, in transactions of its own on connections of `engine`."""
    return sweep(partial(_transact, engine), options, mint)


def _transact(engine: Engine, work: Callable[[Connection], T]) -> T:
    def once() -> T:
        with engine.connect() as connection:
            tx: Any = connection.connection.driver_connection
            with tx.transaction():
                return work(tx)

    return again(once)


def sweep(run: Run, options: Options, mint: ids.Mint = ids.mint) -> Swept:
    """Brings the conditions of hygiene of all nodes to what they should be, `options.batch` nodes a transaction."""
    found = run(partial(_look, options, mint))
    swept, nodes = Swept(suspended=found.guarded.suspended), sorted(found.nodes)
    for start in range(0, len(nodes), options.batch):
        _write(run, options, found, nodes[start : start + options.batch], swept, mint)
    if swept.nodes or swept.failed:
        LOG.info("swept", extra={"nodes": swept.nodes, "raised": dict(swept.raised), "cleared": dict(swept.cleared)})
    return swept


def confirm(tx: Connection, tenant_id: str, pool_id: str, condition: str, by: str) -> None:
    """An operator says that so many nodes of a pool are as bad as a sweep found them: the next one raises the condition.

    `pool_id` empty: the tenant's nodes that are in no pool. Raises Refused when nothing of the kind is suspended there, Invalid
    for what is no condition of hygiene.
    """
    if condition not in TYPES:
        raise Invalid(f"{condition} is no condition of hygiene: those are {', '.join(sorted(TYPES))}")
    if tx.execute(_CONFIRM, [by, tenant_id, pool_id, condition]).rowcount != 1:
        raise Refused(f"{condition} is not suspended in {f'pool {pool_id}' if pool_id else 'the nodes without a pool'}")


def _look(options: Options, mint: ids.Mint, tx: Connection) -> Found:
    """Finds whose conditions change, and suspends what would hit too many of a pool."""
    plainly(tx)
    moment = _moment(tx, options)
    changes: dict[str, PoolKey | None] = {}
    blocked: dict[str, frozenset[str]] = {}  # of a node: all that would change is that these are newly true
    newly: Counter[Key] = Counter()
    for node_id, tenant_id, pool_id, held, stored, *seen in tx.execute(_CONCERNED, _concerned(tx, options), binary=True):
        stands = _causes(stored)
        causes = hygiene.wanted(Seen(*seen), moment, options, stands)
        if causes == stands:
            continue
        pool = (tenant_id, pool_id) if held else None
        changes[node_id] = pool
        if pool is None:
            continue
        fresh = causes.keys() - stands.keys()
        newly.update((pool, name) for name in fresh)
        if {name: causes[name] for name in causes.keys() - fresh} == stands:
            blocked[node_id] = frozenset(fresh)
    guarded = _guarded(tx, newly, mint)
    concerned = {
        node_id: pool
        for node_id, pool in changes.items()
        if node_id not in blocked or any((pool, name) not in guarded.suspended for name in blocked[node_id])
    }
    return Found(concerned, guarded)


def _concerned(tx: Connection, options: Options) -> Mapping[str, Any]:
    """The arguments of _CONCERNED. There are few versions, and many nodes of each."""
    versions = tx.execute(_VERSIONS).fetchall()
    return {
        "types": sorted(TYPES),
        "outdated": [one for one in {row[0] for row in versions} if one and hygiene.is_outdated(one, options)],
        "unsupported": [one for one in {row[1] for row in versions} if one and hygiene.is_unsupported(one, options)],
        "least": timedelta(seconds=options.cert_expiring_min_seconds),
        "share": options.cert_expiring_fraction,
        "staleness": options.staleness,
        "silence": options.silence,
    }


def _moment(tx: Connection, options: Options) -> Moment:
    row = tx.execute(_MOMENT, [timedelta(seconds=GAP * options.status_interval)]).fetchone()
    assert row is not None
    return Moment(*row)


def _guarded(tx: Connection, newly: Mapping[Key, int], mint: ids.Mint) -> Guarded:
    stops = {
        ((tenant_id, pool_id), kind): Stop(seq, confirmed)
        for tenant_id, pool_id, kind, seq, confirmed in tx.execute(_STOPS, [sorted(TYPES)]).fetchall()
    }
    if not newly and not stops:
        return Guarded()
    sizes = {(tenant_id, pool_id): count for tenant_id, pool_id, count in tx.execute(_SIZES).fetchall()}
    guarded = hygiene.guard(newly, sizes, stops)
    for ((tenant_id, pool_id), name), count in guarded.begin:
        tx.execute(_BEGIN, [tenant_id, pool_id, name, jsonb({"nodes": count})])
        told = event("fleet.hygiene.suspended", {"condition": name, "poolId": pool_id or None, "nodes": count})
        arguments = {"id": mint("evt"), "tenant": tenant_id, "pool": pool_id, "type": told.type}
        tx.execute(_PUBLISH, {**arguments, "payload": jsonb(dict(told.payload))})
        LOG.warning("a sweep would hit too many nodes", extra={"pool": pool_id, "condition": name, "nodes": count})
    if guarded.end:
        tx.execute(_END, [list(guarded.end)])
    return guarded


def _write(run: Run, options: Options, found: Found, nodes: Sequence[str], swept: Swept, mint: ids.Mint) -> None:
    """Writes a batch. One that cannot be written is halved until the node that is the cause is alone: it holds up no other."""
    try:
        drafts = run(partial(_settle, options, found, nodes, mint))
    except (*NO_ANSWER, LeaseLost):
        raise
    except Exception:
        if len(nodes) == 1:
            LOG.exception("the conditions of a node cannot be written", extra={"node": nodes[0]})
            swept.failed.append(nodes[0])
            return
        for half in (nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]):
            _write(run, options, found, half, swept, mint)
        return
    swept.nodes += len(drafts)
    for name, status in _turned(drafts):
        (swept.raised if status == "true" else swept.cleared)[name] += 1


def _settle(options: Options, found: Found, nodes: Sequence[str], mint: ids.Mint, tx: Connection) -> Mapping[str, Draft]:
    """Judges the nodes again, now that their rows are locked, and writes what differs."""
    moment, known = _moment(tx, options), dict[str, Sequence[Any]]()

    def amend(facts: Facts, draft: Draft) -> None:
        stored, *seen = known[facts.node_id]
        causes = hygiene.wanted(Seen(*seen), moment, options, _causes(stored))
        pool = found.nodes[facts.node_id]
        hygiene.settle(draft, causes, {name for key, name in found.guarded.suspended if key == pool})

    def amended() -> Mapping[str, Callable[[Facts, Draft], None]]:
        rows = tx.execute(_LOCKED, {"nodes": list(nodes), "types": sorted(TYPES)}, binary=True).fetchall()
        known.update({node_id: rest for node_id, *rest in rows})
        return dict.fromkeys(known, amend)

    return settle_all(tx, nodes, amended, mint)


def _turned(drafts: Mapping[str, Draft]) -> Iterator[tuple[str, str]]:
    for draft in drafts.values():
        for told in draft.events:
            if told.payload.get("condition") in TYPES:
                yield told.payload["condition"], told.payload["status"]


def _causes(stored: Mapping[str, Sequence[str]] | None) -> dict[str, Cause]:
    return {name: (reason, message) for name, (reason, message) in (stored or {}).items()}
