"""`bcd capture DIR`: records this host, or a recorded one, as a recorded host (SPEC A8; the directory's form: agent/recorded.py).

What is recorded is what the collectors read, because they are what reads it, in a child process (agent/recording.py) with a
time limit: a driver call that hangs is recorded as a hang.
"""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent.collectors import Options
from agent.errors import UserError
from agent.recorded import FORMAT, open_host
from agent.redaction import redact_directory

LIMIT = 120.0  # seconds for the child
_KILL_WAIT = 2.0
_KMSG = "/dev/kmsg"
_KMSG_RECORD = 8192  # bytes: the kernel's longest record
_KMSG_LIMIT = 32 << 20  # bytes: more than any ring holds; a storm of messages must not fill the disk


@dataclass(frozen=True, slots=True)
class Captured:
    """What was recorded. `failed` maps sections that could not be collected to the reason; `replaced` counts names redacted;
    `unreadable` are the files that were there and could not be read, as the recorded host says from now on too."""

    directory: Path
    files: int
    failed: Mapping[str, str] = field(default_factory=dict)
    replaced: int | None = None
    unreadable: tuple[str, ...] = ()


def capture(
    directory: Path,
    *,
    redact: bool,
    host_dir: Path | None = None,
    options: Options | None = None,
    nvml_library: str = "",
    limit: float = LIMIT,
) -> Captured:
    """Records a host into `directory`, which must be empty or not there. `host_dir`: a recorded host; None: this machine.

    Raises UserError: DIR in use or not to be written, no recorded host, nothing recorded at all.
    """
    if host_dir is not None:
        open_host(host_dir)
    directory = Path(os.path.abspath(directory))
    _make(directory)
    try:
        return _capture(directory, redact, host_dir, options or Options(), nvml_library, limit)
    except OSError as error:
        raise UserError(
            f"cannot write {error.filename or directory}: {error.strerror}", "what stands there is not whole"
        ) from error


def _capture(directory: Path, redact: bool, host: Path | None, options: Options, library: str, limit: float) -> Captured:
    request = {
        "out": str(directory / "root"),
        "host": None if host is None else str(host.absolute()),
        "nvmlLibrary": library,
        "options": asdict(options),
    }
    lines, said = _run_child(json.dumps(request), limit)
    facts, nvml, failed = _assemble(lines)
    if not facts:
        raise UserError(f"nothing was recorded: {said.strip() or f'no answer within {limit:g} s'}")
    kmsg, refused = _copied_kernel_log(host) if host else _kernel_log()
    if refused:
        facts.setdefault("errors", {})[_KMSG] = refused
    for name in ("proc", "sys"):  # a host that has nothing else is one all the same
        (directory / "root" / name).mkdir(parents=True, exist_ok=True)
    _write(directory / "host.json", {"format": FORMAT} | facts)
    if nvml:
        _write(directory / "nvml.json", nvml)
    if kmsg:
        (directory / "kmsg").write_bytes(kmsg)
    replaced = redact_directory(directory) if redact else None
    files = sum(1 for p in directory.rglob("*") if p.is_file())
    return Captured(directory, files, failed, replaced, tuple(sorted(facts.get("errors", ()))))


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(directory.iterdir()):
            raise UserError(f"{directory} is not empty", "name a directory that is not there yet")
        (directory / "root").mkdir(mode=0o700)
    except OSError as error:
        raise UserError(f"cannot make {directory}: {error.strerror}") from error


def _run_child(request: str, limit: float) -> tuple[list[str], str]:
    """The child's whole lines, and what it said on standard error; it is killed after `limit` and left after two seconds more."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "agent.recording"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, said = child.communicate(request, timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()
        try:
            out, said = child.communicate(timeout=_KILL_WAIT)
        except subprocess.TimeoutExpired as late:  # in uninterruptible sleep in a driver
            out, said = (late.output or b"").decode(), ""
    finally:
        if child.poll() is None:
            child.kill()
    lines = out.splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n")], said


def _assemble(lines: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """host.json, nvml.json and the failed sections from what the child told. A call that did not return hangs."""
    facts: dict[str, Any] = {}
    nvml: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for line in map(json.loads, lines):
        if "fact" in line:
            *path, value = line["fact"]
            _put(facts, path, value)
        elif "nvml" in line:
            _put_nvml(nvml, line["nvml"], line.get("answer", {"hang": True}))
        elif line["failed"]:
            failed[line["section"]] = line["failed"]
    if nvml.get("count") == len(nvml.get("devices", ())):
        del nvml["count"]  # as in a recording by hand: as many as are listed
    if _hangs(nvml):
        failed["gpus"] = "an NVML call did not return: recorded as a hang"
    return facts, nvml, failed


def _put(table: dict[str, Any], path: list[str], value: object) -> None:
    for key in path[:-1]:
        table = table.setdefault(key, {})
    table[path[-1]] = value


def _put_nvml(nvml: dict[str, Any], call: list[Any], answer: object) -> None:
    kind, *rest = call
    if kind in ("init", "count"):
        nvml[kind] = answer
        missing = answer if kind == "count" and isinstance(answer, int) else 0
    elif kind == "system":
        nvml.setdefault("system", {})[rest[0]] = answer
        missing = 0
    else:
        missing = rest[0] + 1
    devices = nvml.setdefault("devices", [])
    devices.extend({} for _ in range(missing - len(devices)))
    if kind == "device":
        devices[rest[0]][rest[1]] = answer


def _hangs(value: object) -> bool:
    if isinstance(value, dict):
        return value.get("hang") is True or any(map(_hangs, value.values()))
    return isinstance(value, list) and any(map(_hangs, value))


def _kernel_log() -> tuple[bytes, int]:
    """The records that the ring holds now, as /dev/kmsg gives them; else the errno of what stood in the way."""
    records: list[bytes] = []
    size = 0
    try:
        fd = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return b"", 0 if error.errno == errno.ENOENT else error.errno or errno.EIO
    try:
        while size < _KMSG_LIMIT:
            try:
                records.append(os.read(fd, _KMSG_RECORD))
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten under the reader: it goes on with the oldest that is left
                continue
            except OSError as error:
                return b"".join(records), error.errno or errno.EIO
            if not records[-1]:
                break
            size += len(records[-1])
    finally:
        os.close(fd)
    return b"".join(records), 0


def _copied_kernel_log(host: Path) -> tuple[bytes, int]:
    log = host / "kmsg"
    return log.read_bytes() if log.is_file() else b"", open_host(host).errors.get(_KMSG, 0)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
