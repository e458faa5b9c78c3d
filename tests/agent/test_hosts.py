"""Every recorded host through all eight collectors: goldens, and that time, a reboot or disk names move no hash.

A golden is tests/hosts/<name>/expected.json, the sections as `bcd inventory --json` shows them. `UPDATE_GOLDEN=1` rewrites them.
"""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import SECTIONS, encode, section_hash
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from agent.collectors import collect
from agent.host import Host
from agent.nvml import PynvmlNvml
from agent.recorded import open_host, open_nvml
from tests import hosts_catalog
from tests.hosts.compose import MACHINES, compose, tree
from tests.hosts_catalog import HOSTS
from tests.repetitions import times

WITH_GPUS = ("a100-mig-8", "gb200-tray", "l4-cloud-vm", "geforce-workstation")
NVME_PAIRS = {
    "h100-sxm-8": ("nvme3n1", "nvme9n1"),
    "a100-mig-8": ("nvme0n1", "nvme2n1"),
    "gb200-tray": ("nvme0n1", "nvme4n1"),
}


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder for one copy of a host, in memory where that is possible: thousands of small files cost a disk seconds."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 64 << 20:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="bcd-hosts-", dir=memory) as name:
        yield Path(name)


def sections(directory: Path, known: Sequence[pb.Gpu] = ()) -> dict[str, Message]:
    """All eight sections of a recorded host, by name."""
    host, nvml = open_host(directory), open_nvml(directory)
    return {name: collect(name, host, nvml, tuple(known)) for name in sorted(SECTIONS)}


@cache
def committed(name: str) -> dict[str, str]:
    """The hashes of a host as it is committed."""
    return hashes(HOSTS[name])


def hashes(directory: Path) -> dict[str, str]:
    """The hashes of its sections."""
    return {name: section_hash(encode(message)) for name, message in sections(directory).items()}


def gpus(directory: Path, known: Sequence[pb.Gpu] = ()) -> pb.GpusSection:
    """The `gpus` section."""
    section = collect("gpus", open_host(directory), open_nvml(directory), tuple(known))
    assert isinstance(section, pb.GpusSection)
    return section


def disks(directory: Path) -> pb.DisksSection:
    """The `disks` section."""
    section = collect("disks", open_host(directory), open_nvml(directory))
    assert isinstance(section, pb.DisksSection)
    return section


@pytest.mark.parametrize("name", MACHINES)
def test_committed_tree_is_what_the_composer_writes(name: str) -> None:
    there, composed = tree.read(HOSTS[name]), compose(name).rendered()
    differ = sorted(path for path in there.keys() | composed.keys() if there.get(path) != composed.get(path))
    assert not differ, f"python -m tests.hosts.compose {name} would change {differ[:5]}"


def test_catalog_holds_the_hosts_of_the_composer_and_the_captured_one() -> None:
    assert set(HOSTS) == {*MACHINES, "this-machine"}


@pytest.mark.parametrize("name", HOSTS)
def test_tree_survives_git_which_keeps_no_empty_folder(name: str) -> None:
    assert not [folder for folder, folders, names in os.walk(HOSTS[name]) if not folders and not names]


@pytest.mark.parametrize("name", HOSTS)
def test_sections_are_the_golden(name: str) -> None:
    shown: dict[str, Any] = {
        section: MessageToDict(message, always_print_fields_with_no_presence=True)
        for section, message in sections(HOSTS[name]).items()
    }
    path = HOSTS[name] / "expected.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(shown, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    assert shown == json.loads(path.read_text())


@pytest.mark.parametrize("name", HOSTS)
def test_hashes_stay_while_telemetry_moves_and_over_a_reboot(name: str, scratch: Path) -> None:
    directory = hosts_catalog.copy(name, scratch)
    for seed in range(times(20)):
        hosts_catalog.move_telemetry(directory, seed)
        assert hashes(directory) == committed(name), f"seed {seed}"
    hosts_catalog.new_boot(directory)
    assert open_host(directory).boot_id() != open_host(HOSTS[name]).boot_id()
    assert hashes(directory) == committed(name)


def test_hashes_of_this_host_stay() -> None:
    def once() -> dict[str, str]:
        return {name: section_hash(encode(collect(name, Host(), PynvmlNvml("")))) for name in SECTIONS}

    before = once()
    for _ in range(times(20)):
        assert once() == before


@pytest.mark.parametrize("name", HOSTS)
def test_hashes_do_not_come_from_the_order_of_a_scan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = committed(name)
    listdir = os.listdir
    dice = random.Random(7)

    def shuffled(path: str | os.PathLike[str] = ".") -> list[str]:
        names = listdir(path)
        dice.shuffle(names)
        return names

    monkeypatch.setattr(os, "listdir", shuffled)
    assert hashes(HOSTS[name]) == before


@pytest.mark.parametrize(("name", "pair"), NVME_PAIRS.items())
def test_disks_keep_their_order_when_two_swap_names(name: str, pair: tuple[str, str], scratch: Path) -> None:
    directory = hosts_catalog.copy(name, scratch)
    hosts_catalog.swap_disk_names(directory, *pair)
    before, after = disks(HOSTS[name]), disks(directory)
    names = {pair[0]: pair[1], pair[1]: pair[0]}
    for disk in before.disks:
        disk.name = names.get(disk.name, disk.name)
    for array in before.md_arrays:
        for member in array.members:
            disk_name, _, rest = member.name.partition("p")
            member.name = names.get(disk_name, disk_name) + (f"p{rest}" if rest else "")
    assert after == before


@pytest.mark.parametrize("name", ["h100-sxm-8", "hgx-b200-8"])  # the second has NVMe multipath
def test_swapped_disk_is_another_disk_in_the_same_bay(name: str, scratch: Path) -> None:
    directory = hosts_catalog.copy(name, scratch)
    hosts_catalog.swap_disk(directory, "nvme3n1")
    before, after = (next(d for d in disks(path).disks if d.name == "nvme3n1") for path in (HOSTS[name], directory))
    assert before.serial != after.serial
    assert before.wwn != after.wwn
    assert (before.bus_id, before.model, before.bytes) == (after.bus_id, after.model, after.bytes)


@pytest.mark.parametrize("name", WITH_GPUS)
def test_gpu_on_vfio_is_assigned_when_known(name: str, scratch: Path) -> None:
    directory, known = hosts_catalog.copy(name, scratch), gpus(HOSTS[name]).gpus
    uuid = _uuid(directory, 0)
    hosts_catalog.bind_vfio(directory, 0)
    section = gpus(directory, known)
    assert {g.uuid for g in section.gpus} == {g.uuid for g in known}
    assert [(g.uuid, g.assigned, g.state) for g in section.gpus if g.assigned] == [(uuid, True, "ok")]
    assert not section.HasField("error")
    assert uuid not in {g.uuid for g in gpus(directory).gpus}


@pytest.mark.parametrize("name", WITH_GPUS)
def test_gpu_without_a_handle_is_lost_when_known(name: str, scratch: Path) -> None:
    directory, known = hosts_catalog.copy(name, scratch), gpus(HOSTS[name]).gpus
    uuid = _uuid(directory, 0)
    hosts_catalog.lose_gpu(directory, 0)
    section = gpus(directory, known)
    assert {g.uuid for g in section.gpus} == {g.uuid for g in known}
    assert [(g.uuid, g.state) for g in section.gpus if g.state != "ok"] == [(uuid, "lost")]
    assert not next(g for g in section.gpus if g.uuid == uuid).HasField("index")


@pytest.mark.parametrize("name", WITH_GPUS)
def test_gpu_that_is_gone_is_in_neither_list(name: str, scratch: Path) -> None:
    directory, known = hosts_catalog.copy(name, scratch), gpus(HOSTS[name]).gpus
    gone = next(g for g in known if g.uuid == _uuid(directory, 0))
    hosts_catalog.drop_gpu(directory, 0)
    section = gpus(directory, known)
    assert {g.uuid for g in section.gpus} == {g.uuid for g in known} - {gone.uuid}
    assert gone.bus_id not in {f.bus_id for f in section.pci_functions}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("DRIVER_NOT_LOADED", "DriverNotLoaded"),
        ("LIB_RM_VERSION_MISMATCH", "VersionMismatch"),
        ("NO_PERMISSION", "NoPermission"),
        ("LIBRARY_NOT_FOUND", "LibraryNotFound"),
        ("UNKNOWN", "Error"),
    ],
)
def test_nvml_that_does_not_answer_is_an_error_and_no_lost_gpu(code: str, reason: str, scratch: Path) -> None:
    directory, known = hosts_catalog.copy("l4-cloud-vm", scratch), gpus(HOSTS["l4-cloud-vm"]).gpus
    hosts_catalog.nvml_init_error(directory, code)
    section = gpus(directory, known)
    assert section.error.reason == reason
    assert not [g for g in section.gpus if g.state == "lost"]
    assert [f.bus_id for f in section.pci_functions] == [g.bus_id for g in known]


def test_known_gpu_of_the_recorded_lost_host_keeps_its_identity() -> None:
    known = pb.Gpu(
        uuid="GPU-5f1d2c3b-0000-4000-a000-000000000005",
        bus_id="00000000:C1:00.0",
        name="NVIDIA H100 80GB HBM3",
        serial="1650123456789",
    )
    section = gpus(HOSTS["lost-gpu"], [known])
    lost = [g for g in section.gpus if g.state == "lost"]
    assert [(g.uuid, g.serial, g.bus_id) for g in lost] == [(known.uuid, known.serial, known.bus_id)]
    assert len(section.gpus) == 8


def _uuid(directory: Path, index: int) -> str:
    uuid: str = json.loads((directory / "nvml.json").read_text())["devices"][index]["uuid"]
    return uuid
