"""Join and Renew in a database (SPEC B1): whom a token admits, whose certificate it gives, what ends with it."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from bettercompute.contract import tokens as secrets
from bettercompute.contract.hardware_key import Identifiers, claimed
from bettercompute.contract.tokens import Token

from receiver.apply import duplicates, nodes, trust
from receiver.apply.join import NotAdmitted, join, renew
from receiver.apply.replan import drain
from receiver.apply.session import Revoked, hello
from receiver.errors import Refused
from receiver.ids import mint
from receiver.store import certificates
from receiver.store import tokens as rows
from receiver.store.database import Connection, open_pool, transact
from tests.receiver.apply.test_identity import BARE, UUID, WHOLE
from tests.receiver.apply.test_identity import duplicates as conditions
from tests.receiver.builders import FACTS, NODE, OTHER, apply, told
from tests.receiver.builders import join as first_session

NOTHING = Identifiers()
# What BARE's machine claims: its UUID and its serial (its MAC is of no port on PCI).
ITSELF = claimed(UUID, "S512345X3900001", [], [])
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Issued:
    """A certificate without cryptography."""

    fingerprint: str
    not_before: datetime
    not_after: datetime
    node_id: str


class Signer:
    """Signs 30 days for whomever it is asked; fails when it is `broken`."""

    def __init__(self) -> None:
        self.count, self.broken = 0, False

    def __call__(self, node_id: str, now: datetime) -> Issued:
        if self.broken:
            raise ValueError("the CA has expired")
        self.count += 1
        return Issued(f"{os.getpid()}-{id(self)}-{self.count}", now - HOUR, now + timedelta(days=30), node_id)


sign = Signer()


def token(
    tx: Connection,
    tenant: str = "default",
    pool: str | None = None,
    kind: str = "host",
    node: str | None = None,
    uses: int = 1,
) -> Token:
    made = secrets.make(mint("tok"), os.urandom(32))
    rows.add_join(tx, made, tenant, pool_id=pool, kind=kind, node_id=node, uses=uses, by="eva", life=HOUR)
    return made


def used(tx: Connection, made: Token) -> Any:
    return tx.execute("SELECT used FROM join_tokens WHERE id = %s", [made.id]).fetchall()[0][0]


def good(tx: Connection, issued: Issued) -> bool:
    return certificates.good(tx, issued.node_id, issued.fingerprint) is not None


def node(tx: Connection, node_id: str, columns: str = "status") -> Sequence[Any]:
    return tx.execute(f"SELECT {columns} FROM nodes WHERE id = %s".encode(), [node_id]).fetchall()[0]


def key(tx: Connection, node_id: str) -> list[tuple[Any, ...]]:
    query = "SELECT key, trusted, provisional FROM hardware_keys WHERE node_id = %s AND replaced_at IS NULL"
    return tx.execute(query, [node_id]).fetchall()


# -- an unbound token


def test_unbound_token_makes_a_new_node_of_its_tenant_pool_and_kind(tx: Connection) -> None:
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_1', 'acme', 'h100')")
    made = token(tx, "acme", "pool_1", "site-agent")
    joined = join(tx, made, NOTHING, sign, "0.4.0")
    row = node(tx, joined.node_id, "tenant_id, pool_id, kind, status, trust, daemon_version, epoch")
    assert row == ("acme", "pool_1", "site-agent", "adopting", "platform", "0.4.0", 0)
    assert (joined.created, joined.certificate.node_id, good(tx, joined.certificate)) == (True, joined.node_id, True)
    issued = tx.execute("SELECT issued_by, tenant_id, not_after - not_before FROM certificates").fetchall()
    assert issued == [(made.id, "acme", timedelta(days=30, hours=1))]
    events = tx.execute("SELECT type, tenant_id, pool_id, node_id, payload FROM events").fetchall()
    assert events == [("node.joined", "acme", "pool_1", joined.node_id, {"by": made.id, "schemaVersion": 1})]
    start = hello(tx, joined.node_id, replace(FACTS, certificate=joined.certificate.fingerprint))
    assert (start.epoch, start.tenant_id, start.created) == (1, "acme", False)


def test_unbound_token_with_a_known_machines_claims_makes_a_new_node_and_takes_nothing(tx: Connection) -> None:
    first_session(tx)
    apply(tx, WHOLE)
    before = tx.execute("SELECT id, node_id FROM devices ORDER BY id").fetchall()
    all_of_it = claimed(UUID, "S512345X3900001", ["b8:3f:d2:00:00:01"], [row[0] for row in before])
    joined = join(tx, token(tx), all_of_it, sign)
    assert joined.node_id != NODE
    assert tx.execute("SELECT id, node_id FROM devices ORDER BY id").fetchall() == before, "GPU UUIDs in claims move nothing"
    assert key(tx, NODE)[0][1:] == (True, False)
    assert node(tx, NODE, "status, epoch") == ("adopted", 1)


def test_each_use_makes_another_node_until_the_token_is_used_up(tx: Connection) -> None:
    made = token(tx, uses=2)
    assert join(tx, made, ITSELF, sign).node_id != join(tx, made, ITSELF, sign).node_id
    with pytest.raises(NotAdmitted, match=rf"{made.id} is used up"):
        join(tx, made, ITSELF, sign)
    assert (used(tx, made), tx.execute("SELECT count(*) FROM nodes").fetchone()) == (2, (2,))


def test_joins_at_once_use_a_token_no_more_often_than_it_may_be(database: str, tx: Connection) -> None:
    made = token(tx, uses=3)
    tx.commit()
    pool, refused = open_pool(database, 6), []

    def work() -> None:
        try:
            transact(pool, lambda tx: join(tx, made, NOTHING, Signer()), 10)
        except NotAdmitted as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    pool.close()
    assert (used(tx, made), len(refused), tx.execute("SELECT count(*) FROM nodes").fetchone()) == (3, 3, (3,))


def test_pool_that_is_gone_or_another_tenants_is_refused_and_nothing_is_written(database: str, tx: Connection) -> None:
    tx.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_2', 'acme', 'h100')")
    made, other = token(tx, pool="pool_1"), token(tx, pool="pool_2")
    tx.commit()
    pool = open_pool(database, 1)
    for one, name in ((made, "pool_1"), (other, "pool_2")):
        with pytest.raises(Refused, match=rf"{name}.*{one.id}"):
            transact(pool, lambda tx, one=one: join(tx, one, NOTHING, sign))  # type: ignore[misc]
    pool.close()
    assert (used(tx, made), used(tx, other), tx.execute("SELECT count(*) FROM nodes").fetchone()) == (0, 0, (0,))


def test_token_is_not_used_where_no_certificate_can_be_signed(database: str, tx: Connection) -> None:
    made, broken = token(tx), Signer()
    broken.broken = True
    tx.commit()
    with pytest.raises(ValueError, match="expired"), psycopg.connect(database) as other:
        join(other, made, NOTHING, broken)
    assert (used(tx, made), tx.execute("SELECT count(*) FROM nodes").fetchone()) == (0, (0,))


# -- whom a token does not admit


def refusal(tx: Connection, made: Token) -> str:
    with pytest.raises(NotAdmitted) as error:
        join(tx, made, NOTHING, sign)
    assert made.secret not in str(error.value)
    assert tx.execute("SELECT count(*) FROM certificates").fetchone() == (0,)
    return str(error.value)


def test_wrong_secret_and_unknown_token_are_told_alike(tx: Connection) -> None:
    made = token(tx)
    wrong = refusal(tx, secrets.make(made.id, bytes(32)))
    assert wrong == refusal(tx, secrets.make(mint("tok"), bytes(32)))
    assert made.id not in wrong
    assert used(tx, made) == 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("expires_at = bc_clock()", "expired"),
        ("revoked_at = bc_clock()", "revoked"),
        ("used = 1", "used up"),
    ],
)
def test_token_whose_time_is_over_says_so_to_who_has_its_secret_alone(tx: Connection, change: str, word: str) -> None:
    made = token(tx)
    tx.execute(f"UPDATE join_tokens SET {change}".encode())
    assert f"{made.id} is {word}" in refusal(tx, made)
    assert "joinTokens.create" in refusal(tx, made)
    assert word not in refusal(tx, secrets.make(made.id, bytes(32)))


def test_secret_of_one_token_opens_no_other(tx: Connection) -> None:
    one, other = token(tx), token(tx)
    refusal(tx, Token(one.id, other.secret))


# -- what is claimed


def test_claims_make_a_provisional_key_that_is_held_against_nobody(tx: Connection) -> None:
    one, other = join(tx, token(tx), ITSELF, sign).node_id, join(tx, token(tx), ITSELF, sign).node_id
    assert key(tx, one) == key(tx, other) == [(ITSELF.key, False, True)]
    assert (conditions(tx, one), conditions(tx, other)) == ([], [])
    hello(tx, other, FACTS)
    apply(tx, BARE, other)
    assert key(tx, other)[0][1:] == (True, False), "the first report gives the key"
    assert told(tx, "node.hardware.changed") == []


def test_who_claims_nothing_has_no_key(tx: Connection) -> None:
    assert key(tx, join(tx, token(tx), NOTHING, sign).node_id) == []


def test_report_that_may_give_no_key_leaves_the_claimed_one_provisional(tx: Connection) -> None:
    joined = join(tx, token(tx), ITSELF, sign).node_id
    hello(tx, joined, FACTS)
    apply(tx, {name: body for name, body in BARE.items() if name != "nics"}, joined, nics="PermissionDenied")
    assert key(tx, joined) == [(ITSELF.key, False, True)]


def test_new_node_with_the_trusted_key_of_another_is_the_duplicate(tx: Connection) -> None:
    first_session(tx)
    apply(tx, BARE)
    joined = join(tx, token(tx), ITSELF, sign).node_id
    assert (conditions(tx, joined), conditions(tx, NODE)) == ([("HardwareKey", "", NODE)], [])
    assert node(tx, joined, "no_schedule_reasons")[0][0]["type"] == "DuplicateIdentity"


@pytest.mark.parametrize("how", ["retired", "another key"])
def test_duplicate_of_a_join_ends_by_itself_before_it_has_reported_anything(tx: Connection, how: str) -> None:
    first_session(tx)
    apply(tx, BARE)
    joined = join(tx, token(tx), ITSELF, sign).node_id
    if how == "retired":
        nodes.retire(tx, NODE)
    else:
        apply(tx, WHOLE)
    drain(tx)
    assert conditions(tx, joined) == []
    assert key(tx, joined) == [(ITSELF.key, False, True)]


def test_one_kind_of_identity_makes_no_duplicate(tx: Connection) -> None:
    first_session(tx)
    apply(tx, BARE)
    assert conditions(tx, join(tx, token(tx), claimed("", "S512345X3900001", [], []), sign).node_id) == []


# -- a bound token


@pytest.fixture
def member(tx: Connection) -> tuple[str, Issued]:
    """A node that has joined and reported, and its certificate."""
    joined = join(tx, token(tx), ITSELF, sign)
    hello(tx, joined.node_id, replace(FACTS, certificate=joined.certificate.fingerprint))
    apply(tx, BARE, joined.node_id)
    return joined.node_id, joined.certificate


Member = tuple[str, Issued]


def test_bound_token_brings_its_node_back_and_ends_its_other_certificates(tx: Connection, member: Member) -> None:
    node_id, first = member
    renewed = renew(tx, node_id, first.fingerprint, sign, 6)
    made = token(tx, node=node_id)
    again = join(tx, made, NOTHING, sign)
    assert (again.node_id, again.created, node(tx, node_id)) == (node_id, False, ("adopted",))
    assert [good(tx, one) for one in (first, renewed, again.certificate)] == [False, False, True]
    reasons = tx.execute("SELECT DISTINCT revoked_reason FROM certificates WHERE revoked_at IS NOT NULL").fetchall()
    assert reasons == [("rejoined",)]
    assert tx.execute("SELECT payload ->> 'by' FROM events WHERE type = 'node.joined' ORDER BY seq").fetchall()[1:] == [
        (made.id,)
    ]
    assert tx.execute("SELECT count(*) FROM nodes").fetchone() == (1,)
    with pytest.raises(NotAdmitted, match="used up"):
        join(tx, made, NOTHING, sign)


def test_old_key_begins_no_session_after_a_re_join_and_the_new_one_does(tx: Connection, member: Member) -> None:
    node_id, first = member
    again = join(tx, token(tx, node=node_id), NOTHING, sign).certificate
    with pytest.raises(Revoked):
        hello(tx, node_id, replace(FACTS, certificate=first.fingerprint))
    assert hello(tx, node_id, replace(FACTS, certificate=again.fingerprint)).epoch == 2


def test_running_stream_of_the_old_key_is_told_and_what_it_says_is_advisory(
    database: str, tx: Connection, member: Member
) -> None:
    node_id, _ = member
    made = token(tx, node=node_id)
    tx.commit()
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN bc_disbelieved")
        join(tx, made, NOTHING, sign)
        tx.commit()
        assert [one.payload for one in listener.notifies(timeout=5, stop_after=1)] == [f"{node_id} 1 revoked"]
    assert apply(tx, WHOLE, node_id).status == "advisory"


def test_bound_token_clears_a_quarantine(tx: Connection, member: Member) -> None:
    node_id, first = member
    duplicates.quarantine(tx, node_id, mint)
    assert (conditions(tx, node_id), good(tx, first)) == ([("DuplicateSession", "", None)], False)
    again = join(tx, token(tx, node=node_id), NOTHING, sign).certificate
    assert (conditions(tx, node_id), good(tx, again)) == ([], True)
    assert node(tx, node_id, "status, no_schedule_reasons") == ("adopted", [])


def test_retired_node_comes_back_as_adopting_in_another_attempt(tx: Connection, member: Member) -> None:
    node_id, _ = member
    nodes.retire(tx, node_id)
    assert key(tx, node_id)[0][1] is False
    again = join(tx, token(tx, node=node_id), NOTHING, sign).certificate
    assert node(tx, node_id, "status, attempt, placeable") == ("adopting", 2, False)
    assert key(tx, node_id)[0][1:] == (True, False), "it holds its key again"
    hello(tx, node_id, replace(FACTS, certificate=again.fingerprint))
    assert apply(tx, BARE, node_id).status == "unchanged"
    assert node(tx, node_id) == ("adopted",)


def test_retired_node_whose_key_another_one_has_by_now_comes_back_as_its_duplicate(tx: Connection, member: Member) -> None:
    node_id, _ = member
    nodes.retire(tx, node_id)
    first_session(tx, OTHER)
    apply(tx, BARE, OTHER)
    join(tx, token(tx, node=node_id), NOTHING, sign)
    assert (conditions(tx, node_id), conditions(tx, OTHER)) == ([("HardwareKey", "", OTHER)], [])
    assert (key(tx, node_id)[0][1], key(tx, OTHER)[0][1]) == (False, True)


@pytest.mark.parametrize("status", ["adopting", "maintenance"])
def test_other_statuses_stay(tx: Connection, member: Member, status: str) -> None:
    node_id, _ = member
    tx.execute("UPDATE nodes SET status = %s", [status])
    join(tx, token(tx, node=node_id), NOTHING, sign)
    assert node(tx, node_id, "status, attempt") == (status, 1)


def test_deleted_node_does_not_come_back(tx: Connection, member: Member) -> None:
    node_id, _ = member
    nodes.retire(tx, node_id)
    nodes.delete(tx, node_id)
    with pytest.raises(Refused, match="deleted"):
        join(tx, token(tx, node=node_id), NOTHING, sign)


def test_token_of_another_tenant_brings_nobody_back(tx: Connection, member: Member) -> None:
    node_id, first = member
    with pytest.raises(Refused, match="tenant"), tx.transaction():
        join(tx, token(tx, "acme", node=node_id), NOTHING, sign)
    assert good(tx, first)


def test_claims_replace_no_key_that_a_report_gave(tx: Connection, member: Member) -> None:
    node_id, _ = member
    before = key(tx, node_id)
    join(tx, token(tx, node=node_id), claimed(UUID, "S9", [], []), sign)
    assert key(tx, node_id) == before


def test_claims_of_a_tenants_machine_change_nothing(tx: Connection) -> None:
    joined = join(tx, token(tx), ITSELF, sign).node_id
    trust.set_trust(tx, joined, "tenant-controlled", "lease-1")
    join(tx, token(tx, node=joined), claimed(UUID, "S9", [], []), sign)
    assert key(tx, joined) == [(ITSELF.key, False, True)]


def test_node_that_a_tenant_had_comes_back_with_a_bound_token(tx: Connection, member: Member) -> None:
    node_id, first = member
    trust.set_trust(tx, node_id, "tenant-controlled", "lease-1")
    trust.set_trust(tx, node_id, "platform", "lease-1")
    assert not good(tx, first)
    again = join(tx, token(tx, node=node_id), ITSELF, sign).certificate
    hello(tx, node_id, replace(FACTS, certificate=again.fingerprint))
    assert apply(tx, BARE, node_id).status == "unchanged"
    assert node(tx, node_id, "trust, status, placeable") == ("platform", "adopted", True)
