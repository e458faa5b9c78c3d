"""Section `system`: what the machine is, as its firmware says it.

Sources: /sys/class/dmi/id, the SMBIOS table behind it (either where the other is absent or not readable), the device tree on
ARM, /sys/firmware/efi, /sys/class/ipmi* and SMBIOS type 38, /sys/class/tpm. Placeholders stay as the firmware writes them;
an empty text is absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import Context, Files, smbios, sysfs

_DMI = "/sys/class/dmi/id/"
_EFI = "/sys/firmware/efi"
_SECURE_BOOT = _EFI + "/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_DEVICE_TREE = "/proc/device-tree/"
_HYPERVISOR_FEATURE = ",009F"  # X86_FEATURE_HYPERVISOR, word 4 bit 31, in the kernel's CPU modalias

# SMBIOS type 3, "Type" (DSP0134, 7.4.1); 2 is unknown.
# fmt: off
_CHASSIS = {
    1: "Other", 3: "Desktop", 4: "Low Profile Desktop", 5: "Pizza Box", 6: "Mini Tower", 7: "Tower", 8: "Portable", 9: "Laptop",
    10: "Notebook", 11: "Hand Held", 12: "Docking Station", 13: "All in One", 14: "Sub Notebook", 15: "Space-saving",
    16: "Lunch Box", 17: "Main Server Chassis", 18: "Expansion Chassis", 19: "Sub Chassis", 20: "Bus Expansion Chassis",
    21: "Peripheral Chassis", 22: "RAID Chassis", 23: "Rack Mount Chassis", 24: "Sealed-case PC", 25: "Multi-system Chassis",
    26: "CompactPCI", 27: "AdvancedTCA", 28: "Blade", 29: "Blade Enclosure", 30: "Tablet", 31: "Convertible", 32: "Detachable",
    33: "IoT Gateway", 34: "Embedded PC", 35: "Mini PC", 36: "Stick PC",
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Hypervisor:
    """One row of how firmware names a hypervisor: a DMI field and how its text begins.

    `metal`: this vendor's machines without a hypervisor say the same, so that something else must show a guest.
    """

    field: str
    prefix: str
    word: str
    metal: bool = False


_HYPERVISORS = (
    Hypervisor("sys_vendor", "Amazon EC2", "amazon", metal=True),
    Hypervisor("bios_vendor", "Amazon EC2", "amazon", metal=True),
    Hypervisor("product_name", "Google Compute Engine", "google", metal=True),
    Hypervisor("sys_vendor", "Alibaba Cloud", "kvm", metal=True),
    Hypervisor("product_name", "Virtual Machine", "microsoft"),
    Hypervisor("sys_vendor", "VMware", "vmware"),
    Hypervisor("product_name", "VMware", "vmware"),
    Hypervisor("sys_vendor", "Xen", "xen"),
    Hypervisor("bios_vendor", "Xen", "xen"),
    Hypervisor("product_name", "VirtualBox", "virtualbox"),
    Hypervisor("sys_vendor", "innotek GmbH", "virtualbox"),
    Hypervisor("sys_vendor", "Parallels", "parallels"),
    Hypervisor("product_name", "BHYVE", "bhyve"),
    Hypervisor("bios_vendor", "BHYVE", "bhyve"),
    Hypervisor("sys_vendor", "Nutanix", "kvm", metal=True),
    # QEMU is also an emulator; on a machine with GPUs it is KVM's.
    Hypervisor("sys_vendor", "QEMU", "kvm"),
    Hypervisor("product_name", "KVM", "kvm"),
    Hypervisor("product_name", "OpenStack", "kvm"),
    Hypervisor("product_name", "Droplet", "kvm"),
    Hypervisor("sys_vendor", "Cloud Hypervisor", "kvm"),
    Hypervisor("bios_vendor", "Bochs", "kvm"),
    Hypervisor("bios_vendor", "SeaBIOS", "kvm"),
)
# A guest's paravirtual clock names its hypervisor where firmware does not (microVMs have none).
_CLOCKS = {"kvm-clock": "kvm", "xen": "xen", "hyperv_clocksource_tsc_page": "microsoft", "hyperv_clocksource_msr": "microsoft"}
# /proc/device-tree/hypervisor/compatible and the machine's own.
_TREE_WORDS = {"linux,kvm": "kvm", "linux,dummy-virt": "kvm", "xen,": "xen", "vmware": "vmware"}


def collect(ctx: Context) -> pb.SystemSection:
    """The section. Absent where neither source says it; a source without permission is in `unreadable`."""
    files = ctx.files
    table = smbios.parse(files.bytes(smbios.TABLE, smbios.LIMIT), files.bytes(smbios.ENTRY_POINT))
    dmi = smbios.identity(table)
    for name in smbios.IDENTITY:
        if value := files.value(_DMI + name):
            dmi[name] = value
    section = pb.SystemSection(
        product_uuid=dmi["product_uuid"].lower() if "product_uuid" in dmi else None,
        manufacturer=dmi.get("sys_vendor"),
        product=dmi.get("product_name") or _tree(files, "model"),
        version=dmi.get("product_version"),
        serial=dmi.get("product_serial") or _tree(files, "serial-number"),
        firmware=_firmware(ctx, has_dmi=bool(dmi)),
        secure_boot=_secure_boot(files),
        virtualization=_virtualization(ctx, dmi, smbios.virtual_machine(table)),
        bmc_present=_bmc(files, table),
        tpm_version=_tpm(files),
    )
    for name, part in _parts(dmi).items():
        if part.ListFields():
            getattr(section, name).CopyFrom(part)
    section.unreadable.extend(files.unreadable())
    return section


def chassis_name(number: str | None) -> str | None:
    """SMBIOS's chassis type in words: `23` is `Rack Mount Chassis`; one that is not in the table is `type 99`; 2 is None.

    >>> chassis_name("23")
    'Rack Mount Chassis'
    """
    kind = sysfs.number(number, bits=7)
    return _CHASSIS.get(kind, f"type {kind}") if kind not in (None, 0, 2) else None


def _parts(dmi: Mapping[str, str]) -> dict[str, pb.Board | pb.Chassis | pb.Bios]:
    """Board, chassis and BIOS, by the section's fields; one of which firmware says nothing has no fields set."""
    return {
        "board": pb.Board(
            vendor=dmi.get("board_vendor"),
            name=dmi.get("board_name"),
            version=dmi.get("board_version"),
            serial=dmi.get("board_serial"),
        ),
        "chassis": pb.Chassis(
            vendor=dmi.get("chassis_vendor"),
            name=chassis_name(dmi.get("chassis_type")),
            version=dmi.get("chassis_version"),
            serial=dmi.get("chassis_serial"),
        ),
        "bios": pb.Bios(vendor=dmi.get("bios_vendor"), version=dmi.get("bios_version"), date=dmi.get("bios_date")),
    }


def _tree(files: Files, name: str) -> str | None:
    """A string of the device tree, which most x86 hosts do not have: /proc/device-tree/model `NVIDIA Jetson AGX Orin\\0`."""
    return sysfs.device_tree(files.bytes(_DEVICE_TREE + name))


def _firmware(ctx: Context, has_dmi: bool) -> str | None:
    """UEFI says so itself. A BIOS is only an x86 machine's that has firmware at all: a microVM has neither."""
    if ctx.files.exists(_EFI):
        return "uefi"
    return "bios" if has_dmi and ctx.host.uname().machine in ("x86_64", "i686") else None


def _secure_boot(files: Files) -> bool | None:
    """The efivar: four bytes of attributes, then one that is 1 when on, `06 00 00 00 01`."""
    data = files.bytes(_SECURE_BOOT)
    return data[4] == 1 if data is not None and len(data) == 5 else None


def _bmc(files: Files, table: smbios.Table) -> bool:
    """A loaded IPMI driver shows it, and the table's type 38 also without one."""
    if any(name.startswith("ipmi") and files.names(f"/sys/class/{name}") for name in files.names("/sys/class")):
        return True
    return bool(table.of(smbios.IPMI_DEVICE)) or files.exists("/sys/firmware/dmi/entries/38-0")


def _tpm(files: Files) -> str | None:
    """tpm_version_major (5.6 and newer) is `1` or `2`; older kernels show `caps` for a 1.2 only."""
    chip = next((name for name in files.names("/sys/class/tpm") if name.startswith("tpm")), None)
    if chip is None:
        return None
    major = files.value(f"/sys/class/tpm/{chip}/tpm_version_major")
    if major is None:
        return "1.2" if files.exists(f"/sys/class/tpm/{chip}/caps") else None
    return {"1": "1.2", "2": "2.0"}.get(major)


def _virtualization(ctx: Context, dmi: Mapping[str, str], table_says: bool | None) -> str | None:
    """Which hypervisor this is a guest of, from files alone; `none` on bare metal, `other` for one without a name.

    Firmware that names a hypervisor decides, unless its vendor also rents out bare metal: then the CPU's flag does, or the
    table's virtual-machine bit, or (ARM has no flag) a product that is not called `...metal`.
    """
    files = ctx.files
    if xen := _xen(files):
        return xen
    named = next((row for row in _HYPERVISORS if dmi.get(row.field, "").startswith(row.prefix)), None)
    if named and not named.metal:
        return named.word
    flag = _hypervisor_flag(files)
    if named:
        guest = table_says or (flag if flag is not None else not dmi.get("product_name", "").endswith("metal"))
        return named.word if guest else "none"
    if tree := _tree(files, "hypervisor/compatible") or _tree(files, "compatible"):
        return next((word for start, word in _TREE_WORDS.items() if tree.startswith(start)), "none")
    if flag or table_says:
        clocks = (files.text("/sys/devices/system/clocksource/clocksource0/available_clocksource") or "").split()
        return next((word for clock, word in _CLOCKS.items() if clock in clocks), "other")
    return "none" if flag is not None or dmi else None


def _xen(files: Files) -> str | None:
    """/sys/hypervisor/type is `xen` in guests and in dom0, which is the host: bit 11 of `features` (hexadecimal) tells it."""
    if files.value("/sys/hypervisor/type") != "xen":
        return None
    features = sysfs.number(files.value("/sys/hypervisor/properties/features"), bits=64, base=16) or 0
    return "none" if features & 1 << 11 else "xen"


def _hypervisor_flag(files: Files) -> bool | None:
    """The CPU's `hypervisor` flag (x86; None elsewhere). The modalias says it in 1 KB, /proc/cpuinfo in 1 KB a thread."""
    modalias = files.value("/sys/devices/system/cpu/modalias") or ""
    if modalias.startswith("cpu:type:x86"):
        return _HYPERVISOR_FEATURE in modalias
    cpuinfo = files.bytes("/proc/cpuinfo") or b""
    start = cpuinfo.find(b"\nflags")
    if start < 0:
        return None
    return b"hypervisor" in cpuinfo[start + 1 :].split(b"\n", 1)[0].split()
