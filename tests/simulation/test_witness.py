"""The witness and the clock, in a database."""

import psycopg

from receiver.store import database as db
from tests.receiver import builders
from tests.simulation import invariants, witness
from tests.simulation.clock import Clock


def test_the_witness_sees_each_change_once_and_in_order(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        clock = Clock(connection)
        witness.install(connection)
        with db.dial(database) as tx:
            builders.join(tx)
            builders.apply(tx, builders.host(1))
        clock.advance(3600)
        connection.execute("UPDATE nodes SET last_seen = bc_clock(), epoch = epoch + 1")
        connection.execute("UPDATE nodes SET trust = 'tenant-controlled'")
        connection.execute("UPDATE nodes SET trust = 'tenant-controlled'")
        witness.effect(connection, builders.NODE, "cmd_1", "node.reboot", "boot-1")
        log = witness.read(connection)
        trusts = [one.value["trust"] for one in log if one.what == "nodes"]
        assert trusts[-1] == "tenant-controlled"
        assert trusts.count("tenant-controlled") == 1
        assert (log[-1].what, log[-1].node, log[-1].key) == ("effects", builders.NODE, "cmd_1")
        assert next(one.key for one in log if one.what == "events") == "node.joined"
        assert 3600 <= log[-1].at - log[0].at < 3601
        assert invariants.check(log) != []  # an effect that nobody asked for


def test_time_goes_on_as_the_test_says_and_never_back(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection, db.dial(database, autocommit=True) as other:
        clock = Clock(connection)
        read = "SELECT bc_clock(), extract(epoch FROM bc_clock() - %s::timestamptz)::float8"
        earlier, _ = other.execute(read, [clock.now]).fetchone() or (None, 0)
        clock.advance(86400)
        later, past = other.execute(read, [clock.now]).fetchone() or (None, 0)
        assert earlier is not None
        assert later is not None
        assert 86400 <= (later - earlier).total_seconds() < 86401
        assert 0 <= past < 1
        assert 86400 <= clock.passed < 86401
