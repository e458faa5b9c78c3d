import errno
import uuid as uuids
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors.system import chassis_name, collect
from tests.agent.collectors import dmi
from tests.agent.collectors.tree import ARM, X86, Content, context

ID = "/sys/class/dmi/id/"
MODALIAS = {"/sys/devices/system/cpu/modalias": "cpu:type:x86,ven0000fam0006mod008F:feature:,0000,0001,00C0\n"}
GUEST = {"/sys/devices/system/cpu/modalias": "cpu:type:x86,ven0000fam0006mod008F:feature:,0000,0001,009F,00C0\n"}
SERVER = {
    "product_uuid": dmi.UUID.upper(),
    "sys_vendor": "Supermicro",
    "product_name": "SYS-821GE-TNHR",
    "product_version": "0123456789",
    "product_serial": "A512345X4123456",
    "board_vendor": "Supermicro",
    "board_name": "X13DEG-OAD",
    "board_version": "1.01",
    "board_serial": "UM23AS601234",
    "chassis_vendor": "Supermicro",
    "chassis_type": "23",
    "chassis_version": "Default string",
    "chassis_serial": "C8210FM41N20088",
    "bios_vendor": "American Megatrends International, LLC.",
    "bios_version": "2.1a",
    "bios_date": "05/21/2024",
}
TABLE = dmi.table(dmi.bios(), dmi.system(), dmi.board(), dmi.chassis())
TABLES: dict[str, Content] = {
    "/sys/firmware/dmi/tables/DMI": TABLE,
    "/sys/firmware/dmi/tables/smbios_entry_point": dmi.ENTRY_3_5,
}


def ids(**values: str) -> dict[str, Content]:
    """Files of /sys/class/dmi/id."""
    return {ID + name: value + "\n" for name, value in values.items()}


def test_server_by_sysfs(tmp_path: Path) -> None:
    section = collect(context(tmp_path, {**ids(**SERVER), **MODALIAS}))
    assert section == pb.SystemSection(
        product_uuid=dmi.UUID,
        manufacturer="Supermicro",
        product="SYS-821GE-TNHR",
        version="0123456789",
        serial="A512345X4123456",
        board=pb.Board(vendor="Supermicro", name="X13DEG-OAD", version="1.01", serial="UM23AS601234"),
        chassis=pb.Chassis(vendor="Supermicro", name="Rack Mount Chassis", version="Default string", serial="C8210FM41N20088"),
        bios=pb.Bios(vendor="American Megatrends International, LLC.", version="2.1a", date="05/21/2024"),
        firmware="bios",
        virtualization="none",
    )


def test_same_section_by_the_table_alone(tmp_path: Path) -> None:
    by_sysfs = collect(context(tmp_path / "a", {**ids(**SERVER), **MODALIAS}))
    by_table = collect(context(tmp_path / "b", {**TABLES, **MODALIAS}))
    by_both = collect(context(tmp_path / "c", {**ids(**SERVER), **TABLES, **MODALIAS}))
    assert by_sysfs == by_table == by_both


def test_field_that_sysfs_does_not_give_comes_from_the_table_and_says_so(tmp_path: Path) -> None:
    files = {**ids(sys_vendor="Supermicro", product_uuid=""), **TABLES}
    section = collect(context(tmp_path, files, errors={ID + "product_serial": errno.EACCES}))
    assert (section.serial, section.product_uuid) == ("A512345X4123456", dmi.UUID)
    assert list(section.unreadable) == [pb.Unreadable(path=ID + "product_serial", errno=errno.EACCES)]


def test_without_permission_fields_are_absent_and_the_files_named(tmp_path: Path) -> None:
    denied = (ID + "board_serial", ID + "product_serial", ID + "product_uuid", "/sys/firmware/dmi/tables/DMI")
    files = {**ids(**SERVER), **TABLES}
    section = collect(context(tmp_path, files, errors=dict.fromkeys(denied, errno.EACCES)))
    assert section.manufacturer == "Supermicro"
    assert not section.HasField("product_uuid")
    assert not section.HasField("serial")
    assert not section.board.HasField("serial")
    assert [(item.path, item.errno) for item in section.unreadable] == [(path, errno.EACCES) for path in sorted(denied)]


def test_placeholders_stay_and_empty_texts_are_absent(tmp_path: Path) -> None:
    section = collect(context(tmp_path, ids(product_serial="To be filled by O.E.M.", sys_vendor="", board_serial=" ")))
    assert section.serial == "To be filled by O.E.M."
    assert not section.HasField("manufacturer")
    assert not section.HasField("board")


def test_old_table_has_its_uuid_in_the_old_order(tmp_path: Path) -> None:
    table = dmi.table(dmi.system(uuid=uuids.UUID(dmi.UUID).bytes))
    files: dict[str, Content] = {
        "/sys/firmware/dmi/tables/DMI": table,
        "/sys/firmware/dmi/tables/smbios_entry_point": dmi.ENTRY_2_4,
    }
    assert collect(context(tmp_path, files)).product_uuid == dmi.UUID


@pytest.mark.parametrize(
    ("number", "expected"),
    [("3", "Desktop"), ("23", "Rack Mount Chassis"), ("28", "Blade"), ("2", None), ("0", None), ("99", "type 99"), ("x", None)],
)
def test_chassis_type_in_words(number: str, expected: str | None) -> None:
    assert chassis_name(number) == expected


@pytest.mark.parametrize(
    ("variable", "expected"),
    [(b"\x06\0\0\0\x01", True), (b"\x06\0\0\0\0", False), (b"\x06\0\0\0", None), (b"", None), (None, None)],
)
def test_secure_boot_is_the_byte_behind_the_attributes(tmp_path: Path, variable: bytes | None, expected: bool | None) -> None:
    files: dict[str, Content] = {"/sys/firmware/efi/fw_platform_size": "64\n"}
    if variable is not None:
        files["/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"] = variable
    section = collect(context(tmp_path, files))
    assert section.firmware == "uefi"
    assert (section.secure_boot if section.HasField("secure_boot") else None) == expected


def test_firmware_is_absent_where_there_is_none_to_tell(tmp_path: Path) -> None:
    assert not collect(context(tmp_path / "microvm", GUEST)).HasField("firmware")
    assert not collect(context(tmp_path / "arm", ids(**SERVER), uname=ARM)).HasField("firmware")
    assert collect(context(tmp_path / "x86", ids(**SERVER), uname=X86)).firmware == "bios"


@pytest.mark.parametrize(
    ("says", "word"),
    [
        ({"sys_vendor": "QEMU", "product_name": "Standard PC (Q35 + ICH9, 2009)"}, "kvm"),
        ({"sys_vendor": "Red Hat", "product_name": "KVM"}, "kvm"),
        ({"sys_vendor": "OpenStack Foundation", "product_name": "OpenStack Nova"}, "kvm"),
        ({"sys_vendor": "VMware, Inc.", "product_name": "VMware20,1"}, "vmware"),
        ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, "microsoft"),
        ({"sys_vendor": "Xen", "product_name": "HVM domU"}, "xen"),
        ({"sys_vendor": "innotek GmbH", "product_name": "VirtualBox"}, "virtualbox"),
        ({"sys_vendor": "Cloud Hypervisor", "product_name": "cloud-hypervisor"}, "kvm"),
        ({"sys_vendor": "Amazon EC2", "product_name": "p5.48xlarge"}, "amazon"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "google"),
    ],
)
def test_guest_is_named_by_its_firmware(tmp_path: Path, says: dict[str, str], word: str) -> None:
    assert collect(context(tmp_path, {**ids(**says), **GUEST})).virtualization == word


def test_guest_that_hides_the_flag_is_still_named_by_qemu(tmp_path: Path) -> None:
    assert collect(context(tmp_path, {**ids(sys_vendor="QEMU"), **MODALIAS})).virtualization == "kvm"


def test_clouds_bare_metal_is_none(tmp_path: Path) -> None:
    files = {**ids(sys_vendor="Amazon EC2", product_name="p4d.metal"), **MODALIAS}
    assert collect(context(tmp_path, files)).virtualization == "none"


@pytest.mark.parametrize(
    ("product", "extension2", "word"),
    [("g5g.16xlarge", 0x1C, "amazon"), ("g5g.16xlarge", 0x0C, "amazon"), ("g5g.metal", 0x0C, "none")],
)
def test_arm_has_no_flag_and_goes_by_table_and_product(tmp_path: Path, product: str, extension2: int, word: str) -> None:
    files = ids(sys_vendor="Amazon EC2", product_name=product)
    files["/sys/firmware/dmi/tables/DMI"] = dmi.table(dmi.bios(extension2=extension2))
    assert collect(context(tmp_path, files, uname=ARM)).virtualization == word


@pytest.mark.parametrize(
    ("clocks", "word"), [("tsc kvm-clock", "kvm"), ("hyperv_clocksource_tsc_page acpi_pm", "microsoft"), ("tsc hpet", "other")]
)
def test_guest_without_dmi_is_named_by_its_clock(tmp_path: Path, clocks: str, word: str) -> None:
    clock: dict[str, Content] = {"/sys/devices/system/clocksource/clocksource0/available_clocksource": clocks + " \n"}
    section = collect(context(tmp_path, {**GUEST, **clock}))
    assert section == pb.SystemSection(virtualization=word)


@pytest.mark.parametrize(("flags", "word"), [("fpu vme hypervisor lahf_lm", "other"), ("fpu vme nohypervisor", "none")])
def test_flag_comes_from_cpuinfo_where_there_is_no_modalias(tmp_path: Path, flags: str, word: str) -> None:
    cpuinfo = f"processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: {flags}\nbugs\t\t:\n\n"
    assert collect(context(tmp_path, {"/proc/cpuinfo": cpuinfo})).virtualization == word


@pytest.mark.parametrize(("features", "word"), [("00002705", "xen"), ("00002f05", "none")])
def test_xens_dom0_is_the_host(tmp_path: Path, features: str, word: str) -> None:
    files: dict[str, Content] = {"/sys/hypervisor/type": "xen\n", "/sys/hypervisor/properties/features": features + "\n"}
    assert collect(context(tmp_path, {**files, **GUEST})).virtualization == word


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"/proc/device-tree/hypervisor/compatible": b"linux,kvm\0"}, "kvm"),
        ({"/proc/device-tree/hypervisor/compatible": b"xen,xen-4.17\0xen,xen\0"}, "xen"),
        ({"/proc/device-tree/compatible": b"linux,dummy-virt\0"}, "kvm"),
        ({"/proc/device-tree/compatible": b"nvidia,p3737-0000\0nvidia,tegra234\0"}, "none"),
        ({}, None),
    ],
)
def test_arm_without_dmi_goes_by_the_device_tree(tmp_path: Path, files: dict[str, Content], word: str | None) -> None:
    section = collect(context(tmp_path, files, uname=ARM))
    assert (section.virtualization if section.HasField("virtualization") else None) == word


def test_device_tree_names_the_machine(tmp_path: Path) -> None:
    files: dict[str, Content] = {
        "/proc/device-tree/model": b"NVIDIA Jetson AGX Orin Developer Kit\0",
        "/proc/device-tree/serial-number": b"1423221078493\0",
    }
    section = collect(context(tmp_path, files, uname=ARM))
    assert (section.product, section.serial) == ("NVIDIA Jetson AGX Orin Developer Kit", "1423221078493")


@pytest.mark.parametrize(
    "files",
    [
        {"/sys/class/ipmi/ipmi0/dev": "236:0\n"},
        {"/sys/firmware/dmi/entries/38-0/type": "38\n"},
        {"/sys/firmware/dmi/tables/DMI": dmi.table(dmi.structure(38, 0x50, bytes(14)))},
    ],
)
def test_bmc_is_found_by_any_of_its_traces(tmp_path: Path, files: dict[str, Content]) -> None:
    assert collect(context(tmp_path, files)).bmc_present


def test_no_bmc_without_an_interface(tmp_path: Path) -> None:
    files: dict[str, Content] = {"/sys/class/ipmi": None, "/sys/class/net": None, **TABLES}
    assert not collect(context(tmp_path, files)).bmc_present


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"tpm_version_major": "2\n"}, "2.0"),
        ({"tpm_version_major": "1\n"}, "1.2"),
        ({"caps": "Manufacturer: 0x49465800\n"}, "1.2"),
        ({"dev": "10:224\n"}, None),
    ],
)
def test_tpm_version(tmp_path: Path, files: dict[str, str], version: str | None) -> None:
    section = collect(context(tmp_path, {f"/sys/class/tpm/tpm0/{name}": text for name, text in files.items()}))
    assert (section.tpm_version if section.HasField("tpm_version") else None) == version


def test_empty_host_gives_an_empty_section(tmp_path: Path) -> None:
    assert collect(context(tmp_path)) == pb.SystemSection()
