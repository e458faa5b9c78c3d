"""The daemon's composition root: opens the doors, starts the tasks in one TaskGroup, ends them.

Collections change the inventory; each change goes to the session first and to the disk then. Everything here runs on one event
loop; what could block (a collection) is a child process.
"""

import asyncio
import contextlib
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import (
    __version__,
    doors,
    holds,
    identity,
    inventory,
    kernel_log,
    known_gpus,
    local,
    log,
    refresh,
    settling,
    signs,
    status,
    triggers,
    watch,
)
from agent.commands.node import DaemonNode
from agent.commands.runner import Runner
from agent.commands.store import Store
from agent.config import Config, reloaded
from agent.drivers import Drivers
from agent.errors import FieldError, UserError
from agent.host import Host
from agent.membership import Membership
from agent.sections import Collected
from agent.session import machine
from agent.session import messages as m
from agent.session.stream import Link
from agent.systemd import Notifier

VERSION = __version__

_log = logging.getLogger("bcd")


def run(config: Config, host_dir: Path | None, reload: Callable[[], Config]) -> None:
    """Runs the daemon until SIGTERM or SIGINT. `reload` reads the settings again. Raises UserError when it cannot start."""
    log.setup(config.log_format)
    notifier = Notifier()
    with local.only_daemon(config.data_dir):
        if config.insecure:
            identity.load_or_create(config.data_dir)
            _log.warning("--insecure: nothing is encrypted, and whoever is on this machine may speak as this node")
        try:
            holds.make(config.data_dir / "holds")
        except OSError as error:
            _log.warning("cannot make %s: %s: no GPU can be held", error.filename, error.strerror)
        asyncio.run(Daemon(config, host_dir, notifier, reload).run())


class Daemon:
    """The daemon's state: one inventory, one queue of triggers, one session."""

    def __init__(self, config: Config, host_dir: Path | None, notifier: Notifier, reload: Callable[[], Config]) -> None:
        self._config = config
        self._host_dir = host_dir
        self._notifier = notifier
        self._reload = reload
        self._started = time.monotonic()
        self._collector = doors.collector(config, host_dir)
        self._store = inventory.Store(config.data_dir / "inventory")
        self._known = self._store.known_gpus()
        self._triggers = triggers.Triggers()
        self._failure = ""  # of the last collection
        self._wanted = asyncio.Event()
        self._resettled = asyncio.Event()
        self._stop = asyncio.Event()
        self._settling: asyncio.TimerHandle | None = None  # the next try while a boot settles
        self._uptime_at_start = self._host().uptime()
        self._boot_id = self._host().boot_id()
        stored = self._store.load()
        self._inventory = stored if stored and stored.boot_id == self._boot_id else None
        self._drivers = Drivers(config.data_dir, self._host)
        self._member = Membership(lambda: self._config, lambda: self._link.reconnect())
        self._link = Link(self._member.access, self._hello, self._status, self._noted)
        self._refresh = refresh.Refresh(
            self._link, self._want, lambda: self._triggers.done, lambda: self._failure, lambda: self._inventory
        )
        hooks = watch.Hooks(self._report, self._want, lambda: self._config.kmsg_trust_userspace, self._kernel_clock)
        self._watch = watch.Watch(kernel_log.path_of(host_dir), config.data_dir, self._boot_id, self._known, hooks)
        self._signs = signs.Signs(self._as_signs_see_it(), config.data_dir)
        self._node = self._as_commands_see_it()
        self._commands = Runner(Store(config.data_dir / "commands"), self._node, self._command_done)
        self._first_trigger(stored)

    async def run(self) -> None:
        """Runs until a signal ends it; cleanly, within a second or two."""
        methods = {"status": self._local_status, "refresh": self._refresh.local}
        if self._inventory:
            self._link.feed(machine.InventoryChanged(status.offer(self._inventory)))
        self._report()
        with self._signals():
            async with local.serve(self._config.socket_path, methods), self._metrics(), asyncio.TaskGroup() as group:
                jobs = (
                    self._watch.run,
                    self._signs.run,
                    self._collect,
                    self._watchdog,
                    self._session,
                    self._member.run,
                    self._rescan,
                    self._images,
                    self._retry,
                    self._commands.run,
                    self._advertise,
                )
                tasks = [group.create_task(job()) for job in jobs]
                _log.info("bcd %s runs as %s, boot %s", VERSION, self._member.name, self._boot_id)
                self._notifier.ready()
                await self._stop.wait()
                _log.info("bcd ends")
                self._notifier.stopping()
                for task in tasks:
                    task.cancel()

    # -- collecting

    def _want(self, reason: str) -> int:
        """Adds a trigger; the number of the collection that will have served it."""
        self._triggers = self._triggers.add(reason)
        self._wanted.set()
        return self._triggers.next

    def _first_trigger(self, stored: inventory.Inventory | None) -> None:
        prints = (stored.boot_id, stored.fingerprint) if stored else None
        now = inventory.fingerprint(self._host(), VERSION)
        if reason := triggers.at_start(prints, self._boot_id, now, stored.lacking if stored else ()):
            self._want(reason)

    async def _collect(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._triggers, work = self._triggers.start()
            if work is None:
                continue
            self._failure = ""
            try:
                await self._collect_once(work)
            except FieldError as error:  # a recorded host that is no longer one
                self._failure = f"the collection failed: {error}"
                _log.error("collection (%s) failed: %s", work.reason, error)
            self._triggers = self._triggers.finish()
            if self._triggers.reasons:
                self._wanted.set()
            self._refresh.tell()

    async def _collect_once(self, work: triggers.Work) -> None:
        host = self._host()
        boot_id = host.boot_id()
        whole = self._inventory is None or self._inventory.boot_id != boot_id
        names = sorted(triggers.ALL if whole else work.sections)
        # Taken before: what happens during the collection shows as a difference at the next start.
        prints = inventory.fingerprint(host, VERSION)
        collected = await self._collector.collect(names, known_gpus.gpus(self._known, self._watch.ledger.named))
        uptime = self._uptime(host)
        collected = settling.judge(self._learnt(collected, boot_id), uptime, self._config.settle)
        now = inventory.Inventory(boot_id, work.reason, time.time(), prints, (), (), {})
        self._changed(new := inventory.merge(self._inventory, collected, now))
        await asyncio.to_thread(self._store.save, new, dict(self._known))  # a slow disk holds up no report
        for failed in collected.failed:
            _log.warning("section %s is missing: %s: %s", failed.name, failed.reason, failed.message)
        if (delay := settling.retry_delay(collected, uptime, self._config.settle)) is not None:
            if self._settling:  # one chain of tries, however many other collections there are meanwhile
                self._settling.cancel()
            self._settling = asyncio.get_running_loop().call_later(delay, self._want, "settling")

    def _learnt(self, collected: Collected, boot_id: str) -> Collected:
        for section in collected.sections:
            if section.name == "gpus":
                self._known = known_gpus.learn(self._known, pb.GpusSection.FromString(section.data), boot_id)
        return collected

    def _changed(self, new: inventory.Inventory) -> None:
        """The inventory of now is another: the receiver hears of it at once, and the disk then."""
        self._signs.collected(self._inventory, new)
        self._inventory = new
        self._link.feed(machine.InventoryChanged(status.offer(new)))
        self._watch.learn(self._known, new.boot_id)
        self._report()
        if new.boot_id != self._boot_id:  # a recorded host that has been rebooted: Hello names the boot
            self._boot_id = new.boot_id
            self._link.reconnect()
        else:
            self._link.feed(machine.HelloChanged(self._hello()))
        _log.info("collected (%s): digest %s, %d of 8 sections", new.trigger, new.digest[:12], len(new.sections))

    async def _rescan(self) -> None:
        await self._every("rescan", lambda: triggers.rescan_delay(self._config.rescan_interval, random.random()))

    async def _images(self) -> None:
        await self._every("images", lambda: triggers.IMAGES_INTERVAL if self._config.cri_socket else 0.0)

    async def _retry(self) -> None:
        """Tries what is missing again; settling has its own pace."""
        while True:
            await asyncio.sleep(triggers.RETRY)
            settled = self._inventory and not any(f.reason == settling.REASON for f in self._inventory.failed)
            for name in self._inventory.lacking if self._inventory and settled else ():
                self._want(f"retry-{name}")

    async def _every(self, reason: str, delay: Callable[[], float]) -> None:
        """A trigger each `delay()` seconds, 0 is never; asked again when the settings change."""
        while True:
            try:
                async with asyncio.timeout(delay() or None):
                    await self._resettled.wait()
            except TimeoutError:
                self._want(reason)

    # -- the host

    def _host(self) -> Host:
        """The host, a recorded one read anew."""
        return doors.host(self._host_dir)

    def _uptime(self, host: Host) -> float:
        """Seconds since boot; a recorded host's go on from what is recorded."""
        return max(host.uptime(), self._kernel_clock())

    def _kernel_clock(self) -> float:
        """Seconds since boot, as the kernel log counts them."""
        return self._uptime_at_start + time.monotonic() - self._started

    # -- the session

    async def _session(self) -> None:
        await self._signs.judged()
        await self._link.run()

    def _hello(self) -> m.Hello:
        trace = self._member.trace
        return m.Hello(
            daemon_version=VERSION,
            boot_id=self._boot_id,
            instance_id=trace.now.instance,
            previous_instance_id=trace.previous,
            previous_epoch=trace.now.epoch,
            drivers=self._drivers.current,
            capabilities=status.capabilities(self._inventory, self._boot_id),
            digest=self._inventory.digest if self._inventory else "",
        )

    def _status(self) -> m.Status:
        pressure, kernel_log = self._signs.pressure(), self._watch.kernel_log()
        return status.report(self._inventory, self._collector.abandoned, self._conditions(), pressure, kernel_log)

    def _conditions(self) -> tuple[m.Condition, ...]:
        return (*self._signs.conditions(), *self._watch.conditions())

    def _report(self) -> None:
        """The status says something else now, perhaps."""
        self._link.feed(machine.StatusChanged(self._status()))

    def _noted(self, note: machine.Output) -> None:
        """What the session tells the daemon."""
        self._member.heed(note)
        if isinstance(note, machine.CollectAgain):
            self._want("refused")
        elif isinstance(note, machine.Answered):
            self._refresh.answered(note.result)
            _log.info("the receiver's answer on %s: %s", note.result.digest[:12], refresh.words(note.result))
        elif isinstance(note, machine.Ordered):
            self._commands.received(note.command)
        elif isinstance(note, machine.Acknowledged):
            self._commands.acknowledged(note.id)
        self._refresh.tell()

    def _as_signs_see_it(self) -> signs.Daemon:
        return signs.Daemon(
            recorded=self._host_dir is not None,
            collector=lambda: self._collector,
            host=self._host,
            uptime=lambda: self._uptime(self._host()),
            config=lambda: self._config,
            inventory=lambda: self._inventory,
            boot_id=lambda: self._boot_id,
            known=lambda: known_gpus.gpus(self._known),
            want=self._want,
            report=self._report,
        )

    # -- commands

    def _as_commands_see_it(self) -> DaemonNode:
        return DaemonNode(
            recorded=self._host_dir is not None,
            collector=self._collector,
            get_config=lambda: self._config,
            get_host=self._host,
            get_boot_id=lambda: self._boot_id,
            inventory=lambda: self._inventory,
            known=lambda: known_gpus.gpus(self._known),
            conditions=self._conditions,
            look=lambda: kernel_log.Look(self._watch.ledger, self._watch.trouble),
            drop=self._watch.drop,
            want=self._want,
            refresh_all=self._refresh.command,
        )

    def _command_done(self, result: m.CommandResult) -> None:
        self._link.feed(machine.CommandDone(result))

    async def _advertise(self) -> None:
        await self._drivers.run(lambda: self._link.feed(machine.HelloChanged(self._hello())))

    # -- the local socket

    async def _local_status(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "version": VERSION,
            "pid": os.getpid(),
            **self._member.describe(),
            "bootId": self._boot_id,
            "instanceId": self._member.trace.now.instance,
            **self._link.describe(),
            "lastAnswer": refresh.words(self._refresh.answer) if self._refresh.answer else None,
            "collecting": self._triggers.started > self._triggers.done,
            "abandonedWorkers": self._collector.abandoned,
            "holds": self._node.holds().describe(),
            "commands": [{**row, "since": status.moment(row["since"])} for row in self._commands.describe()],
            "conditions": status.describe_conditions(self._conditions()),
            "kernelLog": self._watch.describe(),
            "probe": self._signs.describe(),
            **status.describe(self._inventory, self._watch.ledger),
        }

    def _metrics(self) -> contextlib.AbstractAsyncContextManager[None]:
        if not self._config.metrics_listen:
            return contextlib.nullcontext()
        from agent import metrics  # several MiB: nobody pays who does not ask

        return metrics.serving(
            self._config.metrics_listen, metrics.Sources(self._collector, self._watch, self._link, self._member)
        )

    # -- signals and the service manager

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], object]] = {
            signal.SIGTERM: self._stop.set,
            signal.SIGINT: self._stop.set,
            signal.SIGUSR1: lambda: self._want("refresh"),
            signal.SIGHUP: self._reloaded,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _reloaded(self) -> None:
        """SIGHUP: the new settings, or, when one is wrong, the old ones."""
        try:
            new, later = reloaded(self._config, self._reload())
        except UserError as error:
            _log.error("the configuration is not reloaded: %s", error)
            return
        old, self._config = self._config, new
        if later:
            _log.warning("changed, but in force from the next start on only: %s", ", ".join(later))
        log.setup(new.log_format)
        doors.configure(self._collector, new)
        self._resettled.set()
        self._resettled = asyncio.Event()
        self._signs.resettle()
        _log.info("the configuration is reloaded")
        if new.server != old.server:
            self._link.reconnect()

    async def _watchdog(self) -> None:
        while self._notifier.watchdog:
            self._notifier.alive()
            await asyncio.sleep(self._notifier.watchdog)
