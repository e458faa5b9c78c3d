"""Applies per second of a changed 8 x H100 node in service, beside one load and one write of the same bytes through psycopg.

Each node's gpus and disks sections change once: a GPU's and a disk's firmware, or a GPU has to be reset, which takes it out of
placement. All that follows is concluded and written. Eight connections, each with nodes of its own, and each node with hardware
of its own; Postgres as the receiver starts it (fsync on).
"""

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import decode, digest, encode, section_hash

from receiver import ids
from receiver.apply.inventory import apply_inventory, plan_loaded, plan_rows, write
from receiver.apply.session import hello
from receiver.planning.inventory import InventoryPlan
from receiver.planning.offer import Refusal, check_bodies
from receiver.planning.view import Draft
from receiver.store import database as db
from receiver.store import inventory as store
from receiver.store.embedded import start
from receiver.store.hashes import binary
from receiver.values import HelloFacts, Offer, SectionRef
from tests.bench import Row
from tests.bench.fleet_hosts import own, recorded

NODES, GPUS = 400, 8
CONNECTIONS, WARM = 8, 6  # and applies of each connection that are not measured
_FLOOR_LOAD = """SELECT n.applied_digest, n.applied_snapshot_id,
  (SELECT array_agg(s.body) FROM sections s
   WHERE s.hash IN (SELECT decode(n.section_baselines -> name ->> 0, 'hex') FROM unnest(%s::text[]) AS name))
FROM nodes n WHERE n.id = %s FOR NO KEY UPDATE OF n"""
_FLOOR_WRITE = "INSERT INTO floor (hash, body) SELECT * FROM unnest(%s::bytea[], %s::bytea[])"
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
    """Three rows: with the plan precomputed, end to end, and end to end with a GPU that is quarantined."""
    first = recorded()
    with tempfile.TemporaryDirectory(prefix="bc-bench-") as directory, start(Path(directory)) as server:
        db.create_database(server.url(), "bench")
        url = server.url("bench")
        db.migrate(url)
        with db.connect(url) as tx:
            tx.execute("CREATE TABLE floor (hash bytea PRIMARY KEY, body bytea NOT NULL)")
            tx.execute("INSERT INTO pools (id, tenant_id, name, gpu_model) VALUES ('pool_1', 'bench', 'h100', 'H100')")
            kinds = (("floor", False), ("planned", False), ("whole", False), ("fault", True))
            batches = {kind: [_prepare(tx, first, fault, kind == "planned") for _ in range(NODES)] for kind, fault in kinds}
            tx.commit()
            tx.autocommit = True
            tx.execute("VACUUM ANALYZE")
        floor = _rate(url, batches["floor"], _floor)
        planned = _rate(url, batches["planned"], _planned)
        whole = _rate(url, batches["whole"], _whole)
        fault = _rate(url, batches["fault"], _whole)
    name = "one load + one write of the same bytes"
    yield Row("applies, plan precomputed", planned, "/s", name, floor, 0.5, at_least=True)
    yield Row("applies, end to end", whole, "/s", name, floor, 0.25, at_least=True)
    yield Row("applies that quarantine a GPU", fault, "/s", name, floor, 0.25, at_least=True)


def _prepare(tx: db.Connection, first: dict[str, bytes], fault: bool, planned: bool) -> Work:
    """A new node in service, and what it will offer next."""
    node, number = ids.mint("node"), next(_serial)
    hello(tx, node, HelloFacts("0.3", "0.1.0", "boot", "bench", tenant_id="bench"))
    tx.execute("UPDATE nodes SET pool_id = 'pool_1' WHERE id = %s", [node])
    bodies = own(first, number)
    apply_inventory(tx, node, _offer(bodies), bodies)
    assert tx.execute("SELECT FROM bookable_atoms WHERE node_id = %s", [node]).rowcount == GPUS
    tx.commit()
    changed = _changed(bodies, number, fault)
    work = Work(node, _offer({**bodies, **changed}), changed)
    if planned:
        sent = check_bodies(work.offer, changed)
        assert not isinstance(sent, Refusal), sent
        loaded = store.load(tx, node, work.offer, changed.keys())
        plan = plan_loaded(loaded, work.offer, sent, ids.mint("inv"))
        work = Work(node, work.offer, changed, plan, plan_rows(tx, loaded, work.offer, sent, plan))
        tx.rollback()
    return work


def _changed(own: dict[str, bytes], number: int, fault: bool) -> dict[str, bytes]:
    """gpus and disks with one GPU's and one disk's firmware of their own; `fault`: the GPU waits for a reset."""
    gpus, disks = decode("gpus", own["gpus"]), decode("disks", own["disks"])
    assert isinstance(gpus, pb.GpusSection)
    assert isinstance(disks, pb.DisksSection)
    gpus.gpus[0].vbios = f"bench {number}"
    gpus.gpus[0].row_remap.pending = fault
    disks.disks[0].firmware = f"bench {number}"
    return {"gpus": encode(gpus), "disks": encode(disks)}


def _offer(sections: dict[str, bytes]) -> Offer:
    refs = tuple(SectionRef(name, 1, section_hash(data), len(data)) for name, data in sorted(sections.items()))
    return Offer(digest((ref.name, ref.hash) for ref in refs), refs, boot_id="boot")


def _floor(tx: db.Connection, work: Work) -> None:
    tx.execute(_FLOOR_LOAD, [list(work.bodies), work.node], prepare=True, binary=True).fetchone()
    hashes = [binary(work.offer.hashes[name]) for name in work.bodies]
    tx.execute(_FLOOR_WRITE, [hashes, list(work.bodies.values())], prepare=True)


def _planned(tx: db.Connection, work: Work) -> None:
    assert work.plan is not None
    assert work.rows is not None
    loaded = store.load(tx, work.node, work.offer, work.bodies.keys())
    assert write(tx, loaded, work.offer, work.bodies, work.plan, work.rows)


def _whole(tx: db.Connection, work: Work) -> None:
    assert apply_inventory(tx, work.node, work.offer, work.bodies).status == "applied"


def _rate(url: str, batch: list[Work], apply: Callable[[db.Connection, Work], None]) -> float:
    """Applies per second, each in a transaction of its own, over connections that have prepared their statements, as a
    receiver's have: Postgres plans a statement anew in its first five executions of a connection."""
    started = threading.Barrier(CONNECTIONS + 1)

    def run(share: list[Work]) -> None:
        with db.dial(url) as tx:
            for number, work in enumerate(share):
                if number == WARM:
                    started.wait(60)
                apply(tx, work)
                tx.commit()

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        running = [pool.submit(run, batch[number::CONNECTIONS]) for number in range(CONNECTIONS)]
        started.wait(60)
        began = time.perf_counter()
        for one in running:
            one.result()
    return (len(batch) - WARM * CONNECTIONS) / (time.perf_counter() - began)
