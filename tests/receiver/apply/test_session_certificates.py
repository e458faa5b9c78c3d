"""With which certificates a session begins, and what ends those of a node (SPEC B1, Sessions; B2, Trust; B0)."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from receiver.apply import nodes, trust
from receiver.apply.session import DISBELIEVED, Over, Revoked, over
from receiver.errors import Invalid
from receiver.store import certificates
from receiver.store.database import Connection
from tests.receiver.builders import NODE, OTHER
from tests.receiver.certified import LIFE, Machine, issue

HOUR = timedelta(hours=1)


def certificate_rows(tx: Connection) -> list[tuple[Any, ...]]:
    return tx.execute("SELECT fingerprint, revoked_reason FROM certificates ORDER BY fingerprint").fetchall()


def leased(tx: Connection) -> Machine:
    machine = Machine("i1", issue(tx, "aa"))
    machine.hello(tx)
    trust.set_trust(tx, NODE, "tenant-controlled", "lease-1")
    return machine


# -- Hello


def test_a_session_begins_with_the_node_s_certificate_and_has_its_life_on_the_node(tx: Connection) -> None:
    start = Machine("i1", issue(tx, "aa")).hello(tx)
    assert (start.epoch, start.created, start.quarantined) == (1, False, False)
    assert tx.execute("SELECT certificate FROM sessions").fetchall() == [("aa",)]
    life = "SELECT certificate_until - certificate_from, certificate_until - now() > interval '29 days' FROM nodes"
    assert tx.execute(life).fetchall() == [(LIFE + HOUR, True)]
    Machine("i1", issue(tx, "bb", ends=2 * LIFE)).hello(tx)
    assert tx.execute(life).fetchall() == [(2 * LIFE + HOUR, True)], "that of the newest session"


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"ends": -timedelta(seconds=1)}, "has expired.*joinTokens.create"),
        ({"begins": HOUR}, "has to join"),
        ({"node": OTHER}, "has to join"),
        ({}, r"revoked \(stolen\).*joinTokens.create"),
    ],
    ids=["expired", "not yet", "another node's", "revoked"],
)
def test_a_certificate_that_is_not_good_begins_no_session_and_changes_nothing(
    tx: Connection, other: dict[str, Any], named: str
) -> None:
    issue(tx, "good")
    issue(tx, "bad", **other)
    if not other:
        certificates.revoke_all(tx, NODE, "stolen", but="good")
    before = tx.execute("SELECT n FROM nodes n ORDER BY id").fetchall()
    with pytest.raises(Revoked, match=named):
        Machine("i1", "bad").hello(tx)
    assert tx.execute("SELECT n FROM nodes n ORDER BY id").fetchall() == before
    assert tx.execute("SELECT count(*) FROM sessions").fetchone() == (0,)
    assert Machine("i1", "good").hello(tx).epoch == 1


def test_a_certificate_that_is_not_in_the_database_makes_no_node(tx: Connection) -> None:
    with pytest.raises(Revoked, match=f"no certificate of node {NODE}"):
        Machine("i1", "of another fleet").hello(tx)
    assert tx.execute("SELECT count(*) FROM nodes").fetchone() == (0,)


def test_a_good_certificate_opens_nothing_to_a_node_that_is_out(tx: Connection) -> None:
    machine = Machine("i1", issue(tx, "aa"))
    machine.hello(tx)
    for order, named in ((nodes.retire, "bound to it"), (nodes.delete, "deleted, and the machine may join")):
        order(tx, NODE)
        tx.execute("UPDATE certificates SET revoked_at = NULL, revoked_reason = NULL")
        with pytest.raises(Revoked, match=named):
            machine.hello(tx)


def test_an_insecure_receiver_takes_a_node_at_its_word_and_leaves_its_certificate_s_life(tx: Connection) -> None:
    Machine("i1", issue(tx, "aa")).hello(tx)
    Machine("i1", None).hello(tx)
    assert tx.execute("SELECT certificate FROM sessions ORDER BY epoch").fetchall() == [("aa",), (None,)]
    assert tx.execute("SELECT certificate_until IS NULL FROM nodes").fetchone() == (False,)


# -- what revokes


def test_the_end_of_a_lease_revokes_every_certificate_of_the_node_and_of_no_other(database: str, tx: Connection) -> None:
    machine = leased(tx)
    issue(tx, "renewed")
    issue(tx, "other", OTHER)
    tx.commit()
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute(f"LISTEN {DISBELIEVED}")
        trust.set_trust(tx, NODE, "platform", "lease-1")
        tx.commit()
        assert [one.payload for one in listener.notifies(timeout=5, stop_after=1)] == [f"{NODE} 1 revoked"]
    assert certificate_rows(tx) == [("aa", "lease-ended"), ("other", None), ("renewed", "lease-ended")]
    with pytest.raises(Revoked, match="lease-ended"):
        machine.hello(tx)
    assert Machine("i1", issue(tx, "joined again")).hello(tx).epoch == 2


def test_with_keep_certificate_the_node_begins_another_session_with_the_one_it_has(tx: Connection) -> None:
    machine = leased(tx)
    trust.set_trust(tx, NODE, "platform", keep_certificate=True)
    assert (certificate_rows(tx), over(tx, {NODE: 1})) == ([("aa", None)], [Over(NODE, 1, "draining")])
    assert machine.hello(tx).epoch == 2
    assert over(tx, {NODE: 2}) == []


def test_keep_certificate_is_said_at_the_end_of_a_lease(tx: Connection) -> None:
    Machine("i1", issue(tx, "aa")).hello(tx)
    with pytest.raises(Invalid, match="keepCertificate"):
        trust.set_trust(tx, NODE, "tenant-controlled", "lease-1", keep_certificate=True)


def test_saying_platform_of_a_node_that_is_the_platform_s_revokes_nothing(tx: Connection) -> None:
    Machine("i1", issue(tx, "aa")).hello(tx)
    trust.set_trust(tx, NODE, "platform")
    assert certificate_rows(tx) == [("aa", None)]


def test_a_retired_node_s_certificates_are_revoked_and_a_deleted_one_s_too(tx: Connection) -> None:
    Machine("i1", issue(tx, "aa")).hello(tx)
    nodes.retire(tx, NODE)
    assert certificate_rows(tx) == [("aa", "retired")]
    issue(tx, "bb")
    nodes.delete(tx, NODE)
    assert certificate_rows(tx) == [("aa", "retired"), ("bb", "deleted")]


# -- which running sessions are over, for whoever missed a notification


def test_a_session_is_over_once_its_certificate_is_revoked_or_expired_or_a_newer_one_began(tx: Connection) -> None:
    machine = Machine("i1", issue(tx, "aa"))
    machine.hello(tx)
    assert over(tx, {NODE: 1}) == []
    machine.certificate = issue(tx, "renewed")
    machine.hello(tx)
    assert over(tx, {NODE: 1}) == [Over(NODE, 2, "superseded")]
    tx.execute("UPDATE certificates SET not_after = now() WHERE fingerprint = 'renewed'")
    assert over(tx, {NODE: 2}) == [Over(NODE, 2, "expired")]
    certificates.revoke_all(tx, NODE, "stolen", but="aa")
    assert over(tx, {NODE: 2}) == [Over(NODE, 2, "revoked")]
    assert over(tx, {NODE: 1}) == [Over(NODE, 2, "superseded")]
    assert over(tx, {}) == []
