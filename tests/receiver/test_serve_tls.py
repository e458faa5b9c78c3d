"""`bc-receiver serve` as a process over TLS: what it says at start, and what strangers at its ports cost."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.receiver.test_listeners import handshake
from tests.receiver.tls import free_ports, write_cas

PROGRAM = Path(sys.executable).parent / "bc-receiver"


@contextmanager
def serving(database: str, folder: Path) -> Iterator[tuple[list[str], Path, subprocess.Popen[bytes]]]:
    """A receiver that is ready: where it listens (join, session, API), its log, its process."""
    targets = [f"127.0.0.1:{port}" for port in free_ports(3)]
    listens = [f"--listen-{name}={target}" for name, target in zip(("join", "session", "api"), targets, strict=True)]
    argv = [
        str(PROGRAM),
        "serve",
        f"--database-url={database}",
        f"--tls-dir={folder}",
        "--metrics-listen=",
        "--drain=0.5s",
        *listens,
    ]
    environ = {key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"}
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out, env=environ)
    try:
        end = time.monotonic() + 60
        while "ready" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield targets, log, process
    finally:
        process.kill()
        process.wait(20)


def events(log: Path) -> list[str]:
    """What each line says, without its time; the singletons' leases come when they come."""
    lines = [line.partition(" ")[2] for line in log.read_text().splitlines()]
    return [" ".join(line.split()[:2]) for line in lines if "lease" not in line]


def test_strangers_at_its_ports_neither_stop_it_nor_fill_its_log(database: str, tmp_path: Path) -> None:
    write_cas(tmp_path)
    with serving(database, tmp_path) as (targets, log, process):
        assert f"join={targets[0]} session={targets[1]} api={targets[2]}" in log.read_text()
        for target in targets:
            for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 100, b""):
                host, _, port = target.rpartition(":")
                with socket.create_connection((host, int(port)), 5) as stranger, suppress(ConnectionResetError):
                    stranger.sendall(said)
                    stranger.shutdown(socket.SHUT_WR)
                    stranger.settimeout(15)
                    while stranger.recv(4096):
                        pass
        assert handshake(targets[0], tmp_path / "server-ca.pem")[1] == "TLSv1.3"
        process.terminate()
        assert process.wait(30) == 0
        assert events(log) == ["info ready", "info draining", "info stopped"]


@pytest.mark.parametrize(("flag", "says"), [([], False), (["--insecure"], True)])
def test_insecure_is_said_at_start(database: str, tmp_path: Path, flag: list[str], says: bool) -> None:
    write_cas(tmp_path)
    listens = [f"--listen-session=unix:{tmp_path}/s", f"--listen-api=unix:{tmp_path}/no/such/directory"]
    argv = [str(PROGRAM), "serve", f"--database-url={database}", f"--tls-dir={tmp_path}", "--metrics-listen=", *listens, *flag]
    argv.append(f"--listen-join=127.0.0.1:{free_ports(1)[0]}")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert ("warning insecure: nothing is encrypted" in done.stderr) is says


def test_a_caller_with_the_wrong_ca_is_told_so_and_nothing_else(database: str, tmp_path: Path) -> None:
    write_cas(tmp_path)
    with serving(database, tmp_path) as (targets, _, _):
        asking = ["--server", targets[2], "--ca", str(tmp_path / "node-ca.pem"), "api", "nodes.list"]
        argv = [str(PROGRAM.parent / "better-compute"), *asking]
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("GRPC_", "BETTER_COMPUTE_"))}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=environ)
        assert (done.returncode, done.stdout) == (2, "")
        what, hint = done.stderr.splitlines()
        assert what.startswith(f"better-compute: {targets[2]}: cannot reach the receiver")
        assert "give its CA with --ca" in hint
