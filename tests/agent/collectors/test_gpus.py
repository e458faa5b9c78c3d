"""The gpus section over recorded answers; tests/agent/test_nvml.py shows that the real pynvml path gives the same bytes."""

from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import encode

from agent.collectors import Context, Files, Options, collect
from agent.collectors.gpu_facts import cuda_version, flag, number, number64, text
from agent.collectors.gpus import collect as collect_gpus
from agent.errors import SectionFailed, Unreadable
from agent.nvml import HANDLE
from agent.recorded import RecordedNvml, open_host, open_nvml
from agent.sections import Collected, Section
from agent.settling import unsettled
from tests.nvml_stub.sample import MIG_UUID, SLOTS, UUIDS, full, record


def section(folder: Path, known: tuple[pb.Gpu, ...] = ()) -> pb.GpusSection:
    message = collect("gpus", open_host(folder), open_nvml(folder), known, Options())
    assert isinstance(message, pb.GpusSection)
    return message


def of(tmp_path: Path, nvml: dict[str, Any], known: tuple[pb.Gpu, ...] = (), **host: Any) -> pb.GpusSection:
    return section(record(tmp_path / "host", nvml, **host), known)


def first(tmp_path: Path, **answers: Any) -> pb.Gpu:
    nvml = full()
    nvml["devices"][0].update(answers)
    return of(tmp_path, nvml).gpus[0]


def known() -> tuple[pb.Gpu, ...]:
    return tuple(
        pb.Gpu(uuid=uuid, index=i, name="NVIDIA H100 80GB HBM3", serial=f"165032300000{i}", bus_id=f"0000{slot.upper()}",
               vram_bytes=85520809984, persistence=True, state="ok")
        for i, (uuid, slot) in enumerate(zip(UUIDS, SLOTS, strict=True))
    )  # fmt: skip


# -- what is told


def test_tells_every_field_of_a_gpu(tmp_path: Path) -> None:
    gpu = of(tmp_path, full()).gpus[0]
    unset = {field.name for field in pb.Gpu.DESCRIPTOR.fields} - {field.name for field, _ in gpu.ListFields()}
    assert unset == {"assigned", "unreadable"}
    assert (gpu.uuid, gpu.bus_id, gpu.device_id, gpu.subsystem_id) == (UUIDS[0], "00000000:18:00.0", "2330", "10de:16c1")
    assert (gpu.architecture, gpu.compute_capability, gpu.compute_mode) == ("hopper", "9.0", "default")
    assert (gpu.virtualization_mode, gpu.recovery_action, gpu.confidential_compute, gpu.state) == ("none", "none", "on", "ok")
    assert (gpu.numa_node, gpu.memory_numa_node, gpu.cpu_affinity) == (0, 2, "0-47")
    assert (gpu.ecc.current, gpu.ecc.volatile.total, gpu.ecc.aggregate.total, gpu.ecc.aggregate.sram) == (True, 0, 5, 2)
    assert gpu.row_remap == pb.RowRemap(correctable=1, uncorrectable=2)
    assert gpu.retired_pages == pb.RetiredPages(single_bit=0, double_bit=3, pending=False)
    assert gpu.power == pb.PowerLimits(default_mw=700000, min_mw=200000, max_mw=700000, configured_mw=650000)


def test_tells_the_driver(tmp_path: Path) -> None:
    assert of(tmp_path, full()).driver == pb.NvidiaDriver(
        module_version="550.90.07",
        flavour="open",
        library_version="550.90.07",
        nvml_version="12.550.90.07",
        cuda_version="12.4",
        confidential_compute=True,
    )


@pytest.mark.parametrize(
    ("line", "version", "flavour"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024", "550.90.07", "proprietary"),
        ("NVRM version: NVIDIA UNIX aarch64 Kernel Module  535.183  Sun May 12 19:39:15 UTC 2024", "535.183", "proprietary"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.124.06  Release Build  (dvs@U16)", "570.124.06", "open"),
    ],
)
def test_reads_version_and_flavour_of_the_loaded_module(tmp_path: Path, line: str, version: str, flavour: str) -> None:
    folder = record(tmp_path / "host", full())
    (folder / "root/proc/driver/nvidia/version").write_text(line + "\nGCC version: gcc 12\n")
    driver = section(folder).driver
    assert (driver.module_version, driver.flavour) == (version, flavour)


def test_mig_instances_have_profile_ids_placement_and_memory_sorted_by_uuid(tmp_path: Path) -> None:
    mig = of(tmp_path, full()).gpus[1].mig
    assert (mig.capable, mig.current, mig.pending) == (True, True, True)
    assert [(i.uuid, i.profile, i.gpu_instance_id, i.compute_instance_id) for i in mig.instances] == [
        (MIG_UUID + "1", "1g.10gb", 9, 0),
        (MIG_UUID + "2", "3g.40gb", 2, 0),
    ]
    assert [(i.placement.start, i.placement.size, i.memory_bytes >> 30) for i in mig.instances] == [(6, 1, 10), (0, 4, 40)]


def test_a_gpu_that_says_mig_is_not_supported_is_not_capable_and_one_that_does_not_tell_has_no_mig(tmp_path: Path) -> None:
    mig = first(tmp_path / "a", migMode={"error": "NOT_SUPPORTED"}).mig
    assert (mig.capable, mig.HasField("current")) == (False, False)
    assert first(tmp_path / "a2", migMode={"error": "NOT_SUPPORTED"}).HasField("mig")
    old = first(tmp_path / "b", migMode={"error": "FUNCTION_NOT_FOUND"})
    assert not old.HasField("mig")
    assert not old.unreadable
    denied = first(tmp_path / "c", migMode={"error": "NO_PERMISSION"})
    assert not denied.HasField("mig")
    assert [u.path for u in denied.unreadable] == ["nvmlDeviceGetMigMode"]


def test_nvlinks_are_sorted_and_an_inactive_one_has_no_peer(tmp_path: Path) -> None:
    nvml = full()
    nvml["devices"][0]["nvlinks"].reverse()
    assert list(of(tmp_path, nvml).gpus[0].nvlinks) == [
        pb.NvLink(link=0, active=True, peer_bus_id="00000000:05:00.0", peer_type="switch"),
        pb.NvLink(link=1, active=True, peer_bus_id="00000000:3B:00.0", peer_type="gpu"),
        pb.NvLink(link=2, active=False),
    ]


def test_a_peer_that_the_driver_does_not_know_is_absent(tmp_path: Path) -> None:
    link = {"link": 0, "active": True, "remoteBusId": "FFFFFFFF:FFFF:FF.F", "remoteType": 255}
    assert list(first(tmp_path, nvlinks=[link]).nvlinks) == [pb.NvLink(link=0, active=True)]


ZERO = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"clusterUuid": ZERO, "cliqueId": 0, "state": 0, "status": 0}, None),
        ({"clusterUuid": ZERO, "cliqueId": 0, "state": 1, "status": 0}, pb.Fabric(state="not-started")),
        ({"clusterUuid": ZERO, "cliqueId": 0, "state": 2, "status": 0}, pb.Fabric(state="in-progress")),
        ({"clusterUuid": ZERO, "cliqueId": 0, "state": 3, "status": 0}, pb.Fabric(state="completed", status="success")),
        ({"clusterUuid": ZERO, "cliqueId": 0, "state": 3, "status": 999}, pb.Fabric(state="completed", status="UNKNOWN")),
        ({"clusterUuid": ZERO, "cliqueId": 0, "state": 3, "status": 4711}, pb.Fabric(state="completed", status="ERROR_4711")),
        ({"clusterUuid": ZERO, "cliqueId": 0, "state": 9, "status": 0}, pb.Fabric(state="unknown-9")),
        (
            {"clusterUuid": "e1e2e3e4-0102-0304-0506-0708090a0b0c", "cliqueId": 0, "state": 3, "status": 0},
            pb.Fabric(cluster_uuid="e1e2e3e4-0102-0304-0506-0708090a0b0c", clique_id=0, state="completed", status="success"),
        ),
        ({"error": "NOT_SUPPORTED"}, None),
    ],
)
def test_fabric_in_words(tmp_path: Path, answer: dict[str, Any], expected: pb.Fabric | None) -> None:
    gpu = first(tmp_path, fabric=answer)
    assert (gpu.fabric if gpu.HasField("fabric") else None) == expected


def test_words_for_constants_and_unknown_for_newer_ones(tmp_path: Path) -> None:
    gpu = first(tmp_path, recoveryAction=4, computeMode=3, virtualizationMode=3, architecture=77)
    words = (gpu.recovery_action, gpu.compute_mode, gpu.virtualization_mode, gpu.architecture)
    assert words == ("drain-and-reset", "exclusive-process", "host-vgpu", "unknown-77")
    assert first(tmp_path / "b", recoveryAction=42).recovery_action == "unknown-42"


def test_row_remap_is_told_only_where_ecc_and_architecture_have_it(tmp_path: Path) -> None:
    zeros = [0, 0, 0, 0]  # the call succeeds on cards without the feature
    assert first(tmp_path / "a", remappedRows=zeros).HasField("row_remap")
    assert not first(tmp_path / "b", remappedRows=zeros, architecture=6).HasField("row_remap")
    assert not first(tmp_path / "c", remappedRows=zeros, eccMode={"error": "NOT_SUPPORTED"}).HasField("row_remap")
    assert first(tmp_path / "d", remappedRows=[0, 1, True, True]).row_remap == pb.RowRemap(
        uncorrectable=1, pending=True, failure=True
    )


def test_confidential_compute_is_a_matter_of_hopper_and_newer(tmp_path: Path) -> None:
    assert not first(tmp_path, architecture=7).HasField("confidential_compute")
    nvml = full()
    nvml["system"]["confidentialCompute"] = [1, 1]
    assert of(tmp_path / "b", nvml).gpus[0].confidential_compute == "devtools"


def test_pcie_width_is_the_lower_of_the_gpus_and_its_slots(tmp_path: Path) -> None:
    assert of(tmp_path / "a", full()).gpus[0].pcie_max == pb.PcieLink(generation=5, width=16)
    assert of(tmp_path / "b", full(), slot_width=8).gpus[0].pcie_max.width == 8
    assert of(tmp_path / "c", full(), slot_width=255).gpus[0].pcie_max.width == 16  # a port that does not know
    assert of(tmp_path / "e", full(), slot_width=0).gpus[0].pcie_max.width == 16
    assert first(tmp_path / "d", maxPcieWidth=4).pcie_max.width == 4


def test_lists_every_nvidia_function_and_reads_only_the_vendor_of_others(tmp_path: Path) -> None:
    folder = record(tmp_path / "host", full())
    host = open_host(folder)
    read: list[str] = []

    class Watching(Files):
        def bytes(self, path: str, *args: Any, **options: Any) -> bytes | None:
            read.append(path)
            return super().bytes(path, *args, **options)

    message = collect_gpus(Context(Watching(host), open_nvml(folder)))
    assert [(f.bus_id, f.class_code, f.driver, f.numa_node) for f in message.pci_functions] == [
        ("00000000:18:00.0", "030200", "nvidia", 0),
        ("00000000:3B:00.0", "030200", "nvidia", 1),
    ]
    assert [path for path in read if "0000:16:02.0" in path] == ["/sys/bus/pci/devices/0000:16:02.0/vendor"]


def test_a_numa_node_of_minus_one_is_absent(tmp_path: Path) -> None:
    folder = record(tmp_path / "host", full())
    (folder / "root/sys/devices/pci0000:16/0000:16:01.0" / SLOTS[0] / "numa_node").write_text("-1\n")
    message = section(folder)
    assert not message.gpus[0].HasField("numa_node")
    assert not message.pci_functions[0].HasField("numa_node")
    assert not first(tmp_path / "b", memoryNumaNode=-1).HasField("memory_numa_node")


def test_the_order_of_devices_does_not_move_the_list(tmp_path: Path) -> None:
    nvml = full()
    nvml["devices"].reverse()
    assert [gpu.uuid for gpu in of(tmp_path, nvml).gpus] == list(UUIDS)


def test_two_collections_give_the_same_bytes(tmp_path: Path) -> None:
    folder = record(tmp_path / "host", full())
    assert encode(section(folder)) == encode(section(folder))


# -- absences and failures


@pytest.mark.parametrize("value", ["", " ", "N/A", "[N/A]", "Unknown Error", "\ufffd\ufffd\ufffd"])
def test_a_text_that_says_none_is_absent(tmp_path: Path, value: str) -> None:
    gpu = first(tmp_path, serial=value, vbios=value, inforomImage=value)
    assert not gpu.HasField("serial")
    assert not gpu.HasField("vbios")
    assert not gpu.unreadable


def test_all_ones_are_absent(tmp_path: Path) -> None:
    gpu = first(tmp_path, minor=2**32 - 1, eccVolatileTotal=2**64 - 1, powerDefault=2**32 - 1, architecture=2**32 - 1)
    assert not gpu.HasField("minor")
    assert not gpu.ecc.volatile.HasField("total")
    assert not gpu.power.HasField("default_mw")
    assert not gpu.HasField("architecture")


@pytest.mark.parametrize("code", ["NOT_SUPPORTED", "NOT_FOUND", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH"])
def test_an_absence_is_no_failure(tmp_path: Path, code: str) -> None:
    gpu = first(tmp_path, eccMode={"error": code}, serial={"error": code}, powerLimits={"error": code}, nvlinks={"error": code})
    assert not gpu.unreadable
    assert not gpu.ecc.HasField("current")
    assert not gpu.nvlinks


@pytest.mark.parametrize("code", ["NO_PERMISSION", "UNKNOWN", "TIMEOUT"])
def test_a_failure_leaves_the_field_out_and_names_the_function(tmp_path: Path, code: str) -> None:
    gpu = first(tmp_path, powerConfigured={"error": code}, eccMode={"error": code})
    assert [(u.path, u.errno) for u in gpu.unreadable] == [
        ("nvmlDeviceGetEccMode", 0),
        ("nvmlDeviceGetPowerManagementLimit", 0),
    ]
    assert not gpu.power.HasField("configured_mw")
    assert gpu.power.default_mw == 700000


def test_a_failure_inside_a_mig_instance_names_the_function(tmp_path: Path) -> None:
    nvml = full()
    denied = {"error": "NO_PERMISSION"}
    nvml["devices"][1]["migInstances"][0].update(start=denied, size=denied)
    gpu = of(tmp_path, nvml).gpus[1]
    assert [u.path for u in gpu.unreadable] == ["nvmlGpuInstanceGetInfo"]
    assert [i.HasField("placement") for i in gpu.mig.instances] == [True, False]


def test_a_link_whose_state_cannot_be_read_is_left_out_and_the_function_named(tmp_path: Path) -> None:
    links = [{"link": 0, "active": {"error": "UNKNOWN"}}, {"link": 1, "active": True, "remoteBusId": {"error": "TIMEOUT"}}]
    gpu = first(tmp_path, nvlinks=links)
    assert list(gpu.nvlinks) == [pb.NvLink(link=1, active=True)]
    assert [u.path for u in gpu.unreadable] == ["nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkState"]


def test_a_failing_system_query_is_named_by_the_section(tmp_path: Path) -> None:
    nvml = full()
    nvml["system"]["nvmlVersion"] = {"error": "UNKNOWN"}
    message = of(tmp_path, nvml)
    assert [u.path for u in message.unreadable] == ["nvmlSystemGetNVMLVersion"]
    assert len(message.gpus) == 2


@pytest.mark.parametrize("answer", ["text", [1], [1, 2, 3], {"a": 1}, 2**70, -5, 1.5, None, True, "\ud800", [None, None]])
def test_an_answer_of_another_type_is_absent_and_fails_nothing(tmp_path: Path, answer: Any) -> None:
    nvml = full()
    device = nvml["devices"][0]
    nvml["devices"][0] = dict.fromkeys(device, answer) | {"uuid": device["uuid"], "pci": device["pci"]}
    host = open_host(record(tmp_path / "host", full()))
    message = collect_gpus(Context(Files(host), RecordedNvml(nvml)))
    assert [gpu.uuid for gpu in message.gpus] == list(UUIDS)
    encode(message)


@pytest.mark.parametrize(
    ("read", "answer", "expected"),
    [
        (text, "abc\0def", "abc"),
        (text, " 96.00 ", "96.00"),
        (text, 5, None),
        (number, 0, 0),
        (number, 2**32 - 1, None),
        (number, 2**32, None),
        (number, True, None),
        (number64, 2**32 - 1, 2**32 - 1),
        (number64, 2**64 - 1, None),
        (flag, 1, True),
        (flag, False, False),
        (flag, 2, None),
        (flag, "1", None),
        (cuda_version, 12040, "12.4"),
        (cuda_version, 13000, "13.0"),
        (cuda_version, 0, None),
    ],
)
def test_meaning_of_an_answer(read: Any, answer: object, expected: object) -> None:
    assert read(answer) == expected


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = record(tmp_path / "host", full())
    path = f"/sys/bus/pci/devices/{SLOTS[0]}/local_cpulist"
    (folder / "host.json").write_text(f'{{"errors": {{"{path}": 13}}}}')
    message = section(folder)
    assert list(message.unreadable) == [pb.Unreadable(path=path, errno=13)]
    assert not message.gpus[0].HasField("cpu_affinity")


# -- NVML does not answer


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("DRIVER_NOT_LOADED", "DriverNotLoaded"),
        ("LIBRARY_NOT_FOUND", "LibraryNotFound"),
        ("LIB_RM_VERSION_MISMATCH", "VersionMismatch"),
        ("NO_PERMISSION", "NoPermission"),
        ("GPU_IS_LOST", "GpuLost"),
        ("UNKNOWN", "Error"),
    ],
)
def test_names_why_nvml_does_not_answer(tmp_path: Path, code: str, reason: str) -> None:
    for place, answers in (("init", {"init": {"error": code}}), ("count", {"init": None, "count": {"error": code}})):
        message = of(tmp_path / place, answers, known())
        assert message.error.reason == reason
        assert code in message.error.message
        assert not message.gpus  # nothing is called lost by a driver that does not answer
        assert len(message.pci_functions) == 2


def test_without_the_library_names_that_and_still_lists_the_functions(tmp_path: Path) -> None:
    message = section(record(tmp_path / "host", None))
    assert message.error.reason == "LibraryNotFound"
    assert len(message.pci_functions) == 2


def test_driver_not_loaded_but_its_library_is_there(tmp_path: Path) -> None:
    folder = record(tmp_path / "host", {"init": {"error": "DRIVER_NOT_LOADED"}}, driver=None, loaded=False)
    place = folder / "root/usr/lib/x86_64-linux-gnu"
    place.mkdir(parents=True)
    (place / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.550.90.07")
    message = section(folder)
    assert message.error.reason == "DriverNotLoaded"
    assert message.driver == pb.NvidiaDriver(library_version="550.90.07")


def test_a_handle_that_may_not_be_had_leaves_the_section_incomplete_not_the_gpu_lost(tmp_path: Path) -> None:
    nvml = full()
    nvml["devices"][0] = {"handle": {"error": "NO_PERMISSION"}}
    message = of(tmp_path, nvml, known())
    assert message.error.reason == "NoPermission"
    assert not message.gpus


class Never:
    """An NVML that must not be opened."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"NVML was used: {name}")


@pytest.mark.parametrize("driver", ["vfio-pci", "pci-stub", "xen-pciback", "nvgrace_gpu_vfio_pci", "nouveau"])
def test_nvml_is_not_opened_when_every_gpu_has_another_driver(tmp_path: Path, driver: str) -> None:
    host = open_host(record(tmp_path / "host", full(), driver=driver))
    message = collect_gpus(Context(Files(host), Never()))
    assert not message.HasField("error")
    assert [f.driver for f in message.pci_functions] == [driver, driver]


def test_nvml_is_not_opened_without_an_nvidia_gpu(tmp_path: Path) -> None:
    (tmp_path / "root/proc").mkdir(parents=True)
    assert collect_gpus(Context(Files(open_host(tmp_path)), Never())) == pb.GpusSection()


def test_nvml_is_closed_after_a_collection_and_after_a_failure(tmp_path: Path) -> None:
    folder = record(tmp_path / "host", full())

    class Closing(RecordedNvml):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    for answers in (full(), {"init": None, "count": {"error": "UNKNOWN"}}):
        nvml = Closing(answers)
        collect_gpus(Context(Files(open_host(folder)), nvml))
        assert nvml.closed == 1


# -- lost, assigned, missing


def test_a_lost_gpu_keeps_its_identity_and_hides_no_other(tmp_path: Path) -> None:
    nvml = full()
    nvml["devices"][0] = {"handle": {"error": "GPU_IS_LOST"}}
    message = of(tmp_path, nvml, known())
    assert [(gpu.uuid, gpu.state) for gpu in message.gpus] == [(UUIDS[0], "lost"), (UUIDS[1], "ok")]
    lost = message.gpus[0]
    assert (lost.serial, lost.bus_id, lost.vram_bytes, lost.numa_node) == ("1650323000000", "00000000:18:00.0", 85520809984, 0)
    assert not lost.HasField("index")
    assert not lost.HasField("persistence")
    assert not message.HasField("error")
    assert [u.path for u in message.unreadable] == [HANDLE]


@pytest.mark.parametrize("code", ["GPU_IS_LOST", "RESET_REQUIRED"])
@pytest.mark.parametrize("query", ["uuid", "eccMode", "migInstances", "maxPcieGeneration"])
def test_a_gpu_whose_calls_say_lost_is_lost_whichever_call_says_it_first(tmp_path: Path, query: str, code: str) -> None:
    nvml = full()
    nvml["devices"][1][query] = {"error": code}
    message = of(tmp_path, nvml, known())
    assert [(gpu.uuid, gpu.state) for gpu in message.gpus] == [(UUIDS[0], "ok"), (UUIDS[1], "lost")]


def test_a_lost_gpu_that_nobody_knows_is_told_when_it_still_says_its_uuid(tmp_path: Path) -> None:
    nvml = full()
    nvml["devices"][0]["eccMode"] = {"error": "GPU_IS_LOST"}
    gpu = of(tmp_path, nvml).gpus[0]
    assert (gpu.uuid, gpu.state, gpu.serial) == (UUIDS[0], "lost", "1650323000000")


def test_a_gpu_whose_uuid_cannot_be_read_is_the_known_one_at_its_bus_id_and_lost(tmp_path: Path) -> None:
    nvml = full()
    nvml["devices"][0]["uuid"] = {"error": "UNKNOWN"}
    message = of(tmp_path, nvml, known())
    assert [(gpu.uuid, gpu.state) for gpu in message.gpus] == [(UUIDS[0], "lost"), (UUIDS[1], "ok")]


def test_a_known_gpu_that_nvml_no_longer_lists_is_lost_while_its_function_is_there(tmp_path: Path) -> None:
    nvml = full()
    del nvml["devices"][0]
    message = of(tmp_path, nvml, known())
    assert [(gpu.uuid, gpu.state) for gpu in message.gpus] == [(UUIDS[0], "lost"), (UUIDS[1], "ok")]


def test_a_known_gpu_that_neither_nvml_nor_pci_shows_is_not_in_the_section(tmp_path: Path) -> None:
    nvml = full()
    del nvml["devices"][0]
    folder = record(tmp_path / "host", nvml)
    (folder / "root/sys/bus/pci/devices" / SLOTS[0]).unlink()
    assert [gpu.uuid for gpu in section(folder, known()).gpus] == [UUIDS[1]]


def tell(folder: Path, index: int, text: str) -> Path:
    information = folder / f"root/proc/driver/nvidia/gpus/{SLOTS[index]}/information"
    information.parent.mkdir(parents=True)
    information.write_text(text)
    return folder


INFORMATION = (
    f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 120\nGPU UUID: \t {UUIDS[1]}\nVideo BIOS: \t 96.00.89.00.01\n"
    "Bus Type: \t PCIe\nBus Location: \t 0000:3b:00.0\nDevice Minor: \t 1\nGPU Excluded:\t No\n"
)


@pytest.mark.parametrize("handle", [None, {"error": "GPU_IS_LOST"}])
def test_a_gpu_that_nobody_knows_and_nvml_cannot_tell_is_lost_under_the_name_that_the_driver_gives(
    tmp_path: Path, handle: object
) -> None:
    nvml = full()
    nvml["devices"][1:] = [{"handle": handle}] if handle else []
    message = section(tell(record(tmp_path / "host", nvml), 1, INFORMATION))
    lost = next(gpu for gpu in message.gpus if gpu.state == "lost")
    assert (lost.uuid, lost.name, lost.bus_id) == (UUIDS[1], "NVIDIA H100 80GB HBM3", "00000000:3B:00.0")
    assert (lost.device_id, lost.subsystem_id, lost.numa_node) == ("2330", "10de:16c1", 1)
    assert len(message.gpus) == 2


@pytest.mark.parametrize(
    "text",
    [
        INFORMATION.replace(UUIDS[1], "GPU-????????-????-????-????-????????????"),
        INFORMATION.replace("Excluded:\t No", "Excluded:\t Yes"),
        "",
        "GPU UUID",
    ],
)
def test_a_gpu_without_a_name_or_that_the_driver_leaves_alone_is_not_made_up(tmp_path: Path, text: str) -> None:
    nvml = full()
    del nvml["devices"][1]
    assert [gpu.uuid for gpu in section(tell(record(tmp_path / "host", nvml), 1, text)).gpus] == [UUIDS[0]]


def test_a_lost_gpu_of_which_only_the_uuid_is_known_has_what_pci_and_the_driver_say(tmp_path: Path) -> None:
    nvml = full()
    del nvml["devices"][1]
    text = INFORMATION.replace(UUIDS[1], "GPU-????????-????-????-????-????????????")
    named = pb.Gpu(uuid=UUIDS[1], bus_id="00000000:3B:00.0")
    lost = section(tell(record(tmp_path / "host", nvml), 1, text), (named,)).gpus[1]
    assert (lost.uuid, lost.state, lost.device_id, lost.name) == (UUIDS[1], "lost", "2330", "NVIDIA H100 80GB HBM3")


def test_the_drivers_word_on_which_gpu_is_there_goes_before_what_is_remembered(tmp_path: Path) -> None:
    nvml = full()
    del nvml["devices"][1]
    other = pb.Gpu(uuid="GPU-other", bus_id="00000000:3B:00.0", device_id="2330", state="ok")
    gpus = section(tell(record(tmp_path / "host", nvml), 1, INFORMATION), (other,)).gpus
    assert [(gpu.uuid, gpu.state) for gpu in gpus] == [(UUIDS[0], "ok"), (UUIDS[1], "lost")]


def test_a_lost_gpu_that_was_known_in_another_slot_is_where_the_driver_says(tmp_path: Path) -> None:
    nvml = full()
    del nvml["devices"][1]
    moved = pb.Gpu(uuid=UUIDS[1], bus_id="00000000:99:00.0", serial="1650323000001", state="ok")
    lost = section(tell(record(tmp_path / "host", nvml), 1, INFORMATION), (moved,)).gpus[1]
    assert (lost.uuid, lost.state, lost.bus_id, lost.serial) == (UUIDS[1], "lost", "00000000:3B:00.0", "1650323000001")


def test_virtual_functions_of_a_vgpu_host_are_listed_and_expect_no_nvml(tmp_path: Path) -> None:
    nvml = full()
    del nvml["devices"][1]
    folder = record(tmp_path / "host", nvml)
    (folder / "root/sys/bus/pci/devices" / SLOTS[1] / "physfn").symlink_to(f"../{SLOTS[0]}")
    message = section(folder, known()[1:])
    assert [f.virtual_function for f in message.pci_functions] == [False, True]
    assert [gpu.state for gpu in message.gpus] == ["ok"]
    assert unsettled(Collected((Section("gpus", encode(message)),))) is None


@pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub", "pciback", "xen-pciback"])
def test_a_known_gpu_on_a_stub_driver_is_assigned_not_lost(tmp_path: Path, driver: str) -> None:
    message = of(tmp_path, full(), known(), driver=driver)
    assert [(gpu.uuid, gpu.assigned, gpu.state, gpu.serial) for gpu in message.gpus] == [
        (UUIDS[0], True, "ok", "1650323000000"),
        (UUIDS[1], True, "ok", "1650323000001"),
    ]
    assert not message.HasField("error")


def test_one_assigned_gpu_beside_one_of_the_driver(tmp_path: Path) -> None:
    nvml = full()
    del nvml["devices"][0]
    folder = record(tmp_path / "host", nvml)
    driver = folder / "root/sys/devices/pci0000:16/0000:16:01.0" / SLOTS[0] / "driver"
    driver.unlink()
    driver.symlink_to("../../../../bus/pci/drivers/vfio-pci")
    message = section(folder, known())
    assert [(gpu.uuid, gpu.assigned, gpu.state) for gpu in message.gpus] == [(UUIDS[0], True, "ok"), (UUIDS[1], False, "ok")]
    assert [gpu.uuid for gpu in section(folder).gpus] == [UUIDS[1]]  # nobody knows what is bound to the stub


@pytest.mark.parametrize("kind", ["0x068000", "0x040300", "0x0c0330"])
def test_switches_and_the_other_functions_of_a_card_are_listed_and_expect_no_nvml(tmp_path: Path, kind: str) -> None:
    folder = record(tmp_path / "host", full(), driver=None)
    for slot in SLOTS:
        (folder / "root/sys/devices/pci0000:16/0000:16:01.0" / slot / "class").write_text(kind + "\n")
    message = collect_gpus(Context(Files(open_host(folder)), Never()))
    assert [f.class_code for f in message.pci_functions] == [kind.removeprefix("0x")] * 2
    assert not message.HasField("error")


def test_a_known_gpu_whose_slot_has_another_gpu_now_is_not_lost(tmp_path: Path) -> None:
    nvml = full()
    nvml["devices"][0]["uuid"] = "GPU-99999999-0000-0000-0000-000000000000"
    assert [gpu.state for gpu in of(tmp_path, nvml, known()).gpus] == ["ok", "ok"]


def test_a_known_gpu_that_moved_to_another_slot_is_listed_once(tmp_path: Path) -> None:
    nvml = full()
    del nvml["devices"][1]
    old = known()[0]
    old.bus_id = "00000000:3B:00.0"
    assert [(gpu.uuid, gpu.state) for gpu in of(tmp_path, nvml, (old,)).gpus] == [(UUIDS[0], "ok")]


def test_a_lost_gpu_is_not_taken_for_one_that_moved_from_its_slot(tmp_path: Path) -> None:
    nvml = full()
    moved = known()[0]
    moved.bus_id = "00000000:3B:00.0"
    nvml["devices"][1]["uuid"] = {"error": "UNKNOWN"}  # its bus id can be read, its UUID cannot
    message = of(tmp_path, nvml, (moved,))
    assert [(gpu.uuid, gpu.state) for gpu in message.gpus] == [(UUIDS[0], "ok")]
    assert [u.path for u in message.unreadable] == ["nvmlDeviceGetUUID"]


# -- identity is read twice


class Unstable(RecordedNvml):
    """The second read of `query` of GPU 0 is `second`. `uuid` is asked once more, before the others, for the handle."""

    def __init__(self, query: str, second: object) -> None:
        super().__init__(full())
        self.query, self.second, self.left = query, second, 2 if query == "uuid" else 1

    def device(self, index: int, query: str) -> object:
        if (index, query) == (0, self.query):
            self.left -= 1
            if self.left < 0:
                return RecordedNvml({"devices": [{query: self.second}]}).device(0, query)
        return super().device(index, query)


@pytest.mark.parametrize(
    ("query", "second"),
    [
        ("uuid", UUIDS[1]),
        ("serial", "1650323999999"),
        ("name", "NVIDIA A100-SXM4-40GB"),
        ("boardPartNumber", "692-2G506-0200-000"),
        ("pci", {"busId": "00000000:3B:00.0", "deviceId": "2330"}),
    ],
)
def test_two_reads_of_an_identity_field_that_differ_fail_the_section(tmp_path: Path, query: str, second: object) -> None:
    host = open_host(record(tmp_path / "host", full()))
    with pytest.raises(SectionFailed, match="a moment later") as failed:
        collect_gpus(Context(Files(host), Unstable(query, second)))
    assert failed.value.reason == "IdentityUnstable"


def test_a_gpu_that_is_lost_before_the_second_read_is_lost(tmp_path: Path) -> None:
    host = open_host(record(tmp_path / "host", full()))
    message = collect_gpus(Context(Files(host), Unstable("serial", {"error": "GPU_IS_LOST"})))
    assert [(gpu.uuid, gpu.state) for gpu in message.gpus] == [(UUIDS[0], "lost"), (UUIDS[1], "ok")]


def test_two_gpus_that_say_the_same_uuid_fail_the_section(tmp_path: Path) -> None:
    nvml = full()
    nvml["devices"][1]["uuid"] = UUIDS[0]
    with pytest.raises(SectionFailed, match=UUIDS[0]):
        of(tmp_path, nvml)


def test_unreadable_pci_is_named(tmp_path: Path) -> None:
    folder = record(tmp_path / "host", full())
    (folder / "host.json").write_text('{"errors": {"/sys/bus/pci/devices": 13}}')
    message = section(folder)
    assert list(message.unreadable) == [pb.Unreadable(path="/sys/bus/pci/devices", errno=13)]
    with pytest.raises(Unreadable):
        open_host(folder).listdir("/sys/bus/pci/devices")
