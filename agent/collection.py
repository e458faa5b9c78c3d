"""One collection, as the daemon and the command line see it: a child process that ends, with a time limit (A1).

What comes out is the sections' bytes and an error for each section that could not be collected. A section that hangs or kills
its child costs that section only: the ones behind it go to a new child. A child that outlives SIGKILL (uninterruptible sleep
in a driver) is abandoned: while it is there, the section it hangs in is failed at once and never started over it.
"""

import asyncio
import base64
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import program
from agent.collectors import COLLECTORS, TASKS, Options
from agent.sections import Collected, Failed, Section

KILL_WAIT = 2.0  # seconds that a child has to be gone after SIGKILL
_POLL = 0.005  # seconds between two looks at a child that is about to end
_KEPT_STDERR = 16 << 10  # bytes
_ORDER = (*COLLECTORS, *TASKS)
_DRIVER = ("gpus", *TASKS)  # what asks the driver, and so hangs with it

log = logging.getLogger(__name__)

__all__ = ["Collected", "Collector", "Failed", "Section"]


@dataclass(slots=True)
class Tally:
    """What came of the collections of this run: how many, their seconds, outcomes by (section, `ok` or the failure's reason).

    `abandoned`: children that outlived their SIGKILL, whether they are still there or not.
    """

    collections: int = 0
    seconds: float = 0.0
    last_at: float | None = None  # Unix seconds at the end of the last one
    results: Counter[tuple[str, str]] = field(default_factory=Counter)
    abandoned: int = 0

    def count(self, collected: Collected, seconds: float) -> None:
        """A collection has ended."""
        self.collections += 1
        self.seconds += seconds
        self.last_at = time.time()
        self.results.update((section.name, "ok") for section in collected.sections)
        self.results.update((failed.name, failed.reason) for failed in collected.failed)


class Collector:
    """Collects sections of one host, one collection at a time; never blocks the event loop.

    `host_dir` is a recorded host, None this machine. `nvml_library` is the path of a libnvidia-ml.so.1; empty: the loader's
    search, or a recorded host's recording. `limit` is seconds for one child.
    """

    def __init__(self, host_dir: Path | None, options: Options, nvml_library: str, limit: float) -> None:
        self._host_dir = None if host_dir is None else host_dir.absolute()
        self.configure(options, nvml_library, limit)
        self._lock = asyncio.Lock()
        self.tally = Tally()
        self._stuck: dict[str, subprocess.Popen[bytes]] = {}  # section -> the abandoned child that hangs in it

    def configure(self, options: Options, nvml_library: str, limit: float) -> None:
        """Other settings, from the next child on."""
        self._options = options
        self._library = nvml_library
        self._limit = limit

    def quiet(self) -> asyncio.Lock:
        """While it is held (`async with`), no child of this collector runs, so none of them has a GPU open (a GPU reset)."""
        return self._lock

    @property
    def abandoned(self) -> int:
        """How many children outlived their SIGKILL and are still there."""
        self._stuck = {name: child for name, child in self._stuck.items() if child.poll() is None}
        return len(self._stuck)

    async def collect(self, names: Sequence[str], known: Sequence[pb.Gpu] = ()) -> Collected:
        """Collects the sections `names`. Raises ValueError for an unknown name; all that the field does is in the answer."""
        if unknown := set(names) - set(COLLECTORS):
            raise ValueError(f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(COLLECTORS)}")
        began = time.monotonic()
        done = await self.run(names, known)
        outcomes = [done[name] for name in sorted(done)]
        collected = Collected(
            tuple(o for o in outcomes if isinstance(o, Section)), tuple(o for o in outcomes if isinstance(o, Failed))
        )
        self.tally.count(collected, time.monotonic() - began)
        return collected

    async def run(
        self,
        names: Sequence[str],
        known: Sequence[pb.Gpu] = (),
        arguments: Mapping[str, object] | None = None,
        limit: float | None = None,
    ) -> dict[str, Section | Failed]:
        """Sections and tasks (agent.collectors.TASKS) by name; a task's answer is a Section too.

        `arguments` are the tasks', `limit` is seconds for one child (else the collector's). Raises ValueError as collect does.
        """
        if unknown := set(names) - set(_ORDER):
            raise ValueError(f"no section or task is named {', '.join(sorted(unknown))}; there are {', '.join(_ORDER)}")
        async with self._lock:
            done = self._blocked(names)
            while todo := [name for name in _ORDER if name in names and name not in done]:
                done |= await self._in_child(self._request(todo, known, arguments or {}), todo, limit or self._limit)
                done = _behind(done, names) | done
        return done

    def _blocked(self, names: Sequence[str]) -> dict[str, Section | Failed]:
        """Those of `names` that are not started over an abandoned child: in the driver, all that asks it."""
        if not self.abandoned:
            return {}
        pids = {name: child.pid for name, child in self._stuck.items()}
        driver = next((pid for name, pid in pids.items() if name in _DRIVER), None)
        blocked = pids | (dict.fromkeys(_DRIVER, driver) if driver else {})
        return {name: _still_stuck(name, blocked[name]) for name in names if name in blocked}

    async def _in_child(self, request: bytes, todo: list[str], limit: float) -> dict[str, Section | Failed]:
        """One child's outcomes: those it finished, and a failure for the one it hung or died in (all, if it never began)."""
        done: dict[str, Section | Failed] = {}
        try:
            child = _start(request)
        except OSError as refused:  # no memory, or as many processes or open files as there may be
            return {name: Failed(name, "WorkerDied", f"the worker cannot be started: {refused.strerror}") for name in todo}
        began = False
        error = None
        async with _pipes(child) as (frames, stderr):
            try:
                async with asyncio.timeout(limit):
                    while (frame := await _next_frame(frames)) is not None:
                        began = True
                        if frame:
                            done[frame.name] = frame
                    await _ended(child)
            except TimeoutError:
                error = ("Hang", f"no answer within {limit:g} s; its process was ended")
            finally:
                gone = await _end(child)
        said = bytes(stderr).decode(errors="replace").strip()
        missing = [name for name in todo if name not in done]
        if not gone:
            # The child may have finished its sections and hang in the driver's shutdown: then it is the last that is stuck.
            self._stuck[(missing or todo)[0 if missing else -1]] = child
            self.tally.abandoned += 1
            error = ("Hang", f"no answer within {limit:g} s; abandoned child pid {child.pid}: SIGKILL did not end it")
        if error is None and missing:
            error = ("WorkerDied", _death(child.returncode, said))
        if said and (error or any(isinstance(o, Failed) and o.reason == "Bug" for o in done.values())):
            log.error("the worker that collected %s said:\n%s", ", ".join(todo), said)
        if error:
            done |= {name: Failed(name, *error) for name in (missing[:1] if began else missing)}
        return done

    def _request(self, names: list[str], known: Sequence[pb.Gpu], arguments: Mapping[str, object]) -> bytes:
        request = {
            "parent": os.getpid(),
            "host": None if self._host_dir is None else str(self._host_dir),
            "sections": names,
            "options": {"image_dir": self._options.image_dir, "cri_socket": self._options.cri_socket},
            "nvmlLibrary": self._library,
            "known": base64.b64encode(pb.GpusSection(gpus=known).SerializeToString()).decode(),
            "arguments": dict(arguments),
        }
        return json.dumps(request).encode()


def _behind(done: Mapping[str, Section | Failed], names: Sequence[str]) -> dict[str, Section | Failed]:
    """A driver that hung is not asked again at once: those of `names` that would ask it fail with it."""
    hung = next((name for name in _DRIVER if isinstance(o := done.get(name), Failed) and o.reason == "Hang"), None)
    text = f"not tried: {hung} hangs in the driver"
    return {name: Failed(name, "Hang", text) for name in _DRIVER if name in names} if hung else {}


def _still_stuck(name: str, pid: int) -> Failed:
    return Failed(name, "Hang", f"not tried: abandoned child pid {pid} of an earlier collection still hangs in it")


def _death(returncode: int | None, said: str) -> str:
    """The child's end in words.

    >>> _death(-11, "")
    'the worker was ended by SIGSEGV'
    """
    if returncode is not None and returncode < 0:
        try:
            how = f"was ended by {signal.Signals(-returncode).name}"
        except ValueError:
            how = f"was ended by signal {-returncode}"
    else:
        how = f"ended with exit code {returncode}"
    return f"the worker {how}" + (f": {said.splitlines()[-1][:500]}" if said else "")


def _start(request: bytes) -> "subprocess.Popen[bytes]":
    """Starts the child with the request as its standard input: a file in memory, so that nobody waits for a reader."""
    fd = os.memfd_create("bcd-request", os.MFD_CLOEXEC)
    try:
        os.write(fd, request)
        os.lseek(fd, 0, os.SEEK_SET)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "agent.collectors.worker"],
            stdin=fd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=program.ours(),
            start_new_session=True,
        )
    finally:
        os.close(fd)


@contextlib.asynccontextmanager
async def _pipes(child: "subprocess.Popen[bytes]") -> AsyncIterator[tuple[asyncio.StreamReader, bytearray]]:
    """The child's standard output as a stream, and the end of its standard error, which is drained all the while."""
    loop = asyncio.get_running_loop()
    out, err, kept = asyncio.StreamReader(), asyncio.StreamReader(), bytearray()
    transports = [
        (await loop.connect_read_pipe(lambda r=reader: asyncio.StreamReaderProtocol(r), pipe))[0]  # type: ignore[misc]
        for reader, pipe in ((out, child.stdout), (err, child.stderr))
    ]
    drain = asyncio.create_task(_drain(err, kept))
    try:
        yield out, kept
        if child.returncode is not None:
            with contextlib.suppress(TimeoutError):  # a grandchild may hold the pipe; we do not wait for it
                await asyncio.wait_for(drain, KILL_WAIT)
    finally:
        drain.cancel()
        for transport in transports:
            transport.close()


async def _drain(reader: asyncio.StreamReader, kept: bytearray) -> None:
    while chunk := await reader.read(1 << 16):
        kept += chunk
        del kept[:-_KEPT_STDERR]


async def _next_frame(reader: asyncio.StreamReader) -> Section | Failed | Literal[False] | None:
    """The next frame as worker.py writes it: a line of JSON and `size` bytes. False: the child began; None: the end."""
    line = await reader.readline()
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    if "began" in head:
        return False
    if "reason" in head:
        return Failed(head["section"], head["reason"], head["message"])
    try:
        return Section(head["section"], await reader.readexactly(head["size"]))
    except asyncio.IncompleteReadError:
        return None


async def _ended(child: "subprocess.Popen[bytes]") -> None:
    while child.poll() is None:
        await asyncio.sleep(_POLL)


async def _end(child: "subprocess.Popen[bytes]") -> bool:
    """Ends the child if it still runs. False: it outlives SIGKILL."""
    if child.poll() is None:
        child.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_ended(child), KILL_WAIT)
    return child.returncode is not None
