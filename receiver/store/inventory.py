"""A node's inventory in Postgres: lock, load in one statement, write a plan in one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bettercompute.contract.sections import decode
from google.protobuf.message import Message

from receiver.ids import Mint
from receiver.planning.diff import COMPARED
from receiver.planning.inventory import AppendSnapshot, Baseline, Current, InventoryPlan, Publish, SetApplied, SetBaseline
from receiver.store import missing
from receiver.store.database import Connection
from receiver.store.nodes import lock_node
from receiver.store.words import jsonb
from receiver.values import Offer

# What is looked up by key stands in scalar subqueries: as a join, the planner may choose to read all sections of the tenant.
_LOAD = f"""
SELECT n.tenant_id, n.pool_id, n.trust = 'tenant-controlled' OR n.session_trust_epoch < n.trust_epoch,
  n.applied_digest, n.applied_snapshot_id, n.latest_snapshot_id,
  (SELECT s.sections FROM inventory_snapshots s WHERE s.id = n.applied_snapshot_id),
  (SELECT s.sections FROM inventory_snapshots s
   WHERE s.id = n.latest_snapshot_id AND s.id IS DISTINCT FROM n.applied_snapshot_id),
  n.section_baselines,
  {missing.COLUMN},
  ARRAY(SELECT o.name FROM unnest(%(names)s::text[], %(hashes)s::text[]) AS o(name, hash)
        WHERE (SELECT true FROM tenant_sections t WHERE (t.hash, t.tenant_id, t.name) = (o.hash, n.tenant_id, o.name)) IS NULL),
  bytes.hashes, bytes.bodies, n.epoch
FROM nodes n
LEFT JOIN LATERAL (
  SELECT array_agg(s.hash) AS hashes, array_agg(s.body) AS bodies FROM sections s
  WHERE s.hash = ANY(ARRAY(
    SELECT unnest(ARRAY[CASE WHEN o.name <> ALL(%(sent)s::text[]) THEN o.hash END, n.section_baselines -> o.name ->> 0])
    FROM unnest(%(names)s::text[], %(hashes)s::text[]) AS o(name, hash)
    WHERE o.name = ANY(%(compared)s::text[]) AND o.hash IS DISTINCT FROM n.section_baselines -> o.name ->> 0))) bytes ON true
WHERE n.id = %(node)s
"""

# `ok` is empty, and nothing is written, when bytes that were known have been pruned meanwhile. Hashes are inserted in order,
# so that two nodes with the same new sections wait for each other in one direction only.
_WRITE = f"""
WITH doc AS MATERIALIZED (SELECT %(doc)s::jsonb AS d),
  sent AS MATERIALIZED (
    SELECT * FROM unnest(%(names)s::text[], %(hashes)s::text[], %(bodies)b::bytea[]) AS s(name, hash, body) ORDER BY hash, name),
  ok AS MATERIALIZED (
    SELECT FROM doc WHERE NOT EXISTS (
      SELECT FROM jsonb_each_text(d -> 'known') AS k(name, hash)
      WHERE (SELECT true FROM tenant_sections t WHERE (t.hash, t.tenant_id, t.name) = (k.hash, %(tenant)s, k.name)) IS NULL)),
  stored AS (
    INSERT INTO sections (hash, body, size) SELECT hash, body, octet_length(body) FROM ok, sent ON CONFLICT DO NOTHING),
  known AS (
    INSERT INTO tenant_sections (tenant_id, name, hash) SELECT %(tenant)s, name, hash FROM ok, sent ON CONFLICT DO NOTHING),
  appended AS (
    INSERT INTO inventory_snapshots
      (id, node_id, tenant_id, digest, sections, advisory, boot_id, trigger, collected_at, created_at)
    SELECT s.id, %(node)s, %(tenant)s, s.digest, s.sections, s.advisory, s.boot, s.trigger, s.collected, clock_timestamp()
    FROM ok, doc, jsonb_to_recordset(d -> 'snapshots') AS s(
      id text, digest text, sections jsonb, advisory boolean, boot text, trigger text, collected timestamptz)),
  node AS (
    UPDATE nodes SET
      applied_digest = coalesce(a.digest, applied_digest),
      applied_snapshot_id = coalesce(a.snapshot, applied_snapshot_id),
      latest_snapshot_id = coalesce(a.latest, latest_snapshot_id),
      section_baselines = section_baselines || (d -> 'baselines'),
      plan_rev = plan_rev + (a.snapshot IS NOT NULL)::int
    FROM ok, doc, jsonb_to_record(d -> 'node') AS a(digest text, snapshot text, latest text)
    WHERE nodes.id = %(node)s AND num_nulls(a.digest, a.snapshot, a.latest) < 3),
  published AS (
    INSERT INTO events (id, tenant_id, pool_id, node_id, type, payload)
    SELECT e.id, %(tenant)s, %(pool)s, %(node)s, e.type, e.payload
    FROM ok, doc, jsonb_to_recordset(d -> 'events') AS e(id text, type text, payload jsonb)),
{missing.ARMS}
SELECT FROM ok
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A locked node: whose it is, its inventory, and the decoded sections that a plan compares.

    `unknown`: offered sections whose bytes this tenant has not sent as that section before.
    """

    node_id: str
    tenant_id: str
    pool_id: str | None
    current: Current
    unknown: frozenset[str]
    before: Mapping[str, Message]
    after: Mapping[str, Message]
    epoch: int


def wanted(tx: Connection, node_id: str, offer: Offer) -> list[str]:
    """The offered sections whose bytes this node's tenant has not sent yet, sorted."""
    rows = tx.execute(
        """SELECT o.name FROM nodes n, unnest(%s::text[], %s::text[]) AS o(name, hash)
           WHERE n.id = %s
             AND (SELECT true FROM tenant_sections t WHERE (t.hash, t.tenant_id, t.name) = (o.hash, n.tenant_id, o.name)) IS NULL
           ORDER BY o.name""",
        [[one.name for one in offer.sections], [one.hash for one in offer.sections], node_id],
    )
    return [row[0] for row in rows]


def load(tx: Connection, node_id: str, offer: Offer, sent: Collection[str]) -> Loaded:
    """Locks the node's row until the transaction ends, and loads what a plan for the offer needs.

    `sent`: sections whose bytes came with the offer. Raises LookupError for a node that does not exist.
    """
    arguments = {
        "node": node_id,
        "names": [one.name for one in offer.sections],
        "hashes": [one.hash for one in offer.sections],
        "sent": list(sent),
        "compared": list(COMPARED),
    }
    lock_node(tx, node_id)
    row = tx.execute(_LOAD, arguments, prepare=True, binary=True).fetchone()
    if row is None:
        raise LookupError(f"no node {node_id}")
    tenant, pool, advisory, digest, applied_id, latest_id, applied, latest, stored, absent, unknown, hashes, bodies, epoch = row
    baselines = {name: Baseline(*one) for name, one in stored.items()}
    known = dict(zip(hashes or [], bodies or [], strict=True))
    current = Current(
        advisory=advisory,
        applied_digest=digest,
        applied_id=applied_id,
        applied_sections=applied,
        latest_id=latest_id,
        latest_sections=latest or (applied if latest_id == applied_id else None),
        baselines=baselines,
        missing=missing.as_rows(absent),
    )
    before = {
        name: baselines[name].hash for name in COMPARED & baselines.keys() if baselines[name].hash != offer.hashes.get(name)
    }
    after = {name: value for name, value in offer.hashes.items() if name in COMPARED and name not in sent}
    return Loaded(node_id, tenant, pool, current, frozenset(unknown), _decoded(before, known), _decoded(after, known), epoch)


def write(tx: Connection, loaded: Loaded, offer: Offer, bodies: Mapping[str, bytes], plan: InventoryPlan, mint: Mint) -> bool:
    """Writes a plan and the bytes that came, in one statement. False: bytes it relies on are gone, and nothing was written."""
    if not plan.steps and not bodies:
        return True
    hashes = offer.hashes
    arguments = {
        "node": loaded.node_id,
        "tenant": loaded.tenant_id,
        "pool": loaded.pool_id,
        "names": list(bodies),
        "hashes": [hashes[name] for name in bodies],
        "bodies": list(bodies.values()),
        "doc": jsonb(_document(offer, bodies, plan, mint)),
    }
    return tx.execute(_WRITE, arguments, prepare=True).rowcount == 1


def prune_snapshots(tx: Connection, before: datetime) -> int:
    """Deletes snapshots older than `before`, but each node's applied and newest one, and bytes that nothing names any more.

    Answers how many snapshots went. Applies wait until the transaction ends.
    """
    row = tx.execute("SELECT prune_snapshots(%s)", [before]).fetchone()
    return int(row[0]) if row else 0


def _document(offer: Offer, bodies: Mapping[str, bytes], plan: InventoryPlan, mint: Mint) -> dict[str, Any]:
    steps = plan.steps
    appended = [step for step in steps if isinstance(step, AppendSnapshot)]
    applied = next((step for step in steps if isinstance(step, SetApplied)), None)
    collected = offer.collected_at.isoformat() if offer.collected_at else None
    return {
        "known": {name: value for name, value in offer.hashes.items() if name not in bodies} if appended else {},
        "snapshots": [
            {
                "id": step.id,
                "digest": offer.digest,
                "sections": offer.hashes,
                "advisory": step.advisory,
                "boot": offer.boot_id,
                "trigger": offer.trigger,
                "collected": collected,
            }
            for step in appended
        ],
        "node": {
            "digest": applied.digest if applied else None,
            "snapshot": applied.snapshot_id if applied else None,
            "latest": appended[0].id if appended else None,
        },
        "baselines": {
            step.name: [step.hash, plan.snapshot_id, *([list(step.unlisted)] if step.unlisted else [])]
            for step in steps
            if isinstance(step, SetBaseline)
        },
        "events": [
            {"id": mint("evt"), "type": step.event.type, "payload": step.event.payload}
            for step in steps
            if isinstance(step, Publish)
        ],
        **missing.as_document(steps),
    }


def _decoded(hashes: Mapping[str, str], bodies: Mapping[str, bytes]) -> dict[str, Message]:
    return {name: decode(name, bodies[value]) for name, value in hashes.items() if value in bodies}
