"""What names a machine goes, in every spelling of it; the rest stays, byte for byte."""

import json
import os
import struct
from pathlib import Path

import pytest

from agent.collectors.ata import identify, unit_serial
from agent.recorded import open_host
from agent.redaction import placeholder, redact_directory
from tests.agent.collectors.test_ata import SERIAL_PAGE, page89
from tests.agent.collectors.tree import Content, Link, plant

UUID = "4c4c4544-0042-3510-8052-b4c04f383433"
UUID_BYTES = bytes.fromhex("44454c4c420010358052b4c04f383433")
MAC = "b8:3f:d2:1a:2b:3c"
SERIAL = "S5GYNA1R712345"


def table(*strings: bytes) -> bytes:
    """An SMBIOS table with one type 1 structure: manufacturer, product, version, serial."""
    body = struct.pack("<BBHBBBB", 1, 27, 1, 1, 2, 3, 4) + UUID_BYTES + b"\6\0\0"
    return body + b"\0".join(strings) + b"\0\0" + bytes.fromhex("7f04feff0000")


def redacted(tmp_path: Path, files: dict[str, Content], host: dict[str, object] | None = None, **more: str) -> Path:
    plant(tmp_path / "root", {"/proc/version": "Linux version 6.8.0"} | files)
    (tmp_path / "host.json").write_text(json.dumps(host or {}))
    for name, text in more.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    redact_directory(tmp_path, key=b"k")
    return tmp_path


def everything(directory: Path) -> str:
    """Contents, names and link targets, in one text."""
    texts = []
    for path in directory.rglob("*"):
        texts.append(str(path.relative_to(directory)))
        texts.append(os.readlink(path) if path.is_symlink() else path.read_bytes().decode("latin-1") if path.is_file() else "")
    return "\n".join(texts)


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"/sys/class/dmi/id/product_serial": SERIAL}, SERIAL),
        ({"/sys/class/dmi/id/chassis_asset_tag": "RACK7-U12"}, "RACK7-U12"),
        ({"/sys/devices/x/nvme0/serial": f"    {SERIAL}\n"}, SERIAL),
        ({"/sys/devices/x/device/vpd_pg80": SERIAL_PAGE}, "ZL2ABCDE"),
        ({"/run/udev/data/b8:0": f"E:ID_SERIAL_SHORT={SERIAL}\nE:ID_SERIAL=M1_{SERIAL}\n"}, SERIAL),
        ({"/run/udev/data/b8:0": "E:ID_WWN=0x5000c500a1b2c3d4\n"}, "a1b2c3d4"),
        ({"/dev/disk/by-id/ata-M1_S5GYNA1R712345": Link("../../sda")}, SERIAL),
        ({"/dev/disk/by-id/wwn-0x5000c500a1b2c3d4": Link("../../sda")}, "a1b2c3d4"),
        ({"/sys/devices/x/wwid": "eui.0025385b71b00a1f\n"}, "5b71b00a1f"),
        ({"/sys/class/net/eth0/address": f"{MAC}\n"}, MAC),
        ({f"/sys/class/net/enx{MAC.replace(':', '')}/mtu": "1500\n"}, MAC.replace(":", "")),
        ({"/sys/class/net/ib0/address": "00:00:10:49:fe:80:00:00:00:00:00:00:b8:3f:d2:03:1a:2b:3c:4d\n"}, "1a:2b:3c:4d"),
        ({"/sys/devices/x/ports/1/gids/0": "fe80:0000:0000:0000:b83f:d203:1a2b:3c4d\n"}, "1a2b:3c4d"),
        ({"/sys/class/dmi/id/product_uuid": f"{UUID.upper()}\n"}, UUID.upper()),
        ({"/sys/firmware/dmi/tables/DMI": table(b"Dell", b"R760", b"1", b"SVC1234")}, "SVC1234"),
        ({"/sys/firmware/dmi/tables/DMI": table(b"Dell", b"R760", b"1", b"SVC1234")}, UUID_BYTES.decode("latin-1")),
        ({"/run/udev/data/b9:0": "E:MD_UUID=3aaa1122:29827cfa:5331ad66:ca767371\n"}, "3aaa1122"),
    ],
)
def test_what_names_the_machine_goes(tmp_path: Path, files: dict[str, Content], name: str) -> None:
    plant(tmp_path / "plain", files)
    assert name in everything(tmp_path / "plain")
    assert name not in everything(redacted(tmp_path / "copy", files))


def test_a_name_is_replaced_alike_in_every_spelling(tmp_path: Path) -> None:
    files: dict[str, Content] = {
        "/sys/class/net/eth0/address": f"{MAC}\n",
        "/sys/devices/pci0/net/enxb83fd21a2b3c/x": "",
        "/sys/class/net/enxb83fd21a2b3c": Link("../../devices/pci0/net/enxb83fd21a2b3c"),
        "/sys/class/dmi/id/product_uuid": UUID,
        "/sys/firmware/dmi/tables/DMI": table(b"Dell", b"R760", b"1", SERIAL.encode()),
        "/sys/class/dmi/id/product_serial": SERIAL,
    }
    ethtool = {"enxb83fd21a2b3c": {"permanentMac": MAC}}
    directory = redacted(
        tmp_path,
        files,
        {"ethtool": ethtool},
        kmsg=f"6,1,0,-;eth0: {MAC.upper()}\n",
        nvml_json=json.dumps({"devices": [{"serial": SERIAL}]}),
    )
    host = open_host(directory)
    mac = host.read("/sys/class/net/eth0/address").decode().strip()
    [interface] = [name for name in host.listdir("/sys/class/net") if name != "eth0"]
    assert mac != MAC
    assert interface == "enx" + mac.replace(":", "")
    assert host.exists(f"/sys/class/net/{interface}/x")
    assert host.ethtool(interface).permanent_mac == mac
    assert (directory / "kmsg").read_text() == f"6,1,0,-;eth0: {mac.upper()}\n"
    serial = host.read("/sys/class/dmi/id/product_serial")
    assert json.loads((directory / "nvml.json").read_text())["devices"][0]["serial"].encode() == serial
    smbios = host.read("/sys/firmware/dmi/tables/DMI")
    assert len(smbios) == len(table(b"Dell", b"R760", b"1", SERIAL.encode()))
    assert b"Dell\0R760\x001\0" + serial in smbios
    uuid = bytes.fromhex(host.read("/sys/class/dmi/id/product_uuid").decode().replace("-", ""))
    assert uuid[3::-1] + uuid[5:3:-1] + uuid[7:5:-1] + uuid[8:] in smbios


def test_the_vendors_part_of_an_address_and_the_shape_stay(tmp_path: Path) -> None:
    directory = redacted(tmp_path, {"/sys/class/net/eth0/address": MAC, "/sys/class/dmi/id/board_serial": "AB-12 cd/00"})
    host = open_host(directory)
    assert host.read("/sys/class/net/eth0/address").startswith(b"b8:3f:d2:")
    serial = host.read("/sys/class/dmi/id/board_serial").decode()
    assert [("A" if c.isupper() else "a" if c.islower() else "1" if c in "123456789" else c) for c in serial] == list(
        "AA-11 aa/00"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Default string\n",
        "To Be Filled By O.E.M.\n",
        "0123456789\n",
        "0000000000000000\n",
        "Not Specified\n",
    ],
)
def test_placeholders_stay(tmp_path: Path, text: str) -> None:
    path = "/sys/class/dmi/id/product_serial"
    assert open_host(redacted(tmp_path, {path: text})).read(path) == text.encode()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/sys/class/net/eth0/address", "00:00:00:00:00:00\n"),
        ("/sys/class/dmi/id/product_uuid", "00000000-0000-0000-0000-000000000000\n"),
        ("/sys/devices/x/wwid", "eui.0000000000000000\n"),
        ("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1", "0x00000000410fd4f0\n"),
        ("/proc/cpuinfo", "flags\t\t: fpu vme de pse\nmodel name\t: INTEL(R) XEON(R) PLATINUM 8480C\n"),
        ("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\6\0\0\0\1".decode()),
        ("/sys/bus/pci/devices/0000:38:00.0/uevent", "PCI_ID=15B3:1021\nPCI_SLOT_NAME=0000:38:00.0\n"),
    ],
)
def test_what_names_nothing_stays(tmp_path: Path, path: str, text: str) -> None:
    assert open_host(redacted(tmp_path, {path: text})).read(path) == text.encode()


def test_a_uuid_of_zeros_and_a_mac_keeps_its_zeros(tmp_path: Path) -> None:
    path = "/sys/class/dmi/id/product_uuid"
    text = open_host(redacted(tmp_path, {path: "00000000-0000-0000-0000-ac1f6b1a2b3c"})).read(path).decode()
    assert text.startswith("00000000-0000-0000-0000-")
    assert not text.endswith("ac1f6b1a2b3c")


def test_a_serial_within_a_longer_word_stays(tmp_path: Path) -> None:
    host = open_host(redacted(tmp_path, {"/sys/class/dmi/id/product_serial": "12346", "/sys/block/sda/size": "9912346800"}))
    assert host.read("/sys/block/sda/size") == b"9912346800"


def test_the_serial_in_an_identify_page_is_the_one_in_its_serial_page(tmp_path: Path) -> None:
    files: dict[str, Content] = {"/sys/d/vpd_pg80": SERIAL_PAGE, "/sys/d/vpd_pg89": page89("MODEL X", "ZL2ABCDE", "F1")}
    host = open_host(redacted(tmp_path, files))
    serial = unit_serial(host.read("/sys/d/vpd_pg80"))
    assert serial != "ZL2ABCDE"
    assert identify(host.read("/sys/d/vpd_pg89")).serial == serial
    assert identify(host.read("/sys/d/vpd_pg89")).model == "MODEL X"


def test_the_host_name_goes_from_the_kernel_log_and_where_the_kernel_keeps_it(tmp_path: Path) -> None:
    files: dict[str, Content] = {
        "/etc/hostname": "cuda7\n",
        "/proc/sys/kernel/hostname": "cuda7.dc1.example\n",
        "/etc/os-release": "NAME=cuda7\n",
    }
    directory = redacted(
        tmp_path, files, {"uname": {"hostname": "cuda7"}}, kmsg="6,1,0,-;systemd: Hostname set to <cuda7>.\n6,2,0,-;cuda70\n"
    )
    host = open_host(directory)
    name = host.uname().hostname
    assert name != "cuda7"
    assert host.read("/etc/hostname").decode() == f"{name}\n"
    assert "cuda7.dc1" not in host.read("/proc/sys/kernel/hostname").decode()
    assert (directory / "kmsg").read_text() == f"6,1,0,-;systemd: Hostname set to <{name}>.\n6,2,0,-;cuda70\n"
    assert host.read("/etc/os-release") == b"NAME=cuda7\n"  # a word like any other in other files


def test_the_host_name_goes_from_volumes_and_mounts_that_nobody_looks_at_go(tmp_path: Path) -> None:
    mounts = (
        "22 1 253:0 / / rw - ext4 /dev/mapper/web--01--vg-root rw\n"
        "30 22 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
        "99 22 0:50 / /home/alice rw - nfs4 nas.corp.example:/export rw\n"
    )
    files: dict[str, Content] = {
        "/proc/self/mountinfo": mounts,
        "/sys/devices/virtual/block/dm-0/dm/name": "web--01--vg-root\n",
        "/run/udev/data/b9:127": "E:MD_NAME=web-01:0\n",
    }
    directory = redacted(tmp_path, files, {"uname": {"hostname": "web-01"}})
    text = everything(directory)
    assert not any(name in text for name in ("web-01", "web--01", "alice", "nas.corp"))
    root, cgroup = (directory / "root/proc/self/mountinfo").read_text().splitlines()
    name = (directory / "root/sys/devices/virtual/block/dm-0/dm/name").read_text().strip()
    assert root.endswith(f" - ext4 /dev/mapper/{name} rw")
    assert name.endswith("--vg-root")
    assert cgroup in mounts


def test_command_lines_lose_their_secrets_and_keep_what_is_shown(tmp_path: Path) -> None:
    line = f'BOOT_IMAGE=/vmlinuz root=UUID={UUID} hugepages=16 token=s3cret dyndbg="file a +p" quiet -- --password=hunter2'
    directory = redacted(tmp_path, {"/proc/cmdline": line + "\n"}, kmsg=f"5,2,0,-;Kernel command line: {line}\n6,3,0,-;token\n")
    left = open_host(directory).read("/proc/cmdline").decode()
    assert "hugepages=16" in left
    assert "BOOT_IMAGE=/vmlinuz" in left
    assert " quiet" in left
    assert "token=" in left
    for secret in ("s3cret", UUID, "file a", "hunter2"):
        assert secret not in everything(directory)
    assert (directory / "kmsg").read_text() == f"5,2,0,-;Kernel command line: {left}6,3,0,-;token\n"


def test_addresses_in_the_kernel_log_go(tmp_path: Path) -> None:
    text = (
        redacted(tmp_path, {}, kmsg="6,1,0,-;nfs: server 10.21.3.4 not responding\n6,2,0,-;lo 127.0.0.1\n") / "kmsg"
    ).read_text()
    assert "10.21.3.4" not in text
    assert "127.0.0.1" in text


def test_a_kernel_log_with_broken_bytes_stays_whole(tmp_path: Path) -> None:
    plant(tmp_path, {"/root/proc/version": "x", "/host.json": "{}", "/kmsg": b"6,1,0,-;\xff\xfe caf\xc3\xa9\n"})
    redact_directory(tmp_path)
    assert (tmp_path / "kmsg").read_bytes() == b"6,1,0,-;\xff\xfe caf\xc3\xa9\n"


def test_every_recording_has_a_key_of_its_own(tmp_path: Path) -> None:
    path = "/sys/class/dmi/id/product_serial"
    for name in "ab":
        plant(tmp_path / name, {f"/root{path}": SERIAL, "/root/proc/version": "", "/host.json": "{}"})
        redact_directory(tmp_path / name)
    assert open_host(tmp_path / "a").read(path) != open_host(tmp_path / "b").read(path)


@pytest.mark.parametrize("text", ["AAAAAAAA", "1234567890", "N/A", "None", "System Serial Number", "O.E.M.", "......"])
def test_knows_what_firmware_writes_for_nothing(text: str) -> None:
    assert placeholder(text)


@pytest.mark.parametrize("text", ["2H8K3Z3", "C8A0LAN52857348", "1320423012345"])
def test_a_real_serial_is_no_placeholder(text: str) -> None:
    assert not placeholder(text)
