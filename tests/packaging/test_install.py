"""The packages installed on fresh Debian machines without a network, their units under a real systemd: one story, in order.

The receiver's package runs on one machine, bcd's on another; what they share is a loopback. `make proof-install` runs it.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.processes import wait_for
from tests.packaging import machines
from tests.packaging.machines import Machine, say, seconds
from tests.packaging.scripts import build

WHY_NOT = machines.missing() or ("" if os.environ.get("BC_PROOF") else "long: make proof-install")
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "runs")

ASK = """
import json, socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect("/run/bcd-helper/socket")
    s.sendall(json.dumps({request}).encode() + b"\\n")
    sys.stdout.write(s.makefile().readline())
"""
MEMORY = 64  # MiB that the idle daemon may have resident
GPU_SERVICE = "[Service]\nExecStart=/bin/sleep infinity\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All packages, of Debian's own Python: those in the directory that BC_PACKAGES names, else built now."""
    if already := os.environ.get("BC_PACKAGES"):
        made = list(Path(already).iterdir())
    else:
        began, output = time.monotonic(), tmp_path_factory.mktemp("packages")
        made = list(build.build(list(build.PACKAGES), build.targets("/usr/bin/python3.11"), output, compression="gzip"))
        say("build of all packages", seconds(began))
    for path in made:
        say(path.name, f"{path.stat().st_size / 1e6:.1f} MB")
    return made


@pytest.fixture(scope="module")
def packages(built: list[Path]) -> dict[str, Path]:
    """Package -> its .deb."""
    return {path.name.split("_")[0]: path for path in built if path.suffix == ".deb"}


@pytest.fixture(scope="module")
def network() -> Iterator[str]:
    with machines.network() as name:
        yield name


def _installed(machine: Machine, deb: Path) -> None:
    (machine.root / "root" / deb.name).write_bytes(deb.read_bytes())
    machine.run("dpkg", "-i", f"/root/{deb.name}")
    name = deb.name.split("_")[0]
    say(f"{name} installed in /opt/{name}", machine.run("du", "-sm", f"/opt/{name}").split()[0] + " MiB")


@pytest.fixture(scope="module")
def receiver(packages: dict[str, Path], network: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with the receiver's package, initialised and serving; the token of `init` lies in /root/token."""
    with machines.machine("receiver", tmp_path_factory.mktemp("m"), network) as machine:
        _installed(machine, packages["bc-receiver"])
        machine.boot()
        token = machine.run("setpriv", "--reuid=bc-receiver", "--regid=bc-receiver", "--clear-groups", "bc-receiver", "init")
        (machine.root / "root/token").write_text(token)
        _edit(machine, '#nodeLife = "30d"', 'nodeLife = "45s"')
        began = time.monotonic()
        machine.run("systemctl", "enable", "--now", "bc-receiver")
        say("bc-receiver READY with an embedded Postgres", seconds(began))
        yield machine


def _edit(receiver: Machine, old: str, new: str) -> None:
    file = receiver.root / "etc/better-compute/receiver.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.fixture(scope="module")
def node(packages: dict[str, Path], network: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with bcd's package: installed before it is booted, as an image is built."""
    with machines.machine("node", tmp_path_factory.mktemp("m"), network) as machine:
        _installed(machine, packages["bcd"])
        machine.boot()
        yield machine


def api(receiver: Machine, *words: str) -> Any:
    ca = "/var/lib/bc-receiver/tls/server-ca.pem"
    out = receiver.run("better-compute", "api", *words, "--format", "json", "--token-file", "/root/token", "--ca", ca)
    return json.loads(out)


def status(node: Machine) -> dict[str, Any]:
    return dict(json.loads(node.run("bcd", "status", "--json")))


def test_bcd_is_ready_without_a_receiver_as_its_own_user(node: Machine) -> None:
    wait_for("bcd to be active", lambda: node.show("bcd", "ActiveState") == "active", 30)
    pid = node.show("bcd", "MainPID")
    of_process = dict(line.split(":\t", 1) for line in node.run("cat", f"/proc/{pid}/status").splitlines() if ":\t" in line)
    assert of_process["Uid"].split()[0] == node.run("id", "-u", "bcd").strip()
    assert [int(of_process[name], 16) for name in ("CapEff", "CapBnd", "CapAmb")] == [1 << 34] * 3, "CAP_SYSLOG alone"
    assert (of_process["NoNewPrivs"], of_process["Seccomp"]) == ("1", "2")
    say("bcd resident, not joined", f"{int(of_process['VmRSS'].split()[0]) / 1024:.1f} MiB")
    assert int(of_process["VmRSS"].split()[0]) < MEMORY * 1024
    assert node.run("stat", "-c", "%a %U", "/var/lib/bcd", "/var/lib/bcd/holds", "/run/bcd/bcd.sock").split() == [
        "700", "bcd", "770", "bcd", "660", "bcd",
    ]  # fmt: skip


SEEN = ("/usr/lib/modules", "/tmp", "/sys/bus/pci", "/proc/1", "/var/lib/dpkg/status", "/dev/kmsg")
HIDDEN = ("/root", "/home")


def test_the_sandbox_shows_what_collectors_read_and_nothing_may_be_written(node: Machine) -> None:
    pid = node.show("bcd", "MainPID")
    (node.root / "usr/lib/modules/6.0").mkdir(parents=True)
    inside = ("nsenter", "-t", pid, "-m", "setpriv", "--reuid=bcd", "--regid=bcd", "--clear-groups")
    for path in SEEN:
        node.run(*inside, "test", "-r", path)
    node.run(*inside, "ls", "/usr/lib/modules/6.0")
    for path in HIDDEN:
        assert node.try_(*inside, "ls", path).returncode != 0
    for path in ("/usr", "/etc", "/tmp", "/var/lib"):
        assert "Read-only file system" in node.try_("nsenter", "-t", pid, "-m", "touch", f"{path}/x").stderr, path


def test_doctor_and_inventory_run_on_the_installed_node(node: Machine) -> None:
    found = json.loads(node.run("bcd", "doctor", "--json", codes=(0, 1)))
    assert found
    sections = json.loads(node.run("bcd", "inventory", "--json"))
    assert list(sections) == ["system", "os", "cpu", "memory", "gpus", "disks", "nics", "images"]
    assert "Debian" in json.dumps(sections["os"])
    assert status(node)["kernelLog"]["trouble"] is None if "trouble" in status(node)["kernelLog"] else True


def test_it_reads_the_kernel_log_without_root_and_says_what_it_does_in_the_journal(node: Machine) -> None:
    assert node.run("cat", "/proc/sys/kernel/dmesg_restrict").strip() == "1"
    journal = node.journal("bcd")
    assert "runs as" in journal
    assert "kernel log" not in journal, "it would say so if it could not be read"
    assert "not joined" in node.journal("bcd", "-p", "warning")


def test_the_node_joins_the_receiver_beside_it_and_its_inventory_is_applied(node: Machine, receiver: Machine) -> None:
    made = api(receiver, "joinTokens.create")
    began = time.monotonic()
    joined = json.loads(node.run("bcd", "join", "--token-file", "-", "--json", data=made.get("token") or made["joinToken"]))
    assert node.run("stat", "-c", "%a %U", "/var/lib/bcd/identity.json").split() == ["600", "bcd"]
    wait_for("the receiver to have the inventory", lambda: status(node)["applied"], 60, 0.2)
    say("join to inventory applied, without a restart", seconds(began))
    listed = api(receiver, "nodes.list")["nodes"]
    assert [row["id"] for row in listed] == [joined["nodeId"]]
    pid = node.show("bcd", "MainPID")
    rss = next(line for line in node.run("cat", f"/proc/{pid}/status").splitlines() if line.startswith("VmRSS"))
    say("bcd resident, in a TLS session", f"{int(rss.split()[1]) / 1024:.1f} MiB")
    assert int(rss.split()[1]) < 1.25 * MEMORY * 1024


def test_the_certificate_is_renewed_by_the_service_itself(node: Machine, receiver: Machine) -> None:
    """It was given for 45 s; the receiver now gives them for 30 days again."""
    identity = node.root / "var/lib/bcd/identity.json"
    before = json.loads(identity.read_text())
    _edit(receiver, 'nodeLife = "45s"', '#nodeLife = "30d"')
    receiver.run("systemctl", "restart", "bc-receiver")
    after = wait_for("another certificate", lambda: _if_other(json.loads(identity.read_text()), before), 60, 0.5)
    assert after["nodeId"] == before["nodeId"]
    assert after["key"] != before["key"]
    assert node.run("stat", "-c", "%a %U", "/var/lib/bcd/identity.json").split() == ["600", "bcd"]
    wait_for("the receiver to have the inventory", lambda: status(node)["applied"], 60, 0.2)


def _if_other(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any] | None:
    return now if now["certificate"] != before["certificate"] else None


def test_an_event_loop_that_stands_still_is_started_again(node: Machine) -> None:
    folder = node.root / "etc/systemd/system/bcd.service.d"
    folder.mkdir(parents=True)
    (folder / "short.conf").write_text("[Service]\nWatchdogSec=3\nRestartSec=0.2\n")
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", "bcd")
    before = node.show("bcd", "MainPID")
    began = time.monotonic()
    node.run("kill", "-STOP", before)
    wait_for("another process", lambda: node.show("bcd", "MainPID") not in (before, "0"), 30, 0.2)
    wait_for("it to be ready", lambda: node.show("bcd", "ActiveState") == "active", 30, 0.2)
    say("stopped event loop to READY again (WatchdogSec=3)", seconds(began))
    assert node.show("bcd", "NRestarts") == "1"
    assert "Watchdog timeout" in node.journal("bcd")
    wait_for("the receiver to have the inventory again", lambda: status(node)["applied"], 60, 0.2)
    (folder / "short.conf").unlink()
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", "bcd")


def ask(node: Machine, user: str = "bcd", group: str = "bcd", **request: object) -> dict[str, Any]:
    return dict(json.loads(node.python(ASK.replace("{request}", repr(request)), user, group)))


def test_the_helper_does_what_the_file_allows_for_bcd_and_nothing_else(node: Machine) -> None:
    (node.root / "etc/systemd/system/nvidia-dcgm.service").write_text(GPU_SERVICE)
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "start", "nvidia-dcgm")
    assert ask(node, verb="open-files") == {"code": 0, "out": "{}", "err": ""}
    assert "gpu.reset is not in commands.allow" in ask(node, verb="stop", service="nvidia-dcgm")["refused"]
    config = node.root / "etc/bcd/bcd.toml"
    text = config.read_text()
    config.write_text(
        f"{text}\n".replace("[commands]\n", '[commands]\nallow = ["inventory.refresh", "gpu.reset", "node.reboot"]\n')
    )
    assert ask(node, verb="stop", service="nvidia-dcgm")["code"] == 0
    assert node.show("nvidia-dcgm", "ActiveState") == "inactive"
    assert ask(node, verb="is-active", service="nvidia-dcgm")["code"] == 3
    assert ask(node, verb="start", service="nvidia-dcgm")["code"] == 0
    assert node.show("nvidia-dcgm", "ActiveState") == "active"
    assert "not in reset.pause" in ask(node, verb="stop", service="dbus")["refused"]
    assert "nvidia-smi is not installed" in ask(node, verb="reset", gpus=["GPU-6e1fd3ab-0c22-4b0e-9a55-000000000001"])["refused"]
    in_group = ask(node, "nobody", "bcd", verb="reboot")
    assert in_group == {"refused": "user 65534 is not served"}
    with pytest.raises(AssertionError, match="Permission denied"):
        ask(node, "nobody", "nogroup", verb="reboot")
    assert "'service': 'nvidia-dcgm'}: ended with 0" in node.journal("bcd-helper@*")


def test_a_reboot_that_bcd_asks_of_the_helper_happens_and_bcd_is_back(node: Machine) -> None:
    assert ask(node, verb="reboot")["code"] == 0
    node.boots_again()
    assert node.show("bcd", "ActiveState") == "active", "enabled at its installation"
    wait_for("the receiver to have the inventory", lambda: status(node)["applied"], 60, 0.2)


def test_a_wrong_configuration_is_not_taken_by_a_reload_and_starts_nothing(node: Machine) -> None:
    config = node.root / "etc/bcd/bcd.toml"
    right = config.read_text()
    config.write_text(
        right + "\n[log]\nformat = 7\n" if "[log]" not in right else right.replace("[log]\n", "[log]\nformat = 7\n")
    )
    pid = node.show("bcd", "MainPID")
    node.run("systemctl", "reload", "bcd")
    wait_for("the refusal in the journal", lambda: "the configuration is not reloaded" in node.journal("bcd"), 10, 0.2)
    assert node.show("bcd", "MainPID") == pid
    assert node.try_("systemctl", "restart", "bcd").returncode != 0
    assert "log.format is an integer" in node.journal("bcd")
    assert node.show("bcd", "ActiveState") != "active"
    config.write_text(right)
    wait_for("it to heal by itself", lambda: node.show("bcd", "ActiveState") == "active", 30, 0.5)


def test_an_upgrade_keeps_identity_state_and_configuration(node: Machine, packages: dict[str, Path], tmp_path: Path) -> None:
    newer = _newer(packages["bcd"], tmp_path)
    kept = ("/var/lib/bcd/identity.json", "/etc/bcd/bcd.toml")
    before, pid, node_id = node.run("sha256sum", *kept), node.show("bcd", "MainPID"), status(node)["nodeId"]
    (node.root / "root/newer.deb").write_bytes(newer.read_bytes())
    began = time.monotonic()
    node.run("dpkg", "--force-confold", "-i", "/root/newer.deb")
    say("upgrade", seconds(began))
    assert node.run("sha256sum", *kept) == before
    assert node.run("dpkg-query", "-W", "-f", "${Version}", "bcd") == "99.0.0"
    assert node.show("bcd", "MainPID") != pid, "the new code runs"
    assert status(node)["nodeId"] == node_id
    wait_for("the receiver to have the inventory", lambda: status(node)["applied"], 60, 0.2)
    node.run("systemctl", "disable", "--now", "bcd")
    node.run("dpkg", "--force-confold", "-i", "/root/newer.deb")
    assert node.run("systemctl", "is-enabled", "bcd", codes=(1,)).strip() == "disabled", "an administrator's word stays"


def _newer(deb: Path, work: Path) -> Path:
    """The same package as a later version, with another file in it and another default configuration."""
    build.run("dpkg-deb", "-R", deb, work / "t")
    control = work / "t/DEBIAN/control"
    lines = ["Version: 99.0.0" if line.startswith("Version: ") else line for line in control.read_text().splitlines()]
    control.write_text("\n".join(lines) + "\n")
    (work / "t/etc/bcd/bcd.toml").write_text((work / "t/etc/bcd/bcd.toml").read_text() + "# a later default\n")
    build.run("dpkg-deb", "--root-owner-group", "-Zgzip", "-b", work / "t", work / "newer.deb")
    return work / "newer.deb"


def test_removal_keeps_what_is_the_machines_and_purge_leaves_nothing(node: Machine) -> None:
    node.run("dpkg", "-r", "bcd")
    assert node.try_("bcd", "--version").returncode != 0
    assert (node.root / "var/lib/bcd/identity.json").exists()
    assert (node.root / "etc/bcd/bcd.toml").exists()
    node.run("dpkg", "-P", "bcd")
    found = node.run("find", "/", "-xdev", "(", "-path", "/proc", "-o", "-path", "/var/log", "-o", "-path", "/root", ")",
                     "-prune", "-o", "-name", "*bcd*", "-print")  # fmt: skip
    assert found.split() == []
    assert node.run("getent", "passwd", "bcd", codes=(2,)) == ""
    assert node.run("getent", "group", "bcd", codes=(2,)) == ""
    assert node.run("systemctl", "list-units", "--all", "--no-legend", "bcd*").strip() == ""


def test_the_receiver_too_keeps_its_state_at_a_restart_and_leaves_nothing_at_purge(receiver: Machine) -> None:
    assert receiver.run("stat", "-c", "%a %G", "/etc/better-compute/receiver.toml").split() == ["640", "bc-receiver"]
    nodes = [row["id"] for row in api(receiver, "nodes.list")["nodes"]]
    receiver.run("systemctl", "restart", "bc-receiver")
    assert [row["id"] for row in api(receiver, "nodes.list")["nodes"]] == nodes
    assert "draining" in receiver.journal("bc-receiver")
    receiver.run("dpkg", "-P", "bc-receiver")
    found = receiver.run("find", "/", "-xdev", "(", "-path", "/proc", "-o", "-path", "/var/log", "-o", "-path", "/root", ")",
                         "-prune", "-o", "-name", "*bc-receiver*", "-print")  # fmt: skip
    assert found.split() == []
    assert not (receiver.root / "etc/better-compute").exists()
    assert receiver.run("getent", "passwd", "bc-receiver", codes=(2,)) == ""
