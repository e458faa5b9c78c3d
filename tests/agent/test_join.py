"""`bcd join` and `bcd renew` as a person meets them, over real TLS: what is kept, and what is said when it does not work."""

import io
import json
import os
import re
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from agent import cli, identity
from agent.errors import UserError
from agent.identity import Identity
from agent.recorded import open_host
from tests.agent.fake_fleet import NODE, OTHER, TOKEN, FakeFleet, is_pair
from tests.hosts_catalog import HOSTS

H100, DAY = str(HOSTS["h100-sxm-8"]), timedelta(days=1)


@dataclass
class Bench:
    """One machine, and a fleet that it may join."""

    path: Path
    fleet: FakeFleet
    capsys: pytest.CaptureFixture[str]

    @property
    def data(self) -> Path:
        return self.path / "data"

    def bcd(self, *argv: str) -> tuple[int, str, str]:
        """Exit code, standard output and error."""
        code = cli.main([argv[0], "--host", H100, "--data-dir", str(self.data), *argv[1:]])
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def join(self, token: str, *argv: str) -> tuple[int, str, str]:
        file = self.path / "token"
        file.write_text(token + "\n")
        return self.bcd("join", "--token-file", str(file), *argv)

    def keep(self, who: Identity) -> bytes:
        """The machine has joined already; its file."""
        self.data.mkdir(mode=0o700)
        identity.write(self.data, who)
        return self.kept()

    def kept(self) -> bytes:
        return (self.data / "identity.json").read_bytes()


@pytest.fixture(scope="module")
def cas() -> FakeFleet:
    return FakeFleet()


@pytest.fixture
def bench(tmp_path: Path, cas: FakeFleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name in list(os.environ):
        if name.startswith("BCD_"):
            monkeypatch.delenv(name)
    return Bench(tmp_path, FakeFleet(cas.servers, cas.nodes), capsys)


@pytest.fixture
def server(bench: Bench) -> Iterator[str]:
    with bench.fleet.serving(bench.fleet.credentials()) as address:
        yield address


def closed_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


# -- joining


def test_joins_with_a_key_of_its_own_and_says_what_is_next(bench: Bench, server: str) -> None:
    code, out, err = bench.join(bench.fleet.token(server))
    assert (code, err) == (0, "")
    assert re.match(rf"joined as {NODE}\nsessions with gw\.example:7443; certificate until \d{{4}}-.*\n.*bcd status\n$", out)
    kept = identity.read(bench.data)
    assert kept is not None
    assert kept.joined is not None
    assert (kept.node_id, kept.joined.server) == (NODE, "gw.example:7443")
    assert is_pair(kept.joined)
    assert kept.joined.server_ca == bench.fleet.servers.ca_pem.decode()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (bench.data, bench.data / "identity.json")}
    assert list(modes.values()) == [0o700, 0o600]
    (request,) = bench.fleet.joins
    assert request.token == TOKEN.text
    assert b"PRIVATE" not in request.SerializeToString()
    key = x509.load_der_x509_csr(request.csr).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"


def test_claims_are_what_the_machine_says_of_itself(bench: Bench, server: str) -> None:
    bench.join(bench.fleet.token(server))
    claims, uname = bench.fleet.joins[0].claims, open_host(HOSTS["h100-sxm-8"]).uname()
    assert (claims.hostname, len(claims.gpu_uuids)) == (uname.hostname, 8)
    assert (claims.product_uuid == "", claims.serial == "", list(claims.macs) == []) == (False, False, False)


def test_the_answer_is_json_when_asked(bench: Bench, server: str) -> None:
    code, out, _ = bench.join(bench.fleet.token(server), "--json")
    told = json.loads(out)
    assert (code, told["nodeId"], told["previousNodeId"], told["server"]) == (0, NODE, None, "gw.example:7443")
    assert datetime.fromisoformat(told["notAfter"]) - datetime.fromisoformat(told["notBefore"]) == timedelta(days=30, hours=1)


@pytest.mark.parametrize("source", ["--token", "BCD_TOKEN", "-"])
def test_the_token_may_come_by(bench: Bench, server: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    token = bench.fleet.token(server)
    argv = {"--token": ["--token", token], "-": ["--token-file", "-"]}.get(source, [])
    if source == "BCD_TOKEN":
        monkeypatch.setenv(source, token)
    folded = "\n".join(token[start : start + 64] for start in range(0, len(token), 64))  # as a mail program folds it
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(folded.encode())))
    assert bench.bcd("join", *argv)[0] == 0
    assert len(bench.fleet.joins) == 1


def test_what_the_receiver_prints_around_a_token_may_stay_in_the_file(bench: Bench, server: str) -> None:
    (bench.path / "token").write_text(
        f"This token is shown only here.\ntoken  {bench.fleet.token(server)}\n\nfacts\nid  {TOKEN.id}\n"
    )
    assert bench.bcd("join", "--token-file", str(bench.path / "token"))[0] == 0
    assert len(bench.fleet.joins) == 1


def test_a_recorded_host_does_not_join_as_this_machine(bench: Bench) -> None:
    assert cli.main(["join", "--host", H100, "--token", "x"]) == 2
    assert "name one with --data-dir" in bench.capsys.readouterr().err


def test_another_address_may_be_named(bench: Bench, server: str) -> None:
    assert bench.join(bench.fleet.token(closed_port()), "--server", server)[0] == 0


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("", "it is empty"),
        (TOKEN.text, "a join token begins with bcjoin1.; this is a token of the API"),
        ("cut", "it is damaged: a part of it is missing"),
        ("x" * 70000, "it has more than 65536 characters"),
        ("\udcff", "it is not text"),
    ],
)
def test_what_is_no_token_reaches_nobody(bench: Bench, server: str, token: str, said: str) -> None:
    whole = bench.fleet.token(server)
    (bench.path / "token").write_bytes((whole[:-20] if token == "cut" else token).encode(errors="surrogateescape"))
    code, _, err = bench.bcd("join", "--token-file", str(bench.path / "token"))
    assert code == 2
    assert said in err
    assert "bcjoin1.A" not in err, "no secret is shown"
    assert (bench.fleet.joins, bench.data.exists()) == ([], False)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "no token is given\n  --token-file FILE"),
        (("--token-file", "/absent/token"), "cannot read the token file /absent/token: No such file or directory"),
        (("--insecure", "--token", "x"), "with --insecure there is nothing to join"),
    ],
)
def test_how_it_is_called_may_be_wrong(bench: Bench, argv: tuple[str, ...], said: str) -> None:
    code, _, err = bench.bcd("join", *argv)
    assert code == 2
    assert said in err


# -- whom it reaches


def test_a_receiver_of_another_ca_is_not_joined(bench: Bench) -> None:
    other = FakeFleet()
    with other.serving(other.credentials()) as address:
        code, _, err = bench.join(bench.fleet.token(address))
    assert (code, other.joins) == (2, [])
    assert "its certificate is not signed by the CA that is pinned here\n  another receiver answers there" in err


@pytest.mark.parametrize(
    ("shift", "said"), [(-60 * DAY, "its certificate is expired by this machine's clock"), (2 * DAY, "is not valid yet")]
)
def test_a_wrong_clock_is_named(bench: Bench, shift: timedelta, said: str) -> None:
    with bench.fleet.serving(bench.fleet.credentials(now=datetime.now(UTC) + shift)) as address:
        code, _, err = bench.join(bench.fleet.token(address))
    assert (code, bench.fleet.joins) == (2, [])
    assert said in err
    assert "set this machine's clock (NTP)" in err


def test_a_certificate_for_another_name_is_named(bench: Bench) -> None:
    with bench.fleet.serving(bench.fleet.credentials("gw.example")) as address:
        code, _, err = bench.join(bench.fleet.token(address))
    assert (code, bench.fleet.joins) == (2, [])
    assert "its certificate is not for this address\n  use a name that is in it" in err


def test_a_node_s_certificate_is_no_receiver_s(bench: Bench) -> None:
    """Signed by the pinned CA or not: serverAuth is wanted."""
    key = ec.generate_private_key(ec.SECP256R1())
    from receiver.authority import NodeAuthority, key_pem

    both = NodeAuthority(bench.fleet.servers.ca_pem, key_pem(bench.fleet.servers.key))
    issued = both.sign(key.public_key(), NODE, datetime.now(UTC), DAY)
    with bench.fleet.serving(grpc.ssl_server_credentials([(key_pem(key), issued.pem.encode())])) as address:
        code, _, err = bench.join(bench.fleet.token(address))
    assert (code, bench.fleet.joins) == (2, [])
    assert "cannot be reached: " in err


def test_nobody_there_and_somebody_without_tls_are_told_apart(bench: Bench) -> None:
    address = closed_port()
    code, _, err = bench.join(bench.fleet.token(address))
    assert (code, f"the receiver {address} cannot be reached: Connection refused" in err) == (2, True)
    with bench.fleet.serving(None) as address:
        code, _, err = bench.join(bench.fleet.token(address))
    assert (code, "the TLS handshake failed" in err, bench.fleet.joins) == (2, True, [])


def test_where_nodes_report_none_joins(bench: Bench) -> None:
    with bench.fleet.serving(bench.fleet.credentials(client=True)) as address:
        code, _, err = bench.join(bench.fleet.token(address))
    assert (code, "is that its listen.join" in err, bench.fleet.joins) == (2, True, [])


# -- what the receiver says


@pytest.mark.parametrize(
    ("status", "details", "hint"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "the join token is used up", "create another token"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "10 joins a minute", "wait a minute"),
        (grpc.StatusCode.FAILED_PRECONDITION, "the token's pool is gone", ""),
    ],
)
def test_a_refusal_is_told_and_the_old_identity_stands(
    bench: Bench, server: str, status: grpc.StatusCode, details: str, hint: str
) -> None:
    before = bench.keep(bench.fleet.identity("gw:1", OTHER))
    bench.fleet.answer = lambda given, context: context.abort(status, details)
    code, _, err = bench.join(bench.fleet.token(server), "--force")
    assert (code, bench.kept()) == (2, before)
    assert f"bcd: join: the receiver {server} says: {details} ({status.name})" in err
    assert hint in err
    assert [path.name for path in bench.data.iterdir()] == ["identity.json"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"certificate": "none"}, "Unable to load PEM"),
        ({"node_id": "node_x"}, "'node_x' is no node id"),
        ({"session": ""}, "it does not say where sessions are"),
        ({"server_ca": "none"}, "Unable to load PEM"),
    ],
)
def test_an_answer_that_cannot_be_used_is_not_kept(bench: Bench, server: str, changed: dict[str, Any], said: str) -> None:
    before = bench.keep(bench.fleet.identity("gw:1"))

    def answer(given: Any, context: Any) -> None:
        for name, value in changed.items():
            setattr(given, name, value)

    bench.fleet.answer = answer
    code, _, err = bench.join(bench.fleet.token(server), "--force")
    assert (code, bench.kept()) == (2, before)
    assert said in err


def test_a_certificate_of_another_key_is_not_kept(bench: Bench, server: str) -> None:
    other = bench.fleet.identity("gw:1").joined
    assert other is not None
    bench.fleet.answer = lambda given, context: setattr(given, "certificate", other.certificate)
    code, _, err = bench.join(bench.fleet.token(server))
    assert (code, (bench.data / "identity.json").exists()) == (2, False)
    assert "the certificate is of another key" in err


# -- who has joined already


def test_a_machine_that_has_joined_is_left_as_it_is_without_force(bench: Bench, server: str) -> None:
    before = bench.keep(bench.fleet.identity("gw:1"))
    code, _, err = bench.join(bench.fleet.token(server))
    assert (code, bench.kept(), bench.fleet.joins) == (2, before, [])
    assert re.search(rf"joined already, as {NODE}, until .*\n  --force joins again: with a token that is bound", err)


@pytest.mark.parametrize(("node_id", "words"), [(NODE, " again\n"), (OTHER, f" (a new node; it was {NODE})\n")])
def test_with_force_it_joins_again_and_says_whether_it_is_the_same_node(
    bench: Bench, server: str, node_id: str, words: str
) -> None:
    bench.keep(bench.fleet.identity("gw:1"))
    bench.fleet.node_id = node_id
    code, out, _ = bench.join(bench.fleet.token(server), "--force")
    assert code == 0
    assert f"joined as {node_id}{words}" in out


def test_an_expired_certificate_is_worth_nothing_and_needs_no_force(bench: Bench, server: str) -> None:
    bench.keep(bench.fleet.identity("gw:1", now=datetime.now(UTC) - 31 * DAY))
    assert bench.join(bench.fleet.token(server))[0] == 0


def test_a_damaged_identity_is_replaced_only_with_force(bench: Bench, server: str) -> None:
    bench.keep(bench.fleet.identity("gw:1"))
    (bench.data / "identity.json").write_text("{")
    code, _, err = bench.join(bench.fleet.token(server))
    assert (code, bench.kept(), bench.fleet.joins) == (2, b"{", [])
    assert "is damaged" in err
    assert bench.join(bench.fleet.token(server), "--force")[0] == 0


# -- where it is kept


def test_a_directory_that_cannot_hold_it_costs_no_token(bench: Bench, server: str) -> None:
    bench.data.mkdir()
    bench.data.chmod(0o755)
    code, _, err = bench.join(bench.fleet.token(server))
    assert (code, f"its mode is 755\n  chmod 700 {bench.data}" in err) == (2, True)
    bench.data.rmdir()
    bench.data.write_text("a file")
    code, _, err = bench.join(bench.fleet.token(server))
    assert (code, "File exists" in err) == (2, True)
    assert bench.fleet.joins == []


def test_a_full_disk_costs_no_token(bench: Bench, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = bench.join(bench.fleet.token(server))
    assert (code, "cannot be written: No space left on device" in err, bench.fleet.joins) == (2, True, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root joins for another user")
def test_root_joins_for_the_user_of_the_daemon(bench: Bench, server: str) -> None:
    bench.data.mkdir(mode=0o700)
    os.chown(bench.data, 12345, 12345)
    assert bench.join(bench.fleet.token(server))[0] == 0
    assert {(p.stat().st_uid, p.stat().st_gid) for p in bench.data.iterdir()} == {(12345, 12345)}


# -- renewing


def test_renews_with_a_new_key_over_the_old_certificate(bench: Bench) -> None:
    with bench.fleet.serving(bench.fleet.credentials(client=True)) as address:
        old = bench.fleet.identity(f"{closed_port()},{address}", now=datetime.now(UTC) - 20 * DAY)
        bench.keep(old)
        bench.fleet.session = ""  # as before
        code, out, err = bench.bcd("renew")
    assert (code, err, len(bench.fleet.renewals)) == (0, "", 1)
    new = identity.read(bench.data)
    assert new is not None
    assert new.joined is not None
    assert old.joined is not None
    assert out == f"{NODE}: certificate until {identity.moment(new.joined.not_after)}\n"
    assert is_pair(new.joined)
    assert (new.joined.key == old.joined.key, new.joined.server) == (False, old.joined.server)
    assert new.joined.not_after > old.joined.not_after


def test_what_cannot_be_renewed_says_why_and_stands(bench: Bench) -> None:
    bench.data.mkdir(mode=0o700)
    assert "not joined\n  bcd join" in bench.bcd("renew")[2]
    with bench.fleet.serving(bench.fleet.credentials(client=True)) as address:
        identity.write(bench.data, bench.fleet.identity(address, now=datetime.now(UTC) - 31 * DAY))
        code, _, err = bench.bcd("renew")
        assert (code, f"the certificate of {NODE} expired on" in err, "bound to this node" in err) == (2, True, True)
        identity.write(bench.data, bench.fleet.identity(address))
        before = bench.kept()
        bench.fleet.answer = lambda given, context: context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "6 renewals an hour")
        code, _, err = bench.bcd("renew")
        assert (code, "6 renewals an hour (RESOURCE_EXHAUSTED)\n  wait a minute" in err) == (2, True)
        bench.fleet.answer = lambda given, context: context.abort(grpc.StatusCode.UNAUTHENTICATED, "revoked")
        assert "revoked (UNAUTHENTICATED)\n  join again with a token that is bound to this node" in bench.bcd("renew")[2]
        bench.fleet.answer = lambda given, context: None
        bench.fleet.node_id = OTHER
        assert "the certificate of another node" in bench.bcd("renew")[2]
    assert "cannot be reached" in bench.bcd("renew")[2]
    assert bench.kept() == before


def test_a_renewal_and_a_join_do_not_meet(bench: Bench, server: str) -> None:
    bench.keep(bench.fleet.identity("gw:1"))
    with identity.only_writer(bench.data):
        assert "another `bcd join` or renewal is under way" in bench.bcd("renew")[2]
        assert "another `bcd join` or renewal is under way" in bench.join(bench.fleet.token(server), "--force")[2]
    assert bench.fleet.joins == []


def test_a_join_string_without_a_ca_is_refused(bench: Bench) -> None:
    from bettercompute.contract.tokens import JoinString

    from agent import join
    from agent.config import Config

    with pytest.raises(UserError, match="carries no CA"):
        join.join(Config(data_dir=bench.data), None, JoinString(TOKEN, "gw:1", ()), "gw:1", force=False)
