"""DOOR: the service manager. sd_notify(3) is a datagram to a socket; without one (not under systemd) all of it is nothing."""

import logging
import os
import socket
from collections.abc import MutableMapping

PATIENCE = 0.2  # seconds that a message waits for room in the manager's queue
_log = logging.getLogger("bcd.systemd")


class Notifier:
    """READY, WATCHDOG and STOPPING. Takes the variables out of the environment: no child may use them."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        ours = not pid or pid == str(os.getpid())
        self.watchdog: float | None = int(usec) / 1e6 / 2 if usec.isdigit() and int(usec) and ours else None
        """Seconds between two WATCHDOG messages (half the limit, as sd_watchdog_enabled(3) advises); None: none wanted."""

    def ready(self) -> None:
        """The daemon serves: its local socket answers. The receiver is not waited for."""
        self._send("READY=1")

    def alive(self) -> None:
        """The event loop turns."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The daemon is about to end."""
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(PATIENCE)  # a manager that hangs reads nothing, and must not hold up reports
                sock.connect(address)
                sock.sendall(state.encode())
        except OSError as error:
            _log.warning("cannot tell the service manager %s: %s", state, error)
