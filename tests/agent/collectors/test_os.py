import errno
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors.os import collect, os_release
from agent.host import Uname
from tests.agent.collectors.test_packages import paragraph
from tests.agent.collectors.tree import ARM, Content, Link, context

UBUNTU = (
    'PRETTY_NAME="Ubuntu 22.04.4 LTS"\nNAME="Ubuntu"\nVERSION_ID="22.04"\nVERSION="22.04.4 LTS (Jammy Jellyfish)"\n'
    'VERSION_CODENAME=jammy\nID=ubuntu\nID_LIKE=debian\nHOME_URL="https://www.ubuntu.com/"\n'
)
STATUS = "".join(
    (
        paragraph("containerd.io", "1.7.18-1"),
        paragraph("docker-ce", "5:27.0.3-1~ubuntu.22.04~jammy"),
        paragraph("docker-ce-cli", "5:26.0.0-1"),
        paragraph("nvidia-container-toolkit", "1.15.0-1"),
        paragraph("nvidia-container-toolkit-base", "1.14.0-1"),
        paragraph("nvidia-fabricmanager-550", "550.90.07-1"),
        paragraph("nvidia-fabricmanager-dev-560", "560.35.03-1"),
    )
)
CMDLINE = (
    "BOOT_IMAGE=/vmlinuz-5.15.0-112-generic root=UUID=0a1b ro iommu=pt intel_iommu=on default_hugepagesz=1G hugepagesz=1G "
    "hugepages=16 hugepagesz=2M hugepages=512 isolcpus=2-47 nvidia.NVreg_EnableGpuFirmware=1 console=tty0 console=ttyS0,115200\n"
)
HOST: dict[str, Content] = {
    "/usr/lib/os-release": UBUNTU,
    "/etc/os-release": Link("../usr/lib/os-release"),
    "/proc/cmdline": CMDLINE,
    "/proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
    "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory\n",
    "/dev/kvm": "",
    "/sys/module/kvm_intel/parameters/nested": "Y\n",
    "/sys/kernel/iommu_groups/0/type": "DMA-FQ\n",
    "/var/lib/dpkg/status": STATUS,
}


def argument(key: str, value: str | None = None) -> pb.KernelArgument:
    return pb.KernelArgument(key=key, value=value)


def test_ubuntu_gpu_host(tmp_path: Path) -> None:
    assert collect(context(tmp_path, HOST)) == pb.OsSection(
        distro_id="ubuntu",
        distro_version="22.04",
        pretty_name="Ubuntu 22.04.4 LTS",
        kernel_release="5.15.0-112-generic",
        architecture="x86_64",
        hostname="gpu-01",
        kernel_command_line=[
            argument("BOOT_IMAGE"),
            argument("console"),
            argument("console"),
            argument("default_hugepagesz", "1G"),
            argument("hugepages", "16"),
            argument("hugepages", "512"),
            argument("hugepagesz", "1G"),
            argument("hugepagesz", "2M"),
            argument("intel_iommu", "on"),
            argument("iommu", "pt"),
            argument("isolcpus", "2-47"),
            argument("nvidia.NVreg_EnableGpuFirmware", "1"),
            argument("ro"),
            argument("root"),
        ],
        cgroup_version=2,
        psi=True,
        kvm=pb.Kvm(available=True, nested=True),
        iommu=True,
        hugepages=[pb.Hugepages(page_bytes=2 << 20, count=512), pb.Hugepages(page_bytes=1 << 30, count=16)],
        container_runtimes=[
            pb.ContainerRuntime(name="containerd", version="1.7.18"),
            pb.ContainerRuntime(name="docker", version="27.0.3"),
        ],
        nvidia_container_toolkit_version="1.15.0",
        fabric_manager_version="550.90.07",
    )


def test_no_secret_of_the_command_line_is_in_the_section(tmp_path: Path) -> None:
    line = (
        "root=/dev/sda1 rd.luks.key=hunter2 systemd.set_credential=pw:hunter2 ds=nocloud;s=http://u:hunter2@h "
        '"quoted.pw=hunter2 hunter2" single=\'x hunter2 hunter2\' double="hunter2 hunter2" https://u:hunter2@h/ '
        "iommu.pass=hunter2 pcie=hunter2 -- --token hunter2 hunter2"
    )
    data = collect(context(tmp_path, {"/proc/cmdline": line})).SerializeToString()
    assert b"rd.luks.key" in data
    assert b"hunter2" not in data


def test_arguments_are_sorted_so_that_their_order_changes_nothing(tmp_path: Path) -> None:
    words = ["ro", "iommu=pt", "console=tty0", "psi=1", "quiet", "nvidia-drm.modeset=1"]
    sections = [collect(context(tmp_path, {"/proc/cmdline": " ".join(order)})) for order in (words, words[::-1])]
    assert sections[0] == sections[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ID=ubuntu\n", {"ID": "ubuntu"}),
        ('PRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"\n', {"PRETTY_NAME": "Rocky Linux 9.4 (Blue Onyx)"}),
        ("VERSION_ID='12'\n", {"VERSION_ID": "12"}),
        (r'NAME="a \"quoted\" \$name \\"', {"NAME": 'a "quoted" $name \\'}),
        (r"NAME='a \$name'", {"NAME": r"a \$name"}),
        ("# ID=comment\n\nno assignment\nID=debian\n", {"ID": "debian"}),
        ("ID=one\nID=two\n", {"ID": "two"}),
        ('VERSION_ID=""\nID=\n', {}),
        ('NAME="', {"NAME": '"'}),
        ("", {}),
    ],
)
def test_os_release_quoting(text: str, expected: dict[str, str]) -> None:
    assert os_release(text) == expected


def test_os_release_of_the_vendor_where_etc_has_none(tmp_path: Path) -> None:
    assert collect(context(tmp_path, {"/usr/lib/os-release": UBUNTU})).distro_id == "ubuntu"


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"/sys/fs/cgroup/cgroup.controllers": "cpu io\n"}, 2),
        ({"/proc/self/mountinfo": "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"}, 1),
        ({"/sys/fs/cgroup/memory": None, "/sys/fs/cgroup/unified/cgroup.controllers": ""}, 1),
        ({}, None),
    ],
)
def test_cgroup_version(tmp_path: Path, files: dict[str, Content], version: int | None) -> None:
    section = collect(context(tmp_path, files))
    assert (section.cgroup_version if section.HasField("cgroup_version") else None) == version


@pytest.mark.parametrize(
    ("error", "expected", "named"),
    [(None, True, False), (errno.ENOENT, False, False), (errno.EOPNOTSUPP, False, False), (errno.EACCES, None, True)],
)
def test_psi_is_present_when_it_answers(tmp_path: Path, error: int | None, expected: bool | None, named: bool) -> None:
    errors = {"/proc/pressure/cpu": error} if error else {}
    section = collect(context(tmp_path, HOST, errors=errors))
    assert (section.psi if section.HasField("psi") else None) == expected
    assert bool(section.unreadable) is named


def test_pressure_of_the_moment_changes_nothing(tmp_path: Path) -> None:
    idle = collect(context(tmp_path, HOST))
    busy = collect(context(tmp_path, {"/proc/pressure/cpu": "some avg10=93.10 avg60=50.00 avg300=9.00 total=99999\n"}))
    assert idle == busy


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, pb.Kvm(available=False)),
        ({"/dev/kvm": ""}, pb.Kvm(available=True)),
        ({"/sys/class/misc/kvm/dev": "10:232\n"}, pb.Kvm(available=True)),
        ({"/dev/kvm": "", "/sys/module/kvm_amd/parameters/nested": "1\n"}, pb.Kvm(available=True, nested=True)),
        ({"/dev/kvm": "", "/sys/module/kvm_amd/parameters/nested": "0\n"}, pb.Kvm(available=True, nested=False)),
        ({"/dev/kvm": "", "/sys/module/kvm_intel/parameters/nested": "N\n"}, pb.Kvm(available=True, nested=False)),
        ({"/dev/kvm": "", "/sys/module/kvm_intel/parameters/nested": "?\n"}, pb.Kvm(available=True)),
    ],
)
def test_kvm(tmp_path: Path, files: dict[str, Content], expected: pb.Kvm) -> None:
    assert collect(context(tmp_path, files)).kvm == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/sys/kernel/iommu_groups/7/type": "identity\n"}, True),
        ({"/sys/class/iommu/smmu3.0x5000000": None}, True),
        ({"/sys/kernel/iommu_groups": None}, False),
        ({"/sys/kernel/mm": None}, False),
        ({}, None),
    ],
)
def test_iommu(tmp_path: Path, files: dict[str, Content], expected: bool | None) -> None:
    section = collect(context(tmp_path, files))
    assert (section.iommu if section.HasField("iommu") else None) == expected


def test_iommu_is_absent_when_it_cannot_be_asked(tmp_path: Path) -> None:
    section = collect(context(tmp_path, {"/sys/kernel/mm": None}, errors={"/sys/kernel/iommu_groups": errno.EACCES}))
    assert not section.HasField("iommu")
    assert list(section.unreadable) == [pb.Unreadable(path="/sys/kernel/iommu_groups", errno=errno.EACCES)]


def test_hugepages_are_the_lines_not_the_counts_of_the_moment(tmp_path: Path) -> None:
    files: dict[str, Content] = {
        "/proc/cmdline": "hugepages=64\n",
        "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "12\n",
    }
    assert list(collect(context(tmp_path, files)).hugepages) == [pb.Hugepages(count=64)]


def test_without_dpkg_runtimes_are_there_by_program_and_have_no_version(tmp_path: Path) -> None:
    files: dict[str, Content] = {
        "/usr/bin/containerd": "\x7fELF",
        "/usr/local/bin/crio": "\x7fELF",
        "/usr/bin/nvidia-ctk": "\x7fELF",
        "/usr/lib64/libnvidia-container.so.1": Link("libnvidia-container.so.1.15.0"),
    }
    section = collect(context(tmp_path, files, uname=ARM))
    assert list(section.container_runtimes) == [pb.ContainerRuntime(name="containerd"), pb.ContainerRuntime(name="crio")]
    assert section.nvidia_container_toolkit_version == "1.15.0"
    assert not section.HasField("fabric_manager_version")


def test_unversioned_library_link_gives_no_toolkit_version(tmp_path: Path) -> None:
    files: dict[str, Content] = {"/usr/bin/nvidia-ctk": "", "/usr/lib64/libnvidia-container.so.1": Link("libnvidia-container.so")}
    assert not collect(context(tmp_path, files)).HasField("nvidia_container_toolkit_version")


def test_newest_fabric_manager_of_several_branches(tmp_path: Path) -> None:
    status = "".join(
        paragraph(f"nvidia-fabricmanager{branch}", version) for branch, version in (("-535", "535.183.01-1"), ("", "1000.1-1"))
    )
    assert collect(context(tmp_path, {"/var/lib/dpkg/status": status})).fabric_manager_version == "1000.1"


def test_unreadable_sources_are_named(tmp_path: Path) -> None:
    errors = {"/proc/cmdline": errno.EACCES, "/var/lib/dpkg/status": errno.EACCES}
    section = collect(context(tmp_path, HOST, errors=errors))
    assert [(item.path, item.errno) for item in section.unreadable] == sorted(errors.items())
    assert not section.kernel_command_line
    assert not section.container_runtimes


def test_bare_host_says_only_what_it_knows(tmp_path: Path) -> None:
    section = collect(context(tmp_path, uname=Uname("Linux", "", "", "", "")))
    assert section == pb.OsSection(psi=False, kvm=pb.Kvm())
