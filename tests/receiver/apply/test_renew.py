"""Renew in a database (SPEC B1): a further certificate for who comes with a good one."""

import pytest

from receiver.apply.join import NotAdmitted, TooOften, join, renew
from receiver.ids import mint
from receiver.store import certificates
from receiver.store.database import Connection
from tests.receiver.apply.test_join import NOTHING, Issued, good, sign, token

Member = tuple[str, Issued]


@pytest.fixture
def member(tx: Connection) -> Member:
    """A node that has joined, and its certificate."""
    joined = join(tx, token(tx), NOTHING, sign)
    return joined.node_id, joined.certificate


def test_renewal_gives_a_second_certificate_beside_the_first(tx: Connection, member: Member) -> None:
    node_id, first = member
    second = renew(tx, node_id, first.fingerprint, sign, 6)
    assert (second.node_id, good(tx, first), good(tx, second)) == (node_id, True, True)
    row = tx.execute("SELECT issued_by, tenant_id FROM certificates WHERE fingerprint = %s", [second.fingerprint]).fetchone()
    assert row == ("renew", "default")


def test_certificate_that_is_not_good_renews_nothing(tx: Connection, member: Member) -> None:
    node_id, first = member
    other = join(tx, token(tx), NOTHING, sign)
    for whose, fingerprint in ((node_id, "unknown"), (other.node_id, first.fingerprint), (mint("node"), first.fingerprint)):
        with pytest.raises(NotAdmitted, match="nodeId"):
            renew(tx, whose, fingerprint, sign, 6)
    tx.execute("UPDATE certificates SET not_after = bc_clock() WHERE fingerprint = %s", [first.fingerprint])
    with pytest.raises(NotAdmitted, match="expired"):
        renew(tx, node_id, first.fingerprint, sign, 6)


def test_revoked_certificate_renews_nothing(tx: Connection, member: Member) -> None:
    node_id, first = member
    certificates.revoke_all(tx, node_id, "test")
    with pytest.raises(NotAdmitted):
        renew(tx, node_id, first.fingerprint, sign, 6)


def test_node_that_is_out_renews_nothing_whatever_its_certificate(tx: Connection, member: Member) -> None:
    node_id, first = member
    tx.execute("UPDATE nodes SET status = 'retired'")
    with pytest.raises(NotAdmitted):
        renew(tx, node_id, first.fingerprint, sign, 6)


def test_seventh_renewal_within_an_hour_is_refused(tx: Connection, member: Member) -> None:
    node_id, first = member
    for _ in range(6):
        renew(tx, node_id, first.fingerprint, sign, 6)
    with pytest.raises(TooOften):
        renew(tx, node_id, first.fingerprint, sign, 6)
    tx.execute("UPDATE certificates SET issued_at = issued_at - interval '10 minutes' WHERE issued_by = 'renew'")
    with pytest.raises(TooOften):
        renew(tx, node_id, first.fingerprint, sign, 6)
    tx.execute("UPDATE certificates SET issued_at = issued_at - interval '50 minutes' WHERE issued_by = 'renew'")
    assert good(tx, renew(tx, node_id, first.fingerprint, sign, 6))
