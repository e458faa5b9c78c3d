"""How `better-compute` reaches a receiver and says who asks: CA, token, --insecure."""

import argparse
import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from receiver.client import cli as client
from receiver.client.channel import channel, metadata
from receiver.client.methods import UsageError
from tests.receiver.tls import Secure, secure, write_cas

TOKEN = "tok_01hf7yat000000000000000000." + "A" * 43
OTHER = "tok_01hf7yat000000000000000001." + "B" * 43


def given(**flags: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{"server": "127.0.0.1:1", "ca": None, "token": None, "token_file": None, "insecure": False, **flags}
    )


def test_a_token_comes_from_a_flag_before_the_environment(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    bearer = (("authorization", f"Bearer {TOKEN}"),)
    path = str(tmp_path / "token")
    environ = {"BETTER_COMPUTE_TOKEN": OTHER}
    assert metadata(given(), {}) == ()
    assert metadata(given(), {"BETTER_COMPUTE_TOKEN": f" {TOKEN}\n"}) == bearer
    assert metadata(given(), {"BETTER_COMPUTE_TOKEN_FILE": path}) == bearer
    assert metadata(given(token=TOKEN), environ) == bearer
    assert metadata(given(token_file=path), environ) == bearer
    assert metadata(given(), {"BETTER_COMPUTE_TOKEN": ""}) == ()


@pytest.mark.parametrize(
    ("flags", "environ", "says"),
    [
        ({"token": TOKEN, "token_file": "x"}, {}, "--token and --token-file are both given"),
        ({"token_file": "/nowhere/token"}, {}, "/nowhere/token cannot be read: No such file"),
        ({"token": "tok_1.secret-of-mine"}, {}, "--token: a token is tok_"),
        ({"token": TOKEN[:-1]}, {}, "its secret has 42 characters"),
        ({"token": "bcjoin1.AAAA"}, {}, "for nodes to join with"),
        ({}, {"BETTER_COMPUTE_TOKEN": "x"}, "$BETTER_COMPUTE_TOKEN: a token is"),
    ],
)
def test_what_is_no_token_is_told_before_it_is_sent(flags: dict[str, Any], environ: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError) as error:
        metadata(given(**flags), environ)
    assert says in str(error.value)
    assert "AAAAA" not in str(error.value)
    assert "secret-of-mine" not in str(error.value)


@pytest.mark.parametrize(
    ("flags", "environ", "says"),
    [
        ({"server": "10.0.0.7:7701", "insecure": True}, {}, "not on this machine"),
        ({"server": "receiver:7701"}, {"BETTER_COMPUTE_INSECURE": "1"}, "not on this machine"),
        ({"ca": "/nowhere/ca.pem"}, {}, "--ca: /nowhere/ca.pem cannot be read"),
        ({}, {"BETTER_COMPUTE_CA": "/nowhere/ca.pem"}, "$BETTER_COMPUTE_CA: /nowhere/ca.pem cannot be read"),
        ({"ca": str(Path(__file__).with_name("__init__.py"))}, {}, "holds no certificate"),
    ],
)
def test_a_way_that_cannot_be_taken_is_told(flags: dict[str, Any], environ: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError) as error:
        channel(given(**flags), environ)
    assert says in str(error.value)


# ---- against a receiver over TLS


@pytest.fixture
def served(database: str) -> Iterator[Secure]:
    """A receiver over TLS in another thread."""
    ready, done, found = threading.Event(), threading.Event(), []

    async def main() -> None:
        async with secure(database) as one:
            found.append(one)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(30)
    yield found[0]
    done.set()
    thread.join()


def test_asks_over_tls_with_a_token(served: Secure, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def run(*argv: str) -> tuple[int, str, str]:
        code = client.main(["api", "nodes.list", "--server", served.receiver.config.listen_api, *argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    ca, token = ["--ca", str(served.folder / "server-ca.pem")], tmp_path / "token"
    token.write_text(served.token_of("default", "compute:nodes:read"))
    assert run(*ca, "--token-file", str(token)) == (0, "no nodes\n", "")
    assert run(*ca, "--token", token.read_text())[0] == 0
    code, out, err = run(*ca)
    assert (code, out, "a token is needed" in err, "--token-file" in err) == (2, "", True, True)
    code, out, err = run(*ca, "--token", OTHER)
    assert (code, out, "no token tok_01hf7yat000000000000000001" in err, "BBBB" in err) == (2, "", True, False)
    code, out, err = run("--token-file", str(token))
    assert (code, out, "--ca" in err) == (2, "", True), "the system's roots have not signed it"
    write_cas(tmp_path)
    code, out, err = run("--ca", str(tmp_path / "server-ca.pem"), "--token-file", str(token))
    assert (code, out, "is it current?" in err) == (2, "", True)
    code, out, err = run("--insecure", "--token-file", str(token))
    assert (code, out, "without --insecure" in err) == (2, "", True)
