"""What is asked of others: MPS, another manager, the kubelet; and that cannot tell is true."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

import agent.program
from agent.conditions import external
from agent.conditions.external import FAILURES, PodResources, foreign_paths, managers, mps_error
from agent.host import Host

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
RUNTIME = "/etc/nvidia-container-runtime/config.toml"
CLOSED = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"


# ---------------------------------------------------------------- MPS


def program(tmp_path: Path, body: str) -> str:
    path = tmp_path / "control"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def asked(tmp_path: Path, body: str) -> str:
    return asyncio.run(mps_error(program(tmp_path, body), "/run/mps"))


def test_mps_that_answers_is_up(tmp_path: Path) -> None:
    body = '[ "$(cat)" = get_server_list ] && [ "$CUDA_MPS_PIPE_DIRECTORY" = /run/mps ] && echo 4711'
    assert asked(tmp_path, body) == ""


def test_mps_that_fails_says_why(tmp_path: Path) -> None:
    said = asked(tmp_path, 'echo "Cannot find MPS control daemon process" >&2; exit 1')
    assert said == "get_server_list failed (1): Cannot find MPS control daemon process"
    assert asked(tmp_path, "exit 3") == "get_server_list failed (3): it does not say why"


def test_mps_that_hangs_is_given_up_after_two_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert external.ANSWER_LIMIT == 2.0
    monkeypatch.setattr(external, "ANSWER_LIMIT", 0.2)
    started = time.monotonic()
    assert asked(tmp_path, "exec sleep 60") == "no answer to get_server_list within 0.2 s"
    assert time.monotonic() - started < 5


def test_mps_that_does_not_die_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "ANSWER_LIMIT", 0.2)
    monkeypatch.setattr(agent.program, "KILL_WAIT", 0.2)
    monkeypatch.setattr(os, "killpg", lambda group, number: None)  # as in uninterruptible sleep
    started = time.monotonic()

    async def ask() -> str:
        said = await mps_error(program(tmp_path, "exec sleep 60"), "/run/mps")
        await asyncio.sleep(0.2)  # in which the loop hears that it is gone: closing its pipes has killed it
        return said

    assert asyncio.run(ask()) == "no answer to get_server_list within 0.2 s"
    assert time.monotonic() - started < 5


def test_mps_does_not_get_what_the_service_manager_gave_to_bcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    assert asked(tmp_path, 'cat > /dev/null; [ -z "$NOTIFY_SOCKET" ]') == ""


def test_without_the_program_mps_is_down(tmp_path: Path) -> None:
    assert "absent: No such file" in asyncio.run(mps_error(str(tmp_path / "absent"), "/run/mps"))


# ---------------------------------------------------------------- another manager


@pytest.mark.parametrize("path", ["/run/nvidia/nvidia-driver.pid", "/run/nvidia/validations/.driver-ctr-ready"])
def test_the_operators_driver_container_manages_the_host(tmp_path: Path, path: str) -> None:
    put(tmp_path, path, "1\n")
    assert managers(Host(tmp_path), "") == (f"the GPU operator's driver container runs ({path})",)


def test_the_marker_manages_the_host(tmp_path: Path) -> None:
    put(tmp_path, "/etc/site/managed", "")
    assert managers(Host(tmp_path), "/etc/site/managed") == ("/etc/site/managed is there",)
    assert managers(Host(tmp_path), "") == ()
    assert managers(Host(tmp_path), "/etc/site/other") == ()


# ---------------------------------------------------------------- the kubelet's socket

Handler = Callable[[bytes, Any], Awaitable[bytes]]


async def _answer(request: bytes, context: Any) -> bytes:
    return b""


async def _never(request: bytes, context: Any) -> bytes:
    await asyncio.sleep(60)
    return b""


async def with_kubelet(path: Path, handler: Handler | None, work: Callable[[str], Awaitable[None]]) -> None:
    """A kubelet's socket that answers by `handler`; None: no method is known there."""
    server = grpc.aio.server()
    if handler:
        method: Any = grpc.unary_unary_rpc_method_handler(handler)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method}),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        await work(str(path))
    finally:
        await server.stop(0)


def test_a_socket_that_answers_is_available(tmp_path: Path) -> None:
    async def work(path: str) -> None:
        assert await PodResources().error(path) == ""

    asyncio.run(with_kubelet(tmp_path / "s", _answer, work))


def test_a_socket_that_never_answered_is_unavailable_at_once(tmp_path: Path) -> None:
    assert "UNAVAILABLE" in asyncio.run(PodResources().error(str(tmp_path / "absent")))


def test_a_socket_that_answered_may_fail_twice(tmp_path: Path) -> None:
    async def work(path: str) -> None:
        pods = PodResources()
        await pods.error(path)
        said = [await pods.error(f"{path}-absent") for _ in range(FAILURES)]
        assert [bool(text) for text in said] == [False, False, True]
        assert await pods.error(path) == ""
        assert await pods.error(f"{path}-absent") == ""

    asyncio.run(with_kubelet(tmp_path / "s", _answer, work))


@pytest.mark.parametrize(("handler", "code"), [(_never, "DEADLINE_EXCEEDED"), (None, "UNIMPLEMENTED")])
def test_no_answer_and_no_such_method_are_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: Handler | None, code: str
) -> None:
    monkeypatch.setattr(external, "ANSWER_LIMIT", 0.3)

    async def work(path: str) -> None:
        assert code in await PodResources().error(path)

    asyncio.run(with_kubelet(tmp_path / "s", handler, work))


def test_a_listener_that_is_no_kubelet_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "ANSWER_LIMIT", 0.3)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "s"))
        deaf.listen()
        assert asyncio.run(PodResources().error(str(tmp_path / "s")))


# ---------------------------------------------------------------- other paths to the GPUs


def put(root: Path, path: str, text: str) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def worker(root: Path) -> Host:
    """A worker on which nothing but ours reaches a GPU."""
    put(root, CHECKPOINT, json.dumps({"Data": {"RegisteredDevices": {"site.example/gpu": ["GPU-1"], "rdma/hca": ["0"]}}}))
    put(root, RUNTIME, CLOSED)
    return Host(root)


def test_a_worker_with_our_plugin_alone_is_closed(tmp_path: Path) -> None:
    assert foreign_paths(worker(tmp_path), "site.example/") == ((), ())


@pytest.mark.parametrize(
    ("registered", "named"),
    [
        ({"nvidia.com/gpu": ["GPU-1"]}, ["nvidia.com/gpu"]),
        ({"nvidia.com/mig-1g.10gb": []}, ["nvidia.com/mig-1g.10gb"]),
        ({"other.example/card": ["GPU-1"]}, ["other.example/card"]),
        ({"other.example/part": ["MIG-1"], "nvidia.com/gpu": []}, ["nvidia.com/gpu", "other.example/part"]),
        ({"site.example/gpu": ["GPU-1"]}, []),
        ({"intel.com/sgx": ["1"]}, []),
        (None, []),
    ],
)
def test_another_device_plugin_is_a_path(tmp_path: Path, registered: dict[str, list[str]] | None, named: list[str]) -> None:
    host = worker(tmp_path)
    put(tmp_path, CHECKPOINT, json.dumps({"Data": {"RegisteredDevices": registered}}))
    paths, doubts = foreign_paths(host, "site.example/")
    assert paths == tuple(f"a device plugin offers {name}" for name in named)
    assert doubts == ()


def test_without_resources_of_ours_every_gpu_plugin_is_another(tmp_path: Path) -> None:
    assert foreign_paths(worker(tmp_path), "")[0] == ("a device plugin offers site.example/gpu",)


@pytest.mark.parametrize(
    ("name", "is_path"),
    [
        ("plugins_registry/gpu.nvidia.com-reg.sock", True),
        ("plugins/gpu.nvidia.com", True),
        ("plugins/compute-domain.nvidia.com", False),  # gives channels, no GPUs
        ("plugins/site.example-nvidia", False),
        ("plugins/csi.example", False),
    ],
)
def test_another_dra_driver_is_a_path(tmp_path: Path, name: str, is_path: bool) -> None:
    host = worker(tmp_path)
    put(tmp_path, f"/var/lib/kubelet/{name}", "")
    assert bool(foreign_paths(host, "site.example")[0]) is is_path


@pytest.mark.parametrize(
    ("config", "is_path"),
    [
        (CLOSED, False),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = true\n", True),
        ("#" + CLOSED, True),  # the default is open
        ("[nvidia-container-cli]\nload-kmods = true\n", True),
    ],
)
def test_visible_devices_of_any_pod_are_a_path(tmp_path: Path, config: str, is_path: bool) -> None:
    host = worker(tmp_path)
    put(tmp_path, RUNTIME, config)
    assert bool(foreign_paths(host, "site.example/")[0]) is is_path


def test_without_nvidias_runtime_there_is_no_such_path(tmp_path: Path) -> None:
    host = worker(tmp_path)
    (tmp_path / RUNTIME[1:]).unlink()
    assert foreign_paths(host, "site.example/") == ((), ())
    put(tmp_path, "/usr/bin/nvidia-container-runtime", "")
    assert len(foreign_paths(host, "site.example/")[1]) == 1, "a runtime without a configuration cannot be ruled out"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (CHECKPOINT, ""),
        (CHECKPOINT, "[]"),
        (CHECKPOINT, '{"Data": {}}'),
        (CHECKPOINT, '{"Data": {"RegisteredDevices": 5}}'),
        (RUNTIME, "accept = = 1"),
    ],
)
def test_what_cannot_be_understood_cannot_be_ruled_out(tmp_path: Path, path: str, text: str) -> None:
    host = worker(tmp_path)
    put(tmp_path, path, text)
    paths, doubts = foreign_paths(host, "site.example/")
    assert (paths, len(doubts)) == ((), 1)
    assert path in doubts[0]


@pytest.mark.parametrize("path", [CHECKPOINT, "/var/lib/kubelet/plugins", RUNTIME])
def test_what_may_not_be_read_cannot_be_ruled_out(tmp_path: Path, path: str) -> None:
    worker(tmp_path)
    os.makedirs(tmp_path / "var/lib/kubelet/plugins")
    _, doubts = foreign_paths(Host(tmp_path, errors={path: 13}), "site.example/")
    assert doubts == (f"cannot read {path}: Permission denied",)


def test_a_kubelet_that_never_ran_cannot_be_ruled_out(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert foreign_paths(Host(tmp_path), "")[1] == (f"cannot read {CHECKPOINT}: No such file or directory",)
