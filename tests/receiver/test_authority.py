"""The certificates that a receiver makes, and what it refuses."""

import random
import re
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from receiver.authority import (
    BadCertificate,
    BadCsr,
    NodeAuthority,
    ServerAuthority,
    certificates,
    check_csr,
    check_server,
    covers,
    create_ca,
    fingerprint_of,
    key_pem,
    load_key,
)
from receiver.ids import mint

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
MONTH = timedelta(days=30)


def request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey, subject: str = "root") -> bytes:
    """A request in DER that claims to be of `subject`."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)])
    claims = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("bc://node/another"), x509.DNSName("receiver")])
    built = x509.CertificateSigningRequestBuilder().subject_name(name).add_extension(claims, critical=False)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return built.sign(key, algorithm).public_bytes(serialization.Encoding.DER)


def p256() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def test_a_nodes_certificate_is_the_receivers_own_words() -> None:
    key, ca = create_ca("nodes", NOW)
    node, node_id = p256(), mint("node")
    issued = NodeAuthority(ca, key).sign(check_csr(request(node)), node_id, NOW, MONTH)
    (certificate,) = certificates(issued.pem.encode())
    (issuer,) = certificates(ca)
    certificate.verify_directly_issued_by(issuer)
    assert certificate.public_key() == node.public_key()
    assert list(certificate.subject) == []  # nothing of what the request claims
    san = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert (san.critical, list(san.value)) == (True, [x509.UniformResourceIdentifier(f"bc://node/{node_id}")])
    use = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(use) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert (issued.not_before, issued.not_after) == (NOW - timedelta(hours=1), NOW + MONTH)
    assert (certificate.not_valid_before_utc, certificate.not_valid_after_utc) == (issued.not_before, issued.not_after)
    assert issued.fingerprint == fingerprint_of(issued.pem.encode())
    assert re.fullmatch("[0-9a-f]{64}", issued.fingerprint)


def test_both_cas_are_self_signed_for_ten_years_and_sign_no_further_ca() -> None:
    key, pem = create_ca("receivers", NOW)
    (ca,) = certificates(pem)
    ca.verify_directly_issued_by(ca)
    assert isinstance(load_key(key), ec.EllipticCurvePrivateKey)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert ca.not_valid_after_utc - NOW == timedelta(days=3650)


def test_a_servers_certificate_has_its_names_and_addresses() -> None:
    key, pem = create_ca("receivers", NOW)
    private, issued = ServerAuthority(pem, key).mint(["gpu-1", "10.0.0.7", "::1", "gpu-1"], NOW, MONTH)
    chain = certificates(issued.pem.encode())
    check_server(chain, load_key(private), certificates(pem), ["gpu-1", "10.0.0.7", "::1"])
    use = chain[0].extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(use) == [ExtendedKeyUsageOID.SERVER_AUTH]
    san = chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert len(list(san)) == 3


def test_a_certificate_never_outlives_its_ca_and_an_expired_ca_signs_nothing() -> None:
    key, pem = create_ca("nodes", NOW - timedelta(days=3640))
    authority = NodeAuthority(pem, key)
    issued = authority.sign(p256().public_key(), mint("node"), NOW, MONTH)
    assert issued.not_after == NOW + timedelta(days=10)
    with pytest.raises(BadCertificate, match="expired on 2026-12-09"):
        authority.sign(p256().public_key(), mint("node"), NOW + timedelta(days=10), MONTH)


def test_of_several_cas_the_one_whose_key_is_there_signs_and_all_are_believed() -> None:
    (_, old), (key, new) = create_ca("nodes", NOW), create_ca("nodes", NOW)
    authority = NodeAuthority(old + new, key)
    issued = authority.sign(p256().public_key(), mint("node"), NOW, MONTH)
    (certificate,) = certificates(issued.pem.encode())
    certificate.verify_directly_issued_by(certificates(new)[0])
    assert len(authority.trusted) == 2


def damaged(body: bytes) -> bytes:
    """The same request with another signature."""
    return body[:-1] + bytes([body[-1] ^ 1])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no PKCS #10"),
        (b"-----BEGIN CERTIFICATE REQUEST-----", "no PKCS #10"),
        (request(p256())[:-10], "no PKCS #10"),
        (b"\x30" * 5000, "at most 4096"),
        (request(ec.generate_private_key(ec.SECP384R1())), "P-256"),
        (request(ec.generate_private_key(ec.SECP256K1())), "P-256"),
        (request(rsa.generate_private_key(65537, 2048)), "P-256"),
        (request(ed25519.Ed25519PrivateKey.generate()), "P-256"),
        (damaged(request(p256())), "not signed by its own key"),
    ],
)
def test_refuses_a_request_that(body: bytes, says: str) -> None:
    with pytest.raises(BadCsr, match=says):
        check_csr(body)


def test_a_request_with_any_bytes_changed_is_refused_and_nothing_else() -> None:
    """Whatever a hostile node sends, BadCsr is all that comes of it."""
    good, dice = request(p256()), random.Random(6)
    for _ in range(2000):
        body = bytearray(good)
        for _ in range(dice.choice((1, 1, 2, 8))):
            body[dice.randrange(len(body))] = dice.randrange(256)
        if bytes(body) != good:
            with pytest.raises(BadCsr):
                check_csr(bytes(body))


def test_refuses_a_ca_that_cannot_sign() -> None:
    (key, pem), (other, _) = create_ca("nodes", NOW), create_ca("nodes", NOW)
    leaf_key, leaf = ServerAuthority(pem, key).mint(["gpu-1"], NOW, MONTH)
    locked = p256().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    edwards = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for given_pem, given_key, says in [
        (pem, other, "not that of its certificate"),
        (leaf.pem.encode(), leaf_key, "no CA's"),
        (b"", key, "no certificate in PEM"),
        (key, key, "no certificate in PEM"),
        (pem, pem, "no private key in PEM"),
        (pem, locked, "passphrase"),
        (pem, edwards, "neither RSA nor on P-256"),
        (pem, key_pem(ec.generate_private_key(ec.SECP256K1())), "neither RSA nor on P-256"),
    ]:
        with pytest.raises(BadCertificate, match=says):
            NodeAuthority(given_pem, given_key)


def test_refuses_a_servers_certificate_that_nodes_would_not_take() -> None:
    (server_key, server_ca), (node_key, node_ca) = create_ca("receivers", NOW), create_ca("nodes", NOW)
    private, issued = ServerAuthority(server_ca, server_key).mint(["gpu-1", "*.example.net"], NOW, MONTH)
    chain, key, pinned = certificates(issued.pem.encode()), load_key(private), certificates(server_ca)
    check_server(chain, key, pinned, ["GPU-1", "a.example.net"])
    node = NodeAuthority(node_ca, node_key).sign(key.public_key(), mint("node"), NOW, MONTH)  # type: ignore[arg-type]
    of_node = certificates(node.pem.encode())
    for shown, held, believed, names, says in [
        (chain, p256(), pinned, [], "key is not this certificate's"),
        (of_node, key, certificates(node_ca), [], "serverAuth"),
        (chain, key, pinned, ["gpu-2", "10.0.0.9"], "do not have gpu-2, 10.0.0.9"),
        (chain, key, pinned, ["a.b.example.net"], "a.b.example.net"),
        (chain, key, certificates(node_ca), ["gpu-1"], "does not lead to the CA"),
    ]:
        with pytest.raises(BadCertificate, match=says):
            check_server(shown, held, believed, names)


@pytest.mark.parametrize("name", ["https://gpu-1", "a b", "", "gpu-1:7443", "x" * 254, "-a", "a,b"])
def test_refuses_to_sign_for_what_is_no_name(name: str) -> None:
    key, pem = create_ca("receivers", NOW)
    with pytest.raises(BadCertificate, match="neither a host name nor an address"):
        ServerAuthority(pem, key).mint([name], NOW, MONTH)


def test_an_absent_san_covers_nothing() -> None:
    assert not covers(None, "gpu-1")


def test_a_node_certificate_is_signed_for_node_ids_only() -> None:
    key, pem = create_ca("nodes", NOW)
    with pytest.raises(ValueError, match="no node id"):
        NodeAuthority(pem, key).sign(p256().public_key(), "node_1/../other", NOW, MONTH)
