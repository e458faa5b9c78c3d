"""Attributes of a GPU: what selectors and scorers read (SPEC B2)."""

import json
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from google.protobuf.json_format import ParseDict

from receiver.planning.attributes import ATTRIBUTES, attributes, fabric, gib
from tests.receiver import builders as b

UUID = "6f8b1c2d-93a4-4e57-8d10-2b7c5e9f3a61"
UP = pb.Fabric(cluster_uuid=UUID, clique_id=0, state="completed", status="success")


def told(gpu: pb.Gpu, section: pb.GpusSection | None = None, memory: pb.MemorySection | None = None) -> dict[str, object]:
    return dict(attributes(gpu, section or b.gpus(gpu), memory))


def test_a_gpu_tells_all_of_them() -> None:
    links = [
        pb.NvLink(link=0, active=True, peer_bus_id="00000000:08:00.0", peer_type="switch"),
        pb.NvLink(link=1, active=True, peer_bus_id="00000000:07:00.0", peer_type="switch"),
        pb.NvLink(link=2, active=True, peer_bus_id="00000000:07:00.0", peer_type="switch"),
        pb.NvLink(link=3, active=False),
    ]
    gpu = b.gpu(3, vram_bytes=81559 << 20, numa_node=0, architecture="hopper", compute_capability="9.0", nvlinks=links, fabric=UP)
    gpu.mig.capable = True
    found = told(gpu)
    assert found == {
        "gpuProduct": "H100-SXM5-80GB",
        "gpuModel": "H100",
        "vramGiB": 80,
        "index": 3,
        "pciBusId": "00000000:1B:00.0",
        "numaNode": 0,
        "architecture": "hopper",
        "computeCapability": "9.0",
        "driverVersion": "550.54.15",
        "migCapable": True,
        "nvlinkPeers": ["00000000:07:00.0", "00000000:08:00.0"],
        "fabricCluster": UUID,
        "fabricClique": 0,
    }
    assert list(found) == list(ATTRIBUTES)


def test_what_is_not_told_is_left_out() -> None:
    bare = pb.Gpu(uuid="GPU-1", numa_node=-1, state="lost")
    assert told(bare, pb.GpusSection(gpus=[bare])) == {}


def test_the_table_of_models_tells_what_nvml_does_not() -> None:
    assert (told(b.gpu(0))["architecture"], told(b.gpu(0))["migCapable"]) == ("hopper", True)
    odd = b.gpu(0, architecture="unheard-of", mig=pb.Mig(capable=False))
    assert (told(odd)["architecture"], told(odd)["migCapable"]) == ("unheard-of", False)


def test_an_unknown_name_is_of_model_other() -> None:
    found = told(b.gpu(0, name="NVIDIA Q999 1TB"))
    assert (found["gpuProduct"], found["gpuModel"]) == ("Q999-1TB", "other")
    assert "architecture" not in found
    assert "gpuModel" not in told(b.gpu(0, name="NVIDIA"))


def test_memory_decides_the_product_where_a_name_covers_several() -> None:
    assert told(b.gpu(0, name="NVIDIA H100", vram_bytes=65247 << 20))["gpuProduct"] == "H100-SXM5-64GB"
    assert told(b.gpu(0, name="NVIDIA H100"))["gpuProduct"] == "H100-SXM5-94GB"


def test_a_gpu_that_shares_the_hosts_memory_is_named_by_it_and_has_no_vram_of_its_own() -> None:
    thor = b.gpu(0, name="NVIDIA Thor")
    host = pb.MemorySection(total_bytes=61 << 30)
    assert told(thor, memory=host)["gpuProduct"] == "THOR-SOC-64GB"
    assert told(thor)["gpuProduct"] == "THOR-SOC-128GB"
    assert "vramGiB" not in told(thor, memory=host)
    assert told(b.gpu(0, name="NVIDIA H100"), memory=host)["gpuProduct"] == "H100-SXM5-94GB", "a card has memory of its own"


def test_the_drivers_version_is_the_modules_else_the_librarys() -> None:
    gpu = b.gpu(0)
    both = pb.GpusSection(driver=pb.NvidiaDriver(module_version="1.0", library_version="2.0"))
    assert told(gpu, both)["driverVersion"] == "1.0"
    assert told(gpu, pb.GpusSection(driver=pb.NvidiaDriver(library_version="2.0")))["driverVersion"] == "2.0"


def test_a_peer_without_a_bus_id_is_told_by_its_type() -> None:
    links = [pb.NvLink(link=n, active=True, peer_type="switch") for n in range(18)]
    assert told(b.gpu(0, nvlinks=links))["nvlinkPeers"] == ["switch"]


@pytest.mark.parametrize(
    ("change", "is_up"),
    [
        ({}, True),
        ({"state": "in-progress", "status": ""}, False),
        ({"status": "ERROR_UNKNOWN"}, False),
        ({"cluster_uuid": "00000000-0000-0000-0000-000000000000"}, False),
        ({"cluster_uuid": ""}, False),
    ],
)
def test_a_fabric_counts_when_it_is_completed_with_success_and_has_a_cluster(change: dict[str, str], is_up: bool) -> None:
    made = pb.Fabric(cluster_uuid=UUID, clique_id=7, state="completed", status="success")
    for name, value in change.items():
        setattr(made, name, value)
    assert fabric(b.gpu(0, fabric=made)) == ((UUID, 7) if is_up else None)
    assert ("fabricCluster" in told(b.gpu(0, fabric=made))) is is_up


@pytest.mark.parametrize(
    ("count", "expected"), [(0, None), (1, 0), ((1 << 29) - 1, 0), (1 << 29, 1), (3 << 29, 2), (81559 << 20, 80)]
)
def test_sizes_are_the_nearest_whole_gib_half_up(count: int, expected: int | None) -> None:
    assert gib(count) == expected


def test_recorded_gpus_are_known_and_tell_their_place() -> None:
    hosts = Path(__file__).parents[2] / "hosts"
    sections = [ParseDict(json.loads(path.read_text())["gpus"], pb.GpusSection()) for path in hosts.glob("*/expected.json")]
    found = [told(gpu, section) for section in sections for gpu in section.gpus]
    assert len(found) > 30
    assert {"A100", "GB200", "H100", "B200", "L4", "RTX-4090"} <= {one["gpuModel"] for one in found}
    assert all({"gpuProduct", "pciBusId", "vramGiB", "migCapable", "driverVersion"} <= one.keys() for one in found)
    linked = [one for one in found if "nvlinkPeers" in one]
    assert {"A100", "GB200", "H100", "B200"} <= {one["gpuModel"] for one in linked}, (
        "but a GPU that is in MIG mode or lost has none"
    )
