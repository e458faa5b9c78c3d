"""Where nodes join, and whom they are to trust there: what a join string carries beside its secret."""

import re
import ssl
from pathlib import Path

from receiver.addresses import join_address
from receiver.config import Config
from receiver.errors import Refused
from receiver.operate.call import Joining

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def joining(config: Config) -> Joining:
    """Of this receiver, as its settings and the file of its CA say now. Raises Refused where nodes cannot join."""
    if config.insecure:
        raise Refused("this receiver runs with --insecure: nodes need no token, and there is nowhere to join")
    return Joining(join_address(config), server_ca(server_ca_file(config)))


def server_ca_file(config: Config) -> Path:
    """Where the CA of receivers is."""
    return Path(config.tls_server_ca or Path(config.tls_dir or Path(config.data_dir) / "tls") / "server-ca.pem")


def server_ca(path: Path) -> tuple[bytes, ...]:
    """The certificates of a PEM file in DER. Raises Refused."""
    try:
        found = _CERTIFICATE.findall(path.read_text())
        if found:
            return tuple(ssl.PEM_cert_to_DER_cert(one) for one in found)
    except (OSError, ValueError) as error:
        raise Refused(f"the CA of receivers cannot be read: {path}: {error}") from error
    raise Refused(f"the CA of receivers cannot be read: {path} holds no certificate")
