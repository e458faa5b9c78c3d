"""A million snapshots of 10,000 nodes: what each costs on disk, how long its history takes to read, and what pruning leaves.

Each node has a first snapshot and then such in which one section changed. Filled by SQL: the rows are those that applies append.
"""

import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import SECTIONS, encode

from receiver.client.methods import find
from receiver.read.api import READS
from receiver.read.queries import open_engine
from receiver.read.tokens import Scope
from receiver.store import database as db
from receiver.store.embedded import start
from receiver.store.hashes import binary, pack
from tests.bench import Row, percentile
from tests.bench.fleet_hosts import recorded

NODES, EACH = 10_000, 100
QUESTIONS = 300
READ = 10.0  # ms, the 99th percentile
SPACE = 1024.0  # bytes a snapshot, without the section that changed
_NAMES = sorted(SECTIONS)
_CHANGING = "disks"
_MARK = "ff" * 32

_HASH = "sha256((n || '/' || k)::text::bytea)"  # of the k-th bytes of node n's changing section
_NODES = """INSERT INTO nodes (id, tenant_id)
SELECT 'node_' || lpad(n::text, 26, '0'), 'default' FROM generate_series(1, %(nodes)s::int) n"""
_SECTIONS = f"""
INSERT INTO sections (hash, body, size, created_at)
SELECT {_HASH}, %(body)s::bytea, octet_length(%(body)s::bytea), %(then)s::timestamptz + k * interval '1 hour'
FROM generate_series(1, %(nodes)s::int) n, generate_series(%(from)s::int, %(to)s::int) k"""
_SENT = f"""
INSERT INTO tenant_sections (hash, tenant_id, name, created_at)
SELECT {_HASH}, 'default', '{_CHANGING}', %(then)s::timestamptz + k * interval '1 hour'
FROM generate_series(1, %(nodes)s::int) n, generate_series(%(from)s::int, %(to)s::int) k"""
_SNAPSHOTS = f"""
INSERT INTO inventory_snapshots (id, node_id, tenant_id, digest, sections, boot_id, trigger, created_at)
SELECT 'inv_' || lpad(k::text, 8, '0') || lpad(n::text, 18, '0'), 'node_' || lpad(n::text, 26, '0'), 'default',
  encode({_HASH}, 'hex'), %(before)s::bytea || {_HASH} || %(after)s::bytea, '6b0c0f66-7a5e-4c0c-8a2f-3f0d1b0f9b11', 'event',
  %(then)s::timestamptz + k * interval '1 hour'
FROM generate_series(1, %(nodes)s::int) n, generate_series(%(from)s::int, %(to)s::int) k"""
_APPLIED = """
UPDATE nodes n SET (applied_snapshot_id, latest_snapshot_id, section_baselines) = (
  SELECT s.id, s.id, (
    SELECT jsonb_object_agg(h.name, jsonb_build_array(encode(h.hash, 'hex'), s.id)) FROM section_hashes(s.sections) h)
  FROM inventory_snapshots s WHERE s.node_id = n.id ORDER BY seq DESC LIMIT 1)"""
_SIZE = """SELECT sum(pg_total_relation_size(name)) FROM unnest(
  '{inventory_snapshots, sections, tenant_sections}'::regclass[]) AS name"""


def rows(nodes: int = NODES, each: int = EACH) -> Iterator[Row]:
    """Space, reads, pruning. `each`: snapshots a node."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, start(Path(directory)) as server:
        db.create_database(server.url(), "history")
        url = server.url("history")
        db.migrate(url)
        with psycopg.connect(url, autocommit=True) as tx:
            then = datetime.now(UTC) - timedelta(hours=each + 1)
            size = _fill(tx, nodes, each, then)
            note = f"{nodes * each:,} snapshots, {nodes:,} nodes"
            yield Row("a snapshot in which one section changed", size, "bytes", "the limit", SPACE, 1.0, note=note)
            yield from _reads(url, nodes, each)
            yield from _pruned(tx, nodes, each, then)


def _fill(tx: db.Connection, nodes: int, each: int, then: datetime) -> float:
    """Appends the snapshots; answers what each but the first costs, in bytes, without the section that changed."""
    bodies = recorded()
    body = encode(pb.DisksSection(disks=[pb.Disk(name="nvme0n1", serial="S666NE0R600001", firmware="GDC7302Q")]))
    same = {name: f"{place:064x}" for place, name in enumerate(_NAMES) if name != _CHANGING}
    with tx.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO sections (hash, body, size) VALUES (%s, %s, %s)",
            [(binary(key), bodies[name], len(bodies[name])) for name, key in same.items()],
        )
        sent = [(binary(key), name) for name, key in same.items()]
        cursor.executemany("INSERT INTO tenant_sections (hash, tenant_id, name) VALUES (%s, 'default', %s)", sent)
    before, after = pack({**same, _CHANGING: _MARK}).split(binary(_MARK))
    facts: dict[str, Any] = {"nodes": nodes, "then": then, "body": body, "before": before, "after": after, "from": 1, "to": 1}
    tx.execute(_NODES.encode(), facts)
    for statement in (_SECTIONS, _SENT, _SNAPSHOTS):
        tx.execute(statement.encode(), facts)
    first = _size(tx)
    for statement in (_SECTIONS, _SENT, _SNAPSHOTS):
        for begin in range(2, each + 1, 10):
            tx.execute(statement.encode(), {**facts, "from": begin, "to": min(begin + 9, each)})
    tx.execute(_APPLIED)
    tx.execute("VACUUM ANALYZE")
    return (_size(tx) - first) / (nodes * (each - 1)) - len(body)


def _size(tx: db.Connection) -> float:
    row = tx.execute(_SIZE).fetchone()
    assert row is not None
    return float(row[0])


def _reads(url: str, nodes: int, each: int) -> Iterator[Row]:
    engine, rng, scope = open_engine(url, 1), Random(0), Scope("*")
    for name in ("inventory.get", "inventory.history", "inventory.diff"):
        method, took = find(name), []
        for _ in range(QUESTIONS):
            request = method.request(node_id=f"node_{rng.randint(1, nodes):026d}")
            began = time.perf_counter()
            with engine.connect() as connection:
                READS[name].answer(connection, scope, request)
            took.append(1000 * (time.perf_counter() - began))
        p99 = percentile(took, 0.99)
        yield Row(f"{name} of any node, p99", p99, "ms", "the limit", READ, 1.0, note=f"{each} snapshots a node")
    engine.dispose()


def _pruned(tx: db.Connection, nodes: int, each: int, then: datetime) -> Iterator[Row]:
    """All but the last ten hours go; what must stay is there."""
    began = time.perf_counter()
    row = tx.execute("SELECT prune_snapshots(%s)", [then + timedelta(hours=each - 9, minutes=30)]).fetchone()
    assert row is not None
    took = time.perf_counter() - began
    lost = tx.execute(
        "SELECT count(*) FROM nodes n WHERE NOT EXISTS (SELECT FROM inventory_snapshots WHERE id = n.applied_snapshot_id)"
    )
    unnamed = tx.execute(
        "SELECT count(*) FROM inventory_snapshots s, section_hashes(s.sections) h"
        " WHERE NOT EXISTS (SELECT FROM sections WHERE hash = h.hash)"
    )
    missing = sum(int(found[0]) for one in (lost, unnamed) if (found := one.fetchone()))
    note = f"{row[0]:,} of {nodes * each:,} went"
    yield Row("prune_snapshots", took, "s", "", None, None, note=note)
    yield Row("what had to stay and went", float(missing), "", "", None, None)
