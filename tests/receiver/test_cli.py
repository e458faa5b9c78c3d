"""`bc-receiver` as a process: how it starts, what stands in its way, how it ends."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psycopg
import pytest

from receiver.store import database as db
from receiver.store.embedded import EmbeddedPostgres
from tests.repetitions import PROOF

PROGRAM = Path(sys.executable).parent / "bc-receiver"
API = Path(sys.executable).parent / "better-compute"
LEASE = "took a lease"  # may come before or after it is ready


def ended(*argv: object, **environ: str) -> tuple[int, str, str]:
    """A run that ends by itself."""
    environment = {**os.environ, **environ}
    done = subprocess.run([PROGRAM, *map(str, argv)], capture_output=True, text=True, timeout=60, check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory:
        yield Path(directory)


def flags(directory: Path) -> list[str]:
    return ["--insecure", f"--listen-session=unix:{directory}/s", f"--listen-api=unix:{directory}/a", "--metrics-listen="]


@contextmanager
def serving(*argv: object, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A receiver that has said that it is ready."""
    process = subprocess.Popen(
        [PROGRAM, "serve", *map(str, argv)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:  # warnings may come before; one that ends says why
            said.append(line)
            if "ready session=" in line or '"ready"' in line:
                break
        else:
            raise AssertionError("".join(said))
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(number)
    _, rest = process.communicate(timeout=30)
    return process.returncode, rest


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["serve", "--insecure", "--listen-api", "0.0.0.0:7701"], "--insecure"),
        (["serve", "--tls-dir", "/nowhere"], "read /nowhere/node-ca.pem: it is not there\n  `bc-receiver init`"),
        (["serve", "--listen-api", "x"], "--listen-api"),
        (["serve", "--database-connections", "many"], "whole number"),
        (["serve", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (["serve", "--no-such-flag"], "--no-such-flag"),
        (["sreve"], "serve"),
        ([], "COMMAND"),
        (["serve", "--insecure", "--database-url", "postgresql:///x?host=/nowhere"], "connect to the database"),
        (["migrate", "--database-url", "postgresql://u:secret@127.0.0.1:1/x"], "is the server up"),
        (["serve", "--insecure", "--database-url", "nonsense"], "database"),
    ],
)
def test_what_is_wrong_is_said_with_exit_code_2(argv: list[str], words: str) -> None:
    code, out, err = ended(*argv)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err
    assert "secret" not in err


def test_help_names_every_setting_and_exit_code() -> None:
    code, out, _ = ended("serve", "--help")
    assert code == 0
    assert all(flag in out for flag in ("--database-url", "--data-dir", "--listen-session", "--insecure", "BC_TENANT"))
    assert "exit codes" in ended("--help")[1]


@pytest.fixture
def empty(server: EmbeddedPostgres) -> Iterator[str]:
    """A database without a schema."""
    name = f"empty_{os.getpid()}"
    db.create_database(server.url(), name)
    yield server.url(name)
    with db.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_database_is_migrated_when_asked(empty: str, short: Path) -> None:
    code, _, err = ended("serve", "--database-url", empty, *flags(short))
    assert (code, "bc-receiver migrate" in err) == (2, True)
    code, out, _ = ended("migrate", "--database-url", empty)
    assert (code, f"{db.head():04d}" in out) == (0, True)
    assert ended("migrate", "--database-url", empty)[1] == f"the schema is {db.head():04d}, as it was\n"
    with serving("--database-url", empty, *flags(short)) as process:
        assert stop(process)[0] == 0


def test_serve_migrates_at_start_when_asked(empty: str, short: Path) -> None:
    with serving("--database-url", empty, "--database-migrate", *flags(short)) as process:
        assert stop(process, signal.SIGINT)[0] == 0


@pytest.mark.parametrize("command", ["serve", "migrate"])
def test_a_newer_schema_is_refused(database: str, command: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    code, _, err = ended(command, "--insecure", "--database-url", database)
    assert (code, "9999" in err and "newer" in err) == (2, True)


def test_an_address_that_is_taken_is_said(database: str, short: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = ended("serve", "--database-url", database, *flags(short), "--listen-api", address)
    assert (code, address in err, "Traceback" in err) == (2, True, False)


def test_a_unix_socket_that_is_answered_is_not_taken_over(database: str, short: Path) -> None:
    with serving("--database-url", database, *flags(short)) as process:
        code, _, err = ended("serve", "--database-url", database, *flags(short))
        assert (code, f"unix:{short}/s: another process listens there" in err) == (2, True)
        assert stop(process)[0] == 0
    with socket.socket(socket.AF_UNIX) as left_over:  # by a receiver that was killed
        left_over.bind(str(short / "s"))
    with serving("--database-url", database, *flags(short)) as process:
        assert stop(process)[0] == 0


def test_starts_a_postgres_of_its_own_and_answers_and_stops(short: Path) -> None:
    data = short / "data"
    with serving("--data-dir", data, *flags(short)) as process:
        listen = [f"--listen-session=unix:{short}/s2", f"--listen-api=unix:{short}/a2"]
        code, _, err = ended("serve", "--data-dir", data, "--insecure", *listen)
        assert (code, str(data) in err, "Traceback" in err) == (2, True, False)
        asked: list[str | Path] = [API, "api", "nodes.list", "--server", f"unix:{short}/a", "--format", "json"]
        assert '"nodes": []' in subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout
        code, rest = stop(process)
        assert code == 0
        assert [line.split()[2] for line in rest.splitlines() if LEASE not in line] == ["draining", "stopped"]
    with serving("--data-dir", data, *flags(short)) as process:  # the same data, again
        assert stop(process)[0] == 0


def test_ends_when_its_own_postgres_does(short: Path) -> None:
    data = short / "data"
    with serving("--data-dir", data, *flags(short)) as process:
        os.kill(int((data / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        _, rest = process.communicate(timeout=30)
        assert process.returncode == 2
        assert "embedded Postgres" in rest
        assert "Traceback" not in rest


def test_drains_open_calls_on_sigterm(database: str, short: Path) -> None:
    with serving("--database-url", database, *flags(short)) as process, grpc.insecure_channel(f"unix:{short}/a") as channel:
        watch = channel.unary_stream("/bettercompute.control.v1.EventsService/Watch", bytes, bytes)(b"")
        time.sleep(0.5)
        begun = time.monotonic()
        code, _ = stop(process)
        assert code == 0
        assert time.monotonic() - begun < (5 if PROOF else 9), "a watcher is sent home, not waited for"
        with pytest.raises(grpc.RpcError, match="go on from the last cursor"):
            list(watch)


def test_sighup_ends_nothing(database: str, short: Path) -> None:
    with serving("--database-url", database, *flags(short)) as process:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        code, rest = stop(process)
        assert code == 0
        assert "reading certificates again otherSettings=" in rest


def test_tells_systemd_and_journald(database: str, short: Path) -> None:
    address = str(short / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(20)
        argv = ["--database-url", database, *flags(short)]
        with serving(*argv, NOTIFY_SOCKET=address, JOURNAL_STREAM="1:2") as process:
            assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1", b"WATCHDOG=1"]
            code, rest = stop(process)
            assert (code, "\n<6>draining" in f"\n{rest}") == (0, True)
            assert next(said for said in iter(lambda: systemd.recv(100), b"") if said != b"WATCHDOG=1") == b"STOPPING=1"


def test_logs_json_when_asked(database: str, short: Path) -> None:
    import json

    with serving("--database-url", database, "--log-format", "json", *flags(short)) as process:
        code, rest = stop(process)
        assert code == 0
        assert [word for line in rest.splitlines() if (word := json.loads(line)["event"]) != LEASE] == ["draining", "stopped"]


def test_names_the_extra_when_the_agent_alone_is_installed(tmp_path: Path) -> None:
    """A path entry whose `psycopg` is not there stands in for an environment without the extra."""
    (tmp_path / "psycopg.py").write_text("raise ModuleNotFoundError(\"No module named 'psycopg'\", name='psycopg')\n")
    code, _, error = ended("serve", PYTHONPATH=str(tmp_path))
    assert code == 2
    assert "psycopg" in error
    assert "better-compute-node[receiver]" in error
    assert "Traceback" not in error
