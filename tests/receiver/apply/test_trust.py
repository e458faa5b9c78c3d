"""SPEC B2, "Trust", sentence by sentence: what a tenant who has root says, and what comes of it."""

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from receiver.apply import command, nodes, trust
from receiver.apply.act import act
from receiver.apply.session import DISBELIEVED, Over, hello, hello_again, over
from receiver.apply.status import record_status
from receiver.apply.telemetry import record_host_pressure
from receiver.errors import Invalid, Refused
from receiver.planning.telemetry import Conclusion
from receiver.store import view
from receiver.store.database import Connection
from receiver.values import Condition, Driver, Fault, Status
from tests.receiver.builders import FACTS, NODE, apply, count, gpu, gpus, host, join, offer, told

LEASE = "lease-1"
XID = Fault("xid", 79, "GPU-00000000", "00000000:18:00.0", 1, "79, GPU has fallen off the bus.")
FABRIC = Condition("FabricManagerDown", "true", "Stopped", "it is stopped")
LIES = {"a GPU gone": host(1), "GPUs lost": host(gpus=gpus(gpu(0, state="lost"), gpu(1))), "no GPUs": host(0)}
# What the platform sees of a node, and a tenant does not change. (The epoch and the reports themselves are the session's.)
VIEW = (
    "devices",
    "atoms",
    "device_health",
    "device_history",
    "node_labels",
    "conditions",
    "node_faults",
    "hardware_keys",
    "mig_generations",
)
COLUMNS = """status, pool_id, no_schedule_reasons, would_no_schedule, applied_snapshot_id, section_baselines, baseline, plan_key,
  attempt, inventory_boot"""


def column(tx: Connection, name: str) -> Any:
    row = tx.execute(f"SELECT {name} FROM nodes WHERE id = %s", [NODE]).fetchone()
    assert row is not None
    return row[0]


def seen(tx: Connection) -> list[Any]:
    rows = [tx.execute(f"SELECT {COLUMNS} FROM nodes").fetchall()]
    return rows + [tx.execute(f"SELECT t FROM {table} t ORDER BY t").fetchall() for table in VIEW]


def report(tx: Connection, epoch: int, *conditions: Condition, faults: tuple[Fault, ...] = (), digest: str = "") -> bool:
    return record_status(tx, NODE, epoch, Status(digest, conditions=conditions, faults=faults))


def leased(tx: Connection) -> int:
    """A node in service, then a tenant's; its session's epoch."""
    epoch = join(tx)
    apply(tx, host())
    trust.set_trust(tx, NODE, "tenant-controlled", LEASE)
    return epoch


# -- while tenant-controlled


@pytest.mark.parametrize("lie", LIES)
def test_an_apply_appends_an_advisory_snapshot_and_that_is_all(tx: Connection, lie: str) -> None:
    leased(tx)
    before, events = seen(tx), count(tx, "events")
    outcome = apply(tx, LIES[lie])
    assert outcome.status == "advisory"
    assert seen(tx) == before
    assert column(tx, "applied_digest") == f"advisory:{offer(LIES[lie]).digest}"
    assert tx.execute("SELECT advisory FROM inventory_snapshots ORDER BY seq").fetchall() == [(False,), (True,)]
    (event,) = tx.execute("SELECT type, payload FROM events ORDER BY seq OFFSET %s", [events]).fetchall()
    assert event[0] == "node.inventory.changed"
    assert (event[1]["advisory"], event[1]["changes"]) == (True, [])


def test_xids_open_nothing_and_are_not_told(tx: Connection) -> None:
    epoch = leased(tx)
    before, events = seen(tx), count(tx, "events")
    report(tx, epoch, faults=(XID,))
    assert (seen(tx), count(tx, "events")) == (before, events)


def test_status_conditions_are_recorded_as_advisory_and_are_no_reason(tx: Connection) -> None:
    epoch = leased(tx)
    report(tx, epoch, FABRIC)
    rows = tx.execute("SELECT type, status, advisory, no_schedule FROM conditions WHERE type = 'FabricManagerDown'").fetchall()
    assert rows == [("FabricManagerDown", "true", True, False)]
    assert column(tx, "no_schedule_reasons") == []


def test_reasons_that_stood_when_the_lease_began_stand_until_it_ends(tx: Connection) -> None:
    epoch = join(tx)
    apply(tx, host())
    report(tx, epoch, FABRIC, faults=(XID,))
    stood = column(tx, "no_schedule_reasons")
    assert {one["type"] for one in stood} == {"FabricManagerDown", "Xid79"}
    trust.set_trust(tx, NODE, "tenant-controlled", LEASE)
    report(tx, epoch)
    report(tx, hello(tx, NODE, replace(FACTS, boot_id="boot-2")).epoch)
    assert column(tx, "no_schedule_reasons") == stood
    trust.set_trust(tx, NODE, "platform")
    assert column(tx, "no_schedule_reasons") == stood
    report(tx, hello(tx, NODE, replace(FACTS, boot_id="boot-2")).epoch)
    assert {one["type"] for one in column(tx, "no_schedule_reasons")} == {"Xid79"}


def test_a_hello_writes_no_labels(tx: Connection) -> None:
    leased(tx)
    before = seen(tx)
    hello(tx, NODE, replace(FACTS, drivers=(Driver("libvirt-kvm", "10.0.0", ("vm",)),)))
    assert seen(tx) == before


def test_acceptance_does_not_run_and_what_was_known_before_the_lease_passes_nobody(tx: Connection) -> None:
    join(tx)
    trust.set_trust(tx, NODE, "tenant-controlled", LEASE)
    apply(tx, host())
    assert column(tx, "status") == "adopting"
    trust.set_trust(tx, NODE, "platform")
    apply(tx, host())  # of the session that the tenant had
    assert column(tx, "status") == "adopting"
    epoch = join(tx)
    report(tx, epoch, digest=offer(host()).digest)
    assert column(tx, "status") == "adopting"
    apply(tx, host())
    assert column(tx, "status") == "adopted"


def test_only_a_refresh_of_the_inventory_is_sent(tx: Connection) -> None:
    epoch = leased(tx)
    for kind in ("node.reboot", "inventory.refresh", "diag.nvml"):
        command.queue(tx, NODE, kind, {}, f"key:{kind}")
    assert [one.kind for one in command.due(tx, NODE, epoch, [])] == ["inventory.refresh"]


def test_an_operator_s_plan_of_a_tenant_s_node_changes_nothing(tx: Connection) -> None:
    leased(tx)
    apply(tx, host(1))
    before = seen(tx)
    act(tx, NODE, lambda facts, draft: None, inventory_too=True)
    assert seen(tx) == before


@pytest.mark.parametrize("kind", ["CpuPressure", "MemoryPressure", "IoPressure", "CpuSteal", "ClockSkew"])
def test_pressure_and_skew_raise_nothing_and_are_not_told(tx: Connection, kind: str) -> None:
    epoch = leased(tx)
    before, events = seen(tx), count(tx, "events")
    assert record_host_pressure(tx, NODE, [Conclusion(kind, "true", "High", "cpu some avg10 is 97 %")], epoch)
    assert (seen(tx), count(tx, "events")) == (before, events)


# -- back to the platform


def test_the_end_of_a_lease_clears_the_advisory_digest_and_the_next_report_is_applied_even_if_it_is_the_applied_one(
    tx: Connection,
) -> None:
    leased(tx)
    apply(tx, host(1))
    trust.set_trust(tx, NODE, "platform")
    assert (column(tx, "applied_digest"), column(tx, "trust"), column(tx, "lease_id")) == (None, "platform", None)
    start = hello(tx, NODE, FACTS)
    assert start.applied_digest is None
    assert apply(tx, host()).status == "unchanged"
    assert column(tx, "applied_digest") == offer(host()).digest


def test_what_the_tenant_took_out_is_missing_once_the_platform_has_the_node_again(tx: Connection) -> None:
    leased(tx)
    apply(tx, host(1))
    trust.set_trust(tx, NODE, "platform")
    join(tx)
    assert apply(tx, host(1)).status == "applied"
    assert "node.gpu.missing" in told(tx)
    assert tx.execute("SELECT id FROM devices").fetchall() == [("GPU-00000000",)]


def test_reports_of_a_session_begun_before_the_trust_epoch_are_advisory_for_ever(tx: Connection) -> None:
    epoch = leased(tx)
    trust.set_trust(tx, NODE, "platform")
    before = seen(tx)
    for _ in range(2):
        assert apply(tx, host(1)).status in ("advisory", "unchanged")
        report(tx, epoch, faults=(XID,))
        hello_again(tx, NODE, epoch, replace(FACTS, drivers=(Driver("slurm", "23.11", ()),)))
    assert seen(tx) == before
    assert hello(tx, NODE, FACTS).applied_digest is None  # not what the old session offered meanwhile
    assert apply(tx, host(1)).status == "applied"


def test_the_session_that_the_tenant_had_ends_and_the_one_after_it_does_not(database: str, tx: Connection) -> None:
    epoch = leased(tx)
    tx.commit()
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute(f"LISTEN {DISBELIEVED}")
        trust.set_trust(tx, NODE, "platform")
        tx.commit()
        assert [one.payload for one in listener.notifies(timeout=5, stop_after=1)] == [f"{NODE} {epoch} draining"]
    assert (over(tx, {NODE: epoch}), view.load(tx, NODE)[0].online) == ([Over(NODE, epoch, "draining")], False)
    epoch = join(tx)
    assert (over(tx, {NODE: epoch}), view.load(tx, NODE)[0].online) == ([], True)


def test_a_lease_s_begin_ends_no_session(tx: Connection) -> None:
    assert over(tx, {NODE: leased(tx)}) == []


# -- what is taken


def test_saying_it_again_changes_nothing(tx: Connection) -> None:
    for words in (("tenant-controlled", LEASE), ("platform", None)):
        join(tx)
        trust.set_trust(tx, NODE, *words)
        row = tx.execute("SELECT n FROM nodes n").fetchall()
        trust.set_trust(tx, NODE, *words)
        assert tx.execute("SELECT n FROM nodes n").fetchall() == row


def test_a_late_end_of_one_lease_does_not_end_the_next(tx: Connection) -> None:
    leased(tx)
    refused = f"lease {LEASE} has the node, not lease-"
    with pytest.raises(Refused, match=refused):
        trust.set_trust(tx, NODE, "platform", "lease-0")
    with pytest.raises(Refused, match=refused):
        trust.end_advisory_inventory(tx, NODE, "lease-0")
    with pytest.raises(Refused, match=refused):
        trust.set_trust(tx, NODE, "tenant-controlled", "lease-2")
    trust.set_trust(tx, NODE, "platform", LEASE)
    assert column(tx, "trust") == "platform"


@pytest.mark.parametrize(
    ("words", "named"),
    [(("tenant-controlled", None), "leaseId"), (("tenant-controlled", ""), "leaseId"), (("mine", LEASE), "mine")],
)
def test_a_lease_needs_its_id_and_trust_one_of_two_words(tx: Connection, words: tuple[str, str | None], named: str) -> None:
    join(tx)
    with pytest.raises(Invalid, match=named):
        trust.set_trust(tx, NODE, *words)


def test_a_node_that_is_out_or_is_not_there_is_no_tenant_s(tx: Connection) -> None:
    join(tx)
    nodes.retire(tx, NODE)
    with pytest.raises(Refused, match="retired"):
        trust.set_trust(tx, NODE, "tenant-controlled", LEASE)
    for words in (("tenant-controlled", LEASE), ("platform", None)):
        with pytest.raises(LookupError):
            trust.set_trust(tx, "node_00000000000000000000000000", *words)
