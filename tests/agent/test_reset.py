"""Reset groups, and what counts as healthy after a reset."""

from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import reset
from agent.host import Host
from tests.agent.processes import process


def gpu(number: int, architecture: str, *peers: int, switch: bool = False) -> pb.Gpu:
    links = [pb.NvLink(link=i, active=True, peer_bus_id=f"00000000:{p:02X}:00.0", peer_type="gpu") for i, p in enumerate(peers)]
    links += [pb.NvLink(link=9, active=False, peer_bus_id="00000000:C1:00.0", peer_type="switch")] if switch else []
    found = pb.Gpu(uuid=f"GPU-{number}", bus_id=f"00000000:{number:02X}:00.0", state="ok", nvlinks=links)
    if architecture:
        found.architecture = architecture
    return found


def group(gpus: list[pb.Gpu], fabric_manager: bool = False) -> list[str]:
    return [g.uuid for g in reset.group(gpus, gpus[0], fabric_manager)]


@pytest.mark.parametrize("architecture", ["pascal", "volta", "turing", ""])
def test_before_ampere_every_nvlink_peer_goes_along_through_peers_of_peers(architecture: str) -> None:
    gpus = [gpu(1, architecture, 2), gpu(2, architecture, 1, 3), gpu(3, architecture, 2), gpu(4, architecture)]
    assert group(gpus, fabric_manager=True) == ["GPU-1", "GPU-2", "GPU-3"]


def test_before_ampere_switches_join_all_gpus_on_them() -> None:
    assert group([gpu(n, "volta", switch=True) for n in (1, 2, 3)]) == ["GPU-1", "GPU-2", "GPU-3"]


def test_ampere_on_switches_goes_alone_with_a_fabric_manager_and_together_without() -> None:
    gpus = [gpu(n, "ampere", switch=True) for n in (1, 2, 3)]
    assert group(gpus, fabric_manager=True) == ["GPU-1"]
    assert group(gpus, fabric_manager=False) == ["GPU-1", "GPU-2", "GPU-3"]


def test_ampere_with_bridges_goes_alone() -> None:
    assert group([gpu(1, "ampere", 2), gpu(2, "ampere", 1)]) == ["GPU-1"]


@pytest.mark.parametrize("architecture", ["ada", "hopper", "blackwell"])
def test_later_ones_go_alone(architecture: str) -> None:
    assert group([gpu(n, architecture, switch=True) for n in (1, 2)]) == ["GPU-1"]


def test_the_fabric_manager_is_known_by_its_comm(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert not reset.fabric_manager_runs(Host(tmp_path))
    process(tmp_path, 812, "nv-fabricmanage")
    assert reset.fabric_manager_runs(Host(tmp_path))


BEFORE = pb.Gpu(
    uuid="GPU-1",
    state="ok",
    vram_bytes=80 << 30,
    ecc=pb.Ecc(current=True, pending=True),
    row_remap=pb.RowRemap(uncorrectable=1, pending=True),
    recovery_action="gpu-reset",
)
HEALTHY = pb.Gpu(
    uuid="GPU-1",
    state="ok",
    vram_bytes=80 << 30,
    ecc=pb.Ecc(current=True, pending=True),
    row_remap=pb.RowRemap(uncorrectable=1),
    recovery_action="none",
)


def changed(**changes: object) -> pb.Gpu:
    after = pb.Gpu()
    after.CopyFrom(HEALTHY)
    after.MergeFrom(pb.Gpu(**changes))  # type: ignore[arg-type]
    return after


def test_a_gpu_that_came_back_whole_is_healthy() -> None:
    assert reset.differences(BEFORE, HEALTHY) == []


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (None, "GPU-1 is not there after the reset"),
        (changed(state="lost"), "GPU-1 is lost"),
        (changed(vram_bytes=40 << 30), "bytes of memory"),
        (changed(ecc=pb.Ecc(current=False)), "ECC is off, expected on"),
        (changed(ecc=pb.Ecc(sram_threshold_exceeded=True)), "SRAM"),
        (changed(row_remap=pb.RowRemap(pending=True)), "still pending"),
        (changed(row_remap=pb.RowRemap(failure=True)), "row remapping has failed"),
        (changed(retired_pages=pb.RetiredPages(pending=True)), "still pending"),
        (changed(recovery_action="node-reboot"), "the driver asks for node-reboot"),
    ],
)
def test_what_is_wrong_after_a_reset_is_named(after: pb.Gpu | None, why: str) -> None:
    (found,) = reset.differences(BEFORE, after)
    assert why in found


def test_a_pending_ecc_mode_comes_into_force_with_the_reset() -> None:
    before = pb.Gpu(uuid="GPU-1", ecc=pb.Ecc(current=True, pending=False))
    assert reset.differences(before, pb.Gpu(uuid="GPU-1", state="ok", ecc=pb.Ecc(current=False, pending=False))) == []
    assert reset.differences(before, pb.Gpu(uuid="GPU-1", state="ok", ecc=pb.Ecc(current=True, pending=False))) != []


def test_of_a_gpu_that_was_lost_only_what_is_remembered_must_agree() -> None:
    assert reset.differences(pb.Gpu(uuid="GPU-1", vram_bytes=80 << 30, state="lost"), HEALTHY) == []
