"""Sessions: one a node, the next epoch each, and nothing written that does not change (SPEC B1)."""

import threading
from dataclasses import replace

import psycopg

from receiver.apply.session import CHANNEL, KEPT, end_sessions, hello, hello_again
from receiver.store.database import Connection
from receiver.values import Driver
from tests.receiver.builders import FACTS, NODE, OTHER, apply, host, told


def test_unknown_node_is_created_in_the_tenant_that_is_given(tx: Connection) -> None:
    start = hello(tx, NODE, replace(FACTS, tenant_id="acme"))
    assert (start.created, start.epoch, start.tenant_id, start.applied_digest) == (True, 1, "acme", None)
    assert tx.execute("SELECT status, trust, kind FROM nodes").fetchall() == [("adopting", "platform", "host")]
    events = tx.execute("SELECT type, tenant_id, node_id, payload FROM events").fetchall()
    assert events == [("node.joined", "acme", NODE, {"by": "hello", "schemaVersion": 1})]


def test_known_node_keeps_its_tenant_and_takes_the_next_epoch(tx: Connection) -> None:
    hello(tx, NODE, FACTS)
    outcome = apply(tx, host())
    start = hello(tx, NODE, replace(FACTS, tenant_id="other", previous_epoch=1))
    assert (start.created, start.epoch, start.tenant_id, start.applied_digest) == (False, 2, "default", outcome.digest)


def test_older_session_ends_as_superseded_and_its_stream_is_told(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as listener, psycopg.connect(database) as tx:
        listener.execute(f"LISTEN {CHANNEL}")
        hello(tx, NODE, FACTS)
        hello(tx, NODE, replace(FACTS, previous_epoch=1))
        tx.commit()
        assert [one.payload for one in listener.notifies(timeout=5, stop_after=2)] == [f"{NODE} 1", f"{NODE} 2"]
        rows = tx.execute("SELECT epoch, end_reason, ended_at IS NULL FROM sessions ORDER BY epoch").fetchall()
        assert rows == [(1, "superseded", False), (2, None, True)]


def test_end_of_a_superseded_stream_changes_nothing(tx: Connection) -> None:
    hello(tx, NODE, FACTS)
    hello(tx, NODE, replace(FACTS, previous_epoch=1))
    end_sessions(tx, [(NODE, 1, "closed")])
    assert tx.execute("SELECT connected FROM nodes").fetchone() == (True,)
    end_sessions(tx, [(NODE, 2, "closed"), (OTHER, 9, "never there")])
    assert tx.execute("SELECT connected FROM nodes").fetchone() == (False,)
    assert tx.execute("SELECT end_reason FROM sessions ORDER BY epoch").fetchall() == [("superseded",), ("closed",)]


def test_alternation_when_neither_epoch_nor_instance_is_the_current_one(tx: Connection) -> None:
    hello(tx, NODE, FACTS)
    hello(tx, NODE, FACTS)  # the same instance: it lost its stream before it stored the epoch
    hello(tx, NODE, replace(FACTS, instance_id="instance-2", previous_epoch=2))  # restarted, and knows the epoch
    assert told(tx, "security.") == []
    hello(tx, NODE, replace(FACTS, instance_id="copy", previous_epoch=2))
    assert told(tx, "security.") == ["security.node.duplicate-session"]
    assert tx.execute("SELECT alternation FROM sessions ORDER BY epoch").fetchall() == [(False,), (False,), (False,), (True,)]


def test_of_old_sessions_so_many_are_kept_and_all_of_the_last_day(tx: Connection) -> None:
    hello(tx, NODE, FACTS)
    tx.execute(
        """INSERT INTO sessions (node_id, epoch, tenant_id, boot_id, instance_id, receiver_id, trust_epoch, started_at)
        SELECT node_id, e, tenant_id, boot_id, instance_id, receiver_id, trust_epoch, bc_clock() - CASE WHEN e < 31
          THEN interval '2 days' ELSE interval '1 hour' END FROM sessions, generate_series(2, %s) AS e""",
        [KEPT + 50],
    )
    tx.execute("UPDATE nodes SET epoch = %s", [KEPT + 50])
    tx.execute("UPDATE sessions SET started_at = bc_clock() - interval '2 days' WHERE epoch = 1")
    hello(tx, NODE, FACTS)
    assert tx.execute("SELECT min(epoch), max(epoch) FROM sessions").fetchone() == (31, KEPT + 51)
    tx.execute("UPDATE sessions SET started_at = bc_clock() - interval '2 days' WHERE epoch < 101")
    hello(tx, NODE, FACTS)
    assert tx.execute("SELECT min(epoch), max(epoch) FROM sessions").fetchone() == (52, KEPT + 52)


def test_hello_again_writes_only_what_differs(tx: Connection) -> None:
    hello(tx, NODE, FACTS)
    assert not hello_again(tx, NODE, 1, FACTS)
    more = replace(FACTS, drivers=(Driver("libvirt-kvm", "9.0", ("vm",)),), capabilities=("nvml",))
    assert hello_again(tx, NODE, 1, more)
    assert not hello_again(tx, NODE, 1, more)
    assert not hello_again(tx, NODE, 7, FACTS), "another session's"
    row = tx.execute("SELECT drivers, capabilities, epoch FROM nodes").fetchone()
    assert row == ([{"id": "libvirt-kvm", "version": "9.0", "kinds": ["vm"]}], ["nvml"], 1)


def test_concurrent_hellos_take_different_epochs(database: str) -> None:
    epochs: list[int] = []

    def work() -> None:
        for _ in range(5):
            with psycopg.connect(database) as tx:
                epochs.append(hello(tx, NODE, FACTS).epoch)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(epochs) == list(range(1, 21))
    with psycopg.connect(database) as tx:
        assert tx.execute("SELECT count(*) FROM events WHERE type = 'node.joined'").fetchone() == (1,)
        assert tx.execute("SELECT epoch FROM sessions WHERE ended_at IS NULL").fetchall() == [(20,)]


def test_nul_in_what_a_hello_says_is_shown_as_a_mark(tx: Connection) -> None:
    odd = replace(FACTS, boot_id="b\0", instance_id="i\0", capabilities=("c\0",))
    assert hello(tx, NODE, odd).epoch == 1
    assert not hello_again(tx, NODE, 1, odd)
    assert tx.execute("SELECT boot_id, instance_id, capabilities FROM nodes").fetchone() == ("b\ufffd", "i\ufffd", ["c\ufffd"])
