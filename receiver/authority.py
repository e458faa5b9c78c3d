"""The certificates that a receiver makes (SPEC B1): values in, values out. Where they lie on disk: receiver/tls.py.

Two CAs, so that a node's certificate can never pass for a receiver's: one signs receivers, and nodes pin it; one signs nodes.
Of what a node sends only its public key is used: every word in its certificate is the receiver's own.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias, TypeVar

from bettercompute.contract.ids import is_id
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

LARGEST_CSR = 4 << 10  # bytes
CA_LIFE = timedelta(days=3650)
EARLIER = timedelta(hours=1)  # how long ago a certificate begins: the clocks of nodes are not the receiver's
NODE_URI = "bc://node/"
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")

PublicKey: TypeAlias = ec.EllipticCurvePublicKey
SigningKey: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
E = TypeVar("E", bound=x509.ExtensionType)


class BadCsr(ValueError):
    """A certificate request that is refused. `str()` says what is wrong with it."""


class BadCertificate(ValueError):
    """A certificate or a key of the receiver's own that cannot be used. `str()` says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that was signed. `fingerprint`: lower-case hexadecimal SHA-256 of its DER."""

    pem: str
    fingerprint: str
    not_before: datetime
    not_after: datetime


def fingerprint(certificate: x509.Certificate) -> str:
    """Lower-case hexadecimal SHA-256 of its DER."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def fingerprint_of(pem: bytes) -> str:
    """The fingerprint of the first certificate in a PEM. Raises BadCertificate."""
    return fingerprint(certificates(pem)[0])


def uris_of(certificate: x509.Certificate) -> list[str]:
    """The URIs that a certificate is for. Raises BadCertificate."""
    san = _extension(certificate, x509.SubjectAlternativeName)
    return san.get_values_for_type(x509.UniformResourceIdentifier) if san is not None else []


def create_ca(name: str, now: datetime) -> tuple[bytes, bytes]:
    """A CA of that common name with a new key: the key (PKCS #8) and the certificate, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = (
        _begun(subject, key.public_key(), now, now + CA_LIFE)
        .issuer_name(subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key_pem(key), built.public_bytes(serialization.Encoding.PEM)


def check_csr(der: bytes) -> PublicKey:
    """The public key of a PKCS #10 request in DER, which must be P-256 and have signed it. Raises BadCsr."""
    if len(der) > LARGEST_CSR:
        raise BadCsr(f"a certificate request of {len(der)} bytes: at most {LARGEST_CSR}")
    try:
        request = x509.load_der_x509_csr(der)
        key = request.public_key()
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise BadCsr("the certificate request is no PKCS #10 in DER with a key that is known here") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadCsr("the key of the certificate request is not on the curve P-256")
    try:
        signed = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm):
        signed = False
    if not signed:
        raise BadCsr("the certificate request is not signed by its own key")
    return key


class Authority:
    """A CA that signs. `ca_pem` may hold several certificates, as during the rotation of a CA: all of them are believed, and the
    first whose key is in `key` signs.
    """

    def __init__(self, ca_pem: bytes, key: bytes) -> None:
        """Raises BadCertificate."""
        self.ca_pem = ca_pem
        self.trusted = certificates(ca_pem)
        self.key = load_key(key)
        public = self.key.public_key()
        own = [one for one in self.trusted if one.public_key() == public]
        if not own:
            raise BadCertificate("the key is not that of its certificate")
        self.ca = own[0]
        _check_ca(self.ca)

    def _sign(
        self,
        subject: x509.Name,
        key: PublicKey,
        san: x509.SubjectAlternativeName,
        use: ObjectIdentifier,
        now: datetime,
        life: timedelta,
    ) -> Issued:
        ends = min(now + life, self.ca.not_valid_after_utc)
        if ends <= now:
            raise BadCertificate(f"the CA's certificate expired on {self.ca.not_valid_after_utc:%Y-%m-%d}")
        built = (
            _begun(subject, key, now, ends)
            .issuer_name(self.ca.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(san, critical=not subject.rdns)  # RFC 5280 4.2.1.6: then it is all that says whose it is
            .add_extension(_issued_by(self.ca), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        pem = built.public_bytes(serialization.Encoding.PEM).decode()
        return Issued(pem, fingerprint(built), built.not_valid_before_utc, built.not_valid_after_utc)


class NodeAuthority(Authority):
    """The CA of nodes."""

    def sign(self, key: PublicKey, node_id: str, now: datetime, life: timedelta) -> Issued:
        """A certificate with which the holder of this key is that node. Raises BadCertificate when the CA has expired."""
        if not is_id(node_id, "node"):
            raise ValueError(f"{node_id!r} is no node id")
        san = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(NODE_URI + node_id)])
        return self._sign(x509.Name([]), key, san, ExtendedKeyUsageOID.CLIENT_AUTH, now, life)


class ServerAuthority(Authority):
    """The CA of receivers."""

    def mint(self, names: Iterable[str], now: datetime, life: timedelta) -> tuple[bytes, Issued]:
        """A new key (PEM), and its certificate for these host names and addresses. Raises BadCertificate: the CA has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bc-receiver")])
        san = x509.SubjectAlternativeName([_general_name(name) for name in dict.fromkeys(names)])
        return key_pem(key), self._sign(subject, key.public_key(), san, ExtendedKeyUsageOID.SERVER_AUTH, now, life)


def certificates(pem: bytes) -> Sequence[x509.Certificate]:
    """All certificates of a PEM, at least one. Raises BadCertificate."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise BadCertificate("there is no certificate in PEM that can be read") from error


def load_key(pem: bytes) -> SigningKey:
    """A private key without a passphrase, of an elliptic curve or RSA. Raises BadCertificate."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except TypeError as error:  # so it says that a passphrase is wanted
        raise BadCertificate("the key has a passphrase, and nobody is there to type it") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadCertificate("there is no private key in PEM that can be read") from error
    if isinstance(key, rsa.RSAPrivateKey) or (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, CURVES)):
        return key
    raise BadCertificate("the key is neither RSA nor on P-256, P-384 or P-521: gRPC's TLS takes no other")


def key_pem(key: SigningKey) -> bytes:
    """A private key as PKCS #8 in PEM, without a passphrase."""
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def check_server(
    chain: Sequence[x509.Certificate], key: SigningKey, believed: Sequence[x509.Certificate], names: Iterable[str]
) -> None:
    """Whether nodes that believe these CAs will take a receiver that shows this chain, and find these names in it.

    Its dates are the caller's matter. Raises BadCertificate that says what nodes would say.
    """
    leaf = chain[0]
    if leaf.public_key() != key.public_key():
        raise BadCertificate("the key is not this certificate's")
    use = _extension(leaf, x509.ExtendedKeyUsage)
    if use is not None and not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(use):
        raise BadCertificate("its extended key usage does not have serverAuth: it is no server's certificate")
    san = _extension(leaf, x509.SubjectAlternativeName)
    missing = [name for name in names if not covers(san, name)]
    if missing:
        raise BadCertificate(f"its subject alternative names do not have {', '.join(missing)}, where nodes are told to go")
    if not _leads_to(chain, believed):
        raise BadCertificate("its chain does not lead to the CA that nodes pin")


def covers(san: x509.SubjectAlternativeName | None, name: str) -> bool:
    """Whether a certificate is one for this host name (a wildcard stands for one label) or address."""
    if san is None:
        return False
    wanted = _general_name(name)
    if isinstance(wanted, x509.IPAddress):
        return wanted.value in san.get_values_for_type(x509.IPAddress)
    name = name.lower().rstrip(".")
    wild = "*." + name.partition(".")[2]
    return any(one.lower() in (name, wild) for one in san.get_values_for_type(x509.DNSName))


def _leads_to(chain: Sequence[x509.Certificate], believed: Sequence[x509.Certificate]) -> bool:
    at, rest = chain[0], list(chain[1:])
    while True:
        if at in believed or any(_issued(at, by) for by in believed):
            return True
        following = next((one for one in rest if _issued(at, one)), None)
        if following is None:
            return False
        rest.remove(following)
        at = following


def _issued(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
    except (ValueError, x509.DuplicateExtension) as error:
        raise BadCertificate(f"its extensions cannot be read: {error}") from error


def _check_ca(ca: x509.Certificate) -> None:
    basic, usage = _extension(ca, x509.BasicConstraints), _extension(ca, x509.KeyUsage)
    if basic is None or not basic.ca or (usage is not None and not usage.key_cert_sign):
        raise BadCertificate("the certificate is no CA's: it may not sign others")


def _begun(subject: x509.Name, key: PublicKey, now: datetime, ends: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - EARLIER)
        .not_valid_after(ends)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued_by(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    known = _extension(ca, x509.SubjectKeyIdentifier)
    if known is not None:
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key())  # type: ignore[arg-type]


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        encoded = name if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        encoded = ""
    if not _HOST_NAME.fullmatch(encoded):
        raise BadCertificate(f"{name!r} is neither a host name nor an address")
    return x509.DNSName(encoded)
