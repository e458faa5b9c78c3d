"""`bc-receiver init` and `bc-receiver token create` (SPEC B10)."""

import json
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from bettercompute.contract import tokens
from cryptography import x509

from receiver import setup
from receiver.config import Config
from receiver.errors import ReceiverError
from receiver.read.queries import open_engine
from receiver.read.tokens import Scope, caller
from receiver.store import database as db
from receiver.store.embedded import EmbeddedPostgres
from tests.receiver.test_cli import PROGRAM, flags, serving

FILES = ["node-ca.key", "node-ca.pem", "server-ca.key", "server-ca.pem"]


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory:
        yield Path(directory)


@pytest.fixture
def empty(server: EmbeddedPostgres) -> Iterator[str]:
    """A database without a schema."""
    name = f"init_{os.getpid()}"
    db.create_database(server.url(), name)
    yield server.url(name)
    with db.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def ran(*argv: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *map(str, argv)], capture_output=True, text=True, timeout=60, check=False)


def scope_of(url: str, token: str) -> Scope:
    """What a token opens."""
    engine = open_engine(url, 1)
    try:
        with engine.connect() as connection:
            return caller(connection, [("authorization", f"Bearer {token.strip()}")])
    finally:
        engine.dispose()


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


def test_init_makes_the_schema_both_cas_and_an_administrators_token(empty: str, tmp_path: Path) -> None:
    done = ran("init", "--database-url", empty, "--tls-dir", tmp_path / "new" / "tls")
    assert done.returncode == 0, done.stderr
    token = done.stdout.removesuffix("\n")
    assert tokens.parse(token).text == token, "stdout is the token alone"
    assert token.partition(".")[2] not in done.stderr
    assert "bc-receiver serve" in done.stderr
    assert "joinTokens.create" in done.stderr
    scope = scope_of(empty, token)
    assert (scope.tenant, scope.permissions, scope.platform) == ("*", ("compute:admin",), True)
    assert rows(empty, "SELECT expires_at - created_at = interval '24 hours' FROM api_tokens") == [(True,)]
    assert rows(empty, "SELECT payload ->> 'method', payload ->> 'by', tenant_id FROM events") == [
        ("tokens.create", f"bc-receiver init, uid {os.getuid()}", "*")
    ]
    folder = tmp_path / "new" / "tls"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {name: 0o600 if name.endswith(".key") else 0o644 for name in FILES}
    read = {name: x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in FILES if name.endswith(".pem")}
    assert read["node-ca.pem"].public_key() != read["server-ca.pem"].public_key()
    assert read["node-ca.pem"].subject != read["server-ca.pem"].subject


def test_init_keeps_what_is_there_and_says_so(database: str, tmp_path: Path) -> None:
    argv = ("init", "--database-url", database, "--tls-dir", tmp_path / "tls", "--json")
    first = json.loads(ran(*argv).stdout)
    before = {name: ((tmp_path / "tls" / name).read_bytes(), (tmp_path / "tls" / name).stat().st_ino) for name in FILES}
    done = ran(*argv)
    second = json.loads(done.stdout)
    assert done.stderr == ""
    assert [one["made"] for one in first["cas"]] == [True, True]
    assert [one["made"] for one in second["cas"]] == [False, False]
    assert {name: ((tmp_path / "tls" / name).read_bytes(), (tmp_path / "tls" / name).stat().st_ino) for name in FILES} == before
    assert first["schema"] == second["schema"] == db.head()
    assert first["token"] != second["token"]
    assert all(scope_of(database, one["token"]).platform for one in (first, second))
    assert ran(*argv[:-1]).stderr.count("kept      CA of") == 2


@pytest.mark.parametrize("gone", ["server-ca.key", "server-ca.pem", "node-ca.key", "node-ca.pem"])
def test_half_a_ca_is_not_completed(tmp_path: Path, gone: str) -> None:
    config = Config(tls_dir=str(tmp_path))
    setup.ensure_cas(config)
    (tmp_path / gone).unlink()
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ReceiverError, match=re.escape(gone)):
        setup.ensure_cas(config)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left


def test_what_is_there_is_read_as_serve_reads_it(tmp_path: Path) -> None:
    config = Config(tls_dir=str(tmp_path))
    setup.ensure_cas(config)
    (tmp_path / "node-ca.key").chmod(0o644)
    with pytest.raises(ReceiverError, match="chmod 600"):
        setup.ensure_cas(config)
    (tmp_path / "node-ca.key").chmod(0o600)
    (tmp_path / "node-ca.pem").write_text("garbage")
    with pytest.raises(ReceiverError, match=r"node-ca\.pem"):
        setup.ensure_cas(config)
    assert (tmp_path / "node-ca.pem").read_text() == "garbage"


def test_an_operators_ca_is_named_and_never_made(tmp_path: Path) -> None:
    config = Config(tls_dir=str(tmp_path), tls_certificate=str(tmp_path / "chain.pem"), tls_key=str(tmp_path / "key.pem"))
    with pytest.raises(ReceiverError, match=r"tls\.serverCa"):
        setup.ensure_cas(config)
    assert not (tmp_path / "server-ca.pem").exists()
    mine = Config(tls_dir=str(tmp_path), tls_node_ca=str(tmp_path / "mine" / "ca.pem"))
    assert [one.certificate for one in setup.ensure_cas(mine)] == [tmp_path / "server-ca.pem", tmp_path / "mine" / "ca.pem"]


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReceiverError, match="file"):
        setup.ensure_cas(Config(tls_dir=str(tmp_path / "file" / "tls")))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_makes_is_its_directorys_owners(tmp_path: Path) -> None:
    os.chown(tmp_path, 4711, 4712)
    setup.ensure_cas(Config(tls_dir=str(tmp_path / "tls")))
    made = [tmp_path / "tls", *(tmp_path / "tls").iterdir()]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(4711, 4712)}
    with pytest.raises(ReceiverError, match="sudo -u '#4711'"), setup.at_database(Config(data_dir=str(tmp_path)), make=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["tls"]


def test_a_ca_that_appears_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("theirs")
    with pytest.raises(ReceiverError, match="there"):
        setup._place(tmp_path / "there", b"ours", 0o600)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"there": "theirs"}


def test_token_create_needs_only_the_database(database: str) -> None:
    argv = ("--tenant", "acme", "--permissions", "compute:nodes:read,compute:nodes:provision", "--expires-in", "90d")
    done = ran("token", "create", "--database-url", database, *argv, "--name", "grafana")
    assert done.returncode == 0, done.stderr
    scope = scope_of(database, done.stdout)
    assert (scope.tenant, scope.permissions) == ("acme", ("compute:nodes:read", "compute:nodes:provision"))
    assert (scope.platform, scope.by.endswith("(grafana)")) == (False, True)
    assert rows(database, "SELECT expires_at - created_at = interval '90 days' FROM api_tokens") == [(True,)]
    assert rows(database, "SELECT tenant_id, payload ->> 'method' FROM events") == [("acme", "tokens.create")]
    assert "tenant acme" in done.stderr
    told = json.loads(ran("token", "create", "--database-url", database, "--json").stdout)
    assert (told["tenantId"], told["permissions"]) == ("*", ["compute:admin"])
    assert scope_of(database, told["token"]).platform


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--permissions", "compute:everything"], "compute:nodes:read"),
        (["--permissions", ""], "permissions is needed"),
        (["--tenant", ""], "tenantId is empty"),
        (["--expires-in", "367d"], "366 days"),
        (["--expires-in", "soon"], "expiresIn 'soon'"),
        (["--name", "x" * 64], "at most 63"),
    ],
)
def test_a_token_that_cannot_be_is_refused(database: str, argv: list[str], says: str) -> None:
    done = ran("token", "create", "--database-url", database, *argv)
    assert (done.returncode, done.stdout, says in done.stderr) == (2, "", True)
    assert rows(database, "SELECT count(*) FROM api_tokens") == [(0,)]


def test_token_create_makes_no_database_of_a_directory_that_was_mistyped(tmp_path: Path) -> None:
    done = ran("token", "create", "--data-dir", str(tmp_path / "typo"))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"use the database in {tmp_path / 'typo'}: there is none" in done.stderr
    assert "bc-receiver init" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_init_says_what_is_wrong_with_its_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = ran("init", "--data-dir", str(tmp_path / "file" / "rc"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be used: Not a directory" in done.stderr
    assert "--data-dir" in done.stderr
    assert "Traceback" not in done.stderr


def test_token_create_says_what_to_do_with_a_database_without_a_schema(empty: str) -> None:
    done = ran("token", "create", "--database-url", empty)
    assert (done.returncode, done.stdout, "bc-receiver migrate" in done.stderr) == (2, "", True)


def test_both_work_beside_a_receiver_that_runs_on_its_own_postgres(short: Path) -> None:
    data = short / "data"
    made = [ran("init", "--data-dir", data)]
    with serving("--data-dir", data, "--insecure", *flags(short)):
        made += [ran("token", "create", "--data-dir", data), ran("init", "--data-dir", data)]
        api: list[str | Path] = [PROGRAM.parent / "better-compute", "api", "nodes.list", "--server", f"unix:{short}/a"]
        for one in made:
            assert one.returncode == 0, one.stderr
            environment = {**os.environ, "BETTER_COMPUTE_TOKEN": one.stdout}
            asked = subprocess.run(api, capture_output=True, text=True, timeout=30, check=False, env=environment)
            assert asked.returncode == 0, asked.stderr
    assert ran("token", "create", "--data-dir", data).returncode == 0, "and once it has stopped"
