"""The operating system: distribution, kernel, packages, what runs; and the small files that belong to nothing else."""

from dataclasses import dataclass

from tests.hosts.compose.tree import Machine

UBUNTU_2204 = (
    'PRETTY_NAME="Ubuntu 22.04.4 LTS"\nNAME="Ubuntu"\nVERSION_ID="22.04"\nVERSION="22.04.4 LTS (Jammy Jellyfish)"\n'
    "VERSION_CODENAME=jammy\n"
    'ID=ubuntu\nID_LIKE=debian\nHOME_URL="https://www.ubuntu.com/"\nUBUNTU_CODENAME=jammy\n'
)
UBUNTU_2404 = (
    UBUNTU_2204.replace("22.04.4", "24.04.1")
    .replace("22.04", "24.04")
    .replace("Jammy Jellyfish", "Noble Numbat")
    .replace("jammy", "noble")
)
DEBIAN_12 = (
    'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\nVERSION="12 (bookworm)"\n'
    'VERSION_CODENAME=bookworm\nID=debian\nHOME_URL="https://www.debian.org/"\n'
)
ROCKY_9 = (
    'NAME="Rocky Linux"\nVERSION="9.4 (Blue Onyx)"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n'
    'PLATFORM_ID="platform:el9"\n'
    'PRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"\nANSI_COLOR="0;32"\n'
)


_IOMMUS = (
    ("dmar", "intel-iommu", "/sys/devices/virtual/iommu"),
    ("ivhd", "amd-iommu", "/sys/devices/pci0000:00/0000:00:00.2/iommu"),
    ("smmu", "arm-smmu-v3", "/sys/devices/platform/arm-smmu-v3.0.auto/iommu"),
)


@dataclass(frozen=True)
class System:
    """What runs. `packages` is name -> version of dpkg; `cgroup` 2, 1 or 0 for neither."""

    hostname: str
    release: str
    version: str
    command_line: str
    distribution: str = UBUNTU_2204
    machine: str = "x86_64"
    packages: tuple[tuple[str, str], ...] = ()
    cgroup: int = 2
    pressure: bool = True
    kvm: tuple[str, str] | None = None  # module and its `nested`: ("kvm_intel", "Y")
    iommu: str = ""  # "dmar0": the first of /sys/class/iommu
    temperature: bool = True


def software(m: Machine, s: System) -> None:
    """Writes all of it, and the facts of uname and boot."""
    boot = m.uuid("boot")
    m.facts = {
        "uname": {"sysname": "Linux", "hostname": s.hostname, "release": s.release, "version": s.version, "machine": s.machine},
        "bootId": boot,
        "uptime": 182_044.5,
    }
    _kernel(m, s, boot)
    m.put("/usr/lib/os-release", s.distribution)
    m.link("/etc/os-release", "/usr/lib/os-release")
    m.put("/etc/hostname", s.hostname)
    if s.packages:
        m.put("/var/lib/dpkg/status", "\n".join(_package(*p, s.machine) for p in s.packages))
    _kernel_services(m, s)
    _proc(m, s)


def _package(name: str, version: str, machine: str) -> str:
    arch = "arm64" if machine == "aarch64" else "amd64"
    return (
        f"Package: {name}\nStatus: install ok installed\nPriority: optional\nSection: admin\nInstalled-Size: 51200\n"
        f"Maintainer: {name} maintainers <root@localhost>\nArchitecture: {arch}\nVersion: {version}\n"
        f"Description: {name}\n Composed for a recorded host.\n"
    )


def _kernel(m: Machine, s: System, boot: str) -> None:
    m.put_all(
        "/proc/sys/kernel",
        {
            "hostname": s.hostname,
            "osrelease": s.release,
            "ostype": "Linux",
            "version": s.version,
            "arch": s.machine,
            "random/boot_id": boot,
        },
    )
    m.put("/proc/version", f"Linux version {s.release} (build@host) (gcc 11.4.0) {s.version}")
    m.put("/proc/cmdline", s.command_line)
    m.put("/proc/uptime", "182044.50 9120331.12")
    m.put("/sys/kernel/uevent_seqnum", 41_207)
    m.put("/proc/loadavg", "1.20 1.31 1.44 3/4120 77123")


def _kernel_services(m: Machine, s: System) -> None:
    if s.cgroup == 2:
        m.put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc")
    elif s.cgroup == 1:
        m.put("/sys/fs/cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    if s.pressure:
        for kind in ("cpu", "memory", "io"):
            m.put(
                f"/proc/pressure/{kind}",
                "some avg10=0.12 avg60=0.08 avg300=0.02 total=91204112\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=120411",
            )
    if s.kvm:
        m.put("/dev/kvm", b"")
        m.put(f"/sys/module/{s.kvm[0]}/parameters/nested", s.kvm[1])
    if s.iommu:
        kind, path = next((kind, path) for start, kind, path in _IOMMUS if s.iommu.startswith(start))
        m.put_all(f"{path}/{s.iommu}/{kind}", {"version": "1:0"} if kind == "intel-iommu" else {"cap": "100080f"})
        m.link(f"/sys/class/iommu/{s.iommu}", f"{path}/{s.iommu}")
    if s.temperature:
        m.put_all("/sys/devices/virtual/thermal/thermal_zone0", {"type": "x86_pkg_temp", "temp": 41_000})
        m.link("/sys/class/thermal/thermal_zone0", "/sys/devices/virtual/thermal/thermal_zone0")


def _proc(m: Machine, s: System) -> None:
    m.put("/proc/filesystems", "nodev\tsysfs\nnodev\tproc\nnodev\tcgroup2\n\text4\n\tvfat\n\txfs\n")
    names = [*(["kvm_intel" if s.kvm[0] == "kvm_intel" else "kvm_amd", "kvm"] if s.kvm else []), "nvme", "mlx5_core"]
    m.put("/proc/modules", "".join(f"{name} 458752 0 - Live 0x0000000000000000\n" for name in names))


def process(m: Machine, pid: int, name: str) -> None:
    """A process, of which nothing but its name is looked at: the kernel keeps 15 characters of it."""
    m.put(f"/proc/{pid}/comm", name[:15])
