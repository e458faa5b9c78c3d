"""RebootRequired: each code on recorded hosts, and the boot configurations it is read from."""

import struct
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from agent.conditions import reboot
from agent.conditions.module import Module, modinfo_version
from agent.conditions.reboot import Waiting, codes
from agent.host import Host
from agent.recorded import open_host
from tests.agent.conditions.hosts import facts_of, status, verdicts
from tests.hosts_catalog import HOSTS

RELEASE = "5.15.0-1053-nvidia"
PAGES = "default_hugepagesz=1G hugepagesz=1G hugepages=64"
IOMMU = "iommu=pt intel_iommu=on"


SECTION = pb.GpusSection(driver=pb.NvidiaDriver(module_version="550.90.07", library_version="550.90.07"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The least of a host: it runs with huge pages and an IOMMU."""
    write(tmp_path, "/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz ro {PAGES} {IOMMU}\n")
    write(tmp_path, "/proc/sys/kernel/osrelease", f"{RELEASE}\n")
    return tmp_path


def reasons(directory: Path) -> dict[str, str]:
    return codes(reboot.read(open_host(directory), Module(), ()), SECTION)


def write(directory: Path, path: str, text: str | bytes) -> None:
    file = directory / f"root{path}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100-sxm-8", []),
        ("gb200-tray", []),
        ("bare-proc-sys", []),
        ("driver-not-loaded", []),
        ("a100-mig-8", ["EccPending", "MigPending"]),
    ],
)
def test_what_waits_on_each_host(name: str, expected: list[str]) -> None:
    facts = facts_of(HOSTS[name])
    assert list(codes(facts.waiting, facts.gpus)) == expected
    assert status("RebootRequired", facts) == ("true" if expected else "false")


def test_all_codes_are_in_the_message_and_the_first_is_the_reason() -> None:
    facts = facts_of(HOSTS["a100-mig-8"])
    [verdict] = verdicts("RebootRequired", facts)
    assert facts.gpus is not None
    ecc = next(gpu.uuid for gpu in facts.gpus.gpus if gpu.ecc.current != gpu.ecc.pending)
    mig = next(gpu.uuid for gpu in facts.gpus.gpus if gpu.mig.current != gpu.mig.pending)
    assert verdict.reason == "EccPending"
    assert verdict.message == f"EccPending: {ecc}; MigPending: {mig}"


def grub(*arguments: str) -> str:
    line = " ".join(("root=UUID=6d1f0c52", "ro", "console=tty0", *arguments))
    return (
        "set default=0\n### BEGIN /etc/grub.d/10_linux ###\nmenuentry 'Ubuntu' --class ubuntu {\n\tlinux_test=1\n"
        f"\tlinux\t/boot/vmlinuz-{RELEASE} {line}\n\tinitrd\t/boot/initrd.img-{RELEASE}\n}}\n"
        "menuentry 'old' {\n\tlinux\t/boot/vmlinuz-5.4.0 root=UUID=6d1f0c52 isolcpus=1-3\n}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (f"{PAGES} {IOMMU}", []),
        ("", []),  # what was taken out of the line is not missed
        (f"default_hugepagesz=1G hugepagesz=1G hugepages=128 {IOMMU}", ["Hugepages1G"]),
        (f"hugepagesz=2M hugepages=512 {PAGES} {IOMMU}", []),  # other pages
        (f"{PAGES} {IOMMU} isolcpus=managed_irq,domain,8-15", ["IsolatedCpus"]),
        (f"{PAGES} {IOMMU} nohz_full=8-15", ["IsolatedCpus"]),
        (f"{PAGES} iommu=pt intel_iommu=off", ["Iommu"]),
        (f"{PAGES} {IOMMU} amd_iommu=on", ["Iommu"]),
        (f"hugepagesz=1G hugepages=8 isolcpus=3 {IOMMU} iommu.passthrough=1", ["Hugepages1G", "IsolatedCpus", "Iommu"]),
    ],
)
def test_the_boot_configuration_against_the_running_line(directory: Path, arguments: str, expected: list[str]) -> None:
    write(directory, "/boot/grub/grub.cfg", grub(arguments))
    assert list(reasons(directory)) == expected


def test_the_difference_is_named(directory: Path) -> None:
    write(directory, "/boot/grub2/grub.cfg", grub(f"hugepagesz=1G hugepages=128 {IOMMU} isolcpus=8-15"))
    assert reasons(directory) == {"Hugepages1G": "hugepages of 1 GiB=128", "IsolatedCpus": "isolcpus=8-15"}


def test_reads_the_newest_entry_of_a_boot_loader_that_has_entries(tmp_path: Path) -> None:
    folder = "/boot/loader/entries/9f2c"
    write(tmp_path, "/boot/grub2/grub.cfg", "insmod blscfg\nblscfg\n")
    write(tmp_path, f"{folder}-5.14.0-427.el9.x86_64.conf", "title Rocky\noptions root=/dev/md0 isolcpus=1\n")
    write(tmp_path, f"{folder}-5.14.0-1001.el9.x86_64.conf", "title Rocky\noptions root=/dev/md0 isolcpus=2\n")
    write(tmp_path, f"{folder}-0-rescue.conf", "options isolcpus=3\n")
    write(tmp_path, "/etc/kernel/cmdline", "isolcpus=4\n")
    assert reboot.configured(Host(tmp_path / "root")) == "root=/dev/md0 isolcpus=2"


def test_an_entry_with_the_boot_loaders_variables_is_not_known(tmp_path: Path) -> None:
    write(tmp_path, "/boot/loader/entries/a.conf", "options $kernelopts $tuned_params\n")
    assert reboot.configured(Host(tmp_path / "root")) is None
    write(tmp_path, "/etc/kernel/cmdline", "root=/dev/md0\n")
    assert reboot.configured(Host(tmp_path / "root")) == "root=/dev/md0"


def test_a_configuration_that_may_not_be_read_is_no_difference() -> None:
    host = open_host(HOSTS["h100-sxm-8"])
    closed = Host(host.root, errors={"/boot/grub/grub.cfg": 13, "/boot/loader/entries": 13})
    assert reboot.configured(closed) is None
    assert codes(Waiting("isolcpus=1", None), None) == {}
    assert codes(Waiting(None, "isolcpus=1"), None) == {}


def test_the_distribution_asks(directory: Path) -> None:
    write(directory, "/run/reboot-required", "*** System restart required ***\n")
    assert reasons(directory) == {"Distro": "/run/reboot-required"}
    write(directory, "/run/reboot-required.pkgs", "linux-image-6.8.0-50\nlibc6\nlibc6\n")
    assert reasons(directory) == {"Distro": "libc6, linux-image-6.8.0-50"}


def test_a_reset_that_failed_is_told_while_the_change_waits() -> None:
    section = facts_of(HOSTS["a100-mig-8"]).gpus
    assert section is not None
    waits = next(gpu.uuid for gpu in section.gpus if gpu.mig.current != gpu.mig.pending)
    other = next(gpu.uuid for gpu in section.gpus if gpu.uuid != waits)
    assert codes(Waiting(failed_resets=frozenset({waits, other})), section)["MigResetFailed"] == waits
    assert "MigResetFailed" not in codes(Waiting(failed_resets=frozenset({other})), section)


# ---------------------------------------------------------------- DriverSwap


def kernel_module(version: str) -> bytes:
    """The least of an ELF object with a .modinfo."""
    info = b"license=Dual MIT/GPL\0version=" + version.encode() + b"\0srcversion=ABC\0"
    names = b"\0.modinfo\0.shstrtab\0"
    data = info + names
    headers = b"\0" * 64
    for name, offset, size in ((1, 64, len(info)), (10, 64 + len(info), len(names))):
        headers += struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = ident + struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, 64 + len(data), 0, 64, 0, 0, 64, 3, 2)
    return head + data + headers


def install(directory: Path, version: str, path: str = "updates/dkms/nvidia.ko") -> None:
    folder = f"/lib/modules/{RELEASE}"
    write(directory, f"{folder}/modules.dep", f"kernel/a/nvidia-b.ko:\n{path}: kernel/x.ko\nupdates/dkms/nvidia-uvm.ko: {path}\n")
    write(directory, f"{folder}/{path}", kernel_module(version))


@pytest.mark.parametrize(("version", "expected"), [("550.90.07", []), ("550.127.05", ["DriverSwap"])])
def test_the_module_on_disk_against_the_loaded_one(directory: Path, version: str, expected: list[str]) -> None:
    install(directory, version)
    assert list(reasons(directory)) == expected


def test_the_library_against_the_loaded_module() -> None:
    section = pb.GpusSection(driver=pb.NvidiaDriver(module_version="550.90.07", library_version="550.127.05"))
    assert codes(Waiting(), section) == {"DriverSwap": "550.90.07 is loaded, 550.127.05 of the library"}
    both = codes(Waiting(module="550.127.05"), section)["DriverSwap"]
    assert both == "550.90.07 is loaded, 550.127.05 on disk and 550.127.05 of the library"


def test_a_driver_that_is_not_loaded_is_not_swapped() -> None:
    section = pb.GpusSection(driver=pb.NvidiaDriver(library_version="550.127.05"))
    assert codes(Waiting(module="550.90.07"), section) == {}


def test_a_module_is_read_again_only_when_it_is_another(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(directory, "550.90.07")
    module, reads = Module(), []
    read_at = Host.read_at

    def counted(host: Host, path: str, offset: int, size: int) -> bytes:
        reads.append(path)
        return read_at(host, path, offset, size)

    monkeypatch.setattr(Host, "read_at", counted)
    assert module.version(open_host(directory)) == "550.90.07"
    once = len(reads)
    assert module.version(open_host(directory)) == "550.90.07"
    assert len(reads) == once
    install(directory, "550.127.05")
    assert module.version(open_host(directory)) == "550.127.05"


def test_a_compressed_or_absent_module_has_no_version(directory: Path) -> None:
    assert Module().version(open_host(directory)) is None
    install(directory, "1", "updates/dkms/nvidia.ko.zst")
    write(directory, f"/lib/modules/{RELEASE}/updates/dkms/nvidia.ko.zst", b"\x28\xb5\x2f\xfd" + bytes(200))
    assert Module().version(open_host(directory)) is None


def read_of(data: bytes) -> object:
    return modinfo_version(lambda offset, size: data[offset : offset + size])


@given(st.binary(max_size=400), st.integers(0, 320))
def test_any_file_is_a_module_or_none(noise: bytes, at: int) -> None:
    whole = kernel_module("550.90.07")
    assert read_of(whole) == "550.90.07"
    read_of(whole[:at])
    read_of(whole[:at] + noise + whole[at + len(noise) :])
    read_of(noise)
