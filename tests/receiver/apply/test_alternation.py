"""One identity in two places (SPEC B1, Alternation): what tells, when it is too much, and how that ends."""

from typing import Any

import psycopg
import pytest

from receiver.apply import duplicates, trust
from receiver.apply.act import act
from receiver.apply.identity import resolve_identity
from receiver.apply.session import CHANNEL, DISBELIEVED, Over, Revoked, hello, over
from receiver.errors import Refused
from receiver.planning.view import ConditionRow
from receiver.store import certificates
from receiver.store.database import Connection
from tests.receiver.builders import NODE, OTHER, apply, host, told
from tests.receiver.certified import Machine, issue

SECURITY = ["security.node.duplicate-session"] * 4 + ["security.node.quarantined"]


def two(tx: Connection, certificate: str = "aa") -> tuple[Machine, Machine]:
    """A machine with a session, and a copy of its data_dir on another one."""
    machine = Machine("i1", issue(tx, certificate))
    machine.hello(tx)
    return machine, Machine("copy", certificate, "boot-2", machine.epoch, "i0")


def dance(tx: Connection, machine: Machine, copy: Machine, times: int) -> list[bool]:
    """The one takes the session from the other, in turns: whether each was quarantined."""
    return [(copy, machine)[number % 2].hello(tx).quarantined for number in range(times)]


def alternations(tx: Connection) -> list[bool]:
    return [row[0] for row in tx.execute("SELECT alternation FROM sessions ORDER BY epoch").fetchall()]


def conditions(tx: Connection) -> list[tuple[Any, ...]]:
    return tx.execute("SELECT status, reason, no_schedule FROM conditions WHERE type = 'DuplicateIdentity'").fetchall()


def reasons(tx: Connection) -> list[str]:
    row = tx.execute("SELECT no_schedule_reasons FROM nodes WHERE id = %s", [NODE]).fetchone()
    assert row is not None
    return [one["type"] for one in row[0]]


# -- what an alternation is


def test_a_copy_that_takes_the_session_and_loses_it_is_told_of_each_time(tx: Connection) -> None:
    machine, copy = two(tx)
    assert copy.hello(tx).epoch == 2  # it knows the epoch of its copy: no alternation yet
    machine.hello(tx)
    copy.hello(tx)
    assert alternations(tx) == [False, False, True, True]
    rows = tx.execute("SELECT payload FROM events WHERE type = 'security.node.duplicate-session' ORDER BY seq").fetchall()
    assert [(row[0]["epoch"], row[0]["previousEpoch"]) for row in rows] == [(3, 1), (4, 2)]
    assert conditions(tx) == []


def test_the_current_epoch_is_no_alternation_whatever_the_machine_says_of_itself(tx: Connection) -> None:
    machine, _ = two(tx)
    for number in range(20):
        machine.boot, machine.instance, machine.before = f"boot-{number}", f"i-{number}", ""
        machine.hello(tx)
    assert not any(alternations(tx))


def test_the_current_session_s_machine_and_instance_is_none_whatever_the_epoch(tx: Connection) -> None:
    machine, _ = two(tx)
    for epoch in (None, 1, 999):
        machine.epoch = epoch
        machine.lost(tx)
    assert not any(alternations(tx))


def test_a_bcd_that_is_killed_before_it_keeps_its_epoch_is_not_taken_for_a_copy(tx: Connection) -> None:
    machine, _ = two(tx)
    for number in range(200):
        machine.lost(tx)
        machine.restart(f"i1-{number}")
        machine.hello(tx) if number % 3 else machine.lost(tx)
        machine.restart(f"i2-{number}")
    assert not any(alternations(tx))
    assert told(tx, "security.") == []


def test_the_previous_instance_counts_in_the_same_boot_alone_and_an_empty_one_is_nobody_s(tx: Connection) -> None:
    machine, _ = two(tx)
    Machine("x", "aa", "boot-2", None, "i1").lost(tx)
    assert alternations(tx)[-1]
    Machine("", "aa", "boot-2", 2).lost(tx)
    Machine("y", "aa", "boot-2", None, "").lost(tx)
    assert alternations(tx)[-1], "of who had an empty instance id"
    assert machine.epoch == 1


def test_a_vm_that_was_cloned_with_its_memory_is_two_machines_once_it_has_been_superseded(tx: Connection) -> None:
    machine = Machine("i1", issue(tx, "aa"))
    machine.hello(tx)
    clone = Machine("i1", "aa", machine.boot, machine.epoch)
    pair, quarantined = (clone, machine), []
    for number in range(8):
        one, other = pair[number % 2], pair[(number + 1) % 2]
        quarantined.append(one.hello(tx).quarantined)
        if quarantined[-1]:
            break
        other.restart(f"{'machine' if other is machine else 'clone'}-{number}")  # told `superseded`: a new instance id
    assert (quarantined[-1], len(quarantined) <= 7) == (True, True)
    assert told(tx, "security.") == SECURITY


# -- too many


def test_the_fourth_within_ten_minutes_revokes_the_certificate_and_nobody_has_a_session(database: str, tx: Connection) -> None:
    machine, copy = two(tx)
    issue(tx, "renewed")
    issue(tx, "other", OTHER)
    assert dance(tx, machine, copy, 4) == [False] * 4  # the first is none
    tx.commit()
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute(f"LISTEN {CHANNEL}")
        listener.execute(f"LISTEN {DISBELIEVED}")
        assert dance(tx, machine, copy, 1) == [True]
        tx.commit()
        heard = [(one.channel, one.payload) for one in listener.notifies(timeout=0.5)]
    assert heard == [(DISBELIEVED, f"{NODE} 6 revoked")], "both streams are told that, and none that it is superseded"
    assert told(tx, "security.") == SECURITY
    payload = tx.execute("SELECT payload FROM events WHERE type = 'security.node.quarantined'").fetchall()
    assert payload == [({"reason": "duplicate-identity", "schemaVersion": 1},)]
    rows = tx.execute("SELECT fingerprint, revoked_reason FROM certificates ORDER BY fingerprint").fetchall()
    assert rows == [("aa", "duplicate-identity"), ("other", None), ("renewed", "duplicate-identity")]
    assert (conditions(tx), reasons(tx)) == ([("true", "DuplicateSession", True)], ["DuplicateIdentity"])
    assert tx.execute("SELECT end_reason FROM sessions ORDER BY epoch DESC LIMIT 2").fetchall() == [("revoked",), ("superseded",)]
    assert tx.execute("SELECT connected FROM nodes WHERE id = %s", [NODE]).fetchone() == (False,)
    assert over(tx, {NODE: 5}) == [Over(NODE, 5, "revoked")]
    for one in (machine, copy):
        with pytest.raises(Revoked, match="duplicate-identity"):
            one.hello(tx)
    assert len(alternations(tx)) == 6


def test_alternations_of_longer_ago_than_ten_minutes_are_forgotten(tx: Connection) -> None:
    machine, copy = two(tx)
    dance(tx, machine, copy, 4)
    tx.execute("UPDATE sessions SET started_at = started_at - interval '10 minutes' WHERE epoch = 3")
    assert dance(tx, machine, copy, 1) == [False]
    tx.execute("UPDATE sessions SET started_at = started_at - interval '599 seconds' WHERE epoch > 3")
    assert dance(tx, copy, machine, 1) == [True]


def test_another_node_s_alternations_do_not_count(tx: Connection) -> None:
    machine, copy = two(tx)
    dance(tx, machine, copy, 4)
    third = Machine("i1", issue(tx, "bb", OTHER))
    third.hello(tx, OTHER)
    assert not Machine("z", "bb", "boot-9").hello(tx, OTHER).quarantined


def test_on_an_insecure_receiver_there_is_nothing_to_revoke_and_it_is_told_all_the_same(tx: Connection) -> None:
    machine, copy = Machine("i1"), Machine("copy", None, "boot-2")
    assert dance(tx, copy, machine, 5) == [False] * 4 + [True]
    assert (told(tx, "security."), conditions(tx)) == (SECURITY, [("true", "DuplicateSession", True)])


def test_a_tenant_s_machine_is_quarantined_too_and_the_reason_stands_once_the_lease_has_ended(tx: Connection) -> None:
    machine, copy = two(tx)
    trust.set_trust(tx, NODE, "tenant-controlled", "lease-1")
    assert dance(tx, machine, copy, 5)[-1]
    trust.set_trust(tx, NODE, "platform")
    assert (conditions(tx), reasons(tx)) == ([("true", "DuplicateSession", True)], ["DuplicateIdentity"])


# -- how it ends


def quarantined(tx: Connection) -> tuple[Machine, Machine]:
    machine, copy = two(tx)
    apply(tx, host())
    dance(tx, machine, copy, 5)
    assert conditions(tx) == [("true", "DuplicateSession", True)]
    return machine, copy


def rejoin(tx: Connection, fingerprint: str) -> str:
    """As Join does with a token that is bound to the node."""
    certificates.revoke_all(tx, NODE, "rejoined")
    act(tx, NODE, duplicates.end(duplicates.SESSION))
    return issue(tx, fingerprint)


def test_no_inventory_and_no_report_ends_it(tx: Connection) -> None:
    quarantined(tx)
    apply(tx, host(1))
    assert (conditions(tx), reasons(tx)) == ([("true", "DuplicateSession", True)], ["DuplicateIdentity"])


def test_joining_again_ends_no_dispute_about_a_gpu(tx: Connection) -> None:
    quarantined(tx)
    owned = ConditionRow("DuplicateIdentity", "GPU-1", reason="DeviceOwned", evidence={"otherNode": OTHER})
    act(tx, NODE, lambda facts, draft: draft.put("conditions", owned))
    rejoin(tx, "new")
    assert sorted(conditions(tx)) == [("false", "", False), ("true", "DeviceOwned", True)]


def test_the_machine_that_joined_again_has_the_session_to_itself(tx: Connection) -> None:
    machine, copy = quarantined(tx)
    machine.certificate = rejoin(tx, "new")
    assert (conditions(tx), reasons(tx)) == ([("false", "", False)], [])
    machine.hello(tx)
    assert told(tx, "security.") == SECURITY, "it is no alternation that the last session was the copy's"
    with pytest.raises(Revoked, match="duplicate-identity"):
        copy.hello(tx)
    machine.restart("i9")
    assert machine.hello(tx).epoch == 8


def test_the_alternations_before_it_joined_again_count_no_more(tx: Connection) -> None:
    machine, _ = quarantined(tx)
    machine.certificate = rejoin(tx, "new")
    machine.hello(tx)
    copy = Machine("copy-2", "new", "boot-3", machine.epoch)
    assert dance(tx, machine, copy, 5) == [False] * 4 + [True]


def test_keep_ends_the_condition_and_brings_no_certificate_back(tx: Connection) -> None:
    machine, _ = quarantined(tx)
    resolve_identity(tx, NODE, "keep", by="eva", reason="the copy was thrown away")
    assert (conditions(tx), reasons(tx)) == ([("false", "", False)], [])
    with pytest.raises(Revoked, match=r"joinTokens\.create"):
        machine.hello(tx)


def test_reject_retires_the_node_and_distinct_tells_no_sessions_apart(tx: Connection) -> None:
    quarantined(tx)
    with pytest.raises(Refused, match="DuplicateSession"):
        resolve_identity(tx, NODE, "distinct")
    resolve_identity(tx, NODE, "reject")
    assert conditions(tx) == [("false", "", False)]
    assert tx.execute("SELECT status FROM nodes").fetchall() == [("retired",)]


def test_previous_epochs_that_cannot_have_been_are_an_alternation_as_any_other(tx: Connection) -> None:
    machine, _ = two(tx)
    hello(tx, NODE, Machine("x", "aa", "boot-2", 1 << 62).facts())
    assert alternations(tx) == [False, True]
    assert machine.epoch == 1
