"""What each kind of command does, by rule, with programs that only note how they were called."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import program
from agent.commands import diag_dcgm, diag_nvml, gpu_reset, inventory_refresh, node_reboot
from agent.commands.order import Node, Order, Payload
from agent.errors import Ended, Failed, FieldError, Refused
from agent.holds import Hold, Holds
from tests.agent.commands.fakes import FakeNode, FakeOrder
from tests.agent.processes import driver, process

Run = Callable[[Order, Node], Awaitable[Payload]]

GPU_0 = pb.Gpu(uuid="GPU-0", minor=0, bus_id="00000000:18:00.0", state="ok", architecture="hopper", vram_bytes=80 << 30)
GPU_1 = pb.Gpu(uuid="GPU-1", minor=1, bus_id="00000000:3B:00.0", state="ok", architecture="hopper", vram_bytes=80 << 30)
GPUS = (GPU_0, GPU_1)
HOLD = Holds((Hold("h1", "metal", "allocation", ("GPU-1",)),))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    monkeypatch.setattr(gpu_reset, "PAUSE", 0.01)
    monkeypatch.setattr(node_reboot, "GOING_DOWN", 0.05)
    made = FakeNode(tmp_path, known=GPUS, readings=[GPUS])
    for name in ("nvidia_smi", "dcgmi", "systemctl"):
        made.script(name)
    return made


def run(kind: Run, node: FakeNode, payload: Payload | None = None, order: FakeOrder | None = None) -> dict[str, Any]:
    async def work() -> Payload:
        node.lock = asyncio.Lock()
        return await asyncio.wait_for(kind(order or FakeOrder(payload or {}), node), 10)

    return dict(asyncio.run(work()))


def ended(kind: Run, node: FakeNode, payload: Payload | None = None, order: FakeOrder | None = None) -> Ended:
    with pytest.raises(Ended) as caught:
        run(kind, node, payload, order)
    return caught.value


# ---- inventory.refresh, diag.nvml


def test_refresh_answers_what_the_receiver_said(node: FakeNode) -> None:
    node.answer = {"digest": "d1", "status": "applied"}
    assert run(inventory_refresh.run, node) == {"digest": "d1", "status": "applied"}


def test_diag_nvml_hands_the_expected_count_to_the_checks(node: FakeNode) -> None:
    node.answer = {"passed": False, "checks": []}
    assert run(diag_nvml.run, node, {"expect": {"gpuCount": 8}}) == node.answer
    run(diag_nvml.run, node)
    assert node.asked == [8, None]


@pytest.mark.parametrize("expect", [7, {"gpuCount": "8"}, {"gpuCount": True}, {"gpuCount": -1}, {"gpuCount": 8.0}])
def test_diag_nvml_names_an_expectation_that_is_none(node: FakeNode, expect: object) -> None:
    error = ended(diag_nvml.run, node, {"expect": expect})
    assert (error.reason, node.asked) == ("BadPayload", [])
    assert "expect" in str(error)


# ---- diag.dcgm

DCGM_3 = {
    "DCGM GPU Diagnostic": {
        "test_categories": [
            {"category": "Deployment", "tests": [{"name": "Denylist", "results": [{"status": "Pass"}]}]},
            {
                "category": "Hardware",
                "tests": [
                    {
                        "name": "GPU Memory",
                        "results": [
                            {"gpu_ids": "0", "status": "Pass"},
                            {"gpu_ids": "1", "status": "Skip", "warnings": "MIG is on"},
                        ],
                    }
                ],
            },
        ]
    },
    "version": "3.1.8",
}
DCGM_4 = {
    "DCGM Diagnostic": {
        "entity_groups": [{"entity_group": "GPU", "entities": [{"entity_id": 0}]}],
        "metadata": {"DCGM Version": "4.1.1", "Driver Version Detected": "570.124.06"},
        "test_categories": [
            {
                "category": "Stress",
                "tests": [
                    {
                        "name": "diagnostic",
                        "results": [
                            {
                                "entity_id": 0,
                                "status": "Fail",
                                "warnings": [{"error_id": 38, "warning": "GPU 0 calculated at 35 %", "error_severity": 2}],
                            }
                        ],
                        "test_summary": {"status": "Fail"},
                    }
                ],
            }
        ],
    }
}


def dcgm(node: FakeNode, output: object, code: int = 0) -> None:
    (node.path / "output").write_text(output if isinstance(output, str) else json.dumps(output))
    node.script("dcgmi", f"cat {node.path}/output; exit {code}")


def test_dcgm_runs_level_one_by_default_and_what_passes_passes(node: FakeNode) -> None:
    dcgm(node, DCGM_3)
    answer = run(diag_dcgm.run, node)
    assert node.calls() == ["dcgmi diag -r 1 -j"]
    assert (answer["level"], answer["passed"], answer["version"]) == (1, True, "3.1.8")
    assert answer["results"] == [
        {"category": "Hardware", "test": "GPU Memory", "status": "Skip", "gpu": "1", "warnings": ["MIG is on"]},
        {"category": "Deployment", "test": "Denylist", "status": "Pass"},
        {"category": "Hardware", "test": "GPU Memory", "status": "Pass", "gpu": "0"},
    ]


def test_a_failure_that_dcgm_finds_is_an_answer_and_no_failed_command(node: FakeNode) -> None:
    dcgm(node, "Warning: something\n" + json.dumps(DCGM_4), code=205)
    answer = run(diag_dcgm.run, node, {"level": 3})
    assert (answer["passed"], answer["version"], node.calls()) == (False, "4.1.1", ["dcgmi diag -r 3 -j"])
    assert answer["results"][0]["warnings"] == ["GPU 0 calculated at 35 %"]


def test_tests_that_were_all_skipped_prove_nothing() -> None:
    skipped = {"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "x", "results": [{"status": "Skip"}]}]}]}}
    found = diag_dcgm.parse(json.dumps(skipped).encode())
    assert found is not None
    assert found["passed"] is False


@pytest.mark.parametrize(
    "output", ["", "Error: unable to establish a connection to the specified host: localhost\n", "{", "[]", "{}", "[" * 90_000]
)
def test_what_is_no_diagnosis_fails_with_what_dcgmi_said(node: FakeNode, output: str) -> None:
    dcgm(node, output, code=1)
    error = ended(diag_dcgm.run, node)
    assert isinstance(error, Failed)
    assert error.reason == "DcgmFailed"
    assert "ended with 1" in str(error)


@pytest.mark.parametrize("categories", ["x", [1], [{"tests": 1}], [{"tests": [{"results": [1]}]}], [None]])
def test_shapes_that_dcgm_does_not_have_are_no_crash(categories: object) -> None:
    found = diag_dcgm.parse(json.dumps({"DCGM Diagnostic": {"test_categories": categories}}).encode())
    assert found is None or (found["passed"], found["results"]) == (False, [])


def test_dcgm_that_is_not_there_is_not_installed(node: FakeNode) -> None:
    (node.path / "dcgmi").unlink()
    assert ended(diag_dcgm.run, node).reason == "NotInstalled"


@pytest.mark.parametrize("level", [0, 4, "2", True, None, 1.5])
def test_a_level_that_there_is_not_is_named(node: FakeNode, level: object) -> None:
    assert ended(diag_dcgm.run, node, {"level": level}).reason == "BadPayload"
    assert node.calls() == []


def test_each_level_has_its_limit() -> None:
    assert [diag_dcgm.limit({"level": level}) / 60 for level in (1, 2, 3)] == [5, 15, 60]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_from_level_two_dcgm_is_refused_while_a_gpu_is_in_use(node: FakeNode, level: int) -> None:
    dcgm(node, DCGM_3)
    node.held = HOLD
    if level == 1:
        assert run(diag_dcgm.run, node, {"level": level})["passed"]
        return
    error = ended(diag_dcgm.run, node, {"level": level})
    assert isinstance(error, Refused)
    assert (error.reason, node.calls()) == ("gpu-busy", [])
    assert error.payload["users"][0]["name"] == "h1 (allocation) of metal"


def test_dcgm_s_own_service_does_not_keep_it_from_running(node: FakeNode) -> None:
    dcgm(node, DCGM_3)
    node.config = replace(node.config, reset_pause=("nvidia-dcgm",))
    process(node.path / "root", 50, "nv-hostengine", "/dev/nvidia0", "/dev/nvidia1", unit="nvidia-dcgm")
    assert run(diag_dcgm.run, node, {"level": 2})["passed"]


# ---- gpu.reset

RESET = {"deviceId": "GPU-1"}


def test_a_reset_resets_proves_and_drops_the_faults(node: FakeNode) -> None:
    order = FakeOrder(RESET)
    answer = run(gpu_reset.run, node, order=order)
    assert node.calls() == ["nvidia_smi --gpu-reset -i GPU-1"]
    assert answer == {"group": ["GPU-1"], "migBefore": {"GPU-1": []}, "migAfter": {"GPU-1": []}}
    assert node.healed == ["GPU-1"]
    assert order.begun == [(("GPU-1",), 600.0)]


def linked(gpu: pb.Gpu, peer: pb.Gpu) -> pb.Gpu:
    found = pb.Gpu()
    found.CopyFrom(gpu)
    found.architecture = "volta"
    found.nvlinks.append(pb.NvLink(link=0, active=True, peer_bus_id=peer.bus_id, peer_type="gpu"))
    return found


def test_the_whole_group_goes_in_one_command_and_is_proven(node: FakeNode) -> None:
    pair = (linked(GPU_0, GPU_1), linked(GPU_1, GPU_0))
    node.readings = [pair]
    order = FakeOrder(RESET)
    run(gpu_reset.run, node, order=order)
    assert node.calls() == ["nvidia_smi --gpu-reset -i GPU-0,GPU-1"]
    assert (node.healed, order.begun) == (["GPU-0", "GPU-1"], [(("GPU-0", "GPU-1"), 600.0)])


@pytest.mark.parametrize("device", ["GPU-9", "MIG-1"])
def test_a_gpu_that_is_not_there_is_unknown(node: FakeNode, device: str) -> None:
    assert ended(gpu_reset.run, node, {"deviceId": device}).reason == "UnknownDevice"


@pytest.mark.parametrize("payload", [{}, {"deviceId": 7}, {"deviceId": ""}])
def test_a_reset_needs_a_device(node: FakeNode, payload: Payload) -> None:
    assert ended(gpu_reset.run, node, payload).reason == "BadPayload"


def test_a_virtual_gpu_is_not_supported(node: FakeNode) -> None:
    node.readings = [[pb.Gpu(uuid="GPU-1", virtualization_mode="vgpu")]]
    error = ended(gpu_reset.run, node, RESET)
    assert (error.status, error.reason, node.calls()) == ("refused", "not-supported", [])


def busy_hold(node: FakeNode) -> None:
    node.held = HOLD


def busy_unreadable(node: FakeNode) -> None:
    node.held = Holds(unreadable=(("x.json", "not JSON"),))


def busy_vm(node: FakeNode) -> None:
    driver(node.path / "root", "0000:3b:00.0", "vfio-pci")


def busy_process(node: FakeNode) -> None:
    process(node.path / "root", 4711, "python3", "/dev/nvidia1")


@pytest.mark.parametrize("occupy", [busy_hold, busy_unreadable, busy_vm, busy_process])
def test_a_gpu_in_use_is_refused_with_the_list_and_nothing_is_touched(node: FakeNode, occupy: Callable[[FakeNode], None]) -> None:
    occupy(node)
    order = FakeOrder(RESET)
    error = ended(gpu_reset.run, node, order=order)
    assert (error.status, error.reason) == ("refused", "gpu-busy")
    assert len(error.payload["users"]) == 1
    assert (node.calls(), order.begun, node.healed) == ([], [], [])


def test_a_user_of_another_gpu_is_no_hindrance_unless_it_is_of_the_group(node: FakeNode) -> None:
    process(node.path / "root", 4711, "python3", "/dev/nvidia0")
    run(gpu_reset.run, node, RESET)
    node.readings = [(linked(GPU_0, GPU_1), linked(GPU_1, GPU_0))]
    assert ended(gpu_reset.run, node, RESET).reason == "gpu-busy"


# `systemctl is-active` says yes for these two.
SYSTEMCTL = (
    'case "$*" in "is-active nvidia-persistenced.service"|"is-active nvidia-dcgm.service") exit 0;; is-active*) exit 3;; esac'
)


def test_services_stand_still_around_the_reset_and_only_those_that_ran(node: FakeNode) -> None:
    node.config = replace(node.config, reset_pause=("nvidia-persistenced", "nvidia-dcgm", "absent"))
    node.script("systemctl", SYSTEMCTL)
    process(node.path / "root", 10, "nvidia-persiste", "/dev/nvidia1", unit="nvidia-persistenced")
    # Stopping the service ends its process.
    node.script(
        "systemctl", f'{SYSTEMCTL}; case "$*" in "stop nvidia-persistenced.service") rm -r {node.path}/root/proc/10;; esac'
    )
    order = FakeOrder(RESET)
    run(gpu_reset.run, node, order=order)
    assert [call for call in node.calls() if "is-active" not in call] == [
        "systemctl stop nvidia-persistenced.service",
        "systemctl stop nvidia-dcgm.service",
        "nvidia_smi --gpu-reset -i GPU-1",
        "systemctl start nvidia-persistenced.service",
        "systemctl start nvidia-dcgm.service",
    ]
    assert order.facts == {"paused": ["nvidia-persistenced", "nvidia-dcgm"]}


def test_who_comes_while_services_stop_is_seen_and_they_start_again(node: FakeNode) -> None:
    node.config = replace(node.config, reset_pause=("nvidia-persistenced",))
    fd = node.path / "root/proc/77/fd"
    node.script("systemctl", f'case "$1" in stop) mkdir -p {fd}; ln -s /dev/nvidia1 {fd}/3;; esac')
    order = FakeOrder(RESET)
    assert ended(gpu_reset.run, node, order=order).reason == "gpu-busy"
    assert node.calls()[-1] == "systemctl start nvidia-persistenced.service"
    assert order.begun == [], "nothing was reset, so the next try is not too soon"


def test_a_service_that_does_not_stop_ends_it_and_the_others_start_again(node: FakeNode) -> None:
    node.config = replace(node.config, reset_pause=("a", "b"))
    node.script("systemctl", 'case "$*" in "stop b.service") exit 1;; esac')
    assert ended(gpu_reset.run, node, RESET).reason == "ServiceNotStopped"
    assert node.calls()[-2:] == ["systemctl start a.service", "systemctl start b.service"]


def test_a_service_that_does_not_start_again_is_told_beside_the_success(node: FakeNode) -> None:
    node.config = replace(node.config, reset_pause=("a",))
    node.script("systemctl", 'case "$1" in start) exit 1;; esac')
    assert run(gpu_reset.run, node, RESET)["servicesNotStarted"] == ["a"]
    assert node.healed == ["GPU-1"]


def test_services_that_a_crash_left_stopped_are_started(node: FakeNode) -> None:
    asyncio.run(gpu_reset.tidy({"paused": ["a", "b"]}, node))
    asyncio.run(gpu_reset.tidy({}, node))
    assert node.calls() == ["systemctl start a.service", "systemctl start b.service"]


def test_a_reset_that_nvidia_smi_refuses_fails_with_its_words(node: FakeNode) -> None:
    node.script("nvidia_smi", "echo 'GPU 00000000:3B:00.0 could not be reset: In use by another client' >&2; exit 255")
    error = ended(gpu_reset.run, node, RESET)
    assert (error.reason, node.healed) == ("ResetFailed", [])
    assert "In use by another client" in str(error)


def mig(gpu: pb.Gpu, *uuids: str) -> pb.Gpu:
    found = pb.Gpu()
    found.CopyFrom(gpu)
    found.mig.instances.extend(pb.MigInstance(uuid=uuid, profile="1g.10gb") for uuid in uuids)
    return found


def test_the_mig_layout_is_told_before_and_after(node: FakeNode) -> None:
    node.readings = [(GPU_0, mig(GPU_1, "MIG-a")), GPUS]
    answer = run(gpu_reset.run, node, RESET)
    assert [instance["profile"] for instance in answer["migBefore"]["GPU-1"]] == ["1g.10gb"]
    assert answer["migAfter"] == {"GPU-1": []}


def sick(gpu: pb.Gpu) -> pb.Gpu:
    found = pb.Gpu()
    found.CopyFrom(gpu)
    found.recovery_action = "node-reboot"
    return found


@pytest.mark.parametrize("after", [(GPU_0, sick(GPU_1)), (GPU_0,), FieldError("NVML does not answer: Error")])
def test_a_gpu_that_is_not_healthy_afterwards_keeps_its_faults(node: FakeNode, after: Sequence[pb.Gpu] | FieldError) -> None:
    node.readings = [GPUS, after]
    error = ended(gpu_reset.run, node, RESET)
    assert (error.status, error.reason, node.healed) == ("failed", "NotHealthyAfterReset", [])
    assert "GPU-1" in error.payload["migBefore"]


def test_a_gpu_that_needs_a_moment_is_read_again(node: FakeNode) -> None:
    node.readings = [GPUS, FieldError("not yet"), (GPU_0, sick(GPU_1)), GPUS]
    assert run(gpu_reset.run, node, RESET)["group"] == ["GPU-1"]


def test_a_gpu_may_be_reset_although_nvml_does_not_answer(node: FakeNode) -> None:
    node.readings = [FieldError("NVML hangs"), GPUS]
    assert run(gpu_reset.run, node, RESET)["group"] == ["GPU-1"]


# ---- node.reboot


def test_a_reboot_asks_systemd_once_and_says_when_the_machine_stays_up(node: FakeNode) -> None:
    order = FakeOrder()
    error = ended(node_reboot.run, node, order=order)
    assert error.reason == "NotRebooted"
    assert node.calls() == ["systemctl reboot"]
    assert order.begun == [(("node",), 3600.0)]


def test_a_reboot_that_systemd_refuses_fails(node: FakeNode) -> None:
    node.script("systemctl", "echo 'Operation inhibited by backup' >&2; exit 1")
    error = ended(node_reboot.run, node)
    assert error.reason == "RebootFailed"
    assert "inhibited by backup" in str(error)


def busy_vm_without_gpu(node: FakeNode) -> None:
    process(node.path / "root", 99, "qemu-system-x86", "anon_inode:kvm-vm")


@pytest.mark.parametrize("occupy", [busy_hold, busy_unreadable, busy_vm, busy_process, busy_vm_without_gpu])
def test_a_node_in_use_is_rebooted_only_by_force(node: FakeNode, occupy: Callable[[FakeNode], None]) -> None:
    occupy(node)
    order = FakeOrder()
    error = ended(node_reboot.run, node, order=order)
    assert (error.status, error.reason, node.calls(), order.begun) == ("refused", "node-busy", [], [])
    assert len(error.payload["users"]) == 1
    ended(node_reboot.run, node, {"force": True})
    assert node.calls() == ["systemctl reboot"]


def test_nvidia_s_own_services_do_not_make_a_node_busy(node: FakeNode) -> None:
    node.config = replace(node.config, reset_pause=("nvidia-persistenced",))
    process(node.path / "root", 10, "nvidia-persiste", "/dev/nvidia1", unit="nvidia-persistenced")
    assert ended(node_reboot.run, node).reason == "NotRebooted"


@pytest.mark.parametrize("force", ["yes", 1, None])
def test_force_is_true_or_false(node: FakeNode, force: object) -> None:
    assert ended(node_reboot.run, node, {"force": force}).reason == "BadPayload"
    assert node.calls() == []


# ---- programs


def test_a_recorded_host_runs_no_program_unless_one_is_named_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="a recorded host runs no programs"):
        program.find("systemctl", recorded=True)
    assert program.find("/bin/sh", recorded=True) == "/bin/sh"
    assert program.find("sh", recorded=False).endswith("/sh")
    with pytest.raises(Failed, match="is not installed"):
        program.find("no-such-program", recorded=False)


def test_a_program_is_looked_for_in_path_and_never_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for path in ("", ".", ":/usr/bin:"):
        monkeypatch.setenv("PATH", path)
        with pytest.raises(Failed, match="is not installed"):
            program.find("tool", recorded=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program.find("tool", recorded=False) == str(tmp_path / "tool")


def test_a_program_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    script = tmp_path / "hangs"
    script.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {tmp_path}/child\nwait\n")
    script.chmod(0o755)
    with pytest.raises(Failed, match=r"did not end within 0\.5 s") as caught:
        asyncio.run(program.run([str(script)], 0.5))
    assert caught.value.reason == "TimedOut"
    state = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_program_s_endless_output_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MAX_OUTPUT", 1000)
    ran = asyncio.run(program.run(["/bin/sh", "-c", "head -c 300000 /dev/zero; echo end >&2; exit 7"], 10))
    assert (len(ran.out), ran.err, ran.code) == (1000, b"end\n", 7)


def test_a_program_does_not_get_the_service_manager_s_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    ran = asyncio.run(program.run(["/bin/sh", "-c", "echo $LC_ALL$NOTIFY_SOCKET"], 10))
    assert ran.out == b"C\n"
