"""A libnvidia-ml.so.1 for tests, built here with the system's C compiler, that answers what an nvml.json says.

    driver = stub(tmp_path, json.loads((host / "nvml.json").read_text()))
    Collector(host, Options(), str(driver.library), 10)      the real pynvml path over a recorded host

The library finds its answers beside itself, so a setting `nvml.library = <driver.library>` is all that a process needs.
`driver.env` adds a hang, a crash and the log of calls: `stub(..., hang="nvmlDeviceGetUUID").env`. One process can load one stub
only (the loader knows it by its soname); within a process, `NVML_STUB` names another file of answers before each nvmlInit.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.nvml import DEVICE_QUERIES, SYSTEM_QUERIES
from agent.nvml_queries import MIG_FUNCTIONS, RETURNS, ROWS

_SOURCE = Path(__file__).with_name("stub.c")
_CODES = {name: number for number, name in RETURNS.items()}
_NOT_ASKED = {"nvmlErrorString"}  # pynvml asks it for a text that we do not use
# Every C function that bcd can call; those of HANGABLE in a collection. Not all of them on one host: FULL answers so that all but
# the fallbacks (OLDER, which need an older library) are called. BEYOND are called by tasks only (agent.collectors.TASKS).
OLDER = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetGpuFabricInfo")
BEYOND = (
    "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature", "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)  # fmt: skip
PROBED = ("nvmlDeviceGetPcieReplayCounter",)  # by the health probe alone
FUNCTIONS = tuple(
    name
    for name in re.findall(
        r"(?:^(?:int|const char \*) ?|^(?:SYSTEM_TEXT|TEXT|ONE|TWO)\()(nvml\w+)", _SOURCE.read_text(), re.MULTILINE
    )
    if name not in _NOT_ASKED
)
HANGABLE = tuple(name for name in FUNCTIONS if name not in (*OLDER, *BEYOND, *PROBED))


@dataclass(frozen=True)
class Stub:
    """`library` is the path to set, `env` what a process must have in its environment, `log` the names of functions called."""

    library: Path
    env: Mapping[str, str]
    log: Path

    def called(self) -> list[str]:
        """The functions called so far, in order."""
        return self.log.read_text().split() if self.log.exists() else []


def stub(
    folder: Path,
    nvml: Mapping[str, Any],
    *,
    hang: str = "",
    crash: str = "",
    omit: Sequence[str] = (),
    extra: bytes = b"",
) -> Stub:
    """A library in `folder` that answers `nvml` (the form: agent/nvml.py).

    `hang` and `crash` name a function that does so, `omit` functions that the library does not have; `extra` is lines of answers
    that go before those of `nvml`.
    """
    home = Path(tempfile.mkdtemp(prefix="nvml-stub-", dir=folder))
    library = home / "libnvidia-ml.so.1"
    shutil.copy(build(omit), library)
    (home / "answers").write_bytes(extra + answers(nvml).encode())
    log = home / "calls"
    env = {"NVML_STUB_HANG": hang, "NVML_STUB_CRASH": crash, "NVML_STUB_LOG": str(log)}
    return Stub(library, {key: value for key, value in env.items() if value}, log)


def build(omit: Sequence[str] = ()) -> Path:
    """The library without the functions `omit`; compiled once for each source and set, kept in the user's temporary folder."""
    key = hashlib.sha256(_SOURCE.read_bytes() + repr(sorted(omit)).encode()).hexdigest()[:16]
    cache = Path(tempfile.gettempdir()) / f"bcd-nvml-stub-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    library = cache / key / "libnvidia-ml.so.1"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=cache) as work:
            _compile(Path(work), omit)
            library.parent.mkdir(exist_ok=True)
            os.replace(Path(work) / library.name, library)
    return library


def _compile(work: Path, omit: Sequence[str]) -> None:
    hidden = "".join(f"{name}; " for name in omit)
    (work / "exports").write_text("{ global: nvml*; local: " + hidden + "*; };\n")
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    command += [f"-Wl,--version-script={work / 'exports'}", "-o", str(work / "libnvidia-ml.so.1"), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the NVML stub does not compile: {' '.join(command)}\n{done.stderr}")


# ---------------------------------------------------------------- nvml.json as the stub's lines


def answers(nvml: Mapping[str, Any]) -> str:
    """The stub's text for an nvml.json. `{}` is a driver that is not loaded: without the library there would be no stub."""
    devices = nvml.get("devices", [])
    lines = [_line("nvmlInitWithFlags", nvml.get("init") if nvml else {"error": "DRIVER_NOT_LOADED"})]
    lines.append(_line("nvmlDeviceGetCount_v2", nvml.get("count", len(devices))))
    for query in SYSTEM_QUERIES:
        if query in nvml.get("system", {}):
            lines.append(_line(ROWS[query].function, nvml["system"][query]))
    for index, device in enumerate(devices):
        lines.append(_line(f"nvmlDeviceGetHandleByIndex_v2/{index}", device.get("handle")))
        for query in DEVICE_QUERIES:
            if query in device:
                lines.extend(_LINES.get(query, _plain)(query, index, device[query]))
    return "".join(lines)


def _line(key: str, answer: Any) -> str:
    if isinstance(answer, dict) and "error" in answer:
        return f"{key}\t{_CODES[answer['error']]}\n"
    if isinstance(answer, dict) and answer.get("hang"):
        return f"{key}\thang\n"
    values = answer if isinstance(answer, (list, tuple)) else [] if answer is None else [answer]
    return "\t".join([key, "0", *(str(int(v)) if isinstance(v, (bool, int)) else str(v) for v in values)]) + "\n"


def _failed(answer: Any) -> bool:
    return isinstance(answer, dict) and ("error" in answer or bool(answer.get("hang")))


def _plain(query: str, index: int, answer: Any) -> Iterator[str]:
    yield _line(f"{ROWS[query].function}/{index}", answer)


def _counter(suffix: str) -> Callable[[str, int, Any], Iterator[str]]:
    def lines(query: str, index: int, answer: Any) -> Iterator[str]:
        yield _line(f"{ROWS[query].function}/{index}/{suffix}", answer)

    return lines


def _memory(_: str, index: int, answer: Any) -> Iterator[str]:
    yield _line(f"nvmlDeviceGetMemoryInfo/{index}", answer)  # both versions of the call look here


def _memory_used(_: str, index: int, answer: Any) -> Iterator[str]:
    yield _line(f"memoryUsed/{index}", answer)


def _processes(query: str, index: int, answer: Any) -> Iterator[str]:
    if not _failed(answer):
        answer = [value for process in answer for value in (process["pid"], process.get("usedBytes", "-"))]
    yield _line(f"{ROWS[query].function}/{index}", answer)


def _pci(query: str, index: int, answer: Any) -> Iterator[str]:
    if not _failed(answer):
        vendor, device = answer.get("subsystemId", "0:0").split(":")
        answer = [answer["busId"], int(answer["deviceId"], 16) << 16 | 0x10DE, int(device, 16) << 16 | int(vendor, 16)]
    yield _line(f"{ROWS[query].function}/{index}", answer)


def _fabric(query: str, index: int, answer: Any) -> Iterator[str]:
    if not _failed(answer):
        answer = [answer["clusterUuid"].replace("-", ""), answer["cliqueId"], answer["state"], answer["status"]]
    yield _line(f"{ROWS[query].function}/{index}", answer)


def _nvlinks(_: str, index: int, answer: Any) -> Iterator[str]:
    state, bus, kind = (
        f"{f}/{index}"
        for f in ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemoteDeviceType")
    )
    if _failed(answer):
        yield _line(f"{state}/0", answer)
        return
    for link in answer:
        yield _line(f"{state}/{link['link']}", link["active"])
        if "remoteBusId" in link:
            yield _line(f"{bus}/{link['link']}", link["remoteBusId"])
        if "remoteType" in link:
            yield _line(f"{kind}/{link['link']}", link["remoteType"])
    behind = max((link["link"] for link in answer), default=-1) + 1
    yield _line(f"{state}/{behind}", {"error": "INVALID_ARGUMENT"})


def _mig_instances(_: str, index: int, answer: Any) -> Iterator[str]:
    if _failed(answer):
        yield _line(f"nvmlDeviceGetMaxMigDeviceCount/{index}", answer)
        return
    yield _line(f"nvmlDeviceGetMaxMigDeviceCount/{index}", max(7, len(answer)))
    for slot, instance in enumerate(answer):
        number = 1000 * (index + 1) + slot
        yield _line(f"nvmlDeviceGetMigDeviceHandleByIndex/{index}/{slot}", None)
        for key in ("uuid", "name", "giId", "ciId"):
            if key in instance:
                yield _line(f"{MIG_FUNCTIONS[key]}/{number}", instance[key])
        if "memoryBytes" in instance:
            size = instance["memoryBytes"]
            yield _line(f"nvmlDeviceGetAttributes_v2/{number}", size if _failed(size) else size >> 20)
        if "start" in instance:
            start, size = instance["start"], instance["size"]
            yield _line(f"nvmlDeviceGetGpuInstanceById/{index}/{instance['giId']}", None)
            yield _line(f"nvmlGpuInstanceGetInfo/{1000 * index + instance['giId']}", start if _failed(start) else [start, size])


_LINES: Mapping[str, Callable[[str, int, Any], Iterator[str]]] = {
    "pci": _pci,
    "memoryTotal": _memory,
    "eccVolatileTotal": _counter("1/0"),
    "eccAggregateTotal": _counter("1/1"),
    "eccVolatileSram": _counter("1/0/7"),
    "eccVolatileDram": _counter("1/0/2"),
    "eccAggregateSram": _counter("1/1/7"),
    "eccAggregateDram": _counter("1/1/2"),
    "retiredPagesSingleBit": _counter("0"),
    "retiredPagesDoubleBit": _counter("1"),
    "recoveryAction": _counter("230"),
    "temperature": _counter("0"),
    "memoryUsed": _memory_used,
    "processes": _processes,
    "fabric": _fabric,
    "nvlinks": _nvlinks,
    "migInstances": _mig_instances,
}
