"""Who has a GPU's device file open: the links in /proc/PID/fd, `15 -> /dev/nvidia0`. Names of processes come from `comm` only."""

import contextlib
import re
from collections.abc import Iterator

from agent.errors import Unreadable
from agent.host import Host

_DEVICE = re.compile(r"/dev/nvidia(\d+)")


def clients(host: Host) -> Iterator[tuple[int, int]]:
    """(minor number of a GPU, process id) of each open file, in the order of /proc; processes that may not be looked at are not
    told. Lazy: whoever looks for one client stops at it."""
    for pid in _names(host, "/proc"):
        if pid.isdigit():
            for name in _names(host, f"/proc/{pid}/fd"):
                target = ""
                with contextlib.suppress(Unreadable):  # closed since
                    target = host.readlink(f"/proc/{pid}/fd/{name}")
                if match := _DEVICE.fullmatch(target):
                    yield int(match[1]), int(pid)


def _names(host: Host, path: str) -> list[str]:
    try:
        return host.listdir(path)
    except Unreadable:
        return []
