"""Applying inventories: idempotent, serialized per node, all or nothing (SPEC A3, B2)."""

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.ids import is_id

from receiver.apply.inventory import Superseded, apply_inventory, plan_loaded, plan_rows, wanted, write
from receiver.ids import mint
from receiver.store import inventory as store
from receiver.store.database import Connection, open_pool, transact
from receiver.store.hashes import unpack
from tests.receiver.builders import (
    NODE,
    OTHER,
    apply,
    count,
    disk,
    disks,
    gpu,
    gpus,
    host,
    join,
    offer,
    told,
)


def node(tx: Connection, column: str) -> Any:
    row = tx.execute(f"SELECT {column} FROM nodes WHERE id = %s", [NODE]).fetchone()
    assert row is not None
    return row[0]


# Of the snapshot and its diff; what follows from them, a GPU that is lost meanwhile, is told beside them.
TOLD = {
    *("node.inventory.changed", "node.images.changed", "node.gpu.missing", "node.gpu.added", "node.disk.replaced"),
    *("node.driver.changed", "node.mig.layout.changed"),
}


def applied(tx: Connection) -> list[str]:
    """Types of the events that tell of snapshots and their differences, in order."""
    return [one for one in told(tx) if one in TOLD]


def written(tx: Connection) -> list[Any]:
    """Every row that an apply may write, with the transaction that wrote it."""
    tables = (
        "nodes",
        "sections",
        "tenant_sections",
        "inventory_snapshots",
        "node_missing_sections",
        "events",
    )
    return [row for table in tables for row in tx.execute(f"SELECT '{table}', ctid, xmin, xmax FROM {table} ORDER BY ctid")]


def test_first_offer_appends_a_snapshot_and_tells_of_all_sections(tx: Connection) -> None:
    join(tx)
    outcome = apply(tx, host())
    assert outcome.status == "applied"
    assert applied(tx) == ["node.inventory.changed"]
    row = tx.execute("SELECT payload, tenant_id, node_id FROM events WHERE type = 'node.inventory.changed'").fetchone()
    assert row is not None
    payload, tenant, of = row
    assert payload == {
        "snapshotId": outcome.snapshot_id,
        "digest": outcome.digest,
        "sections": sorted(host()),
        "changes": [],
        "schemaVersion": 1,
    }
    assert (tenant, of) == ("default", NODE)
    assert node(tx, "applied_digest") == outcome.digest
    assert node(tx, "applied_snapshot_id") == node(tx, "latest_snapshot_id") == outcome.snapshot_id


def test_stores_the_bytes_as_they_came(tx: Connection) -> None:
    join(tx)
    apply(tx, host())
    stored = {bytes(row[0]) for row in tx.execute("SELECT body FROM sections")}
    assert stored == set(host().values())
    assert count(tx, "tenant_sections") == 8


def test_idempotent_when_the_same_offer_comes_twice(tx: Connection) -> None:
    join(tx)
    first = apply(tx, host())
    tx.commit()
    before = written(tx)
    second = apply_inventory(tx, NODE, offer(host()), {})
    tx.commit()
    assert (second.status, second.snapshot_id) == ("unchanged", first.snapshot_id)
    # The row lock of the second one shows in nodes.xmax; nothing else may differ.
    assert [row[:3] for row in written(tx)] == [row[:3] for row in before]


def test_an_offer_of_a_superseded_session_is_not_applied_over_a_newer_one(tx: Connection) -> None:
    first, second = join(tx), join(tx)
    newer = apply_inventory(tx, NODE, offer(host(3)), host(3), second)
    tx.commit()
    before = written(tx)
    with pytest.raises(Superseded):
        apply_inventory(tx, NODE, offer(host(2)), host(2), first)
    tx.commit()
    assert [row[:3] for row in written(tx)] == [row[:3] for row in before]
    assert node(tx, "applied_digest") == newer.digest


def test_appends_three_snapshots_for_a_b_a(tx: Connection) -> None:
    join(tx)
    statuses = [apply(tx, bodies).status for bodies in (host(2), host(3), host(2))]
    assert statuses == ["applied"] * 3
    digests = [row[0] for row in tx.execute("SELECT digest FROM inventory_snapshots ORDER BY seq")]
    assert digests == [offer(host(2)).digest, offer(host(3)).digest, offer(host(2)).digest]


def test_one_event_per_change_after_the_one_for_all(tx: Connection) -> None:
    join(tx)
    apply(tx, host())
    replaced = disks(disk("nvme0n1", "S6CKNE0W100001"), disk("nvme1n1", "S6CKNE0W999999"))
    outcome = apply(tx, host(gpus=gpus(gpu(1), driver="570.1"), disks=replaced))
    assert applied(tx)[1:] == ["node.inventory.changed", "node.gpu.missing", "node.disk.replaced", "node.driver.changed"]
    changed, missing = (
        tx.execute("SELECT payload FROM events WHERE type = %s ORDER BY seq DESC", [name]).fetchall()[0][0]
        for name in ("node.inventory.changed", "node.gpu.missing")
    )
    assert changed["sections"] == ["disks", "gpus"]
    assert [one["type"] for one in changed["changes"]] == ["gpu.missing", "disk.replaced", "driver.changed"]
    assert (missing["deviceId"], missing["snapshotId"], missing["after"]) == ("GPU-00000000", outcome.snapshot_id, None)
    assert missing["before"]["serial"] == "165000"


def test_images_alone_publish_their_own_event(tx: Connection) -> None:
    join(tx)
    apply(tx, host())
    apply(tx, host(images=pb.ImagesSection(images=[pb.Image(name="ubuntu", source="directory")])))
    assert applied(tx) == ["node.inventory.changed", "node.images.changed"]


def test_offer_that_only_lacks_a_section_appends_nothing_and_keeps_its_error(tx: Connection) -> None:
    join(tx)
    first = apply(tx, host())
    lacking = host(gpus=None)
    outcome = apply_inventory(tx, NODE, offer(lacking, gpus="Hang: no answer in 60 s"), {})
    assert (outcome.status, outcome.snapshot_id) == ("unchanged", first.snapshot_id)
    assert count(tx, "inventory_snapshots") == 1
    rows = tx.execute("SELECT name, error, source, last_snapshot_id FROM node_missing_sections").fetchall()
    assert rows == [("gpus", "Hang: no answer in 60 s", "report", first.snapshot_id)]
    assert node(tx, "applied_digest") == offer(lacking).digest, "or it would be asked for again with every report"
    assert apply_inventory(tx, NODE, offer(host()), {}).status == "unchanged"
    assert count(tx, "node_missing_sections") == 0
    assert node(tx, "applied_digest") == offer(host()).digest


def test_nothing_is_missing_while_a_section_is_left_out(tx: Connection) -> None:
    join(tx)
    apply(tx, host())
    apply(tx, host(gpus=None, os=pb.OsSection(kernel_release="6.8.0")), gpus="Settling")
    assert applied(tx) == ["node.inventory.changed"] * 2


def test_lost_gpu_is_told_when_its_section_returns(tx: Connection) -> None:
    join(tx)
    apply(tx, host(2))
    apply(tx, host(gpus=None, os=pb.OsSection(kernel_release="6.8.0")), gpus="Settling")
    apply(tx, host(1, os=pb.OsSection(kernel_release="6.8.0")))
    assert applied(tx)[2:] == ["node.inventory.changed", "node.gpu.missing"]


def unlisting(*numbers: int, on_pci: int = 3, **more: Any) -> dict[str, bytes]:
    """A host of which NVML lists these GPUs, and PCI shows `on_pci` of them."""
    return host(gpus=gpus(*(gpu(number) for number in numbers), on_pci=on_pci, **more))


def test_gpu_that_is_only_unlisted_for_a_while_is_not_added_when_it_returns(tx: Connection) -> None:
    join(tx)
    for bodies in (unlisting(0, 1, 2), unlisting(0, 1), unlisting(0, 1, driver="570.1"), unlisting(0, 1, 2, driver="570.1")):
        assert apply(tx, bodies).status == "applied"
    assert [one for one in applied(tx) if one.startswith("node.gpu")] == []
    assert told(tx, "node.driver") == ["node.driver.changed"]
    assert node(tx, "jsonb_array_length(section_baselines -> 'gpus')") == 2, "it is listed again: nothing to remember"


def test_gpu_that_is_unlisted_first_and_leaves_pci_then_is_missing_once(tx: Connection) -> None:
    join(tx)
    for bodies in (
        unlisting(0, 1, 2),
        unlisting(0, 1),
        host(gpus=gpus(error="Unknown", driver="", cuda="")),
        unlisting(0, 1, driver="570.1"),
        unlisting(0, 1, on_pci=2),
        unlisting(0, 1, on_pci=2, driver="580.1"),
    ):
        assert apply(tx, bodies).status == "applied"
    assert [one for one in applied(tx) if one.startswith("node.gpu")] == ["node.gpu.missing"]
    row = tx.execute("SELECT payload FROM events WHERE type = 'node.gpu.missing'").fetchone()
    assert row is not None
    assert (row[0]["deviceId"], row[0]["before"]["serial"]) == ("GPU-00000002", "165002")


def test_gpu_that_took_the_place_of_an_unlisted_one_replaced_it(tx: Connection) -> None:
    join(tx)
    for bodies in (unlisting(0, 1), unlisting(0), host(gpus=gpus(gpu(0), gpu(1, uuid="GPU-new"), on_pci=2))):
        apply(tx, bodies)
    assert [one for one in applied(tx) if one.startswith("node.gpu")] == ["node.gpu.missing", "node.gpu.added"]


def test_errored_gpus_count_as_missing_but_their_bytes_are_kept(tx: Connection) -> None:
    join(tx)
    first = apply(tx, host(2))
    errored = host(gpus=gpus(error="VersionMismatch", driver="", cuda=""))
    outcome = apply(tx, errored)
    assert outcome.status == "applied"
    assert applied(tx) == ["node.inventory.changed"] * 2
    rows = tx.execute("SELECT name, error, source, last_snapshot_id FROM node_missing_sections").fetchall()
    assert rows == [("gpus", "VersionMismatch: NVML: driver/library version mismatch", "section", first.snapshot_id)]
    assert count(tx, "sections") == 9
    apply(tx, host(1))
    assert applied(tx)[2:] == ["node.inventory.changed", "node.gpu.missing"], "the baseline is the last good section"
    assert count(tx, "node_missing_sections") == 0


def test_errored_gpus_stay_missing_when_they_are_offered_again(tx: Connection) -> None:
    join(tx)
    apply(tx, host(2))
    errored = host(gpus=gpus(error="Error", driver="", cuda=""))
    apply(tx, errored)
    tx.commit()
    before = written(tx)
    assert apply_inventory(tx, NODE, offer(errored), {}).status == "unchanged"
    tx.commit()
    assert [row[:3] for row in written(tx)] == [row[:3] for row in before]


def test_second_node_of_a_tenant_sends_no_bytes(tx: Connection) -> None:
    join(tx)
    assert wanted(tx, NODE, offer(host())) == sorted(host())
    apply(tx, host())
    join(tx, OTHER)
    assert wanted(tx, OTHER, offer(host())) == []
    assert apply_inventory(tx, OTHER, offer(host()), {}).status == "applied"
    assert count(tx, "sections") == 8


def test_node_of_another_tenant_must_send_the_bytes(tx: Connection) -> None:
    join(tx)
    apply(tx, host())
    join(tx, OTHER, tenant="acme")
    assert wanted(tx, OTHER, offer(host())) == sorted(host())
    outcome = apply_inventory(tx, OTHER, offer(host()), {})
    assert (outcome.status, outcome.section) == ("retry", "cpu")
    assert apply(tx, host(), OTHER).status == "applied"
    assert count(tx, "sections") == 8


def test_bytes_known_as_one_section_must_travel_as_another(tx: Connection) -> None:
    """Only bytes that were parsed as that section may be applied as it."""
    join(tx)
    apply(tx, host())
    swapped = {**host(), "cpu": host()["disks"]}
    assert wanted(tx, NODE, offer(swapped)) == ["cpu"]


def test_newer_sections_and_schema_versions_are_kept_as_they_come(tx: Connection) -> None:
    join(tx)
    bodies = {**host(), "dpus": b"\xff not ours to parse"}
    newer = offer(bodies)
    newer = replace(newer, sections=tuple(replace(one, schema_version=9) for one in newer.sections))
    assert apply_inventory(tx, NODE, newer, bodies).status == "applied"
    row = tx.execute("SELECT sections FROM inventory_snapshots").fetchone()
    assert row is not None
    assert unpack(row[0]) == newer.hashes


def _bad_hash(bodies: dict[str, bytes]) -> tuple[Any, dict[str, bytes]]:
    return offer(bodies), {**bodies, "os": bodies["os"] + b"\x00"}


def _unparsable(bodies: dict[str, bytes]) -> tuple[Any, dict[str, bytes]]:
    broken = {**bodies, "os": b"\xff\xff\xff"}
    return offer(broken), broken


def _too_big(bodies: dict[str, bytes]) -> tuple[Any, dict[str, bytes]]:
    big = {**bodies, "os": bytes((8 << 20) + 1)}
    return offer(big), big


def _lies_about_its_size(bodies: dict[str, bytes]) -> tuple[Any, dict[str, bytes]]:
    big = {**bodies, "os": bytes((8 << 20) + 1)}
    return replace(offer(big), sections=tuple(replace(one, size=9) for one in offer(big).sections)), big


def _not_offered(bodies: dict[str, bytes]) -> tuple[Any, dict[str, bytes]]:
    return offer(bodies), {**bodies, "osx": b""}


def _with_ref(**fields: Any) -> Callable[[dict[str, bytes]], tuple[Any, dict[str, bytes]]]:
    def make(bodies: dict[str, bytes]) -> tuple[Any, dict[str, bytes]]:
        whole = offer(bodies)
        return replace(
            whole, sections=tuple(replace(one, **fields) if one.name == "os" else one for one in whole.sections)
        ), bodies

    return make


@pytest.mark.parametrize(
    ("make", "section", "reason"),
    [
        (_bad_hash, "os", "have hash"),
        (_unparsable, "os", "do not parse"),
        (_too_big, "os", "8388609 bytes; a section has at most 8388608"),
        (_lies_about_its_size, "os", "8388609 bytes"),
        (_not_offered, "osx", "not offered"),
        (_with_ref(hash="ABC"), "os", "hexadecimal"),
        (_with_ref(name="../os"), "../os", "not a section's name"),
        (_with_ref(name="cpu"), "cpu", "offered 2 times"),
        (lambda bodies: (replace(offer(bodies), digest="0" * 64), bodies), "", "digest"),
        (lambda bodies: (offer(more := {**bodies, **{f"x{n}": b"" for n in range(9)}}), more), "", "17 sections"),
    ],
)
def test_refuses_with_name_and_reason_and_applies_nothing(tx: Connection, make: Any, section: str, reason: str) -> None:
    join(tx)
    tx.commit()
    before = written(tx)
    outcome = apply_inventory(tx, NODE, *make(host()))
    tx.commit()
    assert (outcome.status, outcome.section) == ("refused", section)
    assert reason in outcome.reason
    assert written(tx) == before
    assert apply(tx, host()).status == "applied", "the session goes on"


def test_offer_over_the_limit_is_not_fetched(tx: Connection) -> None:
    join(tx)
    assert wanted(tx, NODE, _too_big(host())[0]) == []


def test_unknown_node_is_our_bug(tx: Connection) -> None:
    with pytest.raises(LookupError, match=NODE):
        apply(tx, host())


def test_advisory_when_a_tenant_has_the_machine(tx: Connection) -> None:
    join(tx)
    first = apply(tx, host(2))
    tx.execute("UPDATE nodes SET trust = 'tenant-controlled'")
    baselines = tx.execute("SELECT section_baselines FROM nodes").fetchall()
    outcome = apply(tx, host(1), disks="gone")
    assert outcome.status == "advisory"
    assert applied(tx) == ["node.inventory.changed"] * 2
    row = tx.execute("SELECT payload FROM events ORDER BY seq DESC LIMIT 1").fetchone()
    assert row is not None
    assert row[0]["advisory"] is True
    assert row[0]["changes"] == []
    assert node(tx, "applied_digest") == f"advisory:{outcome.digest}"
    assert (node(tx, "applied_snapshot_id"), node(tx, "latest_snapshot_id")) == (first.snapshot_id, outcome.snapshot_id)
    assert tx.execute("SELECT section_baselines FROM nodes").fetchall() == baselines
    assert count(tx, "node_missing_sections") == 0
    again = apply(tx, host(1))
    assert (again.status, again.snapshot_id, count(tx, "inventory_snapshots")) == ("unchanged", outcome.snapshot_id, 2)


def test_advisory_for_ever_in_a_session_begun_before_trust_came_back(tx: Connection) -> None:
    join(tx)
    apply(tx, host(2))
    tx.execute("UPDATE nodes SET trust_epoch = trust_epoch + 1")
    assert apply(tx, host(1)).status == "advisory"
    join(tx)
    assert apply(tx, host(1)).status == "applied"
    assert applied(tx)[-1] == "node.gpu.missing", "compared with the platform's view, not with the tenant's word"


def test_first_inventory_of_a_tenant_controlled_node_is_advisory(tx: Connection) -> None:
    join(tx)
    tx.execute("UPDATE nodes SET trust = 'tenant-controlled'")
    assert [apply(tx, host()).status for _ in range(2)] == ["advisory", "unchanged"]
    assert node(tx, "applied_snapshot_id") is None


def test_concurrent_applies_of_one_node_serialize(database: str) -> None:
    with psycopg.connect(database) as tx:
        join(tx)
    outcomes: list[str] = []

    def work(number: int) -> None:
        with psycopg.connect(database) as tx:
            for turn in range(5):
                outcomes.append(apply(tx, host(1 + (number + turn) % 3)).status)
                tx.commit()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(outcomes) == 40
    with psycopg.connect(database) as tx:
        digests = [row[0] for row in tx.execute("SELECT digest FROM inventory_snapshots ORDER BY seq")]
        assert len(digests) == outcomes.count("applied")
        assert all(one != other for one, other in itertools.pairwise(digests)), "no digest twice in a row"
        assert node(tx, "applied_digest") == digests[-1]
        rows = tx.execute("SELECT payload FROM events WHERE type = 'node.inventory.changed' ORDER BY seq").fetchall()
        assert [row[0]["digest"] for row in rows] == digests


def test_concurrent_nodes_with_the_same_new_sections_do_not_deadlock(database: str) -> None:
    nodes = [f"node_01hf7yat00000000000000001{number}" for number in range(8)]
    with psycopg.connect(database) as tx:
        for name in nodes:
            join(tx, name)
    statuses: list[str] = []

    def work(name: str) -> None:
        for turn in range(4):
            bodies = dict(sorted(host(turn + 1).items(), reverse=hash(name) % 2 == 0))
            statuses.append(transact(pool, lambda tx, bodies=bodies: apply(tx, bodies, name)).status)  # type: ignore[misc]

    pool = open_pool(database, 8)
    threads = [threading.Thread(target=work, args=(name,)) for name in nodes]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    pool.close()
    assert statuses == ["applied"] * 32


def test_crash_in_the_middle_leaves_nothing(database: str) -> None:
    with psycopg.connect(database) as tx:
        join(tx)
    with psycopg.connect(database, autocommit=True) as other:
        before = written(other)
        tx = psycopg.connect(database)
        assert apply(tx, host()).status == "applied"
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [tx.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            tx.commit()
        tx.close()
        assert [row[:3] for row in written(other)] == [row[:3] for row in before]
    with psycopg.connect(database) as tx:
        assert apply(tx, host()).status == "applied"
        assert count(tx, "inventory_snapshots") == 1


def test_retry_when_known_bytes_are_pruned_before_the_write(database: str) -> None:
    with psycopg.connect(database) as tx, psycopg.connect(database) as pruner:
        join(tx)
        join(tx, OTHER)
        for bodies in (host(2), host(3), host(4)):
            apply(tx, bodies, OTHER)
        tx.commit()
        given = offer(host(3))
        loaded = store.load(tx, NODE, given, [])
        assert not loaded.unknown
        pruner.execute("SELECT prune_snapshots(now() + interval '1 hour')")
        pruner.commit()
        plan = plan_loaded(loaded, given, {}, mint("inv"))
        draft = plan_rows(tx, loaded, given, {}, plan)
        assert not write(tx, loaded, given, {}, plan, draft, mint)
        assert tx.execute("SELECT FROM inventory_snapshots WHERE node_id = %s", [NODE]).rowcount == 0
        assert apply_inventory(tx, NODE, given, {}).status == "retry"


def test_ids_are_prefixed_ulids(tx: Connection) -> None:
    join(tx)
    outcome = apply(tx, host())
    assert is_id(outcome.snapshot_id or "", "inv")
    assert all(is_id(row[0], "evt") for row in tx.execute("SELECT id FROM events"))


def test_nul_in_what_a_node_says_is_shown_as_a_mark(tx: Connection) -> None:
    join(tx)
    apply(tx, host(2))
    apply(tx, host(gpus=gpus(gpu(0), gpu(5, serial="16\x0050\\u0000"))), os="Error \x00")
    row = tx.execute("SELECT payload #>> '{after,serial}' FROM events WHERE type = 'node.gpu.added'").fetchone()
    assert row == ("16\ufffd50\\u0000",)
    assert tx.execute("SELECT error FROM node_missing_sections").fetchall() == [("Error \ufffd",)]


def test_offer_without_any_section_appends_nothing_and_is_not_asked_for_again(tx: Connection) -> None:
    join(tx)
    outcome = apply(tx, {}, os="Error", gpus="Hang")
    assert (outcome.status, outcome.snapshot_id) == ("unchanged", None)
    assert count(tx, "inventory_snapshots") == 0
    assert node(tx, "applied_digest") == outcome.digest
    assert count(tx, "node_missing_sections") == 2
    assert apply(tx, host()).status == "applied"
