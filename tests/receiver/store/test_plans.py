"""Statements are planned once a connection, while the tables of a new fleet are small: they must not read them whole later."""

from receiver.apply.inventory import apply_inventory, wanted
from receiver.apply.session import hello
from receiver.apply.status import record_status
from receiver.store import database as db
from receiver.values import Fault, Status
from tests.receiver.builders import FACTS, gpu, gpus, host, offer

GPU = "GPU-{:08d}"
_WHOLE = "SELECT relname, seq_scan FROM pg_stat_xact_user_tables WHERE seq_scan > 0"


def _contact(tx: db.Connection, number: int) -> None:
    """A node's first session, inventory and fault."""
    node, bodies = f"node_{number:026d}", host(gpus=gpus(gpu(0, uuid=GPU.format(number))))
    epoch = hello(tx, node, FACTS).epoch
    sent = {name: bodies[name] for name in wanted(tx, node, offer(bodies))}
    assert apply_inventory(tx, node, offer(bodies), sent, epoch).status == "applied"
    assert record_status(tx, node, epoch, Status(offer(bodies).digest, faults=(Fault("xid", 79, GPU.format(number), "", 1),)))


def test_no_table_is_read_whole_by_plans_that_were_made_while_it_was_small(database: str) -> None:
    with db.dial(database) as tx:
        for number in range(12):
            _contact(tx, number)
        tx.commit()
        tx.execute("ANALYZE")
        tx.commit()
        _contact(tx, 12)
        assert tx.execute(_WHOLE).fetchall() == []
