"""What other receivers do, by Postgres' NOTIFY: a node's session that began elsewhere, events that were committed.

One connection in one thread. A notification only wakes: what is missed while the connection is down is looked up when it is
back, and a reader of events polls anyway.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping

import psycopg

from receiver.store.database import dial

LOG = logging.getLogger("receiver.gateway")
BACK_OFF = 1.0  # seconds until the next attempt
LOOK_UP = 5.0  # how often the thread looks whether it should end, should its connection not have been shut

Handler = Callable[[str], None]


class Listener:
    """Calls `handlers[channel](payload)` in the event loop; `again()` whenever the connection has come (back)."""

    def __init__(self, url: str, handlers: Mapping[str, Handler], again: Callable[[], None]) -> None:
        self.url = url
        self.handlers = handlers
        self.again = again
        self.loop = asyncio.get_running_loop()
        self.ending = threading.Event()
        self.hears = True
        self.wire: socket.socket | None = None  # of the connection
        self.thread = threading.Thread(target=self._run, name="listen", daemon=True)
        self.thread.start()

    async def stop(self) -> None:
        """Ends the thread; what it waits on is shut."""
        self.ending.set()
        if self.wire is not None:
            with contextlib.suppress(OSError):
                self.wire.shutdown(socket.SHUT_RDWR)
        await asyncio.to_thread(self.thread.join)

    def _run(self) -> None:
        while not self.ending.is_set():
            try:
                self._listen()
            except psycopg.Error as error:
                if self.hears and not self.ending.is_set():  # said once, not with every attempt
                    LOG.warning("no notifications from the database", extra={"reason": " ".join(str(error).split())})
                self.hears = False
                self.ending.wait(BACK_OFF)

    def _listen(self) -> None:
        with (
            dial(self.url, autocommit=True, name="receiver listen") as connection,
            socket.socket(fileno=os.dup(connection.fileno())) as self.wire,
        ):
            for channel in self.handlers:
                connection.execute(f'LISTEN "{channel}"'.encode())
            if not self.hears:
                LOG.info("notifications from the database again")
            self.hears = True
            self._tell(self.again)
            while not self.ending.is_set():
                for notify in connection.notifies(timeout=LOOK_UP):
                    self._tell(self.handlers[notify.channel], notify.payload)

    def _tell(self, handler: Callable[..., None], *arguments: str) -> None:
        if not self.ending.is_set():
            self.loop.call_soon_threadsafe(handler, *arguments)
