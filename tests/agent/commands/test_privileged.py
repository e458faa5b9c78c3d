"""Commands of a bcd that is not root: the same commands, by way of a real helper on a real socket."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import helper, open_files
from agent.commands import gpu_reset, node_reboot, privileged
from agent.commands.order import Node, Order, Payload
from agent.config import COMMAND_KINDS, Config
from agent.errors import Ended
from tests.agent.commands.fakes import FakeNode, FakeOrder

UUID = "GPU-6e1fd3ab-0c22-4b0e-9a55-000000000001"
GPU = pb.Gpu(uuid=UUID, minor=1, bus_id="00000000:3B:00.0", state="ok", architecture="hopper", vram_bytes=80 << 30)


@contextlib.contextmanager
def served(path: Path, config: Config) -> Iterator[None]:
    """A helper for each connection, as systemd starts it."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = listening.accept()[0]
                    with connection:
                        helper.serve(connection, {os.getuid()}, lambda: config)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    """Its own programs would fail a test: only the helper's may run. The helper sees no process that uses a GPU."""
    monkeypatch.setattr(gpu_reset, "PAUSE", 0.01)
    monkeypatch.setattr(node_reboot, "GOING_DOWN", 0.05)
    monkeypatch.setattr(open_files, "that_matter", lambda host: {})
    config = Config(commands_allow=COMMAND_KINDS, reset_pause=("nvidia-dcgm",), helper=str(tmp_path / "helper"))
    made = FakeNode(tmp_path, config=config, known=[GPU], readings=[[GPU]])
    made.script("nvidia_smi")
    made.script("systemctl")
    tools = replace(config, tools_nvidia_smi=str(tmp_path / "nvidia_smi"), tools_systemctl=str(tmp_path / "systemctl"))

    def program(name: str) -> str:
        raise AssertionError(f"{name} is run by bcd itself")

    monkeypatch.setattr(made, "program", program)
    with served(tmp_path / "helper", tools):
        yield made


def run(kind: Callable[[Order, Node], Awaitable[Payload]], node: FakeNode, payload: Payload) -> Payload:
    async def work() -> Payload:
        node.lock = asyncio.Lock()
        return await asyncio.wait_for(kind(FakeOrder(payload), node), 20)

    return asyncio.run(work())


def ended(kind: Callable[[Order, Node], Awaitable[Payload]], node: FakeNode, payload: Payload) -> Ended:
    with pytest.raises(Ended) as caught:
        run(kind, node, payload)
    return caught.value


def test_a_reset_goes_by_the_helper_services_and_all(node: FakeNode) -> None:
    assert run(gpu_reset.run, node, {"deviceId": UUID})["group"] == [UUID]
    assert node.calls() == [
        "systemctl is-active nvidia-dcgm.service",
        "systemctl stop nvidia-dcgm.service",
        f"nvidia_smi --gpu-reset -i {UUID}",
        "systemctl start nvidia-dcgm.service",
    ]


def test_a_reboot_goes_by_the_helper(node: FakeNode) -> None:
    assert ended(node_reboot.run, node, {}).reason == "NotRebooted"
    assert node.calls() == ["systemctl reboot"]


def test_who_uses_a_gpu_is_what_the_helper_sees(node: FakeNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "root/proc/77").mkdir(parents=True)
    (tmp_path / "root/proc/77/comm").write_text("python3\n")
    monkeypatch.setattr(open_files, "that_matter", lambda host: {"77": ["/dev/nvidia1"]})
    refused = ended(gpu_reset.run, node, {"deviceId": UUID})
    assert (refused.reason, refused.payload["users"]) == (
        "gpu-busy",
        [{"what": "process", "name": "python3", "devices": [UUID], "pid": 77}],
    )
    assert ended(node_reboot.run, node, {}).reason == "node-busy"


def test_what_the_file_of_the_node_does_not_allow_the_helper_refuses(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "strict"
    node.config = replace(node.config, helper=str(path))
    with served(path, Config()):
        failed = ended(node_reboot.run, node, {})
    assert failed.reason == "NotAllowed"
    assert "node.reboot is not in commands.allow" in str(failed)
    assert node.calls() == []


def _silent(listening: socket.socket) -> None:
    listening.listen()


def _ends(listening: socket.socket) -> None:
    listening.listen()
    threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True).start()


@pytest.mark.parametrize(
    ("act", "reason"), [(lambda listening: None, "HelperUnavailable"), (_ends, "HelperUnavailable"), (_silent, "TimedOut")]
)
def test_a_helper_that_does_not_answer_fails_the_command(
    node: FakeNode, tmp_path: Path, act: Callable[[socket.socket], None], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privileged, "GRACE", 0.1)
    monkeypatch.setattr(privileged, "LOOKING", 0.1)
    path = tmp_path / "other"
    node.config = replace(node.config, helper=str(path))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        act(listening)
        assert ended(node_reboot.run, node, {"force": False}).reason == reason
