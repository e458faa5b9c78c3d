"""Real processes, real Postgres, unix sockets: what the demo, the end-to-end tests and the benchmarks start.

Everything lives below one short temporary directory (unix socket paths hold 107 bytes) and ends with the `with` block.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc
from bettercompute.control.v1 import events_pb2, events_pb2_grpc
from google.protobuf.json_format import MessageToDict

BIN = Path(sys.executable).parent
T = TypeVar("T")


def wait_for(what: str, probe: Callable[[], T | None], timeout: float = 30.0, every: float = 0.05) -> T:
    """The first answer of `probe` that is true. Raises TimeoutError that names what was waited for."""
    end = time.monotonic() + timeout
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout:.0f} s for {what}")
        time.sleep(every)


@dataclass
class Process:
    """One command of the product, its output in a log file."""

    name: str
    argv: list[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    popen: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Starts it; a log of an earlier start is kept."""
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.env},
                cwd=self.cwd,
            )

    @property
    def pid(self) -> int:
        """Its process id. Raises AssertionError when it was never started."""
        assert self.popen is not None
        return self.popen.pid

    def running(self) -> bool:
        """Whether it runs. An ending that nobody asked for raises, with the end of its log."""
        assert self.popen is not None
        if self.popen.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.popen.returncode}:\n{self.tail()}")
        return True

    def tail(self) -> str:
        """The last 2,000 characters of its log."""
        return self.log.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """SIGKILL, and its end."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and its end; SIGKILL after 10 s."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.popen is None or self.popen.poll() is not None:
            return
        self.popen.send_signal(number)
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait(10)


@dataclass
class Fleet:
    """A receiver and its daemons below `base`. `port`: of sessions with certificates; None: everybody is taken at their word."""

    base: Path
    receiver: Process
    port: int | None = None
    daemons: dict[str, Process] = field(default_factory=dict)

    @property
    def session(self) -> str:
        """Where bcd reports."""
        return f"127.0.0.1:{self.port}" if self.port else f"unix:{self.base}/session.sock"

    @property
    def token(self) -> Path:
        """The file with the token of `better-compute api`, where one is needed."""
        return self.base / "token"

    @property
    def api_target(self) -> str:
        """Where `better-compute api` asks."""
        return f"unix:{self.base}/api.sock"

    def daemon(self, name: str, host: Path | None, env: Mapping[str, str] | None = None) -> Process:
        """Starts bcd for this machine (None) or a recorded host, with a data directory of its own."""
        data = self.base / name
        argv = [
            str(BIN / "bcd"),
            "--data-dir",
            str(data),
            *(["--host", str(host)] if host else []),
            "run",
            *([] if self.port else ["--insecure", "--server", self.session]),
        ]
        if self.port and not (data / "identity.json").exists():
            self.join(name, host)
        process = Process(f"bcd ({name})", argv, self.base / f"{name}.log", env or {})
        self.daemons[name] = process
        process.start()
        return process

    def join(self, name: str, host: Path | None, node_id: str = "") -> str:
        """Has machine `name` join with a token made for it, again as a node where one is named; what `bcd join` prints."""
        bound = {"nodeId": node_id} if node_id else {}
        (self.base / "join").write_text(self.api("joinTokens.create", **bound, reason=f"machine {name}")["token"])
        where = ["--host", str(host)] if host else []
        again = ["--force"] if node_id else []
        return self.bcd(name, *where, "join", "--token-file", str(self.base / "join"), *again)

    def bcd(self, name: str, *arguments: str, check: bool = True) -> str:
        """Output of a bcd command that talks to the running daemon `name`."""
        argv: list[str | Path] = [BIN / "bcd", "--data-dir", self.base / name, *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"bcd {' '.join(arguments)} ended with {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def status(self, name: str) -> dict[str, Any]:
        """`bcd status --json`, or {} while the daemon does not answer yet."""
        try:
            answer: dict[str, Any] = json.loads(self.bcd(name, "status", "--json"))
        except (RuntimeError, ValueError):
            return {}
        return answer

    def applied(self, name: str, timeout: float = 60.0) -> dict[str, Any]:
        """Waits until the receiver has what daemon `name` has; its status then."""

        def probe() -> dict[str, Any] | None:
            self.daemons[name].running()
            status = self.status(name)
            return status if status.get("applied") else None

        return wait_for(f"{name}'s inventory to be applied", probe, timeout)

    def api(self, method: str, **arguments: object) -> Any:
        """The JSON answer of `better-compute api METHOD`."""
        return json.loads(self.show(method, "json", **arguments))

    def asking(self, method: str, **arguments: object) -> list[str]:
        """The command `better-compute api METHOD key=value ...` for this receiver."""
        pairs = [f"{key}={value}" for key, value in arguments.items()]
        token = ["--token-file", str(self.token)] if self.port else []
        return [str(BIN / "better-compute"), "api", "--server", self.api_target, *token, method, *pairs]

    def show(self, method: str, form: str = "table", **arguments: object) -> str:
        """What `better-compute api METHOD --format FORM` prints."""
        argv = [*self.asking(method, **arguments), "--format", form]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"better-compute api {method} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def arrivals(self, node_id: str) -> "Arrivals":
        """Notes from now on when XIDs of this node are committed."""
        begun = Arrivals(self.api_target, node_id, self.token.read_text().strip() if self.port else "")
        begun.start()
        return begun

    def restart_receiver(self) -> None:
        """Starts the receiver again on the same data and waits until it answers."""
        self.receiver.start()
        self.ready()

    def ready(self) -> None:
        """Waits until the receiver answers."""

        def probe() -> bool:
            self.receiver.running()
            try:
                self.api("nodes.list")
            except RuntimeError:
                return False
            return True

        wait_for("the receiver to answer", probe, 60.0)


class Arrivals(threading.Thread):
    """The events `node.xid` of a node as they are committed: XID -> when (monotonic seconds)."""

    def __init__(self, target: str, node_id: str, token: str = "") -> None:
        super().__init__(daemon=True)
        self.at: dict[int, float] = {}
        self._channel = grpc.insecure_channel(target)
        request = events_pb2.EventsServiceWatchRequest(node_id=node_id, type="node.xid")
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._call = events_pb2_grpc.EventsServiceStub(self._channel).Watch(request, metadata=metadata)

    def run(self) -> None:
        """Until `stop`."""
        try:
            for response in self._call:
                self.at.setdefault(int(MessageToDict(response.event.payload)["xid"]), time.monotonic())
        except grpc.RpcError:
            pass  # hung up

    def stop(self) -> None:
        """Hangs up."""
        self._call.cancel()
        self.join(5)
        self._channel.close()


def cpu(pid: int) -> float:
    """Seconds of CPU of a process itself, user and system (/proc/PID/stat fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss(pid: int) -> float:
    """Resident memory of a process in MiB (VmRSS)."""
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def fleet(base: Path, *options: str, secure: bool = False) -> Iterator[Fleet]:
    """A receiver with an embedded Postgres below `base` and these options, ready; everything ends with the block.

    `secure`: as in production, with certificates of nodes and tokens; else with --insecure.
    """
    base.mkdir(parents=True, exist_ok=True)
    data = ["--data-dir", str(base / "receiver")]
    run = Fleet(base, Process("bc-receiver", [], base / "receiver.log"), free_port() if secure else None)
    if secure:
        made = subprocess.run([BIN / "bc-receiver", "init", *data], capture_output=True, text=True, timeout=60, check=True)
        run.token.write_text(made.stdout)
    listen = ["--listen-join", f"127.0.0.1:{free_port()}"] if secure else ["--insecure"]
    listen += ["--listen-session", run.session, "--listen-api", run.api_target]
    run.receiver.argv = [str(BIN / "bc-receiver"), "serve", *data, *listen, *options]
    try:
        run.restart_receiver()
        yield run
    finally:
        for process in [*run.daemons.values(), run.receiver]:
            process.stop()
