"""What is asked of others on this host: whether MPS answers, whether somebody else manages the host, and on a Kubernetes worker
whether the kubelet says which pods have which devices, and whether GPUs are reached by another path than ours (SPEC A6).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent import program
from agent.errors import Failed, Unreadable
from agent.host import Host

ANSWER_LIMIT = 2.0  # seconds
FAILURES = 3  # of the kubelet's socket in a row
_LARGEST = 16 << 20  # bytes of an answer of the kubelet

_KUBELET = "/var/lib/kubelet"
_CHECKPOINT = f"{_KUBELET}/device-plugins/kubelet_internal_checkpoint"
_DRA_FOLDERS = (f"{_KUBELET}/plugins_registry", f"{_KUBELET}/plugins")
_RUNTIME_CONFIG = "/etc/nvidia-container-runtime/config.toml"
_RUNTIME_PROGRAMS = ("/usr/bin/nvidia-container-runtime", "/usr/local/nvidia/toolkit/nvidia-container-runtime")
_ENVVAR = "accept-nvidia-visible-devices-envvar-when-unprivileged"
# Of the GPU operator's driver container, in the directory that it shares with its host.
_DRIVER_CONTAINER = ("/run/nvidia/nvidia-driver.pid", "/run/nvidia/validations/.driver-ctr-ready")


# ---------------------------------------------------------------- MPS


async def mps_error(control: str, pipe_directory: str) -> str:
    """Why the MPS control daemon does not answer `get_server_list`; empty when it does.

    Its pipe has no documented form, so its own client asks: `echo get_server_list | nvidia-cuda-mps-control`.
    """
    environ = {**program.ours(), "CUDA_MPS_PIPE_DIRECTORY": pipe_directory}
    try:
        ran = await program.run([control], ANSWER_LIMIT, environ, given=b"get_server_list\n")
    except Failed as error:
        return f"no answer to get_server_list within {ANSWER_LIMIT:g} s" if error.reason == "TimedOut" else str(error)
    if ran.code == 0:
        return ""
    words = ran.err.decode(errors="replace").strip().splitlines()
    return f"get_server_list failed ({ran.code}): {words[-1][:200] if words else 'it does not say why'}"


# ---------------------------------------------------------------- another manager


def managers(host: Host, marker: str) -> tuple[str, ...]:
    """What shows that somebody else manages this host's driver, in words. `marker` is the configured file; empty: none."""
    found = [f"the GPU operator's driver container runs ({path})" for path in _DRIVER_CONTAINER if host.exists(path)][:1]
    if marker and host.exists(marker):
        found.append(f"{marker} is there")
    return tuple(found)


# ---------------------------------------------------------------- Kubernetes


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """A worker. `socket_error`: why the kubelet's socket does not answer (empty: it does, or failed less than three times).

    `paths`: other paths to GPUs, in words; `doubts`: why one cannot be ruled out.
    """

    socket_error: str = "it was not asked yet"
    paths: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


class PodResources:
    """The kubelet's PodResources socket: three failures in a row count, and so does one that never answered."""

    def __init__(self) -> None:
        self._failures = FAILURES  # until it has answered once, nobody can tell

    async def error(self, path: str) -> str:
        """Why it does not answer now; empty when it does, or has just begun not to."""
        said = await _list_pods(path)
        self._failures = self._failures + 1 if said else 0
        return said if self._failures >= FAILURES else ""


async def _list_pods(path: str) -> str:
    """Calls v1.PodResourcesLister/List (kubelet, pkg/apis/podresources/v1); that it answers is enough."""
    import grpc.aio

    options = (("grpc.max_receive_message_length", _LARGEST), ("grpc.enable_http_proxy", 0))
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        try:
            call = channel.unary_unary("/v1.PodResourcesLister/List", bytes, bytes)  # neither is looked into
            await call(b"", timeout=ANSWER_LIMIT)
        except grpc.aio.AioRpcError as error:
            return f"{path}: {error.code().name}: {error.details()}"[:300]
    return ""


def foreign_paths(host: Host, own: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Other paths to this node's GPUs, and what keeps us from ruling one out. `own` is the prefix of our own resource names.

    Three are known: another device plugin, another driver of dynamic resource allocation, and containers that name GPUs in
    NVIDIA_VISIBLE_DEVICES, which NVIDIA's runtime gives to any pod unless its configuration says otherwise.
    """
    paths: list[str] = []
    doubts: list[str] = []
    for look in (_device_plugins(host, own), _dra_drivers(host, own), _environment(host)):
        try:
            paths.extend(look)
        except (Unreadable, ValueError) as error:
            doubts.append(str(error))
    return tuple(paths), tuple(doubts)


def _device_plugins(host: Host, own: str) -> Iterator[str]:
    """From the kubelet's checkpoint: `{"Data": {"RegisteredDevices": {"nvidia.com/gpu": ["GPU-..."]}}, "Checksum": 1}`."""
    try:
        data = json.loads(host.read(_CHECKPOINT))
        registered: Mapping[str, Any] = data["Data"]["RegisteredDevices"] or {}
        for resource, ids in sorted(registered.items()):
            if not _ours(resource, own) and _is_gpu(resource, ids):
                yield f"a device plugin offers {resource}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{_CHECKPOINT} is not the kubelet's: {error!r}") from error


def _is_gpu(resource: str, ids: Any) -> bool:
    named = re.search(r"(^|\.)nvidia\.com/", resource) is not None
    return named or any(re.match(r"(GPU|MIG)-", str(identity)) for identity in ids)


def _dra_drivers(host: Host, own: str) -> Iterator[str]:
    """By the socket that a driver registers with, `gpu.nvidia.com-reg.sock`, or its directory, `gpu.nvidia.com`."""
    for folder in _DRA_FOLDERS:
        try:
            names = host.listdir(folder)
        except Unreadable as error:
            if not error.absent:
                raise
            continue  # the kubelet makes it; its checkpoint says whether there is one
        for name in names:
            driver = name.removesuffix(".sock").removesuffix("-reg")
            if "nvidia" in driver and not driver.startswith("compute-domain.") and not _ours(driver, own):
                yield f"a driver of dynamic resource allocation is installed: {driver}"


def _environment(host: Host) -> Iterator[str]:
    """`accept-nvidia-visible-devices-envvar-when-unprivileged = false` closes it; without the line it is open."""
    import tomllib

    if not host.exists(_RUNTIME_CONFIG) and not any(host.exists(path) for path in _RUNTIME_PROGRAMS):
        return
    text = host.read(_RUNTIME_CONFIG).decode(errors="replace")
    try:
        closed = tomllib.loads(text).get(_ENVVAR) is False
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{_RUNTIME_CONFIG} is not TOML: {error}") from error
    if not closed:
        yield f"NVIDIA_VISIBLE_DEVICES of any pod is heeded ({_RUNTIME_CONFIG}: {_ENVVAR} is not false)"


def _ours(name: str, own: str) -> bool:
    return bool(own) and name.startswith(own)
