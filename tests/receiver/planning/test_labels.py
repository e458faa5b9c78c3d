"""Labels of a node: from its sections, and from the drivers that it advertises (SPEC B1, B2)."""

import json
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import SECTIONS, decode
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from receiver.planning.labels import LABELS, driver_labels, inventory_labels, model_words, plan
from receiver.planning.view import Draft, Facts, Label
from receiver.values import Driver
from tests.receiver import builders as b

HOSTS = Path(__file__).parents[2] / "hosts"
UUID = "6f8b1c2d-93a4-4e57-8d10-2b7c5e9f3a61"
KEYS = [
    "gpu.present",
    "gpu.count",
    "gpu.product",
    "gpu.model",
    "gpu.vramGiB",
    "cuda.driver.major",
    "nvidia.driver.version",
    "mig.capable",
    "fabric.domain",
    "cpu.arch",
    "cpu.vendor",
    "cpu.model",
    "cpu.sockets",
    "cpu.cores",
    "cpu.threads",
    "memory.GiB",
    "numa.nodes",
    "os.distro",
    "os.kernel",
    "kvm.available",
]  # SPEC B2


def sections(**replaced: Message | None) -> dict[str, Message]:
    return {name: decode(name, data) for name, data in b.host(**replaced).items()}  # type: ignore[arg-type]


def recorded(host: str) -> dict[str, Message]:
    told = json.loads((HOSTS / host / "expected.json").read_text())
    return {name: ParseDict(told[name], SECTIONS[name].message()) for name in SECTIONS if name in told}


def labelled(*gpus: pb.Gpu, **more: Any) -> dict[str, str]:
    return inventory_labels({"gpus": b.gpus(*gpus, **more)})


def fabric(cluster: str = UUID, clique: int = 3, state: str = "completed", status: str = "success") -> pb.Fabric:
    return pb.Fabric(cluster_uuid=cluster, clique_id=clique, state=state, status=status)


# ---- from sections


def test_the_keys_are_the_specs() -> None:
    assert sorted(key for rows in LABELS.values() for key in rows) == sorted(KEYS)


def test_a_recorded_host_has_its_labels() -> None:
    assert inventory_labels(recorded("gb200-tray")) == {
        "gpu.present": "true",
        "gpu.count": "4",
        "gpu.product": "GB200-SUPERCHIP-186GB",
        "gpu.model": "GB200",
        "gpu.vramGiB": "185",
        "cuda.driver.major": "12",
        "nvidia.driver.version": "570.133.20",
        "mig.capable": "true",
        "fabric.domain": f"{UUID}.32766",
        "cpu.arch": "aarch64",
        "cpu.vendor": "ARM",
        "cpu.model": "Neoverse-V2",
        "cpu.sockets": "2",
        "cpu.cores": "144",
        "cpu.threads": "144",
        "memory.GiB": "960",
        "numa.nodes": "2",
        "os.distro": "ubuntu",
        "os.kernel": "6.8.0-1021-nvidia-64k",
        "kvm.available": "false",
    }


@pytest.mark.parametrize("host", sorted(path.parent.name for path in HOSTS.glob("*/expected.json")))
def test_every_recorded_host_is_told_in_values_that_a_label_takes(host: str) -> None:
    made = inventory_labels(recorded(host))
    assert {"cpu.model", "cpu.arch", "memory.GiB", "os.kernel", "gpu.present"} <= made.keys() <= set(KEYS)
    assert all(0 < len(value) <= 63 for value in made.values())


def test_a_host_without_gpus_says_so() -> None:
    assert inventory_labels({"gpus": pb.GpusSection()}) == {"gpu.present": "false", "gpu.count": "0"}


def test_a_section_that_never_came_makes_no_label() -> None:
    made = inventory_labels({"memory": pb.MemorySection(total_bytes=3 << 30)})
    assert made == {"memory.GiB": "3"}
    assert inventory_labels({}) == {}
    assert inventory_labels({name: one.message() for name, one in SECTIONS.items() if name != "gpus"}) == {}


def test_gpus_that_disagree_read_mixed() -> None:
    a100 = b.gpu(1, name="NVIDIA A100-SXM4-40GB", vram_bytes=40 << 30)
    made = labelled(b.gpu(0, vram_bytes=80 << 30), a100)
    assert (made["gpu.product"], made["gpu.model"], made["gpu.vramGiB"]) == ("mixed", "mixed", "mixed")
    assert made["mig.capable"] == "true"
    assert labelled(b.gpu(0), b.gpu(1, mig=pb.Mig(capable=False)))["mig.capable"] == "mixed"


def test_same_model_of_two_products_is_one_model() -> None:
    made = labelled(b.gpu(0), b.gpu(1, name="NVIDIA H100 PCIe"))
    assert (made["gpu.product"], made["gpu.model"]) == ("mixed", "H100")


def test_a_gpu_that_tells_nothing_does_not_make_labels_mixed() -> None:
    lost = pb.Gpu(uuid="GPU-9", bus_id="00000000:99:00.0", state="lost")
    made = labelled(b.gpu(0, vram_bytes=80 << 30), lost)
    assert (made["gpu.count"], made["gpu.product"], made["gpu.vramGiB"]) == ("2", "H100-SXM5-80GB", "80")


def test_gpus_that_another_driver_has_count() -> None:
    """A host of virtual machines: NVML never saw its GPUs."""
    made = labelled(on_pci=4, driver="", cuda="")
    assert made == {"gpu.present": "true", "gpu.count": "4"}
    assert labelled(b.gpu(0), on_pci=2)["gpu.count"] == "2", "one listed, the other on PCI only"


def test_switches_sound_and_virtual_functions_are_no_gpus() -> None:
    functions = [
        pb.PciFunction(bus_id="00000000:05:00.0", device_id="22a3", class_code="068000"),
        pb.PciFunction(bus_id="00000000:01:00.1", device_id="22ba", class_code="040300"),
        pb.PciFunction(bus_id="00000000:3D:00.4", device_id="2331", class_code="030200", virtual_function=True),
    ]
    assert inventory_labels({"gpus": pb.GpusSection(pci_functions=functions)})["gpu.count"] == "0"


def test_vram_is_absent_when_it_is_not_reported() -> None:
    assert "gpu.vramGiB" not in labelled(b.gpu(0))
    assert labelled(b.gpu(0, vram_bytes=81559 << 20))["gpu.vramGiB"] == "80"


def test_a_gpu_that_shares_the_hosts_memory_is_labelled_by_it() -> None:
    made = inventory_labels({"gpus": b.gpus(b.gpu(0, name="NVIDIA Thor")), "memory": pb.MemorySection(total_bytes=62 << 30)})
    assert (made["gpu.product"], made["memory.GiB"]) == ("THOR-SOC-64GB", "62")


def test_a_fabric_domain_is_cluster_and_clique() -> None:
    assert labelled(b.gpu(0, fabric=fabric()), b.gpu(1, fabric=fabric()))["fabric.domain"] == f"{UUID}.3"
    assert labelled(b.gpu(0, fabric=fabric()), b.gpu(1, fabric=fabric(clique=4)))["fabric.domain"] == "mixed"


@pytest.mark.parametrize(
    "other",
    [
        None,
        fabric(state="in-progress", status=""),
        fabric(status="ERROR_TIMEOUT"),
        fabric(cluster="00000000-0000-0000-0000-000000000000"),
    ],
)
def test_there_is_no_fabric_domain_until_every_gpus_fabric_is_up(other: pb.Fabric | None) -> None:
    assert "fabric.domain" not in labelled(b.gpu(0, fabric=fabric()), b.gpu(1, fabric=other))
    assert "fabric.domain" not in labelled()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("AMD EPYC 9654 96-Core Processor", "AMD-EPYC-9654-96-Core-Processor"),
        ("Intel(R) Xeon(R) Platinum 8480C", "Intel-Xeon-Platinum-8480C"),
        ("Intel(R) Core(TM) i9-14900K", "Intel-Core-i9-14900K"),
        ("AMD Ryzen™ Threadripper® 7980X", "AMD-Ryzen-Threadripper-7980X"),
        ("Dual-Core AMD Opteron(tm) Processor 2218", "Dual-Core-AMD-Opteron-Processor-2218"),
        ("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", "Intel-Xeon-CPU-E5-2690-v4-2.60GHz"),
        ("  Intel(R)  Xeon(R) Gold 6426Y +", "Intel-Xeon-Gold-6426Y"),
        ("QEMU Virtual CPU version 2.5+", "QEMU-Virtual-CPU-version-2.5"),
        ("a_b.c", "a_b.c"),
        ("", ""),
    ],
)
def test_a_processors_name_drops_marks_and_joins_words(name: str, words: str) -> None:
    assert model_words(name) == words


@pytest.mark.parametrize(
    ("midr", "model", "label"),
    [
        ("0x00000000410fd4f0", "Grace A02", "Neoverse-V2"),
        ("0x00000000410fd4f0", None, "Neoverse-V2"),  # a bcd older than the table
        ("0x00000000410ffff0", "NVIDIA Vera A01", "NVIDIA-Vera-A01"),  # the firmware's name
        ("nonsense", "AMD EPYC 7763", "AMD-EPYC-7763"),
        (None, "AMD EPYC 7763", "AMD-EPYC-7763"),
    ],
)
def test_an_arm_processor_is_named_by_its_midr(midr: str | None, model: str | None, label: str) -> None:
    assert inventory_labels({"cpu": pb.CpuSection(midr=midr, model=model)})["cpu.model"] == label


def test_a_value_that_is_too_long_is_left_out_not_shortened() -> None:
    made = inventory_labels({"cpu": pb.CpuSection(model="x" * 64, vendor="y" * 63)})
    assert made == {"cpu.vendor": "y" * 63}


def test_kvm_is_told_only_where_the_host_does() -> None:
    assert inventory_labels({"os": pb.OsSection(kvm=pb.Kvm(available=True))}) == {"kvm.available": "true"}
    assert inventory_labels({"os": pb.OsSection(kvm=pb.Kvm())}) == {"kvm.available": "false"}
    assert inventory_labels({"os": pb.OsSection()}) == {}


# ---- the rule


def planned(labels: dict[str, Label], told: dict[str, Message]) -> dict[str, Label]:
    draft = Draft(labels=dict(labels))
    plan(Facts("node_1", sections=told), draft)
    return draft.labels


def test_labels_of_the_inventory_are_exactly_those_that_its_sections_make() -> None:
    stored = {"gpu.model": Label("gpu.model", "A100", "inventory"), "fabric.domain": Label("fabric.domain", "x.1", "inventory")}
    made = planned(stored, sections())
    assert made["gpu.model"] == Label("gpu.model", "H100", "inventory")
    assert "fabric.domain" not in made
    assert {one.key: one.value for one in made.values()} == inventory_labels(sections())


def test_labels_of_operators_and_of_the_system_stay() -> None:
    stored = {"rack": Label("rack", "r7", "operator"), "bc.dev/driver.x": Label("bc.dev/driver.x", "1", "system")}
    assert {key: one for key, one in planned(stored, sections()).items() if one.source != "inventory"} == stored


def test_what_the_inventory_tells_takes_the_place_of_what_an_operator_wrote() -> None:
    made = planned({"gpu.model": Label("gpu.model", "B200", "operator")}, sections())
    assert made["gpu.model"] == Label("gpu.model", "H100", "inventory")


def test_planning_labels_twice_plans_nothing() -> None:
    once = planned({}, sections())
    assert planned(once, sections()) == once


# ---- from a Hello


def test_a_driver_is_labelled_with_its_version_and_each_kind_of_work() -> None:
    drivers = [Driver("libvirt-kvm", "10.0.0", ("vm", "snapshot")), Driver("k8s", "", ("pod",))]
    assert driver_labels(drivers) == {
        "bc.dev/driver.libvirt-kvm": "10.0.0",
        "bc.dev/driver-kind.libvirt-kvm.snapshot": "1",
        "bc.dev/driver-kind.libvirt-kvm.vm": "1",
        "bc.dev/driver.k8s": "unknown",
        "bc.dev/driver-kind.k8s.pod": "1",
    }
    assert driver_labels([]) == {}


@pytest.mark.parametrize("driver_id", ["", "Libvirt", "a b", "a/b", "é", "x\n", "x\0"])
def test_a_driver_whose_id_makes_no_key_is_skipped(driver_id: str) -> None:
    assert driver_labels([Driver(driver_id, "1", ("vm",)), Driver("a_b.c-1", "2")]) == {"bc.dev/driver.a_b.c-1": "2"}


@pytest.mark.parametrize("kind", ["", "VM", "1vm", "v_m", "-vm", "v" * 33, "vm\n"])
def test_a_kind_that_makes_no_key_is_skipped(kind: str) -> None:
    made = driver_labels([Driver("d", "1", (kind, "v" * 32))])
    assert made == {"bc.dev/driver.d": "1", f"bc.dev/driver-kind.d.{'v' * 32}": "1"}


def test_a_driver_has_at_most_32_kinds_whatever_their_order() -> None:
    kinds = tuple(f"kind-{n:02}" for n in range(40))
    made = driver_labels([Driver("d", "1", kinds)])
    assert len(made) == 1 + 32
    assert made == driver_labels([Driver("d", "1", kinds[::-1])])


def test_a_driver_that_is_named_twice_counts_once() -> None:
    assert driver_labels([Driver("d", "1"), Driver("d", "2", ("vm",))]) == {"bc.dev/driver.d": "1"}


def test_a_version_is_cut_to_what_a_label_takes() -> None:
    assert driver_labels([Driver("d", "v" * 200)]) == {"bc.dev/driver.d": "v" * 63}
