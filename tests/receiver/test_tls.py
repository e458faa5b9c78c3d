"""The files of the receiver's TLS: what is wrong with one is said by its name, and what changes is taken without a restart."""

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from receiver.addresses import join_address, server_names, session_addresses, told_names
from receiver.authority import NodeAuthority, ServerAuthority, certificates, create_ca, fingerprint_of, key_pem
from receiver.config import Config
from receiver.errors import ReceiverError
from receiver.ids import mint
from receiver.tls import Identity, ca_paths, open_identity
from tests.receiver.tls import DAY, new_key, write_cas

NAMES = ["gpu-1", "127.0.0.1"]
NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with both CAs, which another user may enter."""
    with tempfile.TemporaryDirectory(prefix="bc-tls-") as made:
        Path(made).chmod(0o755)
        write_cas(Path(made))
        yield Path(made)


def config(folder: Path, **settings: Any) -> Config:
    return Config(**{"tls_dir": str(folder), "advertise_session": "gpu-1:7443", **settings})


def server_authority(folder: Path) -> ServerAuthority:
    return ServerAuthority((folder / "server-ca.pem").read_bytes(), (folder / "server-ca.key").read_bytes())


def bring(folder: Path, pem: bytes, key: bytes, mode: int = 0o600) -> dict[str, str]:
    """An operator's certificate beside the CAs: its settings."""
    (folder / "own.pem").write_bytes(pem)
    (folder / "own.key").write_bytes(key)
    (folder / "own.key").chmod(mode)
    return {"tls_certificate": str(folder / "own.pem"), "tls_key": str(folder / "own.key")}


def minted(folder: Path, names: list[str], now: datetime | None = None, life: timedelta = 90 * DAY) -> tuple[bytes, bytes]:
    """A certificate of the server CA, and its key."""
    key, issued = server_authority(folder).mint(names, now or datetime.now(UTC), life)
    return issued.pem.encode(), key


def chain(identity: Identity) -> str:
    """The fingerprint of what is shown now."""
    return fingerprint_of(identity.material.chain)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


# ---- what is wrong at start


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def mode(name: str, bits: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).chmod(bits)


def other_key(name: str) -> Callable[[Path], object]:
    return write(name, key_pem(new_key()))


def expire(name: str) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        key, pem = create_ca("old", datetime.now(UTC) - timedelta(days=3651))
        (folder / f"{name}.pem").write_bytes(pem)
        (folder / f"{name}.key").write_bytes(key)

    return work


def same_ca(folder: Path) -> None:
    for end in ("pem", "key"):
        (folder / f"node-ca.{end}").write_bytes((folder / f"server-ca.{end}").read_bytes())


@pytest.mark.parametrize(
    ("break_it", "file", "says"),
    [
        (remove("node-ca.pem"), "node-ca.pem", "it is not there\n  `bc-receiver init`"),
        (remove("server-ca.pem"), "server-ca.pem", "it is not there\n  `bc-receiver init`"),
        (remove("node-ca.key"), "node-ca.key", "copy the files"),
        (remove("server-ca.key"), "server-ca.key", "copy the files"),
        (mode("node-ca.key", 0o644), "node-ca.key", "its mode is 0644\n  chmod 600 "),
        (mode("server-ca.key", 0o640), "server-ca.key", "its mode is 0640\n  chmod 600 "),
        (write("server-ca.pem", b""), "server-ca.pem", "no certificate in PEM"),
        (write("node-ca.pem", b"\xff\x00"), "node-ca.pem", "no certificate in PEM"),
        (write("node-ca.key", b"-----BEGIN"), "node-ca.key", "no private key in PEM"),
        (other_key("node-ca.key"), "node-ca.pem", "the key is not that of its certificate\n  its key is to be in "),
        (other_key("server-ca.key"), "server-ca.pem", "the key is not that of its certificate"),
        (expire("node-ca"), "node-ca.pem", "it expired on "),
        (expire("server-ca"), "server-ca.pem", "it expired on "),
        (same_ca, "server-ca.pem", "the same CA is in "),
    ],
)
def test_names_the_file_that_is_wrong(folder: Path, break_it: Callable[[Path], object], file: str, says: str) -> None:
    break_it(folder)
    with pytest.raises(ReceiverError) as error:
        Identity(config(folder))
    assert error.value.attempted == f"read {folder / file}"
    assert says in str(error.value)


def test_a_directory_in_the_place_of_a_file_is_named(folder: Path) -> None:
    (folder / "node-ca.key").unlink()
    (folder / "node-ca.key").mkdir()
    with pytest.raises(ReceiverError, match=r"node-ca\.key: Is a directory"):
        Identity(config(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("file", ["server-ca.pem", "node-ca.key"])
def test_says_who_is_to_read_a_file_that_it_may_not(folder: Path, file: str) -> None:
    for key in folder.glob("*.key"):
        os.chown(key, NOBODY, -1)
    (folder / file).chmod(0)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(ReceiverError, match=rf"{file}: Permission denied\n  .*uid {NOBODY}"):
            Identity(config(folder))
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_group_may_read_roots_keys_as_a_secret_is_mounted(folder: Path) -> None:
    for key in folder.glob("*.key"):
        os.chown(key, 0, os.getegid())
        key.chmod(0o640)
    os.seteuid(NOBODY)
    try:
        assert chain(Identity(config(folder)))
        os.seteuid(0)
        (folder / "node-ca.key").chmod(0o644)
        os.seteuid(NOBODY)
        with pytest.raises(ReceiverError, match="chmod 600"):
            Identity(config(folder))
    finally:
        os.seteuid(0)


def of_a_node(folder: Path) -> tuple[bytes, bytes]:
    key = new_key()
    authority = NodeAuthority((folder / "server-ca.pem").read_bytes(), (folder / "server-ca.key").read_bytes())
    return authority.sign(key.public_key(), mint("node"), datetime.now(UTC), DAY).pem.encode(), key_pem(key)


def of_another_ca(folder: Path) -> tuple[bytes, bytes]:
    ca_key, ca = create_ca("other", datetime.now(UTC))
    key, issued = ServerAuthority(ca, ca_key).mint(NAMES, datetime.now(UTC), DAY)
    return issued.pem.encode(), key


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (of_a_node, "own.pem: its extended key usage does not have serverAuth"),
        (of_another_ca, "own.pem: its chain does not lead to the CA that nodes pin"),
        (lambda folder: minted(folder, ["gpu-2", "127.0.0.1"]), "own.pem: its subject alternative names do not have gpu-1"),
        (lambda folder: (minted(folder, NAMES)[0], key_pem(new_key())), "own.pem: the key is not this certificate's"),
        (lambda folder: minted(folder, NAMES, datetime.now(UTC) - 30 * DAY, 29 * DAY), "own.pem: it expired on "),
        (lambda folder: minted(folder, NAMES, datetime.now(UTC) + 30 * DAY), "own.pem: it is not good before "),
        (lambda folder: (minted(folder, NAMES)[0], b"no key"), "own.key: there is no private key"),
    ],
)
def test_refuses_an_operators_certificate(folder: Path, make: Callable[[Path], tuple[bytes, bytes]], says: str) -> None:
    given = bring(folder, *make(folder))
    with pytest.raises(ReceiverError) as error:
        Identity(config(folder, **given))
    assert says in str(error.value)


def test_an_operators_key_is_for_the_receiver_alone_and_goes_with_its_certificate(folder: Path) -> None:
    given = bring(folder, *minted(folder, NAMES), mode=0o604)
    with pytest.raises(ReceiverError, match=r"own\.key: others may read this key: its mode is 0604\n  chmod 600"):
        Identity(config(folder, **given))
    with pytest.raises(ReceiverError, match=r"tls\.certificate and tls\.key go together"):
        Identity(config(folder, tls_certificate=given["tls_certificate"]))


def test_an_operators_certificate_needs_no_key_of_the_server_ca_here(folder: Path) -> None:
    given = bring(folder, *minted(folder, NAMES))
    (folder / "server-ca.key").unlink()
    identity = Identity(config(folder, **given))
    assert identity.material.chain == (folder / "own.pem").read_bytes()


def test_a_chain_over_an_intermediate_leads_to_the_pinned_ca(folder: Path) -> None:
    root = server_authority(folder)
    (folder / "root.key").touch(0o600)
    key = new_key()
    now = datetime.now(UTC)
    root_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "root")])
    sub_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sub")])
    root_key = new_key()

    def ca(subject: x509.Name, public: Any) -> x509.Certificate:
        begun = x509.CertificateBuilder().subject_name(subject).issuer_name(root_name).public_key(public)
        dated = begun.serial_number(x509.random_serial_number()).not_valid_before(now - DAY).not_valid_after(now + DAY)
        return dated.add_extension(x509.BasicConstraints(True, None), True).sign(root_key, hashes.SHA256())

    pem = serialization.Encoding.PEM
    (folder / "server-ca.pem").write_bytes(ca(root_name, root_key.public_key()).public_bytes(pem))
    sub = ca(sub_name, key.public_key()).public_bytes(pem)
    own_key, own = ServerAuthority(sub, key_pem(key)).mint(NAMES, now, DAY)
    given = bring(folder, own.pem.encode() + sub, own_key)
    assert len(certificates(Identity(config(folder, **given)).material.chain)) == 2
    bring(folder, own.pem.encode(), own_key)
    with pytest.raises(ReceiverError, match="does not lead"):
        Identity(config(folder, **given))
    assert root.ca.subject != root_name


def test_an_insecure_receiver_has_no_identity(folder: Path) -> None:
    assert open_identity(Config(insecure=True, tls_dir="/nowhere")) is None
    assert open_identity(config(folder)) is not None


def test_cas_lie_where_settings_say() -> None:
    assert ca_paths(Config(data_dir="/d")).node_ca_key == Path("/d/tls/node-ca.key")
    given = ca_paths(Config(tls_dir="/t", tls_server_ca="/own.pem"))
    assert (given.server_ca, given.server_ca_key) == (Path("/own.pem"), Path("/t/server-ca.key"))


# ---- names


def test_a_receivers_certificate_is_for_all_its_names(folder: Path) -> None:
    given = config(
        folder, listen_join="10.0.0.7:7442", listen_session="[::]:7443", advertise_join="join.example.net:443", tls_names=("vip",)
    )
    names = {"localhost", "127.0.0.1", "::1", "10.0.0.7", "join.example.net", "gpu-1", "vip", os.uname().nodename}
    assert set(server_names(given)) == names
    (own,) = certificates(Identity(given).material.chain)
    san = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = {*san.get_values_for_type(x509.DNSName), *map(str, san.get_values_for_type(x509.IPAddress))}
    assert found == names


def test_nodes_are_told_a_name_of_this_host_where_it_listens_on_all_addresses() -> None:
    everywhere = Config(listen_join="0.0.0.0:1", listen_session="[::]:2")
    assert join_address(everywhere, lambda: "gpu-9") == "gpu-9:1"
    assert session_addresses(everywhere, lambda: "gpu-9") == "gpu-9:2"
    several = Config(advertise_join="a:1", advertise_session="b:2,[2001:db8::1]:2,unix:/s")
    assert (session_addresses(several), told_names(several)) == (several.advertise_session, ["a", "b", "2001:db8::1"])


# ---- what changes


def test_its_own_certificate_is_made_again_after_two_thirds_of_its_life(folder: Path) -> None:
    clock = Clock()
    identity = Identity(config(folder, tls_server_life=90 * 86400.0), clock)
    first, shown = chain(identity), identity.configurations
    clock.now += 59 * DAY
    assert not identity.refresh()
    assert identity.configurations is shown  # nothing for gRPC to take
    clock.now += 2 * DAY
    assert identity.refresh()
    assert chain(identity) != first
    assert identity.configurations is not shown
    assert identity.material.expires["server"] - clock.now > 89 * DAY


def test_files_that_change_are_read_again(folder: Path) -> None:
    given = bring(folder, *minted(folder, NAMES))
    identity = Identity(config(folder, **given))
    first, authority = chain(identity), identity.nodes
    bring(folder, *minted(folder, NAMES))
    assert identity.refresh()
    assert chain(identity) != first
    key, pem = create_ca("nodes, new", datetime.now(UTC))
    both = (folder / "node-ca.pem").read_bytes() + pem
    (folder / "node-ca.pem").write_bytes(both)
    (folder / "node-ca.key").write_bytes(key)
    assert identity.refresh()
    assert (len(identity.nodes.trusted), identity.nodes.ca) == (2, certificates(pem)[0])
    assert identity.nodes is not authority


@pytest.mark.parametrize("content", [None, b"", b"half a file"])
def test_what_was_read_stays_in_use_while_what_is_there_is_wrong(
    folder: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "receiver.tls")
    given = bring(folder, *minted(folder, NAMES))
    identity = Identity(config(folder, **given))
    first = chain(identity)
    if content is None:
        (folder / "own.pem").unlink()
    else:
        (folder / "own.pem").write_bytes(content)
    for _ in range(3):
        assert not identity.refresh()
    assert chain(identity) == first
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "the certificates that were read before stay in use")
    ]
    assert "own.pem" in caplog.records[0].__dict__["reason"]
    bring(folder, *minted(folder, NAMES))
    assert identity.refresh()
    assert chain(identity) != first


def test_a_key_without_its_certificate_yet_is_waited_for(folder: Path) -> None:
    """Two files cannot be replaced at once."""
    given = bring(folder, *minted(folder, NAMES))
    identity = Identity(config(folder, **given))
    first, (pem, key) = chain(identity), minted(folder, NAMES)
    (folder / "own.key").write_bytes(key)
    assert not identity.refresh()
    assert chain(identity) == first
    (folder / "own.pem").write_bytes(pem)
    assert identity.refresh()
    assert chain(identity) == fingerprint_of(pem)


def test_an_end_that_nobody_renews_is_warned_of_once_a_day(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "receiver.tls")
    clock = Clock()
    given = bring(folder, *minted(folder, NAMES))
    identity = Identity(config(folder, **given), clock)
    clock.now += 59 * DAY
    identity.refresh()
    assert caplog.messages == []
    clock.now += 2 * DAY
    for _ in range(3):
        identity.refresh()
    clock.now += DAY
    identity.refresh()
    assert [(one.getMessage(), one.__dict__["certificate"]) for one in caplog.records] == [
        ("a certificate ends soon", "server"),
        ("a certificate ends soon", "server"),
    ]


def test_watching_renews_by_itself(folder: Path) -> None:
    async def main() -> None:
        identity = Identity(config(folder, tls_server_life=0.3))
        first = chain(identity)
        watching = asyncio.create_task(identity.watch())
        async with asyncio.timeout(5):
            while chain(identity) == first:
                await asyncio.sleep(0.02)
        watching.cancel()

    asyncio.run(main())
