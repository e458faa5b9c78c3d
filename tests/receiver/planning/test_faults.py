"""XIDs: counted, told, judged (SPEC B4, "XIDs", each sentence)."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.planning.faults import MOST, NO_POLICY, as_fault, count, judge, restart
from receiver.planning.health import clear
from receiver.planning.policy import parse
from receiver.planning.view import ConditionRow, Counted, Device, Draft, Facts, Health, Pool
from receiver.values import Condition, Fault, Json

GPU, OTHER, BUS, SWITCH = "GPU-1", "GPU-2", "00000000:18:00.0", "00000000:05:00.0"
XID = Fault("xid", 79, GPU, BUS, 1, "79, pid=1, name=python, GPU has fallen off the bus.")
ECC = Fault("xid", 48, GPU, BUS, 1, "48, pid=1, name=python, DBE (double bit error) ECC Error")
SXID = Fault("sxid", 20009, "", SWITCH, 1, "20009, Fatal, Link 44 LTSSM Fault Up")
NOTICE = Fault("sxid", 12028, "", SWITCH, 1, "12028, Non-fatal, Link 32")
FACTS = Facts("node_1", boot_id="boot-1")


def reported(*faults: Fault, stored: Draft | None = None, facts: Facts = FACTS) -> Draft:
    """The draft after a report, judged. Judging again changes nothing, and the same report is nothing."""
    before = stored or Draft()
    draft = before.copy()
    count(facts, draft, faults)
    judge(facts, before, draft)
    again = draft.copy()
    count(facts, again, faults)
    judge(facts, draft, again)
    assert (rows(again), again.events) == (rows(draft), []), "planning twice plans nothing"
    return draft


def rows(draft: Draft) -> tuple[object, ...]:
    return draft.faults, draft.health, draft.conditions


def told(draft: Draft) -> list[dict[str, Json]]:
    return [{key: value for key, value in one.payload.items() if key != "schemaVersion"} for one in draft.events]


def opened(draft: Draft) -> list[str]:
    return sorted(row.code for row in draft.health.values() if row.open)


def raised(draft: Draft) -> dict[tuple[str, str], bool]:
    """Conditions that are true, and whether they are NoSchedule."""
    return {key: row.no_schedule for key, row in draft.conditions.items() if row.status == "true"}


def pool(xid: Json = None, **fields: Any) -> Facts:
    """Facts of a node in a pool with this `policy.xid`."""
    return replace(FACTS, pool=Pool("pool_1", policy=parse({"xid": xid or {}})), **fields)


# ---- 1. Tenant-controlled node: nothing


def test_of_a_tenant_controlled_node_nothing() -> None:
    draft = Draft()
    count(replace(FACTS, advisory=True), draft, [XID, SXID])
    assert (rows(draft), draft.events) == (({}, {}, {}), [])


# ---- 2. The device is another node's


def test_of_another_nodes_device_the_event_and_nothing_else() -> None:
    facts = replace(FACTS, owners={GPU: "node_2"})
    draft = reported(XID, facts=facts)
    assert [(one["foreign"], one["policy"], one["deviceId"]) for one in told(draft)] == [(True, None, GPU)]
    assert (draft.health, draft.conditions) == ({}, {})
    assert told(reported(replace(XID, count=2), stored=draft, facts=facts)) != [], "a doubling is told"


def test_a_foreign_device_that_becomes_the_nodes_own_is_counted_from_the_start() -> None:
    foreign = reported(XID, facts=replace(FACTS, owners={GPU: "node_2"}))
    mine = reported(XID, stored=foreign)
    assert (opened(mine), [one["count"] for one in told(mine)]) == (["Xid79"], [1])


def test_the_condition_of_a_device_that_another_node_has_now_ends_here() -> None:
    stored = reported(XID)
    moved = replace(FACTS, owners={GPU: "node_2"})
    draft = stored.copy()
    del draft.health[GPU, "xid", "Xid79", "boot-1"]  # it went with the device
    judge(moved, stored, draft)
    assert (raised(draft), draft.health) == ({}, {})


def test_of_a_device_without_a_row_it_goes_on() -> None:
    assert opened(reported(XID)) == ["Xid79"]


# ---- 3. The count


def test_the_first_is_told_with_its_policy() -> None:
    assert told(reported(XID)) == [
        {
            "kind": "xid",
            "xid": 79,
            "deviceId": GPU,
            "busId": BUS,
            "message": XID.message,
            "count": 1,
            "policy": "node",
        }
    ]


def test_an_sxid_is_told_by_its_bus_id() -> None:
    (payload,) = told(reported(SXID))
    assert (payload["kind"], payload["xid"], payload["busId"], "deviceId" in payload) == ("sxid", 20009, SWITCH, False)


def test_nothing_when_the_count_is_not_above_the_stored_one() -> None:
    stored = reported(replace(XID, count=5))
    for number in (1, 4, 5):
        draft = reported(replace(XID, count=number), stored=stored)
        assert (rows(draft), draft.events) == (rows(stored), [])


def test_a_higher_count_is_stored_and_a_doubled_one_told() -> None:
    stored = reported(replace(XID, count=4))
    draft = reported(replace(XID, count=7), stored=stored)
    assert (draft.faults["Xid79", GPU].count, draft.faults["Xid79", GPU].told, told(draft)) == (7, 4, [])
    assert draft.conditions["Xid79", GPU].count == 7
    assert [one["count"] for one in told(reported(replace(XID, count=8), stored=draft))] == [8]


def test_codes_and_devices_are_counted_apart() -> None:
    draft = reported(XID, ECC, replace(XID, device_id=OTHER), stored=reported(XID))
    assert [(one["xid"], one["deviceId"]) for one in told(draft)] == [(48, GPU), (79, OTHER)]


def test_another_boot_counts_from_the_start() -> None:
    stored = reported(replace(XID, count=9))
    stored.faults.clear()  # those of the boot before are not loaded
    draft = reported(XID, stored=stored, facts=replace(FACTS, boot_id="boot-2"))
    assert [one["count"] for one in told(draft)] == [1]
    assert {row.boot_id: row.count for row in draft.health.values()} == {"boot-1": 9, "boot-2": 1}


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40))
def test_a_storm_is_told_at_most_once_a_doubling_and_every_count_is_told_at_half_its_height(counts: list[int]) -> None:
    stored, heard = Draft(), []
    for number in counts:
        stored = reported(replace(XID, count=number), stored=stored)
        heard += [one["count"] for one in told(stored)]
    assert len(heard) <= 21
    assert stored.faults["Xid79", GPU].count == max(counts) < 2 * heard[-1]


def test_a_fault_that_is_reported_without_a_count_was_there_once() -> None:
    assert as_fault(Condition("Xid79", "true", message="m", device_id=GPU, bus_id="b")) == Fault("xid", 79, GPU, "b", 1, "m")


def test_a_message_is_cut_at_what_is_kept() -> None:
    draft = reported(replace(XID, message="79, " + "x" * 5000))
    assert {len(one.message) for one in draft.faults.values()} == {2048}


def test_a_node_that_makes_up_devices_does_not_fill_the_table() -> None:
    full = Draft(faults={("Xid79", f"GPU-{number}"): Counted("Xid79", f"GPU-{number}", "boot-1", 1, 1) for number in range(MOST)})
    draft = full.copy()
    count(FACTS, draft, [replace(XID, device_id="GPU-made-up")])
    assert (draft.faults, draft.events) == (full.faults, [])
    count(FACTS, draft, [replace(XID, count=2)])
    assert draft.events != [], "what is known goes on"


def test_a_node_that_makes_up_devices_in_boot_after_boot_does_not_fill_the_table_and_loses_no_fault_of_its_own() -> None:
    full = Draft(devices={GPU: Device(GPU)})
    for number in range(MOST):
        full.put("health", Health(f"GPU-{number}-made-up", "xid", "Xid79", "boot-0", 1))
    draft = full.copy()
    count(FACTS, draft, [replace(XID, device_id="GPU-made-up"), XID])
    judge(FACTS, full, draft)
    assert draft.health.keys() - full.health.keys() == {(GPU, "xid", "Xid79", "boot-1")}


# ---- 4. Policy


def test_the_pools_policy_decides_else_the_table_and_each_verdict_has_its_source() -> None:
    faults = [XID, ECC, replace(ECC, number=109, message="109, x"), replace(ECC, number=13, message="13, x")]
    draft = reported(*faults, facts=pool({"109": {"policy": None}, "13": {"policy": "device"}}))
    assert opened(draft) == ["Xid13", "Xid48", "Xid79"]
    said = {row.code: (row.detail["policy"], row.detail["source"]) for row in draft.health.values()}
    assert said == {"Xid13": ("device", "pool"), "Xid48": ("device", "table"), "Xid79": ("node", "table")}
    assert draft.conditions["Xid13", GPU].evidence["source"] == "pool"
    assert [one["policy"] for one in told(draft)] == ["node", "device", None, "device"]


def test_the_severity_word_decides_where_the_table_says_so() -> None:
    nonfatal = Fault("xid", 144, GPU, BUS, 3, "144, NVLINK: SAW_MVB Nonfatal XC0 i0 Link 05")
    stored = reported(nonfatal)
    assert (opened(stored), len(stored.events)) == ([], 1)
    fatal = replace(nonfatal, count=4, message=nonfatal.message.replace("Nonfatal", "Fatal"))
    assert opened(reported(fatal, stored=stored)) == ["Xid144"]


def test_an_edit_of_the_pool_closes_and_opens_without_a_report() -> None:
    stored = reported(ECC)
    edited = stored.copy()
    judge(pool({"48": {"policy": None}}), stored, edited)
    assert (opened(edited), raised(edited)) == ([], {})
    assert edited.health[GPU, "xid", "Xid48", "boot-1"].closed_reason == NO_POLICY
    back = edited.copy()
    judge(FACTS, edited, back)
    assert (opened(back), raised(back)) == (["Xid48"], {("Xid48", GPU): False})


def test_an_edit_of_the_pool_raises_what_was_counted_without_a_policy() -> None:
    stored = reported(replace(ECC, number=13, message="13, x"))
    assert (stored.health, stored.conditions) == ({}, {})
    edited = stored.copy()
    judge(pool({"13": {"policy": "node"}}), stored, edited)
    assert raised(edited) == {("Xid13", GPU): True}


def test_an_xid_that_names_its_cause_is_linked_to_it_and_opens_nothing() -> None:
    draft = reported(ECC, Fault("xid", 45, GPU, BUS, 1, "45, pid=2, name=python3, Ch 00000001 caused by previous Xid 48"))
    assert [one.get("causedBy") for one in told(draft)] == [None, 48]
    assert opened(draft) == ["Xid48"]


def test_154_is_linked_to_the_worst_xid_of_its_gpu_and_opens_nothing() -> None:
    asks = Fault("xid", 154, GPU, BUS, 1, "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    noise = replace(ECC, number=13, message="13, x")
    elsewhere = replace(XID, number=95, device_id=OTHER, message="95, x")
    for order in ((asks, ECC, XID, noise, elsewhere), (elsewhere, noise, XID, ECC, asks)):
        draft = reported(*order)
        assert [one["causedBy"] for one in told(draft) if one["xid"] == 154] == [79]
        assert "Xid154" not in opened(draft)
    (alone,) = told(reported(asks))
    assert "causedBy" not in alone


def test_an_unknown_xid_and_one_without_a_policy_are_events() -> None:
    draft = reported(replace(ECC, number=4711, message="4711, x"), replace(ECC, number=43, message="43, x"))
    assert [one["xid"] for one in told(draft)] == [4711, 43]
    assert (draft.health, draft.conditions) == ({}, {})


# ---- 5. What a policy does


def test_policy_device_is_a_condition_of_the_device_and_a_quarantine() -> None:
    draft = reported(ECC)
    assert (raised(draft), opened(draft)) == ({("Xid48", GPU): False}, ["Xid48"])
    row = draft.conditions["Xid48", GPU]
    assert (row.bus_id, row.message, row.count, row.reason) == (BUS, ECC.message, 1, "DeviceFault")


def test_policy_node_is_the_same_and_the_condition_is_no_schedule() -> None:
    draft = reported(XID)
    assert (raised(draft), opened(draft)) == ({("Xid79", GPU): True}, ["Xid79"])
    assert draft.conditions["Xid79", GPU].reason == "NodeFault"


def test_an_sxid_with_a_policy_is_a_condition_only() -> None:
    draft = reported(SXID, NOTICE)
    assert raised(draft) == {("SXid20009", SWITCH): True}
    assert draft.health == {}
    assert draft.conditions["SXid20009", SWITCH].bus_id == SWITCH


def test_a_pool_that_makes_an_sxid_a_devices_matter_does_not_stop_the_node() -> None:
    assert raised(reported(SXID, facts=pool({"20009": {"policy": "device"}}))) == {("SXid20009", SWITCH): False}
    assert raised(reported(SXID, facts=pool({"20009": {"policy": None}}))) == {}


def test_one_condition_tells_of_all_boots_with_the_count_of_the_present_one() -> None:
    stored = reported(replace(XID, count=9))
    stored.faults.clear()
    draft = reported(XID, stored=stored, facts=replace(FACTS, boot_id="boot-2"))
    assert draft.conditions["Xid79", GPU].count == 1
    after = draft.copy()
    clear_boot(after, "boot-2")
    judge(replace(FACTS, boot_id="boot-2"), draft, after)
    assert after.conditions["Xid79", GPU].count == 9, "the older one stands"


def clear_boot(draft: Draft, boot: str) -> None:
    row = draft.health[GPU, "xid", "Xid79", boot]
    draft.put("health", replace(row, cleared_count=row.count, closed_reason="cleared"))


# ---- 6. Clears


def test_a_clear_stays_through_unchanged_reports_and_one_more_opens_it_again() -> None:
    draft = reported(replace(XID, count=3))
    clear(FACTS, draft, GPU, "cleared by operator")
    for _ in range(10):
        draft = reported(replace(XID, count=3), stored=draft)
        assert (opened(draft), raised(draft)) == ([], {})
    again = reported(replace(XID, count=4), stored=draft)
    assert (opened(again), raised(again)) == (["Xid79"], {("Xid79", GPU): True})


def test_a_cleared_sxid_opens_with_a_higher_count_or_in_another_boot() -> None:
    draft = reported(replace(SXID, count=3))
    clear(FACTS, draft, SWITCH, "cleared by operator")
    assert raised(reported(replace(SXID, count=3), stored=draft)) == {}
    assert raised(reported(replace(SXID, count=4), stored=draft)) != {}
    draft.faults.clear()
    assert raised(reported(SXID, stored=draft, facts=replace(FACTS, boot_id="boot-2"))) != {}


def test_a_cleared_xid_opens_in_another_boot() -> None:
    draft = reported(replace(XID, count=3))
    clear(FACTS, draft, GPU, "cleared by operator")
    draft.faults.clear()
    assert opened(reported(XID, stored=draft, facts=replace(FACTS, boot_id="boot-2"))) == ["Xid79"]


def test_after_a_reset_the_node_counts_from_one_and_the_first_opens_it_again() -> None:
    draft = reported(replace(XID, count=3), replace(ECC, count=2))
    clear(FACTS, draft, GPU, "repaired", code="Xid79")
    judge(FACTS, draft, draft)
    restart(draft, [GPU])
    judge(FACTS, draft, draft)
    assert opened(draft) == ["Xid48"], "a restart of the counts closes nothing and opens nothing"
    assert opened(reported(XID, stored=draft)) == ["Xid48", "Xid79"]


# ---- 7. What a report does not list


def test_a_report_that_lists_an_xid_no_more_closes_nothing() -> None:
    stored = reported(XID, ECC, SXID)
    draft = reported(stored=stored)
    assert rows(draft) == rows(stored)


def test_another_boot_closes_nothing() -> None:
    stored = reported(XID, SXID)
    stored.faults.clear()
    draft = reported(stored=stored, facts=replace(FACTS, boot_id="boot-2"))
    assert (raised(draft), opened(draft)) == ({("Xid79", GPU): True, ("SXid20009", SWITCH): True}, ["Xid79"])


# ---- over random histories


def test_over_random_histories_open_is_what_was_counted_above_its_clear_and_has_a_policy() -> None:
    chance = random.Random(4)
    policies: list[Json] = [{}, {"48": {"policy": None}}, {"79": {"policy": "device"}, "13": {"policy": "node"}}]
    for _ in range(60):
        draft, facts = Draft(devices={GPU: Device(GPU), OTHER: Device(OTHER)}), pool()
        seen: dict[tuple[str, str], int] = {}
        cleared: dict[tuple[str, str], int] = {}
        for _ in range(12):
            act = chance.choice(("report", "report", "report", "clear", "edit"))
            before, draft = draft, draft.copy()
            if act == "report":
                fault = Fault("xid", chance.choice((13, 43, 48, 79)), chance.choice((GPU, OTHER)), BUS, chance.randrange(1, 6))
                count(facts, draft, [fault])
                key = (fault.device_id, fault.code)
                seen[key] = max(seen.get(key, 0), fault.count)
            elif act == "clear":
                device = chance.choice((GPU, OTHER))
                clear(facts, draft, device, "cleared")
                cleared |= {key: number for key, number in seen.items() if key[0] == device}
            else:
                facts = pool(chance.choice(policies))
            judge(facts, before, draft)
            assert facts.pool is not None
            says = {"Xid13": None, "Xid43": None, "Xid48": "device", "Xid79": "node"}
            says |= {f"Xid{number}": policy for number, policy in facts.pool.policy.xid.items()}
            expected = {key: says[key[1]] for key in seen if says[key[1]] and seen[key] > cleared.get(key, 0)}
            assert {(row.device_id, row.code) for row in draft.health.values() if row.open} == expected.keys()
            assert raised(draft) == {(code, device): policy == "node" for (device, code), policy in expected.items()}


@pytest.mark.parametrize("row", [ConditionRow("FabricManagerDown"), ConditionRow("GpuLost", GPU)])
def test_conditions_of_others_stay_as_they_are(row: ConditionRow) -> None:
    stored = Draft(conditions={row.key: row})
    assert reported(XID, stored=stored).conditions[row.key] == row
