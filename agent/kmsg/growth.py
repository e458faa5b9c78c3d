"""DOOR: inotify(7). Tells when a recorded log may have grown, so that following one costs nothing while it does not."""

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

_MODIFY, _MOVED_TO, _CREATE = 0x002, 0x080, 0x100  # linux/inotify.h
_EVENTS = 64 << 10  # bytes of a read: more than any event takes


@contextlib.contextmanager
def changes(directory: Path, changed: Callable[[], None]) -> Iterator[bool]:
    """Calls `changed` in the event loop whenever a file of `directory` is written or replaced, while the block runs.

    Yields False where that cannot be had (the kernel's limit of such watches, no inotify): the caller has to look by itself.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        yield False
        return
    loop = asyncio.get_running_loop()

    def told() -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(fd, _EVENTS)
        changed()

    try:
        watched = libc.inotify_add_watch(fd, os.fsencode(directory), _MODIFY | _MOVED_TO | _CREATE) >= 0
        loop.add_reader(fd, told)
        yield watched
    finally:
        loop.remove_reader(fd)
        os.close(fd)
