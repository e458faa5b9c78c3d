"""What an applied inventory says against a GPU (SPEC B4, "Findings")."""

from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.checks import gpus as checks
from agent.collectors import gpu_facts
from receiver.planning.findings import FINDINGS, GONE, OFF, RECOVERY, RETIRED_PAGES, plan
from receiver.planning.policy import parse
from receiver.planning.view import Device, Draft, Facts, Health, Pool
from tests.receiver.builders import gpu, gpus

GPU = gpu(0).uuid
ECC_ON = pb.Ecc(current=True, volatile=pb.EccCounts(total=0, sram=0, dram=0), sram_threshold_exceeded=False)
WELL: dict[str, Any] = {"ecc": ECC_ON, "row_remap": pb.RowRemap(), "recovery_action": "none"}


def ecc(current: bool | None = True, exceeded: bool | None = False, **volatile: int) -> pb.Ecc:
    return pb.Ecc(current=current, volatile=pb.EccCounts(**volatile), sram_threshold_exceeded=exceeded)


ILL: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("GpuLost", {"state": "lost"}, {"busId": gpu(0).bus_id}),
    ("EccUncorrectable", {"ecc": ecc(total=1, sram=0, dram=1)}, {"dram": 1, "total": 1}),
    ("EccUncorrectable", {"ecc": ecc(sram=2)}, {"sram": 2}),
    ("EccUncorrectable", {"ecc": ecc(total=3)}, {"total": 3}),
    ("RowRemapPending", {"row_remap": pb.RowRemap(pending=True)}, {"rowRemap": True}),
    ("RowRemapPending", {"row_remap": None, "retired_pages": pb.RetiredPages(pending=True)}, {"retiredPages": True}),
    ("RowRemapFailure", {"row_remap": pb.RowRemap(failure=True)}, {"rowRemap": True}),
    ("RowRemapFailure", {"row_remap": None, "retired_pages": pb.RetiredPages(single_bit=60, double_bit=4)}, {"retiredPages": 64}),
    ("SramThresholdExceeded", {"ecc": ecc(total=0, exceeded=True)}, {"sramThresholdExceeded": True}),
    ("RecoveryActionRequired", {"recovery_action": "gpu-reset"}, {"recoveryAction": "gpu-reset"}),
    ("RecoveryActionRequired", {"recovery_action": "unknown-9"}, {"recoveryAction": "unknown-9"}),
]


def planned(*listed: pb.Gpu, stored: Draft | None = None, policy: dict[str, Any] | None = None, **facts: Any) -> Draft:
    """The draft with what this inventory finds; planning it again plans nothing."""
    pool = None if policy is None else Pool("pool_1", policy=parse(policy))
    known = Facts("node_1", pool=pool, sections={"gpus": gpus(*listed)}, **facts)
    draft = (stored or Draft()).copy()
    plan(known, draft)
    again = draft.copy()
    plan(known, again)
    assert again == draft, "planning twice plans nothing"
    return draft


def found(draft: Draft) -> dict[str, dict[str, Any]]:
    """The values of what is open, by code."""
    return {row.code: dict(row.detail) for row in draft.health.values() if row.open}


def closed(draft: Draft, code: str, reason: str = "cleared by operator: why") -> Draft:
    """The same with this row closed."""
    row = draft.health[GPU, "inventory", code, ""]
    after = draft.copy()
    after.put("health", Health(row.device_id, row.source, row.code, detail=row.detail, closed_reason=reason))
    return after


def test_a_gpu_in_good_health_has_no_finding() -> None:
    assert planned(gpu(0, **WELL), gpu(1)).health == {}


@pytest.mark.parametrize(("code", "fields", "values"), ILL)
def test_what_nvml_shows_is_a_finding_with_its_values(code: str, fields: dict[str, Any], values: dict[str, Any]) -> None:
    draft = planned(gpu(0, **{**WELL, **fields}), gpu(1, **WELL))
    assert found(draft) == {code: values}
    assert {row.device_id for row in draft.health.values()} == {GPU}


@pytest.mark.parametrize(
    ("fields"),
    [
        {"ecc": ecc(current=False, total=7, dram=7)},  # counted before it was switched off
        {"ecc": pb.Ecc(current=True, volatile=pb.EccCounts(total=0), aggregate=pb.EccCounts(total=9))},  # of the board's life
        {"row_remap": None, "retired_pages": pb.RetiredPages(single_bit=RETIRED_PAGES - 1, double_bit=0, pending=False)},
        {"row_remap": pb.RowRemap(correctable=4, uncorrectable=2)},  # done
        {"ecc": None, "row_remap": None, "recovery_action": None},
    ],
)
def test_what_is_no_fault_is_no_finding(fields: dict[str, Any]) -> None:
    assert planned(gpu(0, **{**WELL, **fields})).health == {}


def test_row_remap_pending_is_found_unless_the_pools_policy_leaves_it_out() -> None:
    ill = gpu(0, **{**WELL, "row_remap": pb.RowRemap(pending=True)})
    stored = planned(ill, policy={"quarantine": {"rowRemapPending": True}})
    assert set(found(stored)) == {"RowRemapPending"}
    left_out = planned(ill, stored=stored, policy={"quarantine": {"rowRemapPending": False}})
    assert left_out.health[GPU, "inventory", "RowRemapPending", ""].closed_reason == OFF
    assert set(found(planned(ill, stored=left_out, policy={}))) == {"RowRemapPending"}
    assert planned(ill, policy={"quarantine": {"rowRemapPending": False}}).health == {}


@pytest.mark.parametrize(("code", "fields", "values"), [row for row in ILL if not FINDINGS[row[0]].sticky])
def test_closes_when_the_inventory_shows_that_it_is_gone(code: str, fields: dict[str, Any], values: object) -> None:
    stored = planned(gpu(0, **{**WELL, **fields}))
    well = planned(gpu(0, **WELL), stored=stored)
    assert well.health[GPU, "inventory", code, ""].closed_reason == GONE
    assert set(found(planned(gpu(0, **{**WELL, **fields}), stored=well))) == {code}, "and opens when it is back"


@pytest.mark.parametrize(("code", "fields", "values"), [row for row in ILL if FINDINGS[row[0]].sticky])
def test_what_needs_another_gpu_stays_until_the_device_is_another(code: str, fields: dict[str, Any], values: object) -> None:
    stored = planned(gpu(0, **{**WELL, **fields}))
    assert set(found(planned(gpu(0, **WELL), stored=stored))) == {code}
    other = planned(gpu(0, uuid="GPU-another", **WELL), stored=stored)
    assert {row.device_id for row in other.health.values() if row.open} == {GPU}, "the new one has none"


@pytest.mark.parametrize(("code", "fields", "values"), ILL)
def test_force_holds_until_the_values_change(code: str, fields: dict[str, Any], values: object) -> None:
    ill = {**WELL, **fields}
    forced = closed(planned(gpu(0, **ill)), code)
    assert found(planned(gpu(0, **ill), stored=forced)) == {}


def test_opens_a_forced_one_when_its_values_change() -> None:
    forced = closed(planned(gpu(0, **{**WELL, "ecc": ecc(total=1)})), "EccUncorrectable")
    assert found(planned(gpu(0, **{**WELL, "ecc": ecc(total=2)}), stored=forced)) == {"EccUncorrectable": {"total": 2}}


@pytest.mark.parametrize(("code", "fields", "values"), ILL)
def test_opens_a_forced_one_that_was_gone_and_is_back(code: str, fields: dict[str, Any], values: object) -> None:
    forced = closed(planned(gpu(0, **{**WELL, **fields})), code)
    gone = planned(gpu(0, **WELL), stored=forced)
    assert set(found(planned(gpu(0, **{**WELL, **fields}), stored=gone))) == {code}


def test_values_that_change_while_it_is_open_are_kept() -> None:
    stored = planned(gpu(0, **{**WELL, "ecc": ecc(total=1)}))
    assert found(planned(gpu(0, **{**WELL, "ecc": ecc(total=5)}), stored=stored)) == {"EccUncorrectable": {"total": 5}}


DENIED = [pb.Unreadable(path="nvmlDeviceGetRemappedRows", errno=0)]


@pytest.mark.parametrize(
    "silent",
    [
        gpu(0, state="lost"),
        gpu(0, assigned=True),
        gpu(0, ecc=pb.Ecc(current=True), unreadable=DENIED),
        gpu(0, unreadable=DENIED),
    ],
    ids=["lost", "assigned", "no counts", "calls failed"],
)
def test_an_absence_is_no_evidence(silent: pb.Gpu) -> None:
    ill = {"ecc": ecc(total=1), "row_remap": pb.RowRemap(pending=True), "recovery_action": "gpu-reset"}
    stored = planned(gpu(0, **ill))
    still = found(planned(silent, stored=stored))
    assert {code: still[code] for code in found(stored)} == found(stored)


def test_a_lost_gpu_that_a_vm_has_now_is_still_lost_for_all_that_is_known() -> None:
    stored = planned(gpu(0, state="lost"))
    assert set(found(planned(gpu(0, assigned=True), stored=stored))) == {"GpuLost"}


def test_a_gpu_that_is_not_listed_keeps_its_findings() -> None:
    stored = planned(gpu(0, state="lost"), gpu(1, **WELL))
    assert set(found(planned(gpu(1, **WELL), stored=stored))) == {"GpuLost"}


def test_a_known_gpu_that_only_pci_shows_is_lost() -> None:
    known = Draft(devices={GPU: Device(GPU, lost=True, attributes={"pciBusId": gpu(0).bus_id})})
    assert found(planned(gpu(1, **WELL), stored=known)) == {"GpuLost": {"busId": gpu(0).bus_id}}
    missing = Draft(devices={GPU: Device(GPU, present=False)})
    assert planned(gpu(1, **WELL), stored=missing).health == {}


def test_another_nodes_gpu_has_none_here() -> None:
    assert planned(gpu(0, state="lost"), owners={GPU: "node_2"}).health == {}


def test_no_gpus_section_says_nothing() -> None:
    stored = planned(gpu(0, state="lost"))
    for facts in (Facts("node_1"), Facts("node_1", sections={})):
        draft = stored.copy()
        plan(facts, draft)
        assert draft == stored


def test_words_and_limits_are_those_of_bcd() -> None:
    assert dict(enumerate(RECOVERY)) == gpu_facts._RECOVERY
    assert RETIRED_PAGES == checks.RETIRED_PAGES


def test_the_remedies_are_those_of_the_spec() -> None:
    by_action = {word: FINDINGS["RecoveryActionRequired"].remedy({"recoveryAction": word}) for word in (*RECOVERY, "unknown-9")}
    assert by_action == {
        "none": "none",
        "gpu-reset": "reset-gpu",
        "node-reboot": "reboot-node",
        "drain-p2p": "drain-and-reset",
        "drain-and-reset": "drain-and-reset",
        "recover-imex-domain": "inspect",
        "bus-reset": "reset-gpu",
        "system-reboot": "reboot-node",
        "unknown-9": "inspect",
    }
    assert {code: row.remedy({}) for code, row in FINDINGS.items() if code != "RecoveryActionRequired"} == {
        "GpuLost": "reboot-node",
        "EccUncorrectable": "inspect",
        "RowRemapPending": "reset-gpu",
        "RowRemapFailure": "replace",
        "SramThresholdExceeded": "replace",
    }
