"""Applies per second of a changed 8 x H100 node, beside one load and one write statement of the same bytes through psycopg.

Each node's gpus and disks sections change once. Eight connections, each with nodes of its own; Postgres as the receiver starts
it (fsync on).
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import SECTIONS, decode, digest, encode, section_hash

from agent.collectors import collect
from agent.recorded import open_host, open_nvml
from receiver import ids
from receiver.apply.inventory import apply_inventory, plan_loaded, plan_rows, write
from receiver.planning.inventory import InventoryPlan
from receiver.planning.offer import Refusal, check_bodies
from receiver.planning.view import Draft
from receiver.store import database as db
from receiver.store import inventory as store
from receiver.store.embedded import start
from receiver.values import Offer, SectionRef
from tests.bench import Row
from tests.hosts_catalog import HOSTS

NODES = 400
CONNECTIONS = 8
_FLOOR_LOAD = """SELECT n.applied_digest, n.applied_snapshot_id,
  (SELECT array_agg(s.body) FROM sections s
   WHERE s.hash IN (SELECT n.section_baselines -> name ->> 0 FROM unnest(%s::text[]) AS name))
FROM nodes n WHERE n.id = %s FOR NO KEY UPDATE OF n"""
_FLOOR_WRITE = "INSERT INTO floor (hash, body) SELECT * FROM unnest(%s::text[], %s::bytea[])"
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Work:
    """One changed offer of one node, with the bytes that travel."""

    node: str
    offer: Offer
    bodies: dict[str, bytes]
    plan: InventoryPlan | None = None
    rows: Draft | None = None


def rows() -> Iterator[Row]:
    """Two rows: with the plan precomputed, and end to end."""
    first = {name: encode(collect(name, open_host(HOSTS["h100-sxm-8"]), open_nvml(HOSTS["h100-sxm-8"]))) for name in SECTIONS}
    with tempfile.TemporaryDirectory(prefix="bc-bench-") as directory, start(Path(directory)) as server:
        db.create_database(server.url(), "bench")
        url = server.url("bench")
        db.migrate(url)
        with db.connect(url) as tx:
            tx.execute("CREATE TABLE floor (hash text PRIMARY KEY, body bytea NOT NULL)")
            batches = [[_prepare(tx, first, planned) for _ in range(NODES)] for planned in (False, True, False)]
        floor = _rate(url, batches[0], _floor)
        planned = _rate(url, batches[1], _planned)
        whole = _rate(url, batches[2], _whole)
    name = "one load + one write of the same bytes"
    yield Row("applies, plan precomputed", planned, "/s", name, floor, 0.5, at_least=True)
    yield Row("applies, end to end", whole, "/s", name, floor, 0.25, at_least=True)


def _prepare(tx: db.Connection, first: dict[str, bytes], planned: bool) -> Work:
    """A new node with its first inventory applied, and what it will offer next."""
    node = ids.mint("node")
    tx.execute("INSERT INTO nodes (id, tenant_id) VALUES (%s, 'bench')", [node])
    tx.commit()
    apply_inventory(tx, node, _offer(first), first)
    tx.commit()
    changed = _changed(first, next(_serial))
    work = Work(node, _offer({**first, **changed}), changed)
    if planned:
        sent = check_bodies(work.offer, changed)
        assert not isinstance(sent, Refusal), sent
        loaded = store.load(tx, node, work.offer, changed.keys())
        plan = plan_loaded(loaded, work.offer, sent, ids.mint("inv"))
        work = Work(node, work.offer, changed, plan, plan_rows(tx, loaded, work.offer, sent, plan))
        tx.rollback()
    return work


def _changed(first: dict[str, bytes], number: int) -> dict[str, bytes]:
    """gpus and disks with one GPU's and one disk's serial of their own."""
    gpus, disks = decode("gpus", first["gpus"]), decode("disks", first["disks"])
    assert isinstance(gpus, pb.GpusSection)
    assert isinstance(disks, pb.DisksSection)
    gpus.gpus[0].vbios = f"bench {number}"
    disks.disks[0].firmware = f"bench {number}"
    return {"gpus": encode(gpus), "disks": encode(disks)}


def _offer(sections: dict[str, bytes]) -> Offer:
    refs = tuple(SectionRef(name, 1, section_hash(data), len(data)) for name, data in sorted(sections.items()))
    return Offer(digest((ref.name, ref.hash) for ref in refs), refs)


def _floor(tx: db.Connection, work: Work) -> None:
    tx.execute(_FLOOR_LOAD, [list(work.bodies), work.node], prepare=True, binary=True).fetchone()
    hashes = [work.offer.hashes[name] for name in work.bodies]
    tx.execute(_FLOOR_WRITE, [hashes, list(work.bodies.values())], prepare=True)


def _planned(tx: db.Connection, work: Work) -> None:
    assert work.plan is not None
    assert work.rows is not None
    loaded = store.load(tx, work.node, work.offer, work.bodies.keys())
    assert write(tx, loaded, work.offer, work.bodies, work.plan, work.rows)


def _whole(tx: db.Connection, work: Work) -> None:
    assert apply_inventory(tx, work.node, work.offer, work.bodies).status == "applied"


def _rate(url: str, batch: list[Work], apply: Callable[[db.Connection, Work], None]) -> float:
    """Applies per second, each in a transaction of its own."""

    def run(share: list[Work]) -> None:
        with psycopg.connect(url) as tx:
            for work in share:
                apply(tx, work)
                tx.commit()

    began = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(run, [batch[i::CONNECTIONS] for i in range(CONNECTIONS)]))
    return len(batch) / (time.perf_counter() - began)
