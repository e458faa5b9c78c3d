"""Where a receiver listens, where nodes are told to go, and for which names its certificate therefore is."""

import ipaddress
import socket
from collections.abc import Callable

from receiver.config import Config


def host_of(target: str) -> str:
    """The host of a gRPC target, "" of a unix socket.

    >>> host_of("[::1]:7443"), host_of("gpu-1:7443"), host_of("unix:/run/x")
    ('::1', 'gpu-1', '')
    """
    return "" if target.startswith("unix:") else target.rpartition(":")[0].strip("[]")


def join_address(config: Config, this_host: Callable[[], str] = socket.gethostname) -> str:
    """Where nodes join: `advertise.join`, else where this receiver listens.

    >>> join_address(Config(listen_join="0.0.0.0:7442"), lambda: "gpu-1")
    'gpu-1:7442'
    """
    return config.advertise_join or _reachable(config.listen_join, this_host)


def session_addresses(config: Config, this_host: Callable[[], str] = socket.gethostname) -> str:
    """Where nodes report, several with commas between: `advertise.session`, else where this receiver listens."""
    return config.advertise_session or _reachable(config.listen_session, this_host)


def told_names(config: Config) -> list[str]:
    """The hosts that nodes are told to go to: what a receiver's certificate cannot be without."""
    targets = [join_address(config), *session_addresses(config).split(",")]
    return list(dict.fromkeys(host for target in targets if (host := host_of(target))))


def server_names(config: Config) -> list[str]:
    """All names and addresses for the certificate that a receiver makes for itself."""
    listens = [host_of(target) for target in (config.listen_join, config.listen_session, config.listen_api)]
    heard = [host for host in listens if host and not _is_wildcard(host)]
    own = [socket.gethostname(), "localhost", "127.0.0.1", "::1"]
    return list(dict.fromkeys([*own, *told_names(config), *heard, *config.tls_names]))


def _reachable(target: str, this_host: Callable[[], str]) -> str:
    """A target as others can use it: an address that stands for all of them is this host's name."""
    if not _is_wildcard(host_of(target)):
        return target
    return f"{this_host()}:{target.rpartition(':')[2]}"


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
