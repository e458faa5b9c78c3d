"""A recorded host answers as the host it was recorded from, and says plainly when it is none."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.errors import Unreadable, UserError
from agent.host import CriImage, EthtoolInfo
from agent.nvml import NvmlError
from agent.recorded import open_host, open_nvml
from tests.agent.collectors.tree import Link, plant

FACTS = {
    "format": 1,
    "bootId": "0b5c2a1e",
    "uptime": 12,
    "uname": {"hostname": "n7", "release": "6.8.0", "machine": "aarch64", "version": "#1", "sysname": "Linux"},
    "ethtool": {"eth0": {"driver": "mlx5_core", "permanentMac": "b8:3f:d2:00:00:01", "firmware": ""}},
    "errors": {"/sys/class/dmi/id/product_serial": 13},
    "sizes": {"/var/lib/bcd/images/jammy.raw": 2361393152},
    "cri": [{"digest": "sha256:aa", "name": "app:1", "bytes": 5}, {}],
}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    plant(tmp_path / "root", {"/proc/version": "Linux version 5.14.0-427.el9.x86_64 (mock) #1 SMP PREEMPT_DYNAMIC"})
    return tmp_path


def test_answers_what_host_json_says(recorded: Path) -> None:
    (recorded / "host.json").write_text(json.dumps(FACTS))
    plant(recorded / "root", {"/sys/class/dmi/id/product_serial": "S1", "/var/lib/bcd/images/jammy.raw": ""})
    host = open_host(recorded)
    assert (host.boot_id(), host.uptime(), host.uname().hostname, host.uname().machine) == ("0b5c2a1e", 12.0, "n7", "aarch64")
    assert host.ethtool("eth0") == EthtoolInfo(driver="mlx5_core", permanent_mac="b8:3f:d2:00:00:01")
    assert host.ethtool("eth1") == EthtoolInfo()
    with pytest.raises(Unreadable) as caught:
        host.read("/sys/class/dmi/id/product_serial")
    assert caught.value.errno == errno.EACCES
    assert host.stat("/var/lib/bcd/images/jammy.raw").st_size == 2361393152
    assert host.cri_images("/run/c.sock") == (CriImage("sha256:aa", "app:1", 5), CriImage())


def test_a_bare_proc_names_its_kernel_by_the_version_banner(recorded: Path) -> None:
    host = open_host(recorded)
    assert (host.uname().release, host.uname().machine) == ("5.14.0-427.el9.x86_64", "x86_64")
    assert host.uname().version == "#1 SMP PREEMPT_DYNAMIC"
    assert (host.boot_id(), host.uname().hostname) == ("unknown", "")


def test_a_runtime_that_was_not_recorded_was_not_there(recorded: Path) -> None:
    with pytest.raises(Unreadable) as caught:
        open_host(recorded).cri_images("/run/c.sock")
    assert caught.value.errno == errno.ENOENT


def test_sysctl_files_win_over_the_banner(recorded: Path) -> None:
    kernel = {"hostname": "n9", "osrelease": "6.1.0", "version": "#7", "arch": "riscv64", "random/boot_id": "b-1"}
    plant(recorded / "root", {f"/proc/sys/kernel/{name}": f"{value}\n" for name, value in kernel.items()})
    host = open_host(recorded)
    assert (host.uname().hostname, host.uname().release, host.uname().version, host.uname().machine) == (
        "n9",
        "6.1.0",
        "#7",
        "riscv64",
    )
    assert host.boot_id() == "b-1"


def test_links_that_leave_the_host_stay_below_its_root(recorded: Path) -> None:
    plant(recorded / "root", {"/etc/a": Link("/../../../../../etc/b"), "/etc/b": "mine"})
    assert open_host(recorded).read("/etc/a") == b"mine"
    with pytest.raises(Unreadable) as caught:
        open_host(recorded).read("/etc/a", follow=False)
    assert caught.value.errno == errno.ELOOP


def test_an_error_of_the_runtime_is_recorded_too(recorded: Path) -> None:
    (recorded / "host.json").write_text('{"cri": {"error": 111}}')
    with pytest.raises(Unreadable, match=r"/run/c\.sock") as caught:
        open_host(recorded).cri_images("/run/c.sock")
    assert caught.value.errno == errno.ECONNREFUSED


def test_a_directory_that_holds_no_host_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither root/proc nor root/sys"):
        open_host(tmp_path)
    with pytest.raises(UserError, match="no recorded host"):
        open_host(tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"format": 1,\n "errors": }', r"host\.json:2: not JSON"),
        ("[]", "is not a JSON object"),
        ("", r"host\.json:1: not JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        ('{"format": 2}', "format 2 is unknown"),
        ('{"format": "1"}', "format: '1' is not of type int"),
        ('{"errors": {"/a": "EACCES"}}', "errors: /a: 'EACCES' is not of type int"),
        ('{"sizes": {"/a": -1}}', "sizes: /a: -1 is out of range"),
        ('{"bootId": "\\ud800"}', "is not UTF-8"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"sizes": {"/a": true}}', "sizes: /a: True is not of type int"),
        ('{"ethtool": {"eth0": []}}', r"ethtool: eth0: \[\] is not of type dict"),
        ('{"uname": {"release": 5}}', "uname: release: 5 is not of type str"),
        ('{"cri": [1]}', "cri: 1 is not of type dict"),
        ('{"uptime": "x"}', "uptime: 'x' is not of type float"),
    ],
)
def test_a_broken_host_json_names_the_file_and_the_place(recorded: Path, text: str | bytes, says: str) -> None:
    (recorded / "host.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=says):
        open_host(recorded)


def test_no_nvml_json_is_a_host_without_the_library(tmp_path: Path) -> None:
    with pytest.raises(NvmlError) as caught:
        open_nvml(tmp_path).open()
    assert caught.value.code == "LIBRARY_NOT_FOUND"


def test_nvml_answers_values_and_the_errors_of_each_call(tmp_path: Path) -> None:
    answers = {
        "init": None,
        "system": {"driverVersion": "550.90.07"},
        "devices": [
            {"uuid": "GPU-1", "serial": {"error": "NO_PERMISSION", "function": "nvmlDeviceGetSerial"}},
            {"handle": {"error": "GPU_IS_LOST"}, "uuid": "GPU-2"},
        ],
    }
    (tmp_path / "nvml.json").write_text(json.dumps(answers))
    nvml = open_nvml(tmp_path)
    nvml.open()
    assert (nvml.count(), nvml.system("driverVersion"), nvml.device(0, "uuid")) == (2, "550.90.07", "GPU-1")
    for index, query, code in [
        (0, "serial", "NO_PERMISSION"),
        (0, "vbios", "NOT_SUPPORTED"),
        (1, "uuid", "GPU_IS_LOST"),
        (2, "uuid", "INVALID_ARGUMENT"),
    ]:
        with pytest.raises(NvmlError) as caught:
            nvml.device(index, query)
        assert caught.value.code == code
    with pytest.raises(NvmlError, match="nvmlDeviceGetSerial"):
        nvml.device(0, "serial")


def test_nvml_that_fails_to_start_raises_what_was_recorded(tmp_path: Path) -> None:
    (tmp_path / "nvml.json").write_text('{"init": {"error": "DRIVER_NOT_LOADED"}}')
    with pytest.raises(NvmlError) as caught:
        open_nvml(tmp_path).open()
    assert caught.value.code == "DRIVER_NOT_LOADED"


@pytest.mark.parametrize("text", ['{"devices": [1]}', '{"devices": {}}', '{"system": []}', '{"init": '])
def test_a_broken_nvml_json_is_a_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "nvml.json").write_text(text)
    with pytest.raises(UserError, match=r"nvml\.json"):
        open_nvml(tmp_path)


def test_a_recorded_hang_does_not_return(tmp_path: Path) -> None:
    (tmp_path / "nvml.json").write_text('{"devices": [{"uuid": {"hang": true}}]}')
    ask = f"from agent.recorded import open_nvml; from pathlib import Path; open_nvml(Path({str(tmp_path)!r})).device(0, 'uuid')"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", ask], timeout=1.5)
