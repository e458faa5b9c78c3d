"""The spine, as its issue must show it: real bcd, real receiver, real Postgres. `make proof-spine` repeats ten times as often."""

import itertools
import json
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
from tests.nvml_stub import HANGABLE, stub
from tests.nvml_stub.sample import full, record
from tests.repetitions import PROOF, some, times, within

_serial = itertools.count(1)
SECTIONS = {"system", "os", "cpu", "memory", "gpus", "disks", "nics", "images"}
NOTHING = {"reports": 0, "offers": 0, "sections": 0, "sectionBytes": 0}  # beside reports, of which there are always some


@pytest.fixture(scope="module")
def shared() -> Iterator[Fleet]:
    """One receiver for the tests of this file that leave it running."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, fleet(Path(directory)) as started:
        yield started


@pytest.fixture
def run(shared: Fleet) -> Iterator[Fleet]:
    """The shared receiver, without daemons; those of the test end with it."""
    yield shared
    for daemon in shared.daemons.values():
        daemon.stop()
    shared.daemons.clear()


@pytest.fixture
def own() -> Iterator[Fleet]:
    """A receiver of the test's own."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, fleet(Path(directory)) as started:
        yield started


def start(run: Fleet, host: str, **env: str) -> tuple[str, Path, str]:
    """A daemon for a copy of a recorded host, applied: the daemon's name, the copy, the node's id."""
    name = f"{host}-{next(_serial)}"
    directory = copy(host, run.base / f"hosts-{name}")
    run.daemon(name, directory, {"BCD_SETTLE": "0s", **env})
    return name, directory, run.applied(name)["nodeId"]


def events(run: Fleet, node: str) -> list[str]:
    """The types of the node's events, oldest first."""
    return [event["type"] for event in run.api("events.list", nodeId=node, limit=1000)["events"]]


def history(run: Fleet, node: str) -> list[dict[str, Any]]:
    """The node's snapshots, newest first."""
    answer: list[dict[str, Any]] = run.api("inventory.history", nodeId=node, limit=1000)["snapshots"]
    return answer


def test_a_lost_gpu_and_a_swapped_disk_are_told(run: Fleet) -> None:
    name, host, node = start(run, "h100-sxm-8")
    drop_gpu(host, 3)
    swap_disk(host, "nvme3n1")
    run.bcd(name, "refresh")
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
    name, host, node = start(run, "a100-mig-8", BCD_COLLECT_LIMIT="4s")
    before = run.api("inventory.get", nodeId=node)
    broken(host)
    swap_disk(host, "nvme1n1")  # the other seven arrive: this change shows it
    run.bcd(name, "refresh", check=False)
    wait_for("the disk's replacement to arrive", lambda: "node.disk.replaced" in events(run, node))
    assert "node.gpu.missing" not in events(run, node)
    after = run.api("inventory.get", nodeId=node)
    assert {missing["name"] for missing in after["missing"]} == {"gpus"}
    assert after["missing"][0]["lastSnapshotId"] == before["snapshotId"]


def test_settling_leaves_gpus_out_and_loses_none(run: Fleet) -> None:
    name, host, node = start(run, "h100-sxm-8")
    run.daemons[name].stop()
    new_boot(host)
    nvml_init_error(host, "DRIVER_NOT_LOADED")
    run.daemon(name, host, {"BCD_SETTLE": "1000d"})
    status = wait_for("the settling report", lambda: [m for m in run.status(name).get("missing", []) if m["name"] == "gpus"])
    assert "settling" in status[0]["error"]
    assert "node.gpu.missing" not in events(run, node)
    assert len(history(run, node)) == 1


def test_a_driver_two_minutes_late_at_boot_is_no_event_and_no_condition(run: Fleet) -> None:
    """The settling of a boot, from the host before it to the driver that is there at last."""
    name, host, node = start(run, "h100-sxm-8")
    before, snapshot = events(run, node), history(run, node)[0]["id"]
    run.daemons[name].stop()
    new_boot(host)
    answers = (host / "nvml.json").read_text()
    nvml_init_error(host, "DRIVER_NOT_LOADED")
    at_boot(host, uptime=20.0)
    run.daemon(name, host, {"BCD_SETTLE": "10min"})
    wait_for("the settling report", lambda: told_missing(run, node) == {"gpus": "settling"})

    def true_or_unknown() -> list[dict[str, Any]]:
        return [c for c in run.status(name)["conditions"] if c["status"] != "false" and c["type"] != "KernelLogUnavailable"]

    assert true_or_unknown() == []
    (host / "nvml.json").write_text(answers)
    at_boot(host, uptime=140.0)
    run.bcd(name, "refresh")
    wait_for("the GPUs to be there", lambda: told_missing(run, node) == {})
    wait_for("NVML to be judged", lambda: any(c["type"] == "NvmlUnavailable" for c in run.status(name)["conditions"]))
    assert true_or_unknown() == []
    assert events(run, node) == before
    assert history(run, node)[0]["id"] == snapshot, "the hardware is what it was before the boot"


def at_boot(host: Path, uptime: float) -> None:
    """The host has been up for so many seconds."""
    facts = json.loads((host / "host.json").read_text())
    (host / "host.json").write_text(json.dumps(facts | {"uptime": uptime}))


def told_missing(run: Fleet, node: str) -> dict[str, str]:
    """The sections that the receiver knows to be missing, with their errors."""
    return {one["name"]: one["error"] for one in run.api("inventory.get", nodeId=node)["missing"]}


def test_a_gpu_bound_to_a_vm_is_assigned_and_not_missing(run: Fleet) -> None:
    name, host, node = start(run, "a100-mig-8")
    bind_vfio(host, 7)
    run.bcd(name, "refresh")
    assert "node.gpu.missing" not in events(run, node)
    gpus = run.api("inventory.get", nodeId=node)["sections"]["gpus"]["gpus"]
    assert [gpu["assigned"] for gpu in gpus].count(True) == 1


def test_two_disks_that_swap_names_are_no_change(run: Fleet) -> None:
    name, host, node = start(run, "h100-sxm-8")
    swap_disk_names(host, "nvme3n1", "nvme4n1")
    run.bcd(name, "refresh")
    assert run.api("inventory.diff", nodeId=node)["changes"] == []
    assert "node.disk.replaced" not in events(run, node)


def test_a_node_that_never_changes_writes_no_row(run: Fleet) -> None:
    name, host, node = start(run, "h100-sxm-8")
    before = (history(run, node), events(run, node))
    for seed in range(10):
        move_telemetry(host, seed)
        run.bcd(name, "refresh")
    assert (history(run, node), events(run, node)) == before


def test_restarts_send_the_digest_and_nothing_else(own: Fleet) -> None:
    name, host, node = start(own, "a100-mig-8")
    first = own.status(name)
    own.daemons[name].stop()
    own.daemon(name, host, {"BCD_SETTLE": "0s"})
    again = own.applied(name)
    assert again["collectedAt"] == first["collectedAt"], "the same boot reports what it has, without collecting first"
    assert {**again["sent"], "reports": 0} == NOTHING

    own.receiver.stop()
    own.restart_receiver()
    reconnected = wait_for("a new session", lambda: (s := own.status(name)).get("applied") and s["epoch"] > again["epoch"] and s)
    assert {**reconnected["sent"], "reports": 0} == NOTHING
    assert len(history(own, node)) == 1


def test_a_second_node_with_identical_sections_sends_no_bytes(run: Fleet) -> None:
    start(run, "a100-mig-8")
    twin, _, _ = start(run, "a100-mig-8")
    sent = run.status(twin)["sent"]
    assert (sent["offers"], sent["sectionBytes"]) == (1, 0)


def test_a_receiver_killed_at_any_point_leaves_no_half_snapshot(own: Fleet) -> None:
    name, host, node = start(own, "a100-mig-8")
    chance = random.Random(7)
    argv: list[str | Path] = [BIN / "bcd", "--data-dir", own.base / name, "refresh"]
    offered = [own.status(name)["digest"]]
    for _ in range(times(50)):
        swap_disk(host, "nvme1n1")
        asking = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.0, 1.2))
        own.receiver.kill()
        own.restart_receiver()
        asking.wait(120)
        status = wait_for(
            "the new inventory to be applied",
            lambda: (s := own.status(name)).get("applied") and s["digest"] != offered[-1] and s,
            60.0,
        )
        offered.append(status["digest"])
        assert own.api("nodes.get", nodeId=node)["appliedDigest"] == status["digest"]
    snapshots = history(own, node)
    assert [snapshot["digest"] for snapshot in reversed(snapshots)] == offered
    assert all(set(snapshot["sections"]) == SECTIONS for snapshot in snapshots)
    assert events(own, node).count("node.disk.replaced") == len(offered) - 1


def test_an_idle_daemon_holds_no_nvidia_device_and_no_nvml(run: Fleet) -> None:
    name, _, _ = start(run, "h100-sxm-8")
    proc = Path(f"/proc/{run.daemons[name].pid}")
    opened = [str(link.readlink()) for link in (proc / "fd").iterdir()]
    mapped = (proc / "maps").read_text()
    assert [path for path in opened if "nvidia" in path] == []
    assert "nvidia" not in mapped
    assert "pynvml" not in mapped


@pytest.mark.parametrize("function", some(HANGABLE))
def test_a_hang_in_any_nvml_call_costs_the_gpus_section_only(run: Fleet, function: str) -> None:
    limit = 3.0
    name = f"hung-{next(_serial)}"
    host = record(run.base / f"host-{name}", full())
    driver = stub(run.base, full(), hang=function)
    began = time.monotonic()
    env = {"BCD_COLLECT_LIMIT": f"{limit}s", "BCD_SETTLE": "0s", "BCD_NVML_LIBRARY": str(driver.library), **driver.env}
    bcd = run.daemon(name, host, env)
    wait_for("bcd to answer", lambda: run.status(name))

    def seven() -> bool:
        asked = time.monotonic()
        status = run.status(name)
        assert time.monotonic() - asked < (1.0 if PROOF else 2.5), "bcd status answers at once all the while"
        return bool(status.get("applied"))

    wait_for("the other seven sections", seven, limit + 30.0)
    assert time.monotonic() - began < limit + within(5.0)
    status = run.status(name)
    assert {section["name"] for section in status["sections"]} == SECTIONS - {"gpus"}
    assert [missing["name"] for missing in status["missing"]] == ["gpus"]
    assert Path(f"/proc/{bcd.pid}/task/{bcd.pid}/children").read_text() == "", "no child is left"
