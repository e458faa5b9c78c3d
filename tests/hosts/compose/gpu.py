"""NVIDIA: what NVML answers, /proc/driver/nvidia, /sys/module/nvidia, and the PCI functions of GPUs and NVSwitches."""

from dataclasses import dataclass, field
from typing import Any

from tests.hosts.compose import pci
from tests.hosts.compose.tree import Machine

MIB = 1 << 20


@dataclass(frozen=True)
class Product:
    """What all GPUs of one kind answer alike. `limits` is (default, min, max) in mW."""

    name: str
    ids: pci.Ids
    part: str
    vbios: str
    inforom: str
    mib: int
    architecture: int
    capability: tuple[int, int]
    generation: int
    limits: tuple[int, int, int]
    links: int = 0
    mig: bool = False
    ecc: bool = True
    serial: bool = True
    more: dict[str, Any] = field(default_factory=dict)


AMPERE, ADA, HOPPER, BLACKWELL = 7, 8, 9, 10
H100 = Product(
    "NVIDIA H100 80GB HBM3",
    pci.Ids("10de", "2330", "030200", "10de:16c1", "a1"),
    "692-2G520-0200-000",
    "96.00.89.00.01",
    "G520.0200.00.05",
    81559,
    HOPPER,
    (9, 0),
    5,
    (700_000, 200_000, 700_000),
    links=18,
    mig=True,
)
A100 = Product(
    "NVIDIA A100-SXM4-40GB",
    pci.Ids("10de", "20b0", "030200", "10de:134f", "a1"),
    "692-2G506-0200-002",
    "92.00.45.00.03",
    "G506.0200.00.04",
    40960,
    AMPERE,
    (8, 0),
    4,
    (400_000, 100_000, 400_000),
    links=12,
    mig=True,
)
B200 = Product(
    "NVIDIA B200",
    pci.Ids("10de", "2901", "030200", "10de:1999", "a1"),
    "692-2G525-0220-002",
    "97.00.82.00.0F",
    "G525.0220.00.03",
    183359,
    BLACKWELL,
    (10, 0),
    5,
    (1_000_000, 200_000, 1_000_000),
    links=18,
    mig=True,
)
GB200 = Product(
    "NVIDIA GB200",
    pci.Ids("10de", "2941", "030200", "10de:2046", "a1"),
    "692-2G548-0200-800",
    "97.00.B9.00.69",
    "G548.0201.00.06",
    189471,
    BLACKWELL,
    (10, 0),
    5,
    (1_200_000, 200_000, 1_200_000),
    links=18,
    mig=True,
)
L4 = Product(
    "NVIDIA L4",
    pci.Ids("10de", "27b8", "030200", "10de:16ee", "a1"),
    "900-2G193-0000-001",
    "95.04.29.00.06",
    "G193.0200.00.01",
    23034,
    ADA,
    (8, 9),
    4,
    (72_000, 40_000, 72_000),
)
L40S = Product(
    "NVIDIA L40S",
    pci.Ids("10de", "26b9", "030200", "10de:1851", "a1"),
    "900-2G133-0080-000",
    "95.02.66.00.02",
    "G133.0242.00.03",
    46068,
    ADA,
    (8, 9),
    4,
    (350_000, 100_000, 350_000),
)
A10 = Product(
    "NVIDIA A10",
    pci.Ids("10de", "2236", "030200", "10de:1482", "a1"),
    "900-2G133-0020-000",
    "94.02.75.00.01",
    "G133.0210.00.04",
    23028,
    AMPERE,
    (8, 6),
    4,
    (150_000, 100_000, 150_000),
)
RTX_4090 = Product(
    "NVIDIA GeForce RTX 4090",
    pci.Ids("10de", "2684", "030000", "1043:889d", "a1"),
    "",
    "95.02.3C.00.8C",
    "G002.0000.00.03",
    24564,
    ADA,
    (8, 9),
    4,
    (450_000, 150_000, 600_000),
    ecc=False,
    serial=False,
)
NVSWITCH_H100 = pci.Ids("10de", "22a3", "068000", "10de:1796", "a1")
NVSWITCH_A100 = pci.Ids("10de", "1af1", "068000", "10de:13cf", "a1")
SWITCH, GPU = 2, 0  # NVML_NVLINK_DEVICE_TYPE_*
FABRIC_DONE = {"clusterUuid": "00000000-0000-0000-0000-000000000000", "cliqueId": 0, "state": 3, "status": 0}


def driver(m: Machine, version: str, cuda: int, flavour: str = "open", confidential: bool = True) -> None:
    """The loaded module and NVML's own answers. `confidential`: GPUs from Hopper on, which could compute so and do not."""
    machine = (m.facts or {})["uname"]["machine"]
    kind = f"NVIDIA UNIX Open Kernel Module for {machine}" if flavour == "open" else f"NVIDIA UNIX {machine} Kernel Module"
    built = "Release Build  (dvs-builder@U16-I1-N07-12-3)" if flavour == "open" else "Sun May 12 19:38:51 UTC 2024"
    m.put("/proc/driver/nvidia/version", f"NVRM version: {kind}  {version}  {built}\nGCC version:  gcc version 11.4.0\n")
    m.put("/proc/driver/nvidia/params", "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nEnableGpuFirmware: 18\n")
    taint, source = "OE" if flavour == "open" else "POE", m.digits("srcversion", 24).upper()
    m.put_all("/sys/module/nvidia", {"version": version, "initstate": "live", "srcversion": source, "taint": taint})
    answers: dict[str, Any] = {"driverVersion": version, "nvmlVersion": f"12.{version}", "cudaDriverVersion": cuda}
    answers["confidentialCompute"] = [0, 0] if confidential else {"error": "NOT_SUPPORTED"}
    m.nvml = {"init": None, "system": answers, "devices": []}


def gpu(
    m: Machine,
    parent: pci.Place,
    slot: str,
    product: Product,
    group: int | None = None,
    link: pci.Port | None = None,
    **answers: Any,
) -> pci.Place:
    """A GPU of the driver: its function, its /proc entry and NVML's answers. `answers` replace or add queries."""
    link = link or pci.Port(product.generation, 16, 1, 16)
    place = pci.function(m, parent, slot, product.ids, "nvidia", link, group, sriov=(16, 0) if product.mig else None)
    assert m.nvml is not None
    devices = m.nvml["devices"]
    minor = len(devices)
    uuid = f"GPU-{m.uuid(f'gpu{minor}')}"
    version = m.nvml["system"]["driverVersion"]
    information = {
        "Model: ": product.name,
        "IRQ:   ": 120 + minor,
        "GPU UUID: ": uuid,
        "Video BIOS: ": product.vbios,
        "Bus Type: ": "PCIe",
        "DMA Size: ": "52 bits",
        "DMA Mask: ": "0xfffffffffffff",
        "Bus Location: ": slot,
        "Device Minor: ": minor,
        "GPU Firmware: ": version,
        "GPU Excluded:\t": "No",
    }
    m.put(f"/proc/driver/nvidia/gpus/{slot}/information", "".join(f"{key}\t {value}\n" for key, value in information.items()))
    newer = {} if int(version.split(".")[0]) >= 560 else {"recoveryAction": {"error": "FUNCTION_NOT_FOUND"}}
    moment = _moment(product, minor, link.width_now or link.width or 16, mig=bool(answers.get("migMode", [0])[0]))
    devices.append({**_identity(m, product, slot, uuid, minor, version), **_capabilities(product), **moment, **newer, **answers})
    return place


def _identity(m: Machine, p: Product, slot: str, uuid: str, minor: int, version: str) -> dict[str, Any]:
    answers: dict[str, Any] = {"uuid": uuid, "name": p.name}
    if p.serial:
        answers |= {"serial": m.decimal(f"gpu{minor}-serial", 13), "boardPartNumber": p.part}
    return answers | {
        "minor": minor,
        "pci": {"busId": f"0000{slot.upper()}", "deviceId": p.ids.device, "subsystemId": p.ids.subsystem},
        "vbios": p.vbios,
        "inforomImage": p.inforom,
        "gspFirmware": version,
        "memoryTotal": p.mib * MIB,
        "architecture": p.architecture,
        "computeCapability": list(p.capability),
    }


def _capabilities(p: Product) -> dict[str, Any]:
    answers: dict[str, Any] = {
        "maxPcieGeneration": p.generation,
        "maxPcieWidth": 16,
        "persistence": 1,
        "computeMode": 0,
        "virtualizationMode": 0,
        "powerDefault": p.limits[0],
        "powerLimits": [p.limits[1], p.limits[2]],
        "powerConfigured": p.limits[0],
    }
    if p.ecc:
        counts = {f"ecc{when}{what}": 0 for when in ("Volatile", "Aggregate") for what in ("Total", "Sram", "Dram")}
        answers |= {"eccMode": [1, 1], **counts, "remappedRows": [0, 0, False, False], "recoveryAction": 0}
        if p.architecture >= HOPPER:
            answers |= {"sramThresholdExceeded": False}
    else:
        answers |= {"eccMode": [0, 0]}
    if p.mig:
        answers |= {"migMode": [0, 0]}
    return answers


def _moment(p: Product, index: int, width: int, mig: bool) -> dict[str, Any]:
    """An idle GPU: the driver's own memory, a slow link. In MIG mode its utilization is not told."""
    return {
        "currentPcieWidth": width,
        "currentPcieGeneration": 1 if p.generation < 5 else p.generation,
        "utilization": {"error": "NOT_SUPPORTED"} if mig else [0, 0],
        "temperature": 27 + index * 3 % 8,
        "powerUsage": p.limits[0] // 10 + index * 310,
        "memoryUsed": 4 * MIB,
        "processes": [],
        "pcieReplayCounter": 0,
    }


def links_to(switches: tuple[str, ...], count: int) -> list[dict[str, Any]]:
    """NVLinks shared out over NVSwitch functions; without functions the peer has no address."""
    if not switches:
        return [{"link": i, "active": True, "remoteType": SWITCH} for i in range(count)]
    return [
        {"link": i, "active": True, "remoteBusId": f"0000{switches[i * len(switches) // count].upper()}", "remoteType": SWITCH}
        for i in range(count)
    ]


def mig(m: Machine, uuid_seed: str, product: Product, layout: list[tuple[str, int, int, int, int]]) -> list[dict[str, Any]]:
    """MIG instances: (profile, GI id, MiB, first memory slice, slices), one compute instance in each."""
    return [
        {
            "uuid": f"MIG-{m.uuid(f'{uuid_seed}-{gi}')}",
            "name": f"{product.name} MIG {profile}",
            "giId": gi,
            "ciId": 0,
            "memoryBytes": mib * MIB,
            "start": start,
            "size": size,
        }
        for profile, gi, mib, start, size in layout
    ]
