"""A node's inventory in Postgres: lock, load in one statement, write a plan in one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from bettercompute.contract.sections import decode
from google.protobuf.message import Message

from receiver.planning.diff import COMPARED
from receiver.planning.inventory import AppendSnapshot, Baseline, Current, InventoryPlan, SetApplied, SetBaseline
from receiver.planning.view import Draft, Facts
from receiver.store import images, missing, nodes, view
from receiver.store.database import Connection
from receiver.store.hashes import binary, pack, unpack
from receiver.store.statement import Statement
from receiver.store.words import jsonb
from receiver.values import Offer

# The offered sections, name to hash, whose bytes the tenant of node `n` has not sent as that section.
_UNKNOWN = """SELECT o.name FROM jsonb_each_text(%(offered)s) AS o(name, hash)
  WHERE (SELECT true FROM tenant_sections t
         WHERE (t.hash, t.tenant_id, t.name) = (decode(o.hash, 'hex'), n.tenant_id, o.name)) IS NULL"""

# The bytes: of offered sections that were not sent, of baselines that are compared, and of those that the offer lacks.
_LOAD = f"""
SELECT n.applied_digest, n.applied_snapshot_id, n.latest_snapshot_id,
  (SELECT s.sections FROM inventory_snapshots s WHERE s.id = n.applied_snapshot_id),
  (SELECT s.sections FROM inventory_snapshots s
   WHERE s.id = n.latest_snapshot_id AND s.id IS DISTINCT FROM n.applied_snapshot_id),
  n.section_baselines,
  {missing.COLUMN},
  ARRAY({_UNKNOWN}),
  bytes.hashes, bytes.bodies, {view.COLUMN}
FROM nodes n
LEFT JOIN LATERAL (
  SELECT array_agg(s.hash) AS hashes, array_agg(s.body) AS bodies FROM sections s
  WHERE s.hash = ANY(ARRAY(
    SELECT decode(o.hash, 'hex') FROM jsonb_each_text(%(offered)s) AS o(name, hash) WHERE NOT %(sent)s ? o.name
    UNION ALL
    SELECT decode(b.value ->> 0, 'hex') FROM jsonb_each(n.section_baselines) AS b
    WHERE NOT %(offered)s ? b.key OR b.key IN ({", ".join(f"'{name}'" for name in sorted(COMPARED))})))) bytes ON true
WHERE n.id = %(node)s
"""

# Nothing is written when bytes that were known have been pruned meanwhile.
_KNOWN = "NOT EXISTS (" + _UNKNOWN % {"offered": "d -> 'known'"} + ")"

# Hashes are inserted in order, so that two nodes with the same new sections wait for each other in one direction only.
_SENT = """SELECT doc.tenant_id, s.* FROM doc,
    unnest(%(names)s::text[], %(hashes)b::bytea[], %(bodies)b::bytea[]) AS s(name, hash, body) ORDER BY hash, name"""
_SECTIONS = f"""INSERT INTO sections (hash, body, size)
  SELECT hash, body, octet_length(body) FROM ({_SENT}) AS s ON CONFLICT DO NOTHING"""
_TENANT_SECTIONS = f"""INSERT INTO tenant_sections (tenant_id, name, hash)
  SELECT tenant_id, name, hash FROM ({_SENT}) AS s ON CONFLICT DO NOTHING"""
_SNAPSHOT = """INSERT INTO inventory_snapshots
    (id, node_id, tenant_id, digest, sections, advisory, boot_id, trigger, collected_at, created_at)
  SELECT s.id, %(node)s, doc.tenant_id, s.digest, %(sections)b::bytea, s.advisory, s.boot_id, s.trigger,
    s.collected_at, clock_timestamp()
  FROM doc, jsonb_populate_record(NULL::inventory_snapshots, d -> 'snapshot') AS s"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A locked node: its inventory, its rows, and the decoded sections that a plan compares or is made from.

    `unknown`: offered sections whose bytes this tenant has not sent as that section before. `before`: good sections that were
    applied, those that the offer changes only where a plan compares them; `after`: offered ones that were not sent.
    """

    node_id: str
    current: Current
    unknown: frozenset[str]
    before: Mapping[str, Message]
    after: Mapping[str, Message]
    facts: Facts
    rows: Draft


def wanted(tx: Connection, node_id: str, offer: Offer) -> list[str]:
    """The offered sections whose bytes this node's tenant has not sent yet, sorted."""
    row = tx.execute(_WANTED, {"node": node_id, "offered": jsonb(offer.hashes)}, prepare=True).fetchone()
    return sorted(row[0]) if row else []


_WANTED = f"SELECT ARRAY({_UNKNOWN}) FROM nodes n WHERE n.id = %(node)s"


def load(tx: Connection, node_id: str, offer: Offer, sent: Collection[str]) -> Loaded:
    """Locks the node's row until the transaction ends, and loads what a plan for the offer needs.

    `sent`: sections whose bytes came with the offer. Raises LookupError for a node that does not exist.
    """
    arguments = {"node": node_id, "offered": jsonb(offer.hashes), "sent": jsonb(list(sent))}
    row = nodes.load(tx, node_id, _LOAD, arguments, binary=True)
    digest, applied_id, latest_id, applied, latest, stored, absent, unknown, hashes, bodies, found = row
    applied, latest = _unpacked(applied), _unpacked(latest)
    facts, rows = view.as_view(found)
    baselines = {name: Baseline(*one) for name, one in stored.items()}
    known = _by_hash(hashes, bodies)
    current = Current(
        advisory=facts.advisory,
        applied_digest=digest,
        applied_id=applied_id,
        applied_sections=applied,
        latest_id=latest_id,
        latest_sections=latest or (applied if latest_id == applied_id else None),
        baselines=baselines,
        missing=missing.as_rows(absent),
    )
    before = _decoded({name: one.hash for name, one in baselines.items()}, known)
    offered = offer.hashes
    same = {name for name, one in baselines.items() if offered.get(name) == one.hash}
    after = _decoded({name: value for name, value in offered.items() if name not in {*sent, *same}}, known)
    after |= {name: before[name] for name in same - {*sent} if name in before}
    return Loaded(node_id, current, frozenset(unknown), before, after, facts, rows)


def load_applied(tx: Connection, node_id: str) -> tuple[Facts, Draft, str | None]:
    """A locked node with its sections as they were applied, to be planned again; and its applied digest, if it has one.

    Raises LookupError for a node that does not exist.
    """
    row = nodes.load(tx, node_id, _APPLIED, [node_id], binary=True)
    digest, applied, baselines, hashes, bodies, found = row
    facts, rows = view.as_view(found)
    known = _by_hash(hashes, bodies)
    of_applied = _unpacked(applied) or {}
    by_name = {name: one[0] for name, one in baselines.items()}
    fresh = frozenset(name for name, value in by_name.items() if of_applied.get(name) == value and name in facts.fresh)
    sections = _decoded(by_name, known)
    return replace(facts, sections=sections, fresh=fresh), rows, digest


_APPLIED = f"""
SELECT n.applied_digest, (SELECT s.sections FROM inventory_snapshots s WHERE s.id = n.applied_snapshot_id), n.section_baselines,
  bytes.hashes, bytes.bodies, {view.COLUMN}
FROM nodes n
LEFT JOIN LATERAL (
  SELECT array_agg(s.hash) AS hashes, array_agg(s.body) AS bodies FROM sections s
  WHERE s.hash = ANY(ARRAY(SELECT decode(b.value ->> 0, 'hex') FROM jsonb_each(n.section_baselines) AS b))) bytes ON true
WHERE n.id = %s
"""


def write(statement: Statement, loaded: Loaded, offer: Offer, bodies: Mapping[str, bytes], plan: InventoryPlan) -> None:
    """Adds a plan and the bytes that came to a statement. Its guard does not hold when bytes it relies on are gone."""
    hashes, steps = offer.hashes, plan.steps
    statement.arguments |= {
        "names": list(bodies),
        "hashes": [binary(hashes[name]) for name in bodies],
        "bodies": list(bodies.values()),
    }
    if bodies:
        statement.add("sections", _SECTIONS)
        statement.add("tenant_sections", _TENANT_SECTIONS)
    if "images" in bodies:
        images.write(statement, hashes["images"], bodies["images"])
    for step in steps:
        if isinstance(step, AppendSnapshot):
            statement.guard = _KNOWN
            statement.doc["known"] = {name: value for name, value in hashes.items() if name not in bodies}
            statement.add("snapshot", _SNAPSHOT, _snapshot(offer, step))
            statement.arguments["sections"] = pack(hashes)
            statement.set("latest_snapshot_id", step.id)
        elif isinstance(step, SetApplied):
            statement.set("applied_digest", step.digest)
            if step.snapshot_id is not None:
                statement.set("applied_snapshot_id", step.snapshot_id)
                statement.set("plan_rev", expression="nodes.plan_rev + 1")
                statement.set("inventory_rev", expression="nodes.inventory_rev + 1")
    set_to = {step.name: [step.hash, plan.snapshot_id, *_unlisted(step)] for step in steps if isinstance(step, SetBaseline)}
    if set_to:
        statement.set("section_baselines", set_to, "nodes.section_baselines || a.section_baselines")
    missing.write(statement, steps)


def _snapshot(offer: Offer, step: AppendSnapshot) -> dict[str, Any]:
    return {
        "id": step.id,
        "digest": offer.digest,
        "advisory": step.advisory,
        "boot_id": offer.boot_id,
        "trigger": offer.trigger,
        "collected_at": offer.collected_at.isoformat() if offer.collected_at else None,
    }


def _unlisted(step: SetBaseline) -> list[Any]:
    return [list(step.unlisted)] if step.unlisted else []


def prune_snapshots(tx: Connection, before: datetime) -> int:
    """Deletes snapshots older than `before`, but each node's applied and newest one, and bytes that nothing names any more.

    Answers how many snapshots went. Applies wait until the transaction ends.
    """
    row = tx.execute("SELECT prune_snapshots(%s)", [before]).fetchone()
    return int(row[0]) if row else 0


def _unpacked(column: bytes | None) -> dict[str, str] | None:
    return None if column is None else unpack(column)


def _by_hash(hashes: list[bytes] | None, bodies: list[bytes] | None) -> dict[str, bytes]:
    return {one.hex(): body for one, body in zip(hashes or [], bodies or [], strict=True)}


def _decoded(hashes: Mapping[str, str], bodies: Mapping[str, bytes]) -> dict[str, Message]:
    return {name: decode(name, bodies[value]) for name, value in hashes.items() if value in bodies}
