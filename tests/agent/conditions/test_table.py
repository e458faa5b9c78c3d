"""Each condition of A6 on recorded hosts: true, false, cannot tell, and where it does not apply."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.conditions.external import Kubernetes
from agent.conditions.facts import Facts, log_version
from agent.conditions.table import TABLE, judge
from agent.probe import Answer, History, learn
from agent.sections import Failed
from tests.agent.conditions.hosts import facts_of, status, verdicts
from tests.hosts_catalog import HOSTS, bind_vfio, copy, nvml_init_error

HANG = Failed("gpus", "Hang", "no answer within 60 s; its process was ended")
FABRIC = "FabricManagerDown"


def fabric(state: int, code: int = 0) -> dict[str, Any]:
    return {"clusterUuid": "00000000-0000-0000-0000-000000000000", "cliqueId": 0, "state": state, "status": code}


def untold(device: dict[str, Any]) -> None:
    """A driver that tells no fabric."""
    device["fabric"] = {"error": "NOT_SUPPORTED"}


def stop_manager(directory: Path) -> None:
    for path in (directory / "root/proc").glob("[0-9]*"):
        shutil.rmtree(path)


# ---------------------------------------------------------------- FabricManagerDown


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100-sxm-8", "false"),  # fabric completed
        ("hgx-b200-8", "false"),
        ("gb200-tray", "false"),  # no fabric manager on the tray: the fabric is the rack's
        ("a100-mig-8", "false"),  # no fabric state: by process and version
        ("geforce-workstation", None),  # PCIe only
        ("l4-cloud-vm", None),  # a guest
        ("bare-proc-sys", None),
        ("vfio-vmhost", None),
        ("driver-not-loaded", "unknown"),
    ],
)
def test_the_fabric_of_each_host(name: str, expected: str | None) -> None:
    assert status(FABRIC, facts_of(HOSTS[name])) == expected


@pytest.mark.parametrize("name", ["h100-sxm-8", "hgx-b200-8", "gb200-tray"])
@pytest.mark.parametrize(
    ("answer", "uptime", "expected", "reason"),
    [
        (fabric(1), 301.0, "true", "FabricNotUp"),
        (fabric(2), 301.0, "true", "FabricNotUp"),
        (fabric(2), 299.0, None, ""),
        (fabric(3, 999), 301.0, "true", "FabricFailed"),
        (fabric(3, 999), 20.0, "true", "FabricFailed"),
        (fabric(7), 301.0, "unknown", "FabricStateUnknown"),
    ],
)
def test_a_fabric_that_is_not_up_five_minutes_after_boot(
    name: str, answer: dict[str, Any], uptime: float, expected: str | None, reason: str
) -> None:
    facts = facts_of(HOSTS[name], lambda device: device.update(fabric=answer) if device["minor"] == 1 else None, uptime=uptime)
    assert status(FABRIC, facts) == expected
    if expected:
        [verdict] = verdicts(FABRIC, facts)
        [bad] = [gpu.uuid for gpu in facts.gpus.gpus if gpu.minor == 1] if facts.gpus else []
        assert verdict.reason == reason
        assert bad in verdict.message


def test_a_completed_fabric_is_false_whatever_runs(tmp_path: Path) -> None:
    directory = copy("h100-sxm-8", tmp_path)
    stop_manager(directory)
    assert status(FABRIC, facts_of(directory)) == "false"


@pytest.mark.parametrize("name", ["a100-mig-8", "h100-sxm-8", "hgx-b200-8"])
def test_switches_without_fabric_state_need_the_process(tmp_path: Path, name: str) -> None:
    """NVSwitch functions on A100 and H100, ConnectX bridges (VPD says SW_MNG) on B200; a driver that tells no fabric."""
    directory = copy(name, tmp_path)
    assert status(FABRIC, facts_of(directory, untold)) == "false"
    stop_manager(directory)
    facts = facts_of(directory, untold)
    [verdict] = verdicts(FABRIC, facts)
    assert (verdict.status, verdict.reason) == ("true", "NotRunning")
    assert status(FABRIC, replace(facts, uptime=100.0)) is None, "it may still be started"


def test_another_process_is_not_the_fabric_manager(tmp_path: Path) -> None:
    directory = copy("a100-mig-8", tmp_path)
    stop_manager(directory)
    for pid, name in ((10, "nv-hostengine"), (11, "nv-fabricmana"), (12, "")):
        path = directory / f"root/proc/{pid}"
        path.mkdir()
        (path / "comm").write_text(f"{name}\n")
    assert status(FABRIC, facts_of(directory)) == "true"


def test_its_version_must_be_the_drivers(tmp_path: Path) -> None:
    directory = copy("a100-mig-8", tmp_path)
    packages = directory / "root/var/lib/dpkg/status"
    packages.write_text(packages.read_text().replace("Version: 535.183.06-1", "Version: 535.161.08-1"))
    log = directory / "root/var/log/fabricmanager.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("Fabric Manager version 535.183.06 is running with the following configuration options\n")
    assert status(FABRIC, facts_of(directory)) == "false", "the package was changed on disk; what runs is the driver's"
    log.unlink()
    [verdict] = verdicts(FABRIC, facts_of(directory))
    assert (verdict.status, verdict.reason) == ("true", "VersionMismatch")
    assert "535.161.08" in verdict.message
    assert "535.183.06" in verdict.message


@pytest.mark.parametrize(("version", "expected"), [("535.161.08", "true"), ("535.183.06", "false"), ("", "false")])
def test_without_a_package_the_log_tells_its_version(tmp_path: Path, version: str, expected: str) -> None:
    directory = copy("a100-mig-8", tmp_path)
    (directory / "root/var/lib/dpkg/status").write_text("")
    log = directory / "root/var/log/fabricmanager.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    line = f"[INFO] [tid 23] Fabric Manager version {version} is running with the following configuration options\n"
    log.write_text("x" * 300_000 + "\n" + line)
    assert status(FABRIC, facts_of(directory)) == expected


def test_the_last_start_in_the_log_counts() -> None:
    log = b"Fabric Manager version 535.1.2 is running\nFabric Manager version is : 550.90.07\nfabric manager version: none\n"
    assert log_version(log) == "550.90.07"
    assert log_version(b"\xff\0") is None


def test_switches_that_a_vm_has_need_no_manager_here(tmp_path: Path) -> None:
    directory = copy("a100-mig-8", tmp_path)
    stop_manager(directory)
    for link in (directory / "root/sys/bus/pci/drivers/nvidia-nvswitch").iterdir():
        driver = link.resolve() / "driver"
        driver.unlink()
        driver.symlink_to("../../bus/pci/drivers/vfio-pci")
    assert status(FABRIC, facts_of(directory)) is None


def test_a_service_host_whose_gpus_are_in_vms_needs_it(tmp_path: Path) -> None:
    directory = copy("a100-mig-8", tmp_path)
    stop_manager(directory)
    for _ in range(8):
        bind_vfio(directory, 0)
    assert status(FABRIC, facts_of(directory)) == "true"


@pytest.mark.parametrize("name", ["h100-sxm-8", "a100-mig-8"])
def test_nobody_can_tell_while_nvml_is_silent(tmp_path: Path, name: str) -> None:
    directory = copy(name, tmp_path)
    nvml_init_error(directory, "DRIVER_NOT_LOADED")
    facts = facts_of(directory)
    assert status(FABRIC, facts) == "unknown"
    assert status(FABRIC, replace(facts, gpus=None, failed=HANG)) == "unknown"


# ---------------------------------------------------------------- NvmlUnavailable

NVML = "NvmlUnavailable"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100-sxm-8", "false"),
        ("lost-gpu", "false"),
        ("driver-not-loaded", "true"),
        ("vfio-vmhost", None),
        ("bare-proc-sys", None),
    ],
)
def test_nvml_of_each_host(name: str, expected: str | None) -> None:
    assert status(NVML, facts_of(HOSTS[name])) == expected


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("DRIVER_NOT_LOADED", "DriverNotLoaded"),
        ("LIBRARY_NOT_FOUND", "LibraryNotFound"),
        ("LIB_RM_VERSION_MISMATCH", "VersionMismatch"),
        ("NO_PERMISSION", "NoPermission"),
        ("GPU_IS_LOST", "GpuLost"),
        ("UNKNOWN", "Error"),
    ],
)
def test_nvml_errors_have_their_reasons(tmp_path: Path, code: str, reason: str) -> None:
    directory = copy("h100-sxm-8", tmp_path)
    nvml_init_error(directory, code)
    [verdict] = verdicts(NVML, facts_of(directory))
    assert (verdict.status, verdict.reason) == ("true", reason)
    assert code in verdict.message


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        (HANG, ("true", "Hang")),
        (Failed("gpus", "WorkerDied", "the worker was ended by SIGSEGV"), ("true", "Error")),
        (Failed("gpus", "Bug", "KeyError"), ("unknown", "Bug")),  # ours: it says nothing of NVML
    ],
)
def test_a_collection_that_did_not_end(failed: Failed, expected: tuple[str, str]) -> None:
    [verdict] = verdicts(NVML, Facts(failed=failed))
    assert (verdict.status, verdict.reason) == expected


def test_two_probes_without_an_answer_are_a_hang() -> None:
    facts = facts_of(HOSTS["h100-sxm-8"])
    once = learn(History(), Answer(error="Hang"), "boot-1", 0.0)
    assert status(NVML, replace(facts, history=once)) == "false"
    [verdict] = verdicts(NVML, replace(facts, history=learn(once, Answer(error="Hang"), "boot-1", 15.0)))
    assert (verdict.status, verdict.reason) == ("true", "Hang")
    hung = replace(facts, history=replace(once, hangs=99))
    assert verdicts(NVML, hung) == [verdict], "the same words for as long as it hangs"
    assert status(NVML, replace(hung, probes=False)) == "false", "probes that are off never find that it answers again"


def test_what_settles_and_what_was_never_collected_says_nothing() -> None:
    for facts in (Facts(), Facts(failed=Failed("gpus", "settling", "NVML does not answer"))):
        assert {kind for kind, _ in judge(facts)} == {"HostManagedExternally", "RebootRequired"}
        assert {verdict.status for _, verdict in judge(facts)} == {"false"}


# ---------------------------------------------------------------- PcieReplayHigh


def probes(*answers: tuple[float, Answer]) -> Facts:
    history = History()
    for at, answer in answers:
        history = learn(history, answer, "boot-1", at)
    return replace(facts_of(HOSTS["geforce-workstation"]), history=history)


def replays(count: int) -> Answer:
    return Answer(replays={"GPU-1": count, "GPU-2": 7})


def statuses(facts: Facts) -> dict[str, str]:
    return {verdict.device_id: verdict.status for verdict in verdicts("PcieReplayHigh", facts)}


def test_replays_are_judged_per_gpu_from_the_second_probe_on() -> None:
    assert statuses(probes()) == {}
    assert statuses(probes((0.0, replays(5)))) == {"GPU-1": "unknown", "GPU-2": "unknown"}
    assert statuses(probes((0.0, replays(5)), (300.0, replays(1005)))) == {"GPU-1": "false", "GPU-2": "false"}
    high = probes((0.0, replays(5)), (300.0, replays(1006)))
    assert statuses(high) == {"GPU-1": "true", "GPU-2": "false"}
    higher = replace(high, history=learn(high.history, replays(9000), "boot-1", 600.0))
    assert verdicts("PcieReplayHigh", higher) == verdicts("PcieReplayHigh", high), (
        "the same words: a message that changes is written"
    )


def test_nobody_can_tell_the_replays_while_nvml_is_silent() -> None:
    down = probes((0.0, replays(5)), (300.0, replays(5000)), (600.0, Answer(error="DRIVER_NOT_LOADED")))
    assert statuses(down) == {"GPU-1": "unknown", "GPU-2": "unknown"}
    asleep = probes((0.0, replays(5)), (300.0, replays(5000)), (600.0, Answer(skipped="asleep")))
    assert statuses(asleep) == {"GPU-1": "true", "GPU-2": "false"}


def test_without_probes_there_is_no_verdict() -> None:
    assert statuses(replace(probes((0.0, replays(5))), probes=False)) == {}


# ---------------------------------------------------------------- asked of others


def test_mps_is_judged_where_it_is_on() -> None:
    assert status("MPSDown", Facts()) is None
    assert status("MPSDown", Facts(mps_error="")) == "false"
    assert status("MPSDown", Facts(mps_error="no answer to get_server_list within 2 s")) == "true"


@pytest.mark.parametrize("kind", ["PodResourcesUnavailable", "ForeignGpuExposure"])
def test_a_worker_s_conditions_are_never_unknown(kind: str) -> None:
    assert status(kind, Facts()) is None
    assert status(kind, Facts(kubernetes=Kubernetes(socket_error=""))) == "false"
    cannot_tell = Kubernetes(doubts=("cannot read /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",))
    assert status(kind, Facts(kubernetes=cannot_tell)) == "true"


def test_each_other_path_is_named() -> None:
    both = Kubernetes("", paths=("a device plugin offers nvidia.com/gpu",), doubts=("/etc/x is not TOML",))
    [verdict] = verdicts("ForeignGpuExposure", Facts(kubernetes=both))
    assert verdict.reason == "OtherPath"
    assert verdict.message == "a device plugin offers nvidia.com/gpu; cannot rule it out: /etc/x is not TOML"


def test_every_condition_is_judged_on_every_host() -> None:
    """No recorded host makes a rule fail, and every message is one line."""
    for directory in HOSTS.values():
        for kind, verdict in judge(facts_of(directory)):
            assert kind in TABLE
            assert verdict.status in ("true", "false", "unknown")
            assert (verdict.status == "false") is (not verdict.reason)
            assert "\n" not in verdict.message


def test_lost_gpus_do_not_bring_the_fabric_down() -> None:
    facts = facts_of(HOSTS["lost-gpu"])
    assert status(FABRIC, facts) in ("false", None)
    assert isinstance(facts.gpus, pb.GpusSection)
