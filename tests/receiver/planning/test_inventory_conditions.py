"""Conditions that an inventory raises and ends (SPEC B2, B3)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from google.protobuf.message import Message

from receiver.planning.condition_types import types_of
from receiver.planning.inventory_conditions import RULES, baseline, plan
from receiver.planning.policy import Policy
from receiver.planning.view import ConditionRow, Device, Draft, Facts, Node, Pool
from tests.receiver.builders import gpu, gpus

H100 = {"gpuProduct": "H100-SXM5-80GB", "gpuModel": "H100"}
STRANGE = {"gpuProduct": "NVIDIA-B999", "gpuModel": "other"}


def device(number: int, **fields: Any) -> Device:
    """The device of GPU `number` of tests.receiver.builders."""
    one = gpu(number)
    attributes = {"pciBusId": one.bus_id, **fields.pop("attributes", H100)}
    return Device(one.uuid, attributes=attributes, **fields)


def links(up: int, of: int = 18) -> list[pb.NvLink]:
    return [pb.NvLink(link=number, active=number < up, peer_type="switch") for number in range(of)]


def nics(*guids: str, unreadable: str = "") -> pb.NicsSection:
    ports = [pb.HcaPort(number=number, guid=guid, link_layer="InfiniBand") for number, guid in enumerate(guids, 1)]
    roce = pb.HcaPort(number=9, link_layer="Ethernet")
    denied = [pb.Unreadable(path=unreadable, errno=13)] if unreadable else []
    return pb.NicsSection(hcas=[pb.Hca(name="mlx5_0", ports=[*ports, roce])], unreadable=denied)


def facts(section: Message | None, pool: Pool | None = None, **fields: Any) -> Facts:
    name = "nics" if isinstance(section, pb.NicsSection) else "gpus"
    return Facts("node_1", pool=pool, sections={} if section is None else {name: section}, **fields)


def planned(
    section: Message | None,
    *devices: Device,
    pool: Pool | None = None,
    passed: Mapping[str, Message] | None = None,
    stored: tuple[ConditionRow, ...] = (),
    **fields: Any,
) -> dict[tuple[str, str], ConditionRow]:
    """The conditions that are true, by type and device. `passed`: the sections with which the node passed acceptance."""
    draft = Draft(node=Node(baseline=None if passed is None else baseline(passed)))
    for table, rows in (("devices", devices), ("conditions", stored)):
        for row in rows:
            draft.put(table, row)
    plan(facts(section, pool, **fields), draft)
    once = draft.copy()
    plan(facts(section, pool, **fields), draft)
    assert draft == once, "planning twice plans nothing"
    return {key: row for key, row in draft.conditions.items() if row.status == "true"}


def of(found: Mapping[tuple[str, str], ConditionRow], kind: str) -> list[ConditionRow]:
    return [row for (name, _), row in sorted(found.items()) if name == kind]


TWO = gpus(gpu(0), gpu(1))
BOTH = (device(0), device(1))


def test_a_healthy_node_has_none() -> None:
    assert (
        planned(TWO, *BOTH, pool=Pool("pool_1", gpu_model="H100", policy=Policy(expect_gpu_count=2)), passed={"gpus": TWO}) == {}
    )


def test_every_type_of_the_inventory_has_a_rule_but_the_mig_layout_which_atoms_decide() -> None:
    assert set(RULES) == types_of("inventory") - {"MigLayoutMismatch"}


def test_a_gpu_that_the_models_table_does_not_know_is_gpu_model_unknown() -> None:
    found = planned(TWO, device(0), device(1, attributes=STRANGE))
    (row,) = found.values()
    assert (row.key, row.bus_id, row.reason) == (("GpuModelUnknown", gpu(1).uuid), gpu(1).bus_id, "NotInTable")
    assert "NVIDIA-B999" in row.message


def test_gpu_model_unknown_clears_when_the_table_knows_it() -> None:
    stored = ConditionRow("GpuModelUnknown", gpu(1).uuid)
    assert planned(TWO, *BOTH, stored=(stored,)) == {}


def test_a_gpu_without_a_model_is_neither_unknown_nor_a_mismatch() -> None:
    assert planned(TWO, device(0, attributes={}), pool=Pool("pool_1", gpu_model="H100")) == {}


def test_a_gpu_of_another_model_than_the_pools_is_a_mismatch() -> None:
    found = planned(TWO, *BOTH, pool=Pool("pool_1", gpu_model="H200"))
    assert [row.device_id for row in of(found, "GpuModelMismatch")] == [gpu(0).uuid, gpu(1).uuid]
    assert of(found, "GpuModelMismatch")[0].message == "it is H100, the pool is of H200"
    assert planned(TWO, *BOTH, pool=Pool("pool_1", gpu_model="H100")) == {}
    assert planned(TWO, *BOTH, pool=Pool("pool_1")) == {}, "a pool may have no model"
    assert planned(TWO, *BOTH) == {}


def test_a_lost_gpu_is_gpu_lost_until_it_is_back() -> None:
    found = planned(TWO, device(0), device(1, lost=True))
    assert list(found) == [("GpuLost", gpu(1).uuid)]
    assert planned(TWO, *BOTH, stored=tuple(found.values())) == {}


def test_a_gpu_that_is_gone_is_not_lost_any_more() -> None:
    stored = (ConditionRow("GpuLost", gpu(1).uuid), ConditionRow("GpuModelUnknown", gpu(1).uuid))
    assert planned(gpus(gpu(0)), device(0), stored=stored) == {}
    kept = device(1, present=False, lost=True, attributes=STRANGE)
    assert planned(gpus(gpu(0)), device(0), kept, stored=stored) == {}, "kept for its booking"


def test_fewer_gpus_than_at_the_last_passed_acceptance_is_gpu_missing_and_names_them() -> None:
    found = planned(gpus(gpu(0)), device(0), passed={"gpus": TWO})
    assert list(found) == [("GpuMissing", "")]
    assert found["GpuMissing", ""].message == f"found 1 GPUs, expected 2; not there: {gpu(1).uuid}"


def test_fewer_gpus_than_the_pool_expects_is_gpu_missing_and_a_count_mismatch() -> None:
    pool = Pool("pool_1", policy=Policy(expect_gpu_count=8))
    found = planned(TWO, *BOTH, pool=pool)
    assert of(found, "GpuMissing")[0].message == "found 2 GPUs, expected 8"
    (row,) = of(found, "GpuCountMismatch")
    assert (row.reason, row.message) == ("Fewer", "found 2 GPUs, expected 8")


def test_more_gpus_than_the_pool_expects_is_a_count_mismatch_only() -> None:
    found = planned(TWO, *BOTH, pool=Pool("pool_1", policy=Policy(expect_gpu_count=1)), passed={"gpus": gpus(gpu(0))})
    assert list(found) == [("GpuCountMismatch", "")]
    assert found["GpuCountMismatch", ""].reason == "More"


def test_what_the_pool_expects_goes_before_the_last_acceptance() -> None:
    pool = Pool("pool_1", policy=Policy(expect_gpu_count=1))
    assert planned(gpus(gpu(0)), device(0), pool=pool, passed={"gpus": TWO}) == {}


def test_a_kept_device_that_is_not_there_is_named() -> None:
    found = planned(gpus(gpu(0)), device(0), device(1, present=False), pool=Pool("p", policy=Policy(expect_gpu_count=2)))
    assert of(found, "GpuMissing")[0].message.endswith(f"not there: {gpu(1).uuid}")


def test_a_swapped_gpu_is_not_missing() -> None:
    assert planned(gpus(gpu(0), gpu(5)), device(0), device(5), passed={"gpus": TWO}) == {}


@pytest.mark.parametrize("one", [gpu(1, state="lost"), gpu(1, assigned=True)])
def test_a_lost_or_assigned_gpu_is_not_missing(one: pb.Gpu) -> None:
    listed = device(1, lost=one.state == "lost", assigned=one.assigned)
    assert of(planned(gpus(gpu(0), one), device(0), listed, passed={"gpus": TWO}), "GpuMissing") == []


def test_a_gpu_that_another_node_owns_is_there() -> None:
    assert planned(TWO, device(0), passed={"gpus": TWO}) == {}


def test_a_gpu_that_no_list_has_and_pci_still_shows_is_there() -> None:
    assert planned(gpus(gpu(0), on_pci=2), *BOTH, passed={"gpus": TWO}) == {}


def test_a_gpu_without_a_uuid_is_the_one_that_is_known_at_its_place() -> None:
    nameless = gpu(1, uuid=None, state="lost")
    found = planned(
        gpus(gpu(0), nameless), device(0), device(1, lost=True), pool=Pool("pool_1", policy=Policy(expect_gpu_count=3))
    )
    assert found["GpuMissing", ""].message == "found 2 GPUs, expected 3"


def test_all_gpus_gone_is_gpu_missing() -> None:
    assert list(planned(gpus(), passed={"gpus": TWO})) == [("GpuMissing", "")]


def test_a_node_that_never_passed_in_a_pool_that_expects_nothing_misses_nothing() -> None:
    assert planned(gpus(), pool=Pool("pool_1")) == {}
    assert planned(gpus(), passed={}) == {}


def test_a_site_agent_has_no_gpus_to_miss() -> None:
    assert planned(gpus(), pool=Pool("pool_1", policy=Policy(expect_gpu_count=8)), kind="site-agent") == {}


@pytest.mark.parametrize("sharing", ["exclusive", "timeslice", "mps"])
def test_a_gpu_in_mig_mode_in_a_pool_that_shares_otherwise_is_a_sharing_mismatch(sharing: str) -> None:
    section = gpus(gpu(0), gpu(1, mig=pb.Mig(capable=True, current=True, pending=True)))
    found = planned(section, *BOTH, pool=Pool("pool_1", sharing=sharing))
    assert [(row.device_id, row.reason) for row in of(found, "SharingMismatch")] == [(gpu(1).uuid, "MigMode")]
    assert planned(section, *BOTH, pool=Pool("pool_1", sharing="mig")) == {}
    assert planned(section, *BOTH) == {}, "no pool says how to share"


@pytest.mark.parametrize("current", [None, False])
def test_a_gpu_that_is_not_in_mig_mode_is_no_sharing_mismatch(current: bool | None) -> None:
    section = gpus(gpu(0, mig=pb.Mig(capable=True, current=current, pending=True)))
    assert planned(section, device(0), pool=Pool("pool_1", sharing="timeslice")) == {}


PASSED = {"gpus": gpus(gpu(0, nvlinks=links(18)), gpu(1, nvlinks=links(18)))}


def test_fewer_nvlinks_than_at_acceptance_is_nvlink_degraded_and_names_those_that_are_down() -> None:
    found = planned(gpus(gpu(0, nvlinks=links(16)), gpu(1, nvlinks=links(18))), *BOTH, passed=PASSED)
    (row,) = found.values()
    assert row.key == ("NvLinkDegraded", gpu(0).uuid)
    assert row.message == "16 NVLinks are up, 18 were at acceptance; down: 16, 17"


def test_links_that_were_never_up_are_not_degraded() -> None:
    bridged = gpus(gpu(0, nvlinks=links(4)))
    assert planned(bridged, device(0), passed={"gpus": bridged}) == {}
    assert planned(bridged, device(0)) == {}, "never accepted"


def test_nvlink_degraded_ends_when_the_links_are_up_again() -> None:
    stored = ConditionRow("NvLinkDegraded", gpu(0).uuid)
    assert planned(PASSED["gpus"], *BOTH, passed=PASSED, stored=(stored,)) == {}


@pytest.mark.parametrize(
    ("one", "row"),
    [
        (gpu(0, state="lost"), device(0, lost=True)),
        (gpu(0, assigned=True, nvlinks=links(3)), device(0, assigned=True)),
        (gpu(0), device(0)),
    ],
)
def test_links_that_nothing_tells_neither_raise_nor_end_nvlink_degraded(one: pb.Gpu, row: Device) -> None:
    stored = ConditionRow("NvLinkDegraded", one.uuid, reason="LinksDown", message="as it was")
    assert of(planned(gpus(one), row, passed=PASSED), "NvLinkDegraded") == []
    assert of(planned(gpus(one), row, passed=PASSED, stored=(stored,)), "NvLinkDegraded") == [stored]


PORTS = {"nics": nics("b83f:d203:0000:0001", "b83f:d203:0000:0002")}


def test_an_infiniband_port_that_passed_and_is_gone_is_ib_link_down_and_named() -> None:
    found = planned(nics("b83f:d203:0000:0001"), passed=PORTS)
    assert list(found) == [("IbLinkDown", "")]
    assert found["IbLinkDown", ""].message == "InfiniBand ports that are not there: mlx5_0/2 (b83f:d203:0000:0002)"
    assert planned(PORTS["nics"], passed=PORTS, stored=tuple(found.values())) == {}


def test_a_port_is_told_by_its_guid_not_by_its_name() -> None:
    renamed = pb.NicsSection()
    renamed.CopyFrom(PORTS["nics"])
    renamed.hcas[0].name = "ibp24s0"
    assert planned(renamed, passed=PORTS) == {}


def test_ib_link_down_neither_comes_nor_goes_while_the_ports_cannot_be_read() -> None:
    denied, stored = nics(unreadable="/sys/class/infiniband/mlx5_0/ports"), ConditionRow("IbLinkDown", reason="PortsGone")
    assert planned(denied, passed=PORTS) == {}
    assert planned(denied, passed=PORTS, stored=(stored,)) == {stored.key: stored}


def test_a_section_that_never_came_says_nothing() -> None:
    stored = (ConditionRow("GpuLost", gpu(1).uuid), ConditionRow("IbLinkDown"))
    assert planned(None, device(1, lost=True), stored=stored) == {row.key: row for row in stored}


def test_conditions_of_other_writers_stay() -> None:
    stored = (
        ConditionRow("FabricManagerDown"),
        ConditionRow("Xid79", gpu(1).uuid),
        ConditionRow("MigLayoutMismatch", gpu(1).uuid),
    )
    assert planned(TWO, *BOTH, stored=stored) == {row.key: row for row in stored}


def test_the_baseline_is_gpus_links_that_are_up_and_infiniband_ports() -> None:
    section = gpus(gpu(1, nvlinks=links(18)), gpu(0, nvlinks=links(0)))
    assert baseline({"gpus": section, **PORTS}) == {
        "gpus": [gpu(0).uuid, gpu(1).uuid],
        "links": {gpu(1).uuid: 18},
        "ports": {"b83f:d203:0000:0001": "mlx5_0/1", "b83f:d203:0000:0002": "mlx5_0/2"},
    }
    assert baseline({}) == {"gpus": [], "links": {}, "ports": {}}


def test_a_condition_that_ends_keeps_its_row_as_false() -> None:
    draft = Draft()
    draft.put("devices", device(0, lost=True))
    plan(facts(gpus(gpu(0))), draft)
    draft.put("devices", replace(draft.devices[gpu(0).uuid], lost=False))
    plan(facts(gpus(gpu(0))), draft)
    row = draft.conditions["GpuLost", gpu(0).uuid]
    assert (row.status, row.reason, row.message, row.bus_id) == ("false", "", "", gpu(0).bus_id)
