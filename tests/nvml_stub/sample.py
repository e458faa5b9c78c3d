"""A small recorded host for NVML tests: FULL is answers for which a collection calls every function of HANGABLE, and `record` a
host directory with the PCI functions that belong to answers."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

UUIDS = ("GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa")
MIG_UUID = "MIG-5b1c2d3e-0000-5000-8000-00000000000"
SLOTS = ("0000:18:00.0", "0000:3b:00.0")


def _device(index: int) -> dict[str, Any]:
    return {
        "uuid": UUIDS[index],
        "name": "NVIDIA H100 80GB HBM3",
        "serial": f"165032300000{index}",
        "boardPartNumber": "692-2G520-0200-000",
        "minor": index,
        "pci": {"busId": f"0000{SLOTS[index].upper()}", "deviceId": "2330", "subsystemId": "10de:16c1"},
        "vbios": "96.00.74.00.01",
        "inforomImage": "G520.0200.00.05",
        "gspFirmware": "550.90.07",
        "memoryTotal": 85520809984,
        "architecture": 9,
        "computeCapability": [9, 0],
        "memoryNumaNode": 2 + index,
        "eccMode": [1, 1],
        "eccVolatileTotal": 0,
        "eccVolatileSram": 0,
        "eccVolatileDram": 0,
        "eccAggregateTotal": 5,
        "eccAggregateSram": 2,
        "eccAggregateDram": 3,
        "sramThresholdExceeded": False,
        "remappedRows": [1, 2, 0, 0],
        "retiredPagesSingleBit": 0,
        "retiredPagesDoubleBit": 3,
        "retiredPagesPending": False,
        "migMode": [index, index],
        "maxPcieGeneration": 5,
        "maxPcieWidth": 16,
        "nvlinks": [
            {"link": 0, "active": True, "remoteBusId": "00000000:05:00.0", "remoteType": 2},
            {"link": 1, "active": True, "remoteBusId": "00000000:3B:00.0", "remoteType": 0},
            {"link": 2, "active": False},
        ],
        "fabric": {"clusterUuid": "e1e2e3e4-0102-0304-0506-0708090a0b0c", "cliqueId": 7, "state": 3, "status": 0},
        "persistence": 1,
        "computeMode": 0,
        "powerDefault": 700000,
        "powerLimits": [200000, 700000],
        "powerConfigured": 650000,
        "virtualizationMode": 0,
        "recoveryAction": 0,
        "currentPcieWidth": 16,
        "currentPcieGeneration": 5,
        "pcieReplayCounter": 12,
        "utilization": [37, 12],
        "temperature": 41,
        "powerUsage": 312_400,
        "memoryUsed": 4_194_304,
        "processes": [{"pid": 4711, "usedBytes": 4_194_304}, {"pid": 4712}],
    }


def _instance(number: int, profile: str, gi: int, start: int, size: int) -> dict[str, Any]:
    return {
        "uuid": f"{MIG_UUID}{number}",
        "name": f"NVIDIA H100 80GB HBM3 MIG {profile}",
        "giId": gi,
        "ciId": 0,
        "memoryBytes": size * 10240 << 20,
        "start": start,
        "size": size,
    }


def full() -> dict[str, Any]:
    """A new copy of the answers: two GPUs, the second in MIG mode with two instances."""
    second = _device(1)
    second["migInstances"] = [_instance(2, "3g.40gb", 2, 0, 4), _instance(1, "1g.10gb", 9, 6, 1)]
    return {
        "init": None,
        "system": {
            "driverVersion": "550.90.07",
            "nvmlVersion": "12.550.90.07",
            "cudaDriverVersion": 12040,
            "confidentialCompute": [1, 0],
        },
        "devices": [_device(0), second],
    }


def record(
    folder: Path, nvml: Mapping[str, Any] | None, *, driver: str | None = "nvidia", slot_width: int = 16, loaded: bool = True
) -> Path:
    """A recorded host in `folder` with the functions of SLOTS, bound to `driver`; without `nvml.json` where `nvml` is None."""
    root = folder / "root"
    port = "sys/devices/pci0000:16/0000:16:01.0"
    _write(root, f"{port}/max_link_width", str(slot_width))
    _function(root, "sys/devices/pci0000:16/0000:16:02.0", "0000:16:02.0", vendor="0x8086", device="0x09a2", kind="0x088000")
    for index, slot in enumerate(SLOTS):
        _function(root, f"{port}/{slot}", slot, vendor="0x10de", device="0x2330", kind="0x030200", driver=driver, node=index)
    (root / "proc").mkdir(parents=True)
    if loaded:
        version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build  (dvs@host)  Fri May 31\n"
        _write(root, "proc/driver/nvidia/version", version + "GCC version:  gcc version 12.3.0\n")
    if nvml is not None:
        (folder / "nvml.json").write_text(json.dumps(copy.deepcopy(dict(nvml))))
    return folder


def _function(
    root: Path, path: str, slot: str, *, vendor: str, device: str, kind: str, driver: str | None = None, node: int = -1
) -> None:
    files = {
        "vendor": vendor,
        "device": device,
        "class": kind,
        "subsystem_vendor": "0x10de",
        "subsystem_device": "0x16c1",
        "numa_node": str(node),
        "local_cpulist": f"{48 * node}-{48 * node + 47}" if node >= 0 else "",
        "max_link_width": "16",
    }
    for name, value in files.items():
        _write(root, f"{path}/{name}", value)
    if driver:
        (root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
        (root / path / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True, exist_ok=True)
    (devices / slot).symlink_to("../../../" + path.removeprefix("sys/"))


def _write(root: Path, path: str, value: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(value if value.endswith("\n") else value + "\n")
