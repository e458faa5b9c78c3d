"""Statements are planned once a connection, while the tables of a new fleet are small: they must not read them whole later."""

from bettercompute.agent.v1 import inventory_pb2 as pb
from psycopg import _queries

from receiver.apply.inventory import apply_inventory, wanted
from receiver.apply.session import hello
from receiver.apply.status import record_status
from receiver.store import database as db
from receiver.values import Fault, Status
from tests.receiver.builders import FACTS, gpu, gpus, host, offer

SMALL, GROWN = 12, 120  # nodes
_READ = """SELECT sum(seq_tup_read + (SELECT sum(pg_stat_get_xact_tuples_returned(i.indexrelid)) FROM pg_index i
  WHERE i.indrelid = t.relid)) FROM pg_stat_xact_user_tables t"""


def _apply(tx: db.Connection, node: str, epoch: int, bodies: dict[str, bytes]) -> None:
    sent = {name: bodies[name] for name in wanted(tx, node, offer(bodies))}
    assert apply_inventory(tx, node, offer(bodies), sent, epoch).status == "applied"


def _live(tx: db.Connection, number: int) -> int:
    """What a node may bring: its session, a GPU with MIG instances, every other one faults. How many rows that read."""
    before = _read(tx)
    node, uuid = f"node_{number:026d}", f"GPU-{number:08d}"
    epoch = hello(tx, node, FACTS).epoch
    instances = [pb.MigInstance(uuid=f"MIG-{number:08d}-{place}", profile="1g.10gb") for place in range(7)]
    first = gpu(0, uuid=uuid, mig=pb.Mig(capable=True, current=True, instances=instances))
    bodies = host(gpus=gpus(first))
    _apply(tx, node, epoch, bodies)
    for count in (1, 2) if number % 2 else ():
        status = Status(offer(bodies).digest, faults=(Fault("xid", 79, uuid, "", count),))
        assert record_status(tx, node, epoch, status)
        first.vbios, first.row_remap.pending = str(count), True
        _apply(tx, node, epoch, host(gpus=gpus(first)))
    return _read(tx) - before


def _read(tx: db.Connection) -> int:
    row = tx.execute(_READ).fetchone()
    assert row is not None
    return int(row[0] or 0)


def test_what_a_node_costs_does_not_grow_with_the_fleet_by_plans_that_were_made_while_it_was_small(database: str) -> None:
    with db.dial(database) as tx:
        small = [_live(tx, number) for number in range(SMALL)]
        tx.commit()
        tx.execute("ANALYZE")
        tx.commit()
        grown = [_live(tx, number) for number in range(SMALL, GROWN)]
        assert max(grown[-2:]) < 1.1 * max(small[-2:]), (small, grown)


def test_psycopg_reads_the_text_of_a_long_statement_once(database: str) -> None:
    with db.dial(database) as tx:
        for number in (1, 2):
            hits = _queries._query2pg.cache_info().hits
            tx.execute(f"SELECT %s::int -- {'long' * 4096}", [number])
        assert _queries._query2pg.cache_info().hits == hits + 1
