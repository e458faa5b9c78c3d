"""Where nodes join, and whom they are to trust there: what a join string carries beside its secret."""

from cryptography.hazmat.primitives.serialization import Encoding

from receiver.addresses import join_address
from receiver.authority import certificates
from receiver.config import Config
from receiver.errors import ReceiverError, Refused
from receiver.operate.call import Joining
from receiver.tls import read_server_ca


def joining(config: Config) -> Joining:
    """Of this receiver, as its settings and the file of its CA say now. Raises Refused where nodes cannot join."""
    if config.insecure:
        raise Refused("this receiver runs with --insecure: nodes need no token, and there is nowhere to join")
    try:
        pinned = certificates(read_server_ca(config))
    except ReceiverError as error:
        raise Refused(f"the CA of receivers cannot be told: {error}") from error
    return Joining(join_address(config), tuple(one.public_bytes(Encoding.DER) for one in pinned))
