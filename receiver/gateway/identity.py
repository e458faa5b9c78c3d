"""Who the peer of a stream is: the one place that says so (SPEC B1). Nothing in a message does.

It is the SAN of the certificate that the peer came with: exactly one, `bc://node/<nodeId>`. That an authority of ours signed it,
that it is in its life and made for clients, TLS has seen to; that it is not revoked, Hello looks up (receiver/apply/session.py).
On an insecure receiver it is the node id that bcd sends as metadata `bc-node-id`, taken as given.
"""

from dataclasses import dataclass

from bettercompute.contract.ids import is_id

from receiver.authority import NODE_URI, BadCertificate, certificates, fingerprint, uris_of
from receiver.callers import Auth, Metadata, NoIdentity, check_version, shown

NODE_ID = "bc-node-id"


@dataclass(frozen=True, slots=True)
class Peer:
    """Who calls. `certificate`: its fingerprint, lower-case hexadecimal SHA-256 of the DER; None on an insecure receiver."""

    node_id: str
    certificate: str | None = None


def peer(metadata: Metadata, auth: Auth, insecure: bool) -> Peer:
    """Who the peer of a call is. Raises NoIdentity.

    >>> peer([("bc-node-id", "node_01hf7yat000000000000000000")], {}, insecure=True)
    Peer(node_id='node_01hf7yat000000000000000000', certificate=None)
    """
    return Peer(_named(metadata)) if insecure else _certified(auth)


def _named(metadata: Metadata) -> str:
    found = [value for key, value in metadata if key == NODE_ID]
    if len(found) != 1 or not isinstance(found[0], str):
        raise NoIdentity(f"metadata {NODE_ID} must be there once, not {len(found)} times")
    return _node_id(found[0])


def _certified(auth: Auth) -> Peer:
    check_version(auth)
    pems = list(auth.get("x509_pem_cert", ()))
    if len(pems) != 1:
        raise NoIdentity("no client certificate: the node has to join (bcd join)")
    names = list(auth.get("x509_subject_alternative_name", ()))
    uris = list(auth.get("peer_uri", ()))
    if len(names) != 1 or uris != names or not uris[0].startswith(NODE_URI.encode()):
        raise NoIdentity(f"a node's certificate has one name, {NODE_URI}<nodeId>, not {shown(names) or 'none'}")
    node_id = _node_id(uris[0].decode("ascii", "replace").removeprefix(NODE_URI))
    try:
        certificate = certificates(pems[0])[0]
        named = uris_of(certificate)
    except BadCertificate as error:
        raise NoIdentity(f"the client certificate: {error}") from error
    if named != [NODE_URI + node_id]:  # gRPC ends a name at its first zero byte
        raise NoIdentity("a node's certificate has one name, and nothing behind it")
    return Peer(node_id, fingerprint(certificate))


def _node_id(name: str) -> str:
    if not is_id(name, "node"):
        raise NoIdentity(f"{name[:64]!r} is no node id: node_ and a lower-case ULID")
    return name
