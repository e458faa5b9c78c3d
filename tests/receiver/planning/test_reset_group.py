"""Which GPUs a reset concerns."""

import pytest

from receiver.planning.reset_group import group
from receiver.planning.view import ConditionRow, Device, Draft

SWITCHES = ["00000000:05:00.0", "00000000:06:00.0"]


def node(architecture: str, peers: dict[int, list[str]], fabric_down: bool = False) -> Draft:
    """A node with four GPUs, GPU-0 to GPU-3, at bus ids bus-0 to bus-3. `peers`: what their links reach."""
    draft = Draft()
    for number in range(4):
        told = {"architecture": architecture, "pciBusId": f"bus-{number}", "nvlinkPeers": peers.get(number, [])}
        draft.put("devices", Device(f"GPU-{number}", attributes={key: value for key, value in told.items() if value}))
    if fabric_down:
        draft.put("conditions", ConditionRow("FabricManagerDown"))
    return draft


PAIRS = {0: ["bus-1"], 1: ["bus-0"], 2: ["bus-3"], 3: ["bus-2"]}
CHAIN = {0: ["bus-1"], 1: ["bus-0", "bus-2"], 2: ["bus-1"], 3: []}
ALL_ON_SWITCHES = dict.fromkeys(range(4), SWITCHES)


@pytest.mark.parametrize(
    ("architecture", "peers", "fabric_down", "expected"),
    [
        ("volta", PAIRS, False, [0, 1]),
        ("Volta", PAIRS, False, [0, 1]),
        ("volta", CHAIN, False, [0, 1, 2]),
        ("volta", {}, False, [0]),
        ("volta", ALL_ON_SWITCHES, False, [0, 1, 2, 3]),
        ("", PAIRS, False, [0, 1]),
        ("ampere", ALL_ON_SWITCHES, False, [0]),
        ("ampere", ALL_ON_SWITCHES, True, [0, 1, 2, 3]),
        ("ampere", PAIRS, True, [0]),
        ("hopper", ALL_ON_SWITCHES, True, [0]),
    ],
)
def test_peers_go_along_where_links_are_not_trained_one_by_one(
    architecture: str, peers: dict[int, list[str]], fabric_down: bool, expected: list[int]
) -> None:
    assert group(node(architecture, peers, fabric_down), "GPU-0") == tuple(f"GPU-{number}" for number in expected)


def test_a_gpu_that_is_not_in_the_node_is_a_group_of_its_own() -> None:
    assert group(node("volta", PAIRS), "GPU-9") == ("GPU-9",)


def test_a_peer_that_has_left_the_node_is_of_no_group() -> None:
    draft = node("volta", PAIRS)
    draft.put("devices", Device("GPU-1", present=False, attributes=draft.devices["GPU-1"].attributes))
    assert group(draft, "GPU-0") == ("GPU-0",)
