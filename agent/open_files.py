"""What processes have open: /proc/PID/fd. Read by bcd itself where it is root, else by its helper (helper.py), which is."""

import contextlib
import errno
import re
from collections.abc import Iterator, Mapping

from agent.errors import Unreadable
from agent.host import Host

GPU_FILE = re.compile(r"/nvidia(\d+)(?: \(deleted\))?$")
DRM_FILE = re.compile(r"/dri/(card\d+|renderD\d+)(?: \(deleted\))?$")
VM = "anon_inode:kvm-vm"


def of_process(host: Host, pid: str) -> Iterator[str]:
    """What a process has open, as /proc/PID/fd links to it: `/dev/nvidia3`, `socket:[4711]`. Raises Unreadable (EACCES)."""
    directory = f"/proc/{pid}/fd"
    try:
        for fd in host.listdir(directory):
            with contextlib.suppress(Unreadable):  # closed meanwhile: whoever may list may read
                yield host.readlink(f"{directory}/{fd}")
    except Unreadable as error:
        if not error.absent and error.errno != errno.ESRCH:  # it has not just ended
            raise


def matters(file: str) -> bool:
    """Whether it is a GPU's device file, or makes its process a VM."""
    return bool(GPU_FILE.search(file) or DRM_FILE.search(file)) or file == VM


def that_matter(host: Host) -> Mapping[str, list[str]]:
    """Process id -> what of this it has open, of all processes that have any. Raises Unreadable."""
    pids = (name for name in host.listdir("/proc") if name.isdigit())
    found = {pid: [file for file in of_process(host, pid) if matters(file)] for pid in pids}
    return {pid: files for pid, files in found.items() if files}
