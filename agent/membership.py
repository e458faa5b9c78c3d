"""The daemon's part in its identity: follows `identity.json`, has it renewed in time, and keeps the traces of sessions.

`bcd join` and `bcd renew` are other processes: that the file is another is seen within seconds, and the session is begun anew
with what it says. The renewal itself is a child, since the daemon does not import `cryptography` (10 MiB of an idle node).
"""

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from agent import identity, program
from agent.config import Config
from agent.errors import Failed, UserError
from agent.identity import Access, Certificate
from agent.session import machine
from agent.session.kept import Trace

LOOK = 5.0  # seconds between two looks at the file
JITTER = 0.05  # of a certificate's life: nodes that joined together do not renew together
RETRY_FIRST, RETRY_LAST = 60.0, 3600.0  # seconds until a renewal that failed is tried again
CHILD_LIMIT = 120.0  # seconds that a renewal may take

_log = logging.getLogger("bcd.identity")


class Membership:
    """This node's identity as it is now. `changed` is called when the file has become another."""

    def __init__(self, config: Callable[[], Config], changed: Callable[[], None]) -> None:
        self._config = config
        self._changed = changed
        self._data_dir = config().data_dir
        self.trace = Trace(self._data_dir)
        self._seen = self._look()
        self._early = random.random()
        self._failures = 0
        self._next_try = 0.0
        self._renewal_error = ""

    @property
    def name(self) -> str:
        """The node, for the log."""
        told = self.describe()
        return str(told["nodeId"] or "nobody yet")

    def access(self) -> Access:
        """How to a receiver, as of now. Raises NotJoined, or UserError when the file is damaged."""
        config = self._config()
        return identity.access(self._data_dir, config.servers, config.insecure)

    async def run(self) -> None:
        """Looks again and again; renews in time. Ends only when it is cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            if (now := self._look()) != self._seen:
                self._seen = now
                self._failures, self._next_try, self._renewal_error = 0, 0.0, ""
                _log.info("the identity in %s has changed", self._data_dir)
                self._changed()
            if not self._config().insecure and self._due(time.time()):
                await self._renew()

    def heed(self, note: machine.Output) -> None:
        """What the session tells: what of it is kept for the next one."""
        if isinstance(note, machine.Greeting):
            self.trace.opening(note.node_id)
        elif isinstance(note, machine.Welcomed):
            self.trace.welcomed(note.epoch)
        elif isinstance(note, machine.Close) and note.end is not None and note.end.reason == "superseded":
            self.trace.superseded()

    def describe(self) -> Mapping[str, Any]:
        """For `bcd status`: the node, whether it has joined, its certificate's life and what is wrong."""
        told: dict[str, Any] = {"nodeId": None, "joined": False, "identityError": "", "certificate": None}
        try:
            access = self.access()
        except UserError as error:
            return told | {"identityError": str(error).replace("\n ", ":")}
        told["nodeId"] = access.node_id
        if access.joined is None:
            return told
        now, ours = time.time(), access.joined
        certificate = {
            "notBefore": identity.moment(ours.not_before),
            "notAfter": identity.moment(ours.not_after),
            "remaining": round(max(0.0, ours.remaining(now)), 3),
            "renewAt": identity.moment(self._renew_at(ours)),
            "renewalError": self._renewal_error,
        }
        return told | {"joined": True, "identityError": ours.trouble(now), "certificate": certificate}

    def _look(self) -> tuple[int, ...]:
        """What changes when the file is replaced."""
        try:
            there = identity.path_of(self._data_dir).stat()
        except OSError:
            return ()
        return there.st_ino, there.st_mtime_ns, there.st_size

    def _renew_at(self, ours: Certificate) -> float:
        return ours.renew_at + JITTER * self._early * (ours.not_after - ours.not_before)

    def _due(self, now: float) -> bool:
        """Time to renew; what is expired cannot be renewed."""
        if not self._seen or now < self._next_try:
            return False
        try:
            _, ours = identity.read_joined(self._data_dir)
        except UserError:
            return False
        self._next_try = max(now, min(self._renew_at(ours), now + RETRY_LAST))  # not read again before
        return self._renew_at(ours) <= now < ours.not_after

    async def _renew(self) -> None:
        """One try. That it worked is seen by the file."""
        config = self._config()
        named = ("--server", config.server) if config.server else ()
        # Its settings are these alone; what the environment has of others does not matter to it.
        argv = ("-m", "agent.cli", "renew", "--config", os.devnull, "--data-dir", str(self._data_dir), *named)
        try:
            ran = await program.run([sys.executable, *argv], CHILD_LIMIT)
            error = "" if ran.code == 0 else ran.said or f"exit code {ran.code}"
        except Failed as failed:
            error = str(failed)
        if not error:
            _log.info("the certificate is renewed")
            return
        wait = min(RETRY_LAST, RETRY_FIRST * 2.0**self._failures) * random.uniform(0.8, 1.2)
        self._failures, self._next_try, self._renewal_error = self._failures + 1, time.time() + wait, error.split("\n")[0]
        _log.warning("the certificate is not renewed, next try in %.0f s: %s", wait, error)
