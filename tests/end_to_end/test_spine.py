"""The spine, as its issue must show it: real bcd, real receiver, real Postgres. `make proof-spine` repeats ten times as often."""

import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.processes import BIN, Fleet, fleet, wait_for
from tests.hosts_catalog import (
    bind_vfio,
    copy,
    drop_gpu,
    hang,
    move_telemetry,
    new_boot,
    nvml_init_error,
    swap_disk,
    swap_disk_names,
)
from tests.repetitions import times

SECTIONS = {"system", "os", "cpu", "memory", "gpus", "disks", "nics", "images"}


@pytest.fixture
def run() -> Iterator[Fleet]:
    """A receiver of its own below a short path."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, fleet(Path(directory)) as started:
        yield started


def start(run: Fleet, name: str, **env: str) -> tuple[Path, str]:
    """A daemon for a copy of recorded host `name`, applied; the copy and the node's id."""
    host = copy(name, run.base / "hosts")
    run.daemon(name, host, {"BCD_SETTLE": "0s", **env})
    return host, run.applied(name)["nodeId"]


def events(run: Fleet, node: str) -> list[str]:
    """The types of the node's events, oldest first."""
    return [event["type"] for event in run.api("events.list", nodeId=node)["events"]]


def history(run: Fleet, node: str) -> list[dict[str, Any]]:
    """The node's snapshots, newest first."""
    answer: list[dict[str, Any]] = run.api("inventory.history", nodeId=node)["snapshots"]
    return answer


def refresh(run: Fleet, name: str) -> None:
    """Collects and waits for the receiver's result."""
    run.bcd(name, "refresh")


def test_a_lost_gpu_and_a_swapped_disk_are_told(run: Fleet) -> None:
    host, node = start(run, "h100-sxm-8")
    drop_gpu(host, 3)
    swap_disk(host, "nvme3n1")
    refresh(run, "h100-sxm-8")
    changes = run.api("inventory.diff", nodeId=node)["changes"]
    assert [change["type"] for change in changes] == ["gpu.missing", "disk.replaced"]
    assert {"node.gpu.missing", "node.disk.replaced"} <= set(events(run, node))


@pytest.mark.parametrize(
    "broken",
    [
        lambda host: nvml_init_error(host, "UNKNOWN"),
        lambda host: nvml_init_error(host, "DRIVER_NOT_LOADED"),
        lambda host: hang(host, "uuid"),
    ],
    ids=["nvml-error", "driver-not-loaded", "hang"],
)
def test_a_driver_that_does_not_answer_loses_no_gpu(run: Fleet, broken: Any) -> None:
    host, node = start(run, "a100-mig-8", BCD_COLLECT_LIMIT="4s")
    before = run.api("inventory.get", nodeId=node)
    broken(host)
    swap_disk(host, "nvme1n1")  # the other seven arrive: this change shows it
    subprocess.run([BIN / "bcd", "--data-dir", run.base / "a100-mig-8", "refresh"], capture_output=True, timeout=60, check=False)
    wait_for("the disk's replacement to arrive", lambda: "node.disk.replaced" in events(run, node))
    assert "node.gpu.missing" not in events(run, node)
    after = run.api("inventory.get", nodeId=node)
    assert {missing["name"] for missing in after["missing"]} == {"gpus"}
    assert after["missing"][0]["lastSnapshotId"] == before["snapshotId"]


def test_settling_leaves_gpus_out_and_loses_none(run: Fleet) -> None:
    host = copy("h100-sxm-8", run.base / "hosts")
    run.daemon("h100", host, {"BCD_SETTLE": "0s"})
    node = run.applied("h100")["nodeId"]
    run.daemons["h100"].stop()
    new_boot(host)
    nvml_init_error(host, "DRIVER_NOT_LOADED")
    run.daemon("h100", host, {"BCD_SETTLE": "1000d"})
    status = wait_for("the settling report", lambda: [m for m in run.status("h100").get("missing", []) if m["name"] == "gpus"])
    assert "settling" in status[0]["error"]
    assert "node.gpu.missing" not in events(run, node)
    assert len(history(run, node)) == 1


def test_a_gpu_bound_to_a_vm_is_assigned_and_not_missing(run: Fleet) -> None:
    host, node = start(run, "a100-mig-8")
    bind_vfio(host, 7)
    refresh(run, "a100-mig-8")
    assert "node.gpu.missing" not in events(run, node)
    gpus = run.api("inventory.get", nodeId=node)["sections"]["gpus"]["gpus"]
    assert [gpu["assigned"] for gpu in gpus].count(True) == 1


def test_two_disks_that_swap_names_are_no_change(run: Fleet) -> None:
    host, node = start(run, "h100-sxm-8")
    swap_disk_names(host, "nvme3n1", "nvme4n1")
    refresh(run, "h100-sxm-8")
    assert run.api("inventory.diff", nodeId=node)["changes"] == []
    assert "node.disk.replaced" not in events(run, node)


def test_a_node_that_never_changes_writes_no_row(run: Fleet) -> None:
    host, node = start(run, "a100-mig-8")
    before = (history(run, node), events(run, node))
    for seed in range(10):
        move_telemetry(host, seed)
        refresh(run, "a100-mig-8")
    assert (history(run, node), events(run, node)) == before


def test_restarts_send_the_digest_and_nothing_else(run: Fleet) -> None:
    host, node = start(run, "a100-mig-8")
    first = run.status("a100-mig-8")
    run.daemons["a100-mig-8"].stop()
    run.daemon("a100-mig-8", host, {"BCD_SETTLE": "0s"})
    again = run.applied("a100-mig-8")
    assert again["collectedAt"] == first["collectedAt"], "the same boot reports what it has, without collecting first"
    assert again["sent"] == {"offers": 0, "sections": 0, "sectionBytes": 0}

    run.receiver.stop()
    run.restart_receiver()
    reconnected = wait_for(
        "a new session", lambda: (s := run.status("a100-mig-8")).get("applied") and s["epoch"] > again["epoch"] and s
    )
    assert reconnected["sent"] == {"offers": 0, "sections": 0, "sectionBytes": 0}
    assert len(history(run, node)) == 1


def test_a_second_node_with_identical_sections_sends_no_bytes(run: Fleet) -> None:
    host, _ = start(run, "a100-mig-8")
    run.daemon("twin", copy("a100-mig-8", run.base / "twin-host"), {"BCD_SETTLE": "0s"})
    twin = run.applied("twin")
    assert twin["sent"]["offers"] == 1
    assert twin["sent"]["sectionBytes"] == 0
    assert host.exists()


def test_a_receiver_killed_at_any_point_leaves_no_half_snapshot(run: Fleet) -> None:
    host, node = start(run, "geforce-workstation")
    chance = random.Random(7)
    argv = [BIN / "bcd", "--data-dir", run.base / "geforce-workstation", "refresh"]
    offered = [run.status("geforce-workstation")["digest"]]
    for _ in range(times(50)):
        swap_disk(host, "sda")
        asking = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.0, 1.2))
        run.receiver.kill()
        run.restart_receiver()
        asking.wait(120)
        status = wait_for(
            "the new inventory to be applied",
            lambda: (s := run.status("geforce-workstation")).get("applied") and s["digest"] != offered[-1] and s,
            60.0,
        )
        offered.append(status["digest"])
        assert run.api("nodes.get", nodeId=node)["appliedDigest"] == status["digest"]
    snapshots = history(run, node)
    assert [snapshot["digest"] for snapshot in reversed(snapshots)] == offered
    assert all(set(snapshot["sections"]) == SECTIONS for snapshot in snapshots)
    assert events(run, node).count("node.disk.replaced") == len(offered) - 1


def test_an_idle_daemon_holds_no_nvidia_device_and_no_nvml(run: Fleet) -> None:
    start(run, "h100-sxm-8")
    proc = Path(f"/proc/{run.daemons['h100-sxm-8'].pid}")
    opened = [str(link.readlink()) for link in (proc / "fd").iterdir()]
    mapped = (proc / "maps").read_text()
    assert [path for path in opened if "nvidia" in path] == []
    assert "nvidia" not in mapped
    assert "pynvml" not in mapped
