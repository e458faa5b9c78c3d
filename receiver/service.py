"""The composition root of `bc-receiver serve`: opens the database and the listeners, starts the tasks, ends them in order."""

import asyncio
import contextlib
import gc
import logging
import os
import random
import resource
import secrets
import signal
import socket
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from bettercompute.contract import gpu_models

from receiver import metrics, webhook
from receiver.addresses import session_addresses
from receiver.apply.command import CHANNEL as COMMAND_CHANNEL
from receiver.apply.hygiene import GAP
from receiver.apply.session import CHANNEL as SESSION_CHANNEL
from receiver.apply.session import DISBELIEVED
from receiver.config import Config, check_listeners
from receiver.errors import DatabaseError, ReceiverError
from receiver.gateway import limits
from receiver.gateway.heartbeat import beat, beat_forever
from receiver.gateway.jobs import Jobs
from receiver.gateway.join import JOIN_SERVICE, Joins
from receiver.gateway.limits import Limit
from receiver.gateway.listener import Listener
from receiver.gateway.registry import Registry
from receiver.gateway.replanning import replan_forever
from receiver.gateway.server import Server
from receiver.gateway.session import Sessions
from receiver.joining import joining
from receiver.loops import kinds
from receiver.measures import Measures
from receiver.operate.methods import runners
from receiver.planning.pressure import Levels
from receiver.read.api import EVENTS_CHANNEL, Api
from receiver.read.queries import open_engine
from receiver.singletons import Singletons, set_within
from receiver.store import database, embedded
from receiver.store.embedded import EmbeddedPostgres
from receiver.tls import Identity, open_identity

LOG = logging.getLogger("receiver")
FILES = 500  # that a receiver opens for itself, and for connections that are no session yet
FLUSH = 0.2  # seconds for last words to go out
LOOK_EVERY = 1.0  # seconds: how soon it is seen that the embedded server is gone
# A search for garbage through all that 15,000 sessions have is a second in which nothing else is done, and it finds nothing: a
# session that is over is freed without one. With Python's own thresholds there are 19 in the first five minutes.
GARBAGE = (5_000, 10, 20)
DATABASE = "better_compute"  # its name in the embedded server


@contextlib.contextmanager
def database_of(config: Config) -> Iterator[tuple[str, EmbeddedPostgres | None]]:
    """The URL of the database to use, with its schema; an embedded server, which runs as long as the block.

    To be entered in the main thread: the embedded server dies with the thread that started it. Raises DatabaseError.
    """
    if config.database_url:
        if config.database_migrate:
            database.migrate(config.database_url)
        yield config.database_url, None
        return
    with own_database(Path(config.data_dir)) as (url, server):
        database.migrate(url)
        yield url, server


@contextlib.contextmanager
def own_database(directory: Path) -> Iterator[tuple[str, EmbeddedPostgres]]:
    """The URL of this receiver's own database in an embedded server, which runs as long as the block. Raises DatabaseError."""
    with embedded.start(directory) as server:
        database.create_database(server.url(), DATABASE)
        yield server.url(DATABASE), server


def migrate(config: Config) -> tuple[int | None, int]:
    """Brings the schema to this version: the number it had (None: there was none), and the one it has. Raises DatabaseError."""
    if config.database_url:
        return database.migrate(config.database_url), database.head()
    with own_database(Path(config.data_dir)) as (url, _):
        return database.migrate(url), database.head()


def use_models(path: str) -> None:
    """Takes an operator's table of GPU names, if one is given. Raises ReceiverError that names what is wrong with it."""
    if not path:
        return
    try:
        gpu_models.use(gpu_models.load(Path(path).read_text()))
    except (OSError, ValueError) as error:  # a UnicodeDecodeError is a ValueError
        hint = "copy gpu_models.json of this version, add the part, raise `version`"
        raise ReceiverError(f"read the GPU models: {path}", str(error), hint) from error


def serve(config: Config) -> None:
    """Runs the receiver until SIGTERM or SIGINT. Raises ReceiverError for what a person has to mend."""
    check_listeners(config)
    use_models(config.models)
    webhook.opened(config)  # what is wrong with it is said before anything starts
    identity = open_identity(config)
    if identity is None:
        LOG.warning("insecure: nothing is encrypted, and nodes and callers are taken at their word")
    with database_of(config) as (url, server):
        asyncio.run(_serve(config, url, server, identity))


async def _serve(config: Config, url: str, server: EmbeddedPostgres | None, identity: Identity | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    receiver = Receiver(config, url, identity)
    loop.add_signal_handler(signal.SIGHUP, receiver.read_again)
    try:
        await receiver.start()
        listens = {"join": config.listen_join} if identity else {}
        listens |= {"session": config.listen_session, "api": config.listen_api}
        LOG.info("ready", extra={**listens, "database": database.shown(url)})
        gc.freeze()  # what is here now stays: no search for garbage goes through it again
        gc.set_threshold(*GARBAGE)
        notify_systemd("READY=1")
        while not await set_within(stop, LOOK_EVERY):
            receiver.check()
            notify_systemd("WATCHDOG=1")
            if server is not None and server.process.poll() is not None:
                happened = f"it ended by itself with {server.process.returncode}"
                raise DatabaseError("run the embedded Postgres", happened, f"see {server.directory}/log")
        LOG.info("draining", extra={"streams": len(receiver.registry.current)})
        notify_systemd("STOPPING=1")
    finally:
        await receiver.stop()
    LOG.info("stopped")


class Receiver:
    """One receiver over one database: its listeners and its tasks. `start`, then `stop`, in one event loop."""

    def __init__(self, config: Config, url: str, identity: Identity | None) -> None:
        """`identity`: None for an insecure receiver, and for no other."""
        if (identity is None) is not config.insecure:
            raise ValueError("a receiver has its certificates, or is insecure")
        self.config = config
        self.identity = identity
        size = config.database_connections
        self.pool = database.open_pool(url, size, dry_run=config.dry_run)
        self.engine = open_engine(url, size)
        self.threads = ThreadPoolExecutor(size, "database")
        self.reading = ThreadPoolExecutor(size, "read")
        self.registry = Registry(time.monotonic, random.random, places=_places())
        name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        levels = Levels(config.pressure_raise, config.pressure_samples)
        loops = kinds(config)
        counted = Measures(tuple(kind.name for kind in loops))
        self.jobs = Jobs(self.pool, self.threads, self.registry, config.tenant, name, config.status_handlers, levels, counted)
        gap = timedelta(seconds=GAP * config.status_interval)
        self.singletons = Singletons(self.pool, name, loops, gap, worked=counted.worked)
        self.woken = asyncio.Condition()
        writes = runners(self.pool, config.tenant, lambda: joining(config))
        self.api = Api(
            self.engine,
            self.reading,
            self.woken,
            lambda limit: self.registry.met.update([limit]),
            writes,
            config.insecure,
            counted,
        )
        self.url = url
        self.servers: list[Server] = []
        self.joins: Joins | None = None  # None on an insecure receiver
        self.tasks: set[asyncio.Task[None]] = set()
        self.chores: list[asyncio.Task[None]] = []
        self.listener: Listener | None = None
        self.metrics: metrics.Listening | None = None

    async def start(self) -> None:
        """Listens. Raises ReceiverError when an address cannot be had; `stop` is to be called then too."""
        self.servers = [*self._for_nodes(), self._for_callers()]
        for server in self.servers:
            await server.start()
        if self.config.metrics_listen:
            self.metrics = metrics.listen(self.config.metrics_listen, metrics.of_receiver(self.measured()))
        chores = {
            "heartbeat": beat_forever(self.registry, self.jobs),
            "replanning": replan_forever(self.jobs),
            "singletons": self.singletons.run_forever(),
        }
        if self.identity:
            chores["certificates"] = self.identity.watch()
        self.chores = [asyncio.create_task(work, name=name) for name, work in chores.items()]
        handlers = {
            SESSION_CHANNEL: self.jobs.session_began,
            DISBELIEVED: self.jobs.session_disbelieved,
            COMMAND_CHANNEL: self.registry.queued,
            **self.singletons.channels,
            EVENTS_CHANNEL: self._told,
        }
        self.listener = Listener(self.url, handlers, self._look_again)

    def _for_nodes(self) -> list[Server]:
        """Where they report, and where they join: nowhere on an insecure receiver."""
        config, identity = self.config, self.identity
        nodes = Server(config.listen_session, identity.credentials(of_nodes=True) if identity else None)
        nodes.add_sessions(Sessions(self.registry, self.jobs, config.status_interval, config.insecure))
        if identity is None:
            return [nodes]
        life = timedelta(seconds=config.tls_node_life)
        self.joins = Joins(self.jobs, identity, life, session_addresses(config))
        self.joins.add_renewals_to(nodes.grpc)
        joining = Server(config.listen_join, identity.credentials(of_nodes=False))
        joining.add_services({JOIN_SERVICE: self.joins.add_to})
        return [nodes, joining]

    def _for_callers(self) -> Server:
        """On a unix socket nothing is encrypted: a token is asked for there too."""
        target = self.config.listen_api
        identity = None if target.startswith("unix:") else self.identity
        callers = Server(target, identity.credentials(of_nodes=False) if identity else None)
        callers.add_services(self.api.services())
        return callers

    def measured(self) -> metrics.Sources:
        """The parts that `metrics.listen` tells of."""
        told = bool(self.config.webhook_url)
        return metrics.Sources(self.jobs, self.engine, self.singletons, lambda: self.api.calls, self.identity, told)

    def _told(self, payload: str) -> None:
        """An event is in the log: for who watches, and for the webhook."""
        self._spawn(self._notify())
        if wake := self.singletons.channels.get(EVENTS_CHANNEL):
            wake(payload)

    async def _notify(self) -> None:
        async with self.woken:
            self.woken.notify_all()

    def _look_again(self) -> None:
        self._spawn(self.jobs.look_up_epochs())
        self._spawn(self.jobs.look_for_commands())
        self.singletons.wake_all()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _idle(self, seconds: float) -> None:
        """Waits for the streams of nodes and the calls of the API to end, at most so long."""
        end = time.monotonic() + seconds
        while (self.registry.streams or self.api.calls) and time.monotonic() < end:
            await asyncio.sleep(0.02)

    def read_again(self) -> None:
        """SIGHUP: certificates and CAs that changed are taken at once; they are looked at every few seconds anyway."""
        LOG.info("reading certificates again", extra={"otherSettings": "from the next start on"})
        if self.identity:
            self._spawn(self._refreshed(self.identity))

    async def _refreshed(self, identity: Identity) -> None:
        await asyncio.to_thread(identity.refresh)

    def check(self) -> None:
        """Raises what ended a task that should not end: a receiver that forgets its nodes must not look alive."""
        for chore in self.chores:
            if chore.done():
                chore.result()

    async def stop(self) -> None:
        """Ends every stream with `draining`, lets open calls end, writes what is left, closes the database."""
        self.registry.drain()
        self.api.stopping = True
        await self._notify()
        for server in self.servers:
            await server.stop_serving()
        ending = [asyncio.create_task(server.stop(self.config.drain)) for server in self.servers]
        await self._idle(self.config.drain)
        # gRPC would still wait, for as long as it may, for peers that are gone without a word: a rebooted node is one.
        await asyncio.gather(*ending, *(server.stop(FLUSH) for server in self.servers))
        tasks = [*self.tasks, *self.chores]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.singletons.stop()
        if self.metrics:
            await asyncio.to_thread(self.metrics.close)
        if self.listener:
            await self.listener.stop()
        await beat(self.registry, self.jobs)
        for threads in (self.threads, self.reading):
            threads.shutdown(wait=True, cancel_futures=True)
        self.pool.close()
        self.engine.dispose()


def _places() -> Limit:
    """How many sessions there is room for: a file each. As many files as this process may have are asked for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    most = limits.PLACES.most if soft == resource.RLIM_INFINITY else min(limits.PLACES.most, max(1, soft - FILES))
    return replace(limits.PLACES, most=most)


def notify_systemd(state: str) -> None:
    """Tells systemd (sd_notify), when it started this process and asked for it in NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender, contextlib.suppress(OSError):
        sender.sendto(state.encode(), address)
