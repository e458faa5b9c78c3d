"""Who the peer of a call is: the one name of its certificate, and nothing that it says (SPEC B1)."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from receiver.authority import NodeAuthority, create_ca
from receiver.callers import NoIdentity
from receiver.gateway.identity import Peer, peer
from tests.receiver.builders import NODE, OTHER

NAME = f"bc://node/{NODE}".encode()


@pytest.fixture(scope="module")
def certificate() -> tuple[bytes, str]:
    """A node's certificate as its authority signs it: the PEM, and its fingerprint."""
    now = datetime.now(UTC)
    key, ca = create_ca("nodes", now)
    issued = NodeAuthority(ca, key).sign(ec.generate_private_key(ec.SECP256R1()).public_key(), NODE, now, timedelta(days=30))
    return issued.pem.encode(), issued.fingerprint


def auth(pem: bytes, **other: Sequence[bytes]) -> dict[str, Any]:
    """What grpc tells of a TLS peer."""
    told = {
        "transport_security_type": [b"ssl"],
        "x509_pem_cert": [pem],
        "x509_subject_alternative_name": [NAME],
        "peer_uri": [NAME],
        "ssl_tls_version": [b"TLSv1.3"],
    }
    return {key: value for key, value in {**told, **other}.items() if value}


def test_the_node_is_the_name_of_its_certificate_whatever_the_metadata_say(certificate: tuple[bytes, str]) -> None:
    pem, fingerprint = certificate
    assert peer([("bc-node-id", OTHER)], auth(pem), insecure=False) == Peer(NODE, fingerprint)


def test_where_grpc_does_not_tell_the_version_it_is_not_asked_for(certificate: tuple[bytes, str]) -> None:
    pem, fingerprint = certificate
    assert peer([], auth(pem, ssl_tls_version=[]), insecure=False).certificate == fingerprint


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"ssl_tls_version": [b"TLSv1.2"]}, r"TLS 1\.3 is needed, not TLSv1\.2"),
        ({"ssl_tls_version": [b"TLSv1.3", b"TLSv1.2"]}, r"TLS 1\.3"),
        ({"x509_pem_cert": []}, "no client certificate.*bcd join"),
        ({"x509_pem_cert": [b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"]}, "client certificate"),
        ({"x509_pem_cert": [b"\xff"]}, "client certificate"),
        ({"x509_subject_alternative_name": [], "peer_uri": []}, "one name.*not none"),
        ({"x509_subject_alternative_name": [NAME, b"localhost"]}, "one name.*localhost"),
        ({"x509_subject_alternative_name": [NAME, NAME], "peer_uri": [NAME, NAME]}, "one name"),
        ({"x509_subject_alternative_name": [NAME], "peer_uri": []}, "one name"),
        ({"x509_subject_alternative_name": [b"spiffe://node/x"], "peer_uri": [b"spiffe://node/x"]}, "one name.*spiffe"),
        ({"x509_subject_alternative_name": [NAME + b"/x"], "peer_uri": [NAME + b"/x"]}, "no node id"),
        ({"x509_subject_alternative_name": [NAME.upper()], "peer_uri": [NAME.upper()]}, "one name"),
        ({"x509_subject_alternative_name": [b"bc://node/\xff"], "peer_uri": [b"bc://node/\xff"]}, "no node id"),
    ],
)
def test_any_other_peer_is_nobody(certificate: tuple[bytes, str], other: dict[str, Any], named: str) -> None:
    with pytest.raises(NoIdentity, match=named):
        peer([("bc-node-id", NODE)], auth(certificate[0], **other), insecure=False)


def test_without_tls_the_metadata_name_nobody() -> None:
    with pytest.raises(NoIdentity, match="no client certificate"):
        peer([("bc-node-id", NODE)], {}, insecure=False)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ([], "once, not 0 times"),
        ([("bc-node-id", NODE), ("bc-node-id", OTHER)], "once, not 2 times"),
        ([("bc-node-id", NODE.encode())], "once"),
        ([("bc-node-id", "gpu-1")], "'gpu-1' is no node id"),
    ],
)
def test_on_an_insecure_receiver_the_metadata_name_one_node(metadata: list[tuple[str, str | bytes]], named: str) -> None:
    assert peer([("bc-node-id", NODE)], {}, insecure=True) == Peer(NODE, None)
    with pytest.raises(NoIdentity, match=named):
        peer(metadata, {}, insecure=True)
