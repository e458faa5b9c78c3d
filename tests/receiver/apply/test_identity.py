"""DuplicateIdentity (SPEC B1) of two nodes in a database: who has the key, how it ends by itself, what operators decide."""

import threading
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.apply import nodes, trust
from receiver.apply.act import act
from receiver.apply.identity import resolve_identity
from receiver.apply.inventory import apply_inventory
from receiver.apply.replan import drain
from receiver.errors import Invalid, Refused
from receiver.planning.view import ConditionRow
from receiver.store.database import Connection, open_pool, transact
from tests.receiver.builders import NODE, OTHER, apply, gpu, gpus, host, join, offer

UUID = "4c4c4544-0051-3510-8043-b7c04f4d3532"
SYSTEM = pb.SystemSection(product_uuid=UUID, serial="S512345X3900001")
# A machine without GPUs, known by its UUID and serial: one whose firmware lies has the same.
BARE = host(system=SYSTEM, gpus=gpus())
ANOTHER = host(system=pb.SystemSection(product_uuid=UUID, serial="S512345X3900002"), gpus=gpus())
WHOLE = host(system=SYSTEM)


def duplicates(tx: Connection, node: str = OTHER) -> list[tuple[Any, ...]]:
    return tx.execute(
        """SELECT reason, device_id, evidence ->> 'otherNode' FROM conditions
           WHERE type = 'DuplicateIdentity' AND status = 'true' AND node_id = %s ORDER BY 1, 2""",
        [node],
    ).fetchall()


def keys(tx: Connection, node: str) -> list[tuple[Any, ...]]:
    """Of a node's keys, the oldest first: trusted, replaced, told apart from."""
    columns = 'trusted, replaced_at IS NOT NULL, "distinct"'
    query = f"SELECT {columns} FROM hardware_keys WHERE node_id = %s ORDER BY created_at, replaced_at"
    return tx.execute(query, [node]).fetchall()


def status(tx: Connection, node: str) -> Any:
    row = tx.execute("SELECT status, no_schedule_reasons FROM nodes WHERE id = %s", [node]).fetchone()
    assert row is not None
    return row[0], [one["type"] for one in row[1]]


def two(tx: Connection, bodies: dict[str, bytes]) -> None:
    """NODE, then OTHER, with the same machine's inventory."""
    for node in (NODE, OTHER):
        join(tx, node)
        apply(tx, bodies, node)


SHARED = [("HardwareKey", "", NODE)]


# -- the condition, and its end by itself


def test_the_second_node_with_a_trusted_key_is_the_duplicate_and_is_not_taken_into_service(tx: Connection) -> None:
    two(tx, BARE)
    assert (duplicates(tx), duplicates(tx, NODE)) == (SHARED, [])
    assert status(tx, OTHER) == ("adopting", ["DuplicateIdentity"])
    assert status(tx, NODE) == ("adopted", [])
    assert (keys(tx, NODE), keys(tx, OTHER)) == ([(True, False, [])], [(False, False, [])])


def test_it_ends_when_the_other_node_has_another_key(tx: Connection) -> None:
    two(tx, BARE)
    apply(tx, ANOTHER)
    drain(tx)
    assert (duplicates(tx), status(tx, OTHER)) == ([], ("adopted", []))
    assert keys(tx, NODE) == [(True, True, []), (True, False, [])], "the old one is kept"
    assert keys(tx, OTHER) == [(True, False, [])]


def test_it_ends_when_the_other_node_is_retired(tx: Connection) -> None:
    two(tx, BARE)
    nodes.retire(tx, NODE)
    drain(tx)
    assert (duplicates(tx), status(tx, OTHER)) == ([], ("adopted", []))


def test_a_report_that_may_not_replace_a_key_leaves_key_and_duplicate_as_they_are(tx: Connection) -> None:
    two(tx, BARE)
    apply(tx, {name: body for name, body in ANOTHER.items() if name != "nics"}, OTHER, nics="PermissionDenied")
    assert (duplicates(tx), keys(tx, OTHER)) == (SHARED, [(False, False, [])])


def test_a_key_that_comes_back_is_the_same_row_again(tx: Connection) -> None:
    join(tx)
    for bodies in (BARE, ANOTHER, BARE):
        apply(tx, bodies)
    assert sorted(keys(tx, NODE)) == [(True, False, []), (True, True, [])]
    told = tx.execute("SELECT payload -> 'identifiers' FROM events WHERE type = 'node.hardware.changed' ORDER BY seq").fetchall()
    assert [row[0] for row in told] == [
        {"serial": {"before": "S512345X3900001", "after": "S512345X3900002"}},
        {"serial": {"before": "S512345X3900002", "after": "S512345X3900001"}},
    ]


def test_two_nodes_that_report_one_key_at_once_are_one_owner_and_one_duplicate(database: str, tx: Connection) -> None:
    for node in (NODE, OTHER):
        join(tx, node)
    tx.commit()
    pool, start = open_pool(database, 2), threading.Barrier(2)

    def report(node: str) -> None:
        start.wait(10)
        transact(pool, lambda tx: apply_inventory(tx, node, offer(BARE), BARE), 10)

    threads = [threading.Thread(target=report, args=[node]) for node in (NODE, OTHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    pool.close()
    assert tx.execute("SELECT count(*) FROM hardware_keys WHERE trusted").fetchone() == (1,)
    assert len(duplicates(tx) + duplicates(tx, NODE)) == 1


# -- what operators decide


def test_keep_retires_the_other_node_and_this_one_gets_key_and_gpus(tx: Connection) -> None:
    two(tx, WHOLE)
    assert [row[0] for row in duplicates(tx)] == ["DeviceOwned", "DeviceOwned", "HardwareKey"]
    resolve_identity(tx, OTHER, "keep", by="eva", reason="it joined anew")
    assert (duplicates(tx), status(tx, NODE)[0], status(tx, OTHER)) == ([], "retired", ("adopted", []))
    assert tx.execute("SELECT DISTINCT node_id FROM devices").fetchall() == [(OTHER,)]
    assert (keys(tx, NODE), keys(tx, OTHER)) == ([(False, False, [])], [(True, False, [])])


def test_keep_needs_the_other_node_to_be_free_of_live_bookings(tx: Connection) -> None:
    two(tx, WHOLE)
    tx.execute(
        """INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
           VALUES ('book-1', 'acme', %s, 'GPU-00000000', 'GPU-00000000', 1)""",
        [NODE],
    )
    with pytest.raises(Refused, match="book-1"):
        resolve_identity(tx, OTHER, "keep")
    assert status(tx, NODE)[0] == "adopted"


def test_reject_retires_this_one_and_the_other_goes_on(tx: Connection) -> None:
    two(tx, WHOLE)
    resolve_identity(tx, OTHER, "reject", by="eva", reason="a copy of its disk")
    assert (duplicates(tx), status(tx, OTHER)[0], status(tx, NODE)) == ([], "retired", ("adopted", []))
    drain(tx)
    assert (duplicates(tx), keys(tx, NODE)) == ([], [(True, False, [])])


def test_distinct_leaves_both_keys_untrusted_and_remembers_the_pair(tx: Connection) -> None:
    two(tx, BARE)
    resolve_identity(tx, OTHER, "distinct", by="eva", reason="two boards, one serial")
    assert (duplicates(tx), status(tx, OTHER), status(tx, NODE)[0]) == ([], ("adopted", []), "adopted")
    assert (keys(tx, NODE), keys(tx, OTHER)) == ([(False, False, [OTHER])], [(False, False, [NODE])])
    for node in (NODE, OTHER):
        join(tx, node)
        apply(tx, {**BARE, "memory": b""}, node)
    drain(tx)
    assert (duplicates(tx), duplicates(tx, NODE)) == ([], [])
    assert (keys(tx, NODE), keys(tx, OTHER)) == ([(False, False, [OTHER])], [(False, False, [NODE])])


def test_distinct_is_of_machines_that_share_a_key_and_of_nothing_else(tx: Connection) -> None:
    join(tx)
    apply(tx, host(1))
    join(tx, OTHER)
    apply(tx, host(system=SYSTEM, gpus=gpus(gpu(0), gpu(7))), OTHER)
    assert duplicates(tx) == [("DeviceOwned", "GPU-00000000", NODE)]
    with pytest.raises(Refused, match="DeviceOwned GPU-00000000"):
        resolve_identity(tx, OTHER, "distinct")


def duplicate_session(tx: Connection) -> None:
    """As issue Identity will write it."""
    join(tx)
    apply(tx, BARE)
    act(tx, NODE, lambda facts, draft: draft.put("conditions", ConditionRow("DuplicateIdentity", reason="DuplicateSession")))


def test_a_duplicate_session_ends_by_keep_and_by_nothing_that_is_planned(tx: Connection) -> None:
    duplicate_session(tx)
    assert status(tx, NODE) == ("adopted", ["DuplicateIdentity"])
    apply(tx, ANOTHER)
    assert duplicates(tx, NODE) == [("DuplicateSession", "", None)]
    with pytest.raises(Refused, match="DuplicateSession"):
        resolve_identity(tx, NODE, "distinct")
    resolve_identity(tx, NODE, "keep")
    assert (duplicates(tx, NODE), status(tx, NODE)) == ([], ("adopted", []))


def test_a_duplicate_session_ends_by_reject_and_the_node_is_retired(tx: Connection) -> None:
    duplicate_session(tx)
    resolve_identity(tx, NODE, "reject")
    assert (duplicates(tx, NODE), status(tx, NODE)[0]) == ([], "retired")


def test_what_is_no_duplicate_has_nothing_to_resolve(tx: Connection) -> None:
    two(tx, BARE)
    for action in ("keep", "reject", "distinct"):
        with pytest.raises(Refused, match=f"node {NODE} has no DuplicateIdentity"):
            resolve_identity(tx, NODE, action)
    with pytest.raises(Invalid, match="'forget' is not one of keep, reject, distinct"):
        resolve_identity(tx, OTHER, "forget")
    with pytest.raises(LookupError):
        resolve_identity(tx, "node_00000000000000000000000000", "keep")


def test_a_tenant_s_word_makes_no_duplicate_and_ends_none(tx: Connection) -> None:
    two(tx, BARE)
    trust.set_trust(tx, OTHER, "tenant-controlled", "lease-1")
    apply(tx, ANOTHER, OTHER)
    drain(tx)
    assert (duplicates(tx), keys(tx, OTHER)) == (SHARED, [(False, False, [])])
    trust.set_trust(tx, NODE, "tenant-controlled", "lease-2")
    apply(tx, ANOTHER)
    assert keys(tx, NODE) == [(True, False, [])]
