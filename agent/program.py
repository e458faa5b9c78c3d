"""DOOR: programs that the daemon and its helper run. Always with a time limit: one that does not end is killed, with all that it
started, and is not waited for for ever."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.errors import Failed

# What the service manager gave to the daemon and must not reach a child of it: a child could end its notifications.
NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
KILL_WAIT = 2.0  # seconds that a program has to be gone after SIGKILL
MAX_OUTPUT = 8 << 20  # bytes
_PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended: its exit code (negative: the signal), and what it wrote."""

    code: int
    out: bytes
    err: bytes

    @property
    def said(self) -> str:
        """The end of what it wrote, for a person."""
        text = (self.err + b"\n" + self.out).decode(errors="replace").strip()
        return text[-1000:]


def find(name: str, recorded: bool) -> str:
    """The path of a program. A recorded host has none, unless one is named by its path. Raises Failed (NotInstalled)."""
    if recorded and "/" not in name:
        raise Failed("NotInstalled", f"{name}: a recorded host runs no programs; a path in the setting tools.* stands for one")
    # A service's PATH may lack the directories of administrators; a relative one means the directory that bcd happens to be in.
    found = f"{os.environ.get('PATH', '')}:{_PLACES}".split(":")
    places = ":".join(dict.fromkeys(place for place in found if place.startswith("/")))
    path = shutil.which(name, path=places)
    if path is None:
        raise Failed("NotInstalled", f"{name} is not installed (looked in {places}), or may not be executed")
    return path


def ours() -> dict[str, str]:
    """Our environment as a program gets it: in plain English, without what is bcd's alone."""
    return {key: value for key, value in os.environ.items() if key not in NOT_INHERITED} | {"LC_ALL": "C"}


async def run(argv: Sequence[str], limit: float, environ: Mapping[str, str] | None = None, given: bytes = b"") -> Ran:
    """Runs a program for at most `limit` seconds. `environ`: all of its environment; None: `ours()`. `given`: its standard input.

    Raises Failed (NotInstalled, TimedOut).
    """
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=pipe if given else null,
            stdout=pipe,
            stderr=pipe,
            env=ours() if environ is None else environ,
            start_new_session=True,
            limit=MAX_OUTPUT,
        )
    except OSError as error:
        raise Failed("NotInstalled", f"cannot start {argv[0]}: {error.strerror}") from error
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(limit):
            if process.stdin is not None:
                process.stdin.write(given)
                process.stdin.close()
            out, err = await asyncio.gather(_read(process.stdout), _read(process.stderr))
            return Ran(await process.wait(), out, err)
    except TimeoutError:
        raise Failed("TimedOut", f"{' '.join(argv)} did not end within {limit:g} s and was killed") from None
    finally:
        await _end(process)


async def _read(stream: asyncio.StreamReader) -> bytes:
    """All of a stream, the first MAX_OUTPUT bytes of it kept."""
    kept = bytearray()
    while chunk := await stream.read(1 << 16):
        kept += chunk[: MAX_OUTPUT - len(kept)]
    return bytes(kept)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kills what is left. One in uninterruptible sleep is left behind: it must not hold the daemon."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), KILL_WAIT)
    process._transport.close()  # type: ignore[attr-defined]  # else a child that nobody can end keeps its pipes
    await asyncio.sleep(0)  # in which they are closed, also where the loop ends after this
