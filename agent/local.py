"""DOOR: the local socket of a running daemon: unix, mode 0660, one JSON object a line, each answered by one.

    {"method": "status"}                     -> {"result": {...}}
    {"method": "refresh", "timeout": 120}    -> {"result": {"applied": true, "digest": "..."}}
    anything else                            -> {"error": "..."}

The daemon of a data directory is one: a lock says so, not the socket, which a dead daemon leaves behind.
"""

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.errors import UserError

LINE_LIMIT = 64 << 10  # bytes of a request
_ADDRESS_LIMIT = 107  # bytes of a unix socket's path

_log = logging.getLogger("bcd.local")

Method = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


@contextlib.contextmanager
def only_daemon(data_dir: Path) -> Iterator[None]:
    """Makes `data_dir` (0700) and holds it for this process; one that others may enter is logged. Raises UserError when another
    daemon has it."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"cannot use the data directory {data_dir}: {error.strerror}", "name another with --data-dir") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip()
            raise UserError(
                f"another bcd{f' (process {owner})' if owner else ''} already runs on the data directory {data_dir}",
                "stop it first, or name another directory with --data-dir",
            ) from error
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        if (mode := data_dir.stat().st_mode & 0o777) & 0o077:
            _log.warning("others may enter %s: its mode is %o, and should be 700 (`chmod 700 %s`)", data_dir, mode, data_dir)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """A socket's address; by way of the directory's descriptor where the path is longer than an address may be."""
    if len(os.fsencode(path)) <= _ADDRESS_LIMIT:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


@contextlib.asynccontextmanager
async def serve(path: Path, methods: Mapping[str, Method]) -> AsyncIterator[None]:
    """Answers on the socket while the block runs. Raises UserError when it cannot be made."""
    try:
        sock = _bind(path)
    except OSError as error:
        raise UserError(
            f"cannot listen on the local socket {path}: {error.strerror or error}", "name another with --socket"
        ) from error

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await _answer_lines(reader, writer, methods)
        writer.close()

    server = await asyncio.start_unix_server(connected, sock=sock, limit=LINE_LIMIT)
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(OSError):
            path.unlink()


def _bind(path: Path) -> socket.socket:
    """A socket at `path`, in place of a stale one: our lock says that no other daemon of this directory lives."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.is_socket():
        if _is_served(path):
            raise OSError(errno.EADDRINUSE, "another process answers on it")
        path.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    before = os.umask(0o117)
    try:
        with _address(path) as address:
            sock.bind(address)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, _address(path) as address:
        return probe.connect_ex(address) == 0


async def _answer_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, methods: Mapping[str, Method]) -> None:
    while True:
        try:
            line = await reader.readline()
        except ValueError:
            answer: Mapping[str, Any] = {"error": f"the request is longer than {LINE_LIMIT} bytes"}
            line = b""
        else:
            if not line:
                return
            answer = await _answer(line, methods)
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        if not line:
            return


async def _answer(line: bytes, methods: Mapping[str, Method]) -> Mapping[str, Any]:
    try:
        request = json.loads(line)
    except ValueError as error:
        return {"error": f"the request is not JSON: {error}"}
    name = request.get("method") if isinstance(request, dict) else None
    if not isinstance(name, str) or name not in methods:
        return {"error": f"unknown method {name!r}; there are {', '.join(sorted(methods))}"}
    try:
        return {"result": await methods[name](request)}
    except UserError as error:
        return {"error": str(error)}


def call(path: Path, method: str, patience: float, /, **arguments: Any) -> dict[str, Any]:
    """Asks the running daemon. Raises UserError: it does not run, does not answer in `patience` seconds, or says no."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            sock.settimeout(patience)
            with _address(path) as address:
                sock.connect(address)
            sock.sendall(json.dumps({"method": method, **arguments}).encode() + b"\n")
            with sock.makefile("rb") as file:
                answer = json.loads(file.readline())
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise UserError(
            f"no bcd answers on {path}: {error.strerror}", "start it with `bcd run`, or name its --data-dir or --socket"
        ) from error
    except PermissionError as error:
        raise UserError(
            f"bcd's socket {path} is not open to you: {error.strerror}", "run as bcd's user or group, or as root"
        ) from error
    except TimeoutError as error:
        raise UserError(f"the running bcd did not answer {method!r} on {path} within {patience:g} s") from error
    except (OSError, ValueError) as error:
        raise UserError(f"asking the running bcd on {path} for {method!r} failed: {error}") from error
    if not isinstance(answer, dict) or not isinstance(answer.get("result"), dict):
        said = answer["error"] if isinstance(answer, dict) and "error" in answer else repr(answer)
        raise UserError(f"the running bcd said: {said}")
    return dict(answer["result"])
