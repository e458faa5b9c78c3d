"""`bcd capture`: a recorded host gives the sections of the host it was recorded from."""

import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from bettercompute.contract.sections import encode, section_hash

from agent import recorder, recording
from agent.collectors import COLLECTORS, Options, collect
from agent.conditions.table import judge
from agent.errors import SectionFailed, Unreadable, UserError
from agent.host import CriImage, EthtoolInfo, Host
from agent.nvml import PynvmlNvml
from agent.recorded import RecordedHost, RecordedNvml, open_host, open_nvml
from agent.recorder import capture
from agent.recording import Recorder, RecordingNvml, record
from agent.redaction import placeholder, redact_directory
from tests.agent.collectors.tree import Content, Link, plant
from tests.agent.conditions.hosts import facts_of
from tests.hosts_catalog import HOSTS

GPU = "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0"
HOST: dict[str, Content] = {
    "/proc/version": "Linux version 6.8.0-45-generic (b) #45 SMP",
    "/proc/sys/kernel/hostname": "n1\n",
    "/proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\n",
    "/etc/os-release": Link("../usr/lib/os-release"),
    "/usr/lib/os-release": 'ID=ubuntu\nVERSION_ID="22.04"\n',
    "/sys/bus/pci/devices/0000:18:00.0": Link("../../../devices/pci0000:17/0000:17:01.0/0000:18:00.0"),
    f"{GPU}/vendor": "0x10de\n",
    f"{GPU}/device": "0x2330\n",
    f"{GPU}/class": "0x030200\n",
    f"{GPU}/driver": Link("../../../../bus/pci/drivers/nvidia"),
    "/sys/bus/pci/drivers/nvidia/bind": "",
    "/sys/module/nvidia/version": "550.90.07\n",
    "/sys/block/nvme0n1": Link("../devices/pci0000:80/0000:81:00.0/nvme/nvme0/nvme0n1"),
    "/sys/devices/pci0000:80/0000:81:00.0/nvme/nvme0/nvme0n1/size": "2000\n",
    "/sys/devices/pci0000:80/0000:81:00.0/nvme/nvme0/nvme0n1/device": Link("../../nvme0"),
    "/sys/devices/pci0000:80/0000:81:00.0/nvme/nvme0/serial": "S5GYNA1R712345\n",
    "/sys/class/net/eth0": Link("../../devices/pci0000:37/0000:38:00.0/net/eth0"),
    "/sys/devices/pci0000:37/0000:38:00.0/net/eth0/type": "1\n",
    "/sys/devices/pci0000:37/0000:38:00.0/net/eth0/device": Link("../../../0000:38:00.0"),
    "/sys/class/dmi/id/product_serial": "SVC1234\n",
    "/var/lib/bcd/images/jammy.raw": "x" * 1000,
    "/var/lib/bcd/images/jammy.raw.json": '{"name": "jammy"}',
}
FACTS: dict[str, object] = {
    "bootId": "b-1",
    "ethtool": {"eth0": {"driver": "mlx5_core", "permanentMac": "b8:3f:d2:1a:2b:3c"}},
    "errors": {"/sys/class/dmi/id/product_serial": errno.EACCES},
    "cri": [{"digest": "sha256:aa", "name": "app:1", "bytes": 5}],
}
NVML: dict[str, object] = {
    "init": None,
    "system": {"driverVersion": "550.90.07"},
    "devices": [
        {
            "uuid": "GPU-11111111-2222-3333-4444-555555555555",
            "serial": {"error": "NO_PERMISSION"},
            "pci": {"busId": "00000000:18:00.0", "deviceId": "2330", "subsystemId": "10de:16c1"},
        }
    ],
}
OPTIONS = Options(cri_socket="/run/containerd/containerd.sock")


def make(directory: Path, nvml: Mapping[str, object] | None = NVML) -> Path:
    plant(directory / "root", HOST)
    (directory / "host.json").write_text(json.dumps(FACTS))
    if nvml is not None:
        (directory / "nvml.json").write_text(json.dumps(nvml))
    return directory


def hashes(directory: Path) -> dict[str, str]:
    return {
        name: section_hash(encode(collect(name, open_host(directory), open_nvml(directory), options=OPTIONS)))
        for name in COLLECTORS
    }


def test_a_recording_of_a_recorded_host_is_that_host(tmp_path: Path) -> None:
    source = make(tmp_path / "a")
    (source / "kmsg").write_bytes(b"6,1,0,-;hello\n")
    done = capture(tmp_path / "b", redact=False, host_dir=source, options=OPTIONS)
    assert done.failed == {}
    assert hashes(tmp_path / "b") == hashes(source)
    assert (tmp_path / "b/kmsg").read_bytes() == b"6,1,0,-;hello\n"
    assert os.readlink(tmp_path / "b/root/etc/os-release") == "../usr/lib/os-release"
    assert json.loads((tmp_path / "b/host.json").read_text())["errors"] == {"/sys/class/dmi/id/product_serial": errno.EACCES}
    assert done.unreadable == ("/sys/class/dmi/id/product_serial",)


def test_a_recording_of_this_machine_has_its_sections_without_its_empty_directories_too(tmp_path: Path) -> None:
    done = capture(tmp_path / "here", redact=False)
    assert done.failed == {}
    drop_empty_directories(tmp_path / "here/root")
    host, nvml = open_host(tmp_path / "here"), open_nvml(tmp_path / "here")
    for name in COLLECTORS:
        assert encode(collect(name, host, nvml)) == encode(collect(name, Host(), PynvmlNvml(""))), name
    assert host.boot_id() == Host().boot_id()
    assert (tmp_path / "here").stat().st_mode & 0o077 == 0


def test_a_redacted_recording_is_a_host_without_its_names(tmp_path: Path) -> None:
    done = capture(tmp_path / "b", redact=True, host_dir=make(tmp_path / "a"), options=OPTIONS)
    assert done.replaced
    text = "".join(p.read_text(errors="replace") for p in (tmp_path / "b").rglob("*") if p.is_file())
    for name in ("S5GYNA1R712345", "GPU-11111111-2222", "b8:3f:d2:1a:2b:3c"):
        assert name not in text
    assert len(hashes(tmp_path / "b")) == 8


def test_an_image_is_recorded_by_its_size_not_its_bytes(tmp_path: Path) -> None:
    capture(tmp_path / "b", redact=False, host_dir=make(tmp_path / "a"))
    assert (tmp_path / "b/root/var/lib/bcd/images/jammy.raw").stat().st_size == 0
    assert open_host(tmp_path / "b").stat("/var/lib/bcd/images/jammy.raw").st_size == 1000


def test_a_driver_call_that_hangs_is_recorded_as_a_hang(tmp_path: Path) -> None:
    nvml = NVML | {"devices": [{"uuid": {"hang": True}}]}
    done = capture(tmp_path / "b", redact=False, host_dir=make(tmp_path / "a", nvml), limit=4.0)
    assert "hang" in done.failed["gpus"]
    assert json.loads((tmp_path / "b/nvml.json").read_text())["devices"] == [{"uuid": {"hang": True}}]
    assert hashes_without_gpus(tmp_path / "b") == hashes_without_gpus(tmp_path / "a")


def test_a_call_that_did_not_return_hangs() -> None:
    lines = [
        '{"nvml": ["init"]}',
        '{"nvml": ["init"], "answer": null}',
        '{"nvml": ["count"], "answer": 2}',
        '{"nvml": ["device", 1, "uuid"]}',
    ]
    assert recorder._assemble(lines[:1])[1]["init"] == {"hang": True}
    assert recorder._assemble(lines)[1] == {"init": None, "devices": [{}, {"uuid": {"hang": True}}]}


@pytest.mark.parametrize("name", HOSTS)
def test_a_recording_of_each_recorded_host_is_that_host(tmp_path: Path, name: str) -> None:
    lines: list[str] = []
    source = HOSTS[name]
    record(open_host(source), open_nvml(source), tmp_path / "root", Options(), lambda line: lines.append(json.dumps(line)))
    facts, nvml, failed = recorder._assemble(lines)
    assert failed == {}
    (tmp_path / "host.json").write_text(json.dumps(facts))
    if nvml:
        (tmp_path / "nvml.json").write_text(json.dumps(nvml))
    drop_empty_directories(tmp_path)
    assert hashes(tmp_path) == hashes(source)
    assert open_host(tmp_path).uname() == open_host(source).uname()
    redact_directory(tmp_path, key=b"k")
    before, after = fields(source), fields(tmp_path)
    assert [name for name, _ in before] == [name for name, _ in after]
    assert {name for name, value in before if value not in {v for n, v in after if n == name}} <= NAMES
    kept = {value for name, value in before if name in NAMES - {"name", "model"} and (name, value) in after}
    assert all(placeholder(value) for value in kept), kept


def drop_empty_directories(directory: Path) -> None:
    """As git does."""
    for folder, _, _ in os.walk(directory, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)


# What redaction may change: fields that name a machine or a part; an interface is named by its MAC, and a cloud's disk has its
# model as its serial.
NAMES = {
    "serial",
    "uuid",
    "product_uuid",
    "hostname",
    "wwn",
    "permanent_mac",
    "node_guid",
    "guid",
    "cluster_uuid",
    "name",
    "model",
}


def fields(directory: Path) -> list[tuple[str, str]]:
    """Every text, number and flag of a host's sections as `field: value`, sorted: redaction moves disks in their list."""
    host, nvml = open_host(directory), open_nvml(directory)
    text = "".join(str(collect(name, host, nvml, options=OPTIONS)) for name in COLLECTORS)
    found = re.findall(r'(\w+): (?:"((?:[^"\\]|\\.)*)"|(\S+))', text)
    return sorted((name, quoted or plain) for name, quoted, plain in found)


def hashes_without_gpus(directory: Path) -> dict[str, str]:
    host = open_host(directory)
    return {name: section_hash(encode(collect(name, host, RecordedNvml({})))) for name in COLLECTORS if name != "gpus"}


def test_refuses_a_directory_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        capture(tmp_path, redact=False)
    assert os.listdir(tmp_path) == ["file"]


def test_refuses_what_is_no_directory_or_no_recorded_host(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="cannot make"):
        capture(tmp_path / "file", redact=False)
    with pytest.raises(UserError, match="no recorded host"):
        capture(tmp_path / "out", redact=False, host_dir=tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_child_that_says_nothing_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError, match="nothing was recorded"):
        capture(tmp_path / "out", redact=False)


def test_a_kernel_log_that_could_not_be_read_then_is_named_again(tmp_path: Path) -> None:
    source = make(tmp_path / "a")
    (source / "host.json").write_text(json.dumps(FACTS | {"errors": {"/dev/kmsg": errno.EPERM}}))
    capture(tmp_path / "b", redact=False, host_dir=source)
    assert open_host(tmp_path / "b").errors == {"/dev/kmsg": errno.EPERM}


# -- the doors


def test_nothing_of_a_host_passes_the_recorder_by() -> None:
    """What a collector may ask of a host and the recorder does not override would be missing in the recording."""
    asked = {name for name, member in vars(Host).items() if callable(member) and not name.startswith("_")} - {"resolve", "walk"}
    assert asked - set(vars(Recorder)) == set()


class Notes:
    """What a door told, by table."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []

    def __call__(self, line: dict[str, object]) -> None:
        self.lines.append(line)


def test_links_on_the_way_are_recorded(tmp_path: Path) -> None:
    source = Host(plant(tmp_path / "a", {"/x/a": Link("/y/b"), "/y/b": Link("c"), "/y/c/file": "data", "/y/c/other": "not read"}))
    host = Recorder(root=source.root, source=source, out=tmp_path / "b", note=Notes())
    assert host.read("/x/a/file") == b"data"
    assert Host(tmp_path / "b").read("/x/a/file") == b"data"
    assert Host(tmp_path / "b").realpath("/x/a/file") == "/y/c/file"
    assert not (tmp_path / "b/y/c/other").exists()


def test_a_piece_of_a_file_is_recorded_where_it_stood(tmp_path: Path) -> None:
    source = Host(plant(tmp_path / "a", {"/lib/module": "0123456789", "/d/x": "y"}))
    host = Recorder(root=source.root, source=source, out=tmp_path / "b", note=Notes())
    assert (host.read_at("/lib/module", 7, 2), host.read_at("/lib/module", 2, 3)) == (b"78", b"234")
    copy = Host(tmp_path / "b")
    assert copy.read("/lib/module") == b"\0\x00234\0\x0078"
    assert copy.read_at("/lib/module", 7, 100) == b"78"
    assert copy.read_at("/lib/module", 1 << 63, 1) == b""
    for path, number in (("/lib/none", errno.ENOENT), ("/d", errno.EISDIR)):
        with pytest.raises(Unreadable) as refused:
            host.read_at(path, 0, 1)
        assert refused.value.errno == number
    with pytest.raises(Unreadable, match="Permission"):
        Host(tmp_path / "b", errors={"/lib/module": errno.EACCES}).read_at("/lib/module", 0, 1)


def test_conditions_are_judged_of_a_capture_as_of_its_host(tmp_path: Path) -> None:
    capture(tmp_path / "b", redact=True, host_dir=HOSTS["a100-mig-8"])
    before, after = (judge(facts_of(directory)) for directory in (HOSTS["a100-mig-8"], tmp_path / "b"))
    assert [(kind, verdict.status, verdict.reason) for kind, verdict in after] == [
        (kind, verdict.status, verdict.reason) for kind, verdict in before
    ]
    assert {kind for kind, verdict in before if verdict.status == "false"} >= {"FabricManagerDown", "NvmlUnavailable"}


def test_a_listing_is_recorded_with_the_kinds_of_its_names(tmp_path: Path) -> None:
    planted: dict[str, Content] = {
        "/d/file": "data",
        "/d/link": Link("gone"),
        "/d/sub/a": Link("x"),
        "/d/sub/x": "data",
        "/e": None,
    }
    source = Host(plant(tmp_path / "a", planted))
    host = Recorder(root=source.root, source=source, out=tmp_path / "b", note=Notes())
    assert host.listdir("/d") == ["file", "link", "sub"]
    assert [(path.name, path.read_text()) for path in (tmp_path / "b/d/sub").iterdir()] == [("x", "")]
    assert host.listdir("/e") == []
    copy = Host(tmp_path / "b")
    assert (copy.listdir("/d"), copy.listdir("/e"), copy.readlink("/d/link")) == (["file", "link", "sub"], [], "gone")
    assert host.read("/d/file") == copy.read("/d/file") == b"data"


def test_absence_leaves_nothing_and_a_failure_its_number(tmp_path: Path) -> None:
    notes = Notes()
    source = Host(
        plant(tmp_path / "a", {"/d/secret": "x", "/d/empty": "x"}), errors={"/d/secret": errno.EACCES, "/d/empty": errno.ENODEV}
    )
    host = Recorder(root=source.root, source=source, out=tmp_path / "b", note=notes)
    for path in ("/d/secret", "/d/empty", "/d/none"):
        with pytest.raises(Exception, match=path):
            host.read(path)
    assert notes.lines == [{"fact": ["errors", "/d/secret", errno.EACCES]}, {"fact": ["errors", "/d/empty", errno.ENODEV]}]
    assert not host.exists("/d/none")
    assert not (tmp_path / "b").exists()


def test_the_doors_facts_are_noted(tmp_path: Path) -> None:
    plant(tmp_path / "a", {"/proc/version": "x"})
    source = RecordedHost(
        root=tmp_path / "a", boot="b-9", interfaces={"eth0": EthtoolInfo(driver="e1000")}, cri=(CriImage(name="n"),), cri_error=0
    )
    notes = Notes()
    host = Recorder(root=source.root, source=source, out=tmp_path / "b", note=notes)
    assert (host.boot_id(), host.ethtool("eth0").driver, host.cri_images("/s")) == ("b-9", "e1000", (CriImage(name="n"),))
    assert [line["fact"] for line in notes.lines] == [
        ["bootId", "b-9"],
        ["ethtool", "eth0", {"driver": "e1000"}],
        ["cri", [{"name": "n"}]],
    ]


def test_nvml_calls_are_noted_before_and_after(tmp_path: Path) -> None:
    notes = Notes()
    nvml = RecordingNvml(RecordedNvml({"devices": [{"uuid": "GPU-1"}]}), notes)
    nvml.open()
    assert nvml.device(0, "uuid") == "GPU-1"
    assert notes.lines[-2:] == [{"nvml": ["device", 0, "uuid"]}, {"nvml": ["device", 0, "uuid"], "answer": "GPU-1"}]


def test_a_section_that_fails_is_noted_and_the_rest_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, *_: object, **__: object) -> None:
        if name == "memory":
            raise SectionFailed("IdentityUnstable", "two answers")

    monkeypatch.setattr(recording, "collect", broken)
    notes = Notes()
    record(Host(plant(tmp_path / "a", {"/proc/version": "x"})), RecordedNvml({}), tmp_path / "b", Options(), notes)
    failed = {line["section"]: line["failed"] for line in notes.lines if "section" in line}
    assert failed == dict.fromkeys(COLLECTORS) | {"memory": "two answers"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_kernel_log_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(recorder, "_kernel_log", lambda: (b"", number))
    capture(tmp_path / "b", redact=False)
    assert json.loads((tmp_path / "b/host.json").read_text())["errors"]["/dev/kmsg"] == number
    assert not (tmp_path / "b/kmsg").exists()


def test_records_overwritten_under_the_reader_do_not_end_the_kernel_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[object] = [b"6,1,0,-;a\n", BrokenPipeError(), b"6,9,0,-;b\n", BlockingIOError()]

    def read(fd: int, size: int) -> object:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(recorder, "_KMSG", os.devnull)
    monkeypatch.setattr(os, "read", read)
    assert recorder._kernel_log() == (b"6,1,0,-;a\n6,9,0,-;b\n", 0)


def test_records_the_readings_of_the_moment(tmp_path: Path) -> None:
    capture(tmp_path / "copy", redact=False, host_dir=HOSTS["h100-sxm-8"])
    wanted = {"currentPcieWidth", "utilization", "temperature", "powerUsage", "memoryUsed", "processes", "pcieReplayCounter"}
    original = json.loads((HOSTS["h100-sxm-8"] / "nvml.json").read_text())["devices"]
    recorded = json.loads((tmp_path / "copy/nvml.json").read_text())["devices"]
    assert [{q: d[q] for q in wanted} for d in recorded] == [{q: d[q] for q in wanted} for d in original]
