"""Rows of certificates: good is what was issued to this very node, is not revoked, and lives."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from receiver.store.certificates import RENEWED, add, good, revoke_all
from receiver.store.database import Connection
from tests.receiver.builders import NODE, OTHER, join

NOW = datetime.now(UTC)


@dataclass(frozen=True)
class Issued:
    fingerprint: str
    not_before: datetime = NOW - timedelta(hours=1)
    not_after: datetime = NOW + timedelta(days=30)


@pytest.fixture(autouse=True)
def nodes(tx: Connection) -> None:
    for node in (NODE, OTHER):
        join(tx, node)
    add(tx, NODE, "default", Issued("aa"), "tok_1")


def reasons(tx: Connection) -> dict[str, str | None]:
    return dict(tx.execute("SELECT fingerprint, revoked_reason FROM certificates").fetchall())


def test_certificate_is_good_for_the_node_it_was_issued_to_alone(tx: Connection) -> None:
    row = good(tx, NODE, "aa")
    assert row is not None
    assert (row.node_id, row.tenant_id, row.not_after - row.not_before) == (NODE, "default", timedelta(days=30, hours=1))
    assert good(tx, OTHER, "aa") is None
    assert good(tx, NODE, "bb") is None


@pytest.mark.parametrize(
    "issued",
    [
        Issued("bb", NOW - timedelta(days=30), NOW - timedelta(seconds=1)),
        Issued("bb", NOW + timedelta(hours=1), NOW + timedelta(days=1)),
    ],
)
def test_certificate_outside_its_life_is_not_good(tx: Connection, issued: Issued) -> None:
    add(tx, NODE, "default", issued, RENEWED)
    assert good(tx, NODE, "bb") is None


def test_revocation_takes_all_of_the_node_but_one_and_nobody_elses(tx: Connection) -> None:
    add(tx, NODE, "default", Issued("bb"), RENEWED)
    add(tx, NODE, "default", Issued("cc"), RENEWED)
    add(tx, OTHER, "default", Issued("dd"), "tok_2")
    assert revoke_all(tx, NODE, "rejoined", but="bb") == 2
    assert reasons(tx) == {"aa": "rejoined", "bb": None, "cc": "rejoined", "dd": None}
    assert [good(tx, NODE, one) is not None for one in ("aa", "bb", "cc")] == [False, True, False]
    assert good(tx, OTHER, "dd") is not None


def test_revoked_certificate_keeps_its_reason(tx: Connection) -> None:
    assert revoke_all(tx, NODE, "duplicate-identity") == 1
    assert revoke_all(tx, NODE, "retired") == 0
    assert reasons(tx) == {"aa": "duplicate-identity"}


def test_fingerprint_is_stored_once(tx: Connection) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        add(tx, OTHER, "default", Issued("aa"), "tok_2")


def test_what_has_long_expired_is_forgotten_with_the_next_one_and_what_was_revoked_stays(tx: Connection) -> None:
    long_ago = NOW - timedelta(days=120)
    for name, until in (("late", NOW - timedelta(days=89)), ("old", NOW - timedelta(days=91))):
        add(tx, NODE, "default", Issued(name, long_ago, until), RENEWED)
        add(tx, OTHER, "default", Issued(f"other's {name}", long_ago, until), RENEWED)
    revoke_all(tx, OTHER, "rejoined")
    for node, name in ((NODE, "new"), (OTHER, "other's new")):
        add(tx, node, "default", Issued(name), RENEWED)
    assert reasons(tx) == {
        "aa": None,
        "late": None,
        "new": None,
        "other's old": "rejoined",
        "other's late": "rejoined",
        "other's new": None,
    }
