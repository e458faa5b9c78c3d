"""A pool's policy in JSON: every key is read, and what is wrong is named by its path."""

from typing import Any

import pytest

from receiver.planning.policy import KEYS, Policy, PolicyError, parse


def test_an_empty_policy_has_every_default() -> None:
    assert parse({}) == Policy()


def test_every_key_sets_its_field() -> None:
    policy = {
        "acceptance": [{"kind": "diag.nvml"}, {"kind": "diag.dcgm"}],
        "expect": {"gpuCount": 8},
        "sharing": {"replicas": 12},
        "mig": {"layout": ["3g.40gb", "1g.10gb+me", "1g.10gb"]},
        "quarantine": {"rowRemapPending": False},
        "xid": {"109": {"policy": None}, "63": {"policy": "device"}, "31": {"policy": "node"}},
        "links": "node",
        "onGpuMissing": "no",
        "remediation": {"escalateTo": "device", "rebootTimeout": 3600},
        "breaker": {"minNodes": 3},
        "disruptionBudget": "2.5%",
    }
    assert parse(policy) == Policy(
        acceptance=({"kind": "diag.nvml"}, {"kind": "diag.dcgm"}),
        expect_gpu_count=8,
        replicas=12,
        mig_layout=("1g.10gb", "1g.10gb+me", "3g.40gb"),
        row_remap_pending=False,
        xid={109: None, 63: "device", 31: "node"},
        links="node",
        on_gpu_missing="no",
        escalate_to="device",
        reboot_timeout=3600,
        breaker_min_nodes=3,
        disruption_budget="2.5%",
    )
    assert {key.field for key in KEYS.values()} == set(Policy.__dataclass_fields__), "no field without a key"


def test_a_budget_is_a_percentage_or_a_number_of_nodes() -> None:
    assert [parse({"disruptionBudget": one}).disruption_budget for one in ("5%", "100%", 0, 3)] == ["5%", "100%", 0, 3]


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (None, "policy is None; it may be an object"),
        ([], "policy is []; it may be an object"),
        ({"expect": 8}, "policy.expect is 8; it may be an object"),
        ({"expect": {"gpuCount": "8"}}, "policy.expect.gpuCount is '8'; it may be a whole number"),
        ({"expect": {"gpuCount": True}}, "policy.expect.gpuCount is True"),
        ({"expect": {"gpuCount": 8.5}}, "policy.expect.gpuCount is 8.5"),
        ({"expect": {"gpuCount": float("nan")}}, "policy.expect.gpuCount is nan"),
        ({"expect": {"gpucount": 8}}, "policy.expect.gpucount is no key of a policy: did you mean expect.gpuCount?"),
        ({"sharing": {"replicas": 0}}, "policy.sharing.replicas is 0; it may be a whole number, 1 to 48"),
        ({"sharing": {"replicas": 49}}, "policy.sharing.replicas is 49"),
        ({"acceptance": [{"kind": "diag.nvml"}, {"kind": ""}]}, "policy.acceptance[1] is"),
        ({"acceptance": [{"kind": "diag.nvml", "with": {}}]}, "policy.acceptance[0] is"),
        ({"acceptance": {"kind": "diag.nvml"}}, "policy.acceptance is"),
        ({"mig": {"layout": ["3g.40gb", 3]}}, "policy.mig.layout[1] is"),
        ({"mig": {"layout": ["1g.5gb"] * 65}}, "policy.mig.layout is"),
        ({"quarantine": {"rowRemapPending": "yes"}}, "policy.quarantine.rowRemapPending is 'yes'; it may be true or false"),
        ({"xid": {"109": None}}, "policy.xid.109 is"),
        ({"xid": {"109": {"policy": "gpu"}}}, "policy.xid.109 is"),
        ({"xid": {"109": {"policy": ["node"]}}}, "policy.xid.109 is"),
        ({"xid": {"109": {"policy": None, "action": "x"}}}, "policy.xid.109 is"),
        ({"xid": {"Xid109": {"policy": None}}}, "policy.xid.Xid109 is"),
        ({"xid": {"-1": {"policy": None}}}, "policy.xid.-1 is"),
        ({"xid": [109]}, "policy.xid is [109]"),
        ({"links": ["no"]}, 'policy.links is [\'no\']; it may be "no" or "node"'),
        ({"disruptionBudget": "101%"}, "policy.disruptionBudget is '101%'"),
        ({"disruptionBudget": -1}, "policy.disruptionBudget is -1"),
        ({"colour": "red"}, "policy.colour is no key of a policy: there are acceptance, expect.gpuCount"),
    ],
)
def test_what_is_wrong_is_named_by_its_path_with_what_it_may_be(policy: Any, named: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse(policy, strict=True)
    assert named in str(error.value)


def test_a_huge_value_is_cut_in_the_error() -> None:
    with pytest.raises(PolicyError) as error:
        parse({"xid": "x" * 100_000})
    assert len(str(error.value)) < 300


def test_a_stored_policy_of_a_newer_receiver_is_read_without_what_is_new() -> None:
    assert parse({"expect": {"gpuCount": 8, "switches": 4}, "colour": "red"}) == Policy(expect_gpu_count=8)
