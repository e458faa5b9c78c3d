"""The one runner of commands (SPEC A7): takes orders, runs each id once, keeps the answer until it is acknowledged."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.commands import COMMANDS
from agent.commands.order import AfterCrash, Kind, Node, Payload
from agent.commands.store import KEPT, Damaged, Full, Record, Store, is_id
from agent.errors import Ended, Expired, Failed, FieldError, Refused
from agent.session.messages import Command, CommandResult

MAX_WAITING = 64  # commands that run or wait at one time
MAX_PAYLOAD = 64 << 10  # bytes of an answer
_log = logging.getLogger("bcd.commands")


@dataclass
class Running:
    """A command that runs, as it sees itself (order.Order)."""

    record: Record
    payload: Payload
    store: Store
    clock: Callable[[], float]

    @property
    def id(self) -> str:
        """The command's id."""
        return self.record.id

    @property
    def boot_id(self) -> str:
        """Of the boot in which it started."""
        return self.record.boot_id

    def begin(self, subjects: Iterable[str], spacing: float) -> None:
        """The effect comes next; refused within `spacing` seconds of another command's on one of the subjects."""
        now, wanted = self.clock(), tuple(subjects)
        for other in self.store.all():
            same = other.id != self.id and other.kind == self.record.kind and set(other.subjects) & set(wanted)
            if same and other.began is not None and abs(now - other.began) < spacing:
                minutes = (spacing - abs(now - other.began)) / 60
                raise Refused(
                    "RateLimited", f"command {other.id} did it less than {spacing / 60:g} min ago", retryInMinutes=minutes
                )
        self._write(began=now, subjects=wanted)

    def keep(self, **facts: Any) -> None:
        """Facts for whoever tidies up: on disk when this returns."""
        self._write(facts=self.record.facts | facts)

    def _write(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)
        self.store.put(self.record)


class Runner:
    """Runs commands for one daemon. `send` gets each result; `received` and `acknowledged` are what the session says."""

    def __init__(
        self,
        store: Store,
        node: Node,
        send: Callable[[CommandResult], None],
        clock: Callable[[], float] = time.time,
        kinds: Mapping[str, Kind] = COMMANDS,
    ) -> None:
        self._store = store
        self._node = node
        self._send = send
        self._clock = clock
        self._kinds = kinds
        self._orders: asyncio.Queue[tuple[Command, float]] = asyncio.Queue()
        self._active: dict[str, tuple[str, float]] = {}  # id -> kind, and Unix seconds at which it came
        self._alone = asyncio.Lock()

    def received(self, command: Command) -> None:
        """The gateway orders this. A repeat of one that runs or waits is nothing new: it is answered when it ends."""
        if command.id in self._active:
            return
        if len(self._active) >= MAX_WAITING:
            self._send(_result(command.id, Refused("TooManyCommands", f"{MAX_WAITING} commands run or wait")))
            return
        self._active[command.id] = (command.kind, self._clock())
        self._orders.put_nowait((command, time.monotonic()))

    def acknowledged(self, command_id: str) -> None:
        """The gateway has the result for good."""
        try:
            record = self._store.get(command_id) if is_id(command_id) else None
            if record is not None and record.result is not None and not record.acknowledged:
                self._store.put(replace(record, acknowledged=True))
        except FieldError as error:  # it is sent again after the next start, and acknowledged again
            _log.warning("%s", error)

    def describe(self) -> list[dict[str, Any]]:
        """The commands that run or wait, oldest first: `id`, `kind`, `since` (Unix seconds)."""
        return [{"id": name, "kind": kind, "since": since} for name, (kind, since) in self._active.items()]

    async def run(self) -> None:
        """Until it is cancelled. First what an earlier run of bcd left behind, then the orders."""
        await self._recover()
        async with asyncio.TaskGroup() as group:
            while True:
                command, at = await self._orders.get()
                group.create_task(self._answer(command, at))

    # -- after a start

    async def _recover(self) -> None:
        """Answers that nobody acknowledged are sent again; what was running ends as its kind says, or waits for its repeat."""
        for record in list(self._store.all()):
            if record.result is not None:
                if not record.acknowledged:
                    self._send(record.result)
                continue
            kind = self._kinds.get(record.kind)
            given_up = self._clock() - record.started > KEPT  # nobody has repeated it
            if kind is None or kind.after_crash is AfterCrash.INTERRUPTED or (given_up and kind.after_crash is AfterCrash.AGAIN):
                self._send(await self._interrupted(record, kind))
            elif kind.after_crash is AfterCrash.BY_BOOT and record.boot_id != self._node.boot_id:
                self._send(self._rebooted(record))

    async def _interrupted(self, record: Record, kind: Kind | None) -> CommandResult:
        if kind is not None and kind.tidy is not None:
            await kind.tidy(record.facts, self._node)
        error = Failed("Interrupted", "bcd ended while the command ran", effectBegan=record.began is not None)
        return self._finish(record, _result(record.id, error))

    def _rebooted(self, record: Record) -> CommandResult:
        payload = {"bootId": self._node.boot_id, "previousBootId": record.boot_id}
        return self._finish(record, CommandResult(record.id, "succeeded", "", json.dumps(payload)))

    # -- one command

    async def _answer(self, command: Command, at: float) -> None:
        try:
            self._send(await self._outcome(command, at))
        finally:
            self._active.pop(command.id, None)

    async def _outcome(self, command: Command, at: float) -> CommandResult:
        if not is_id(command.id):
            return _result(command.id, Failed("BadId", "a command's id is 1 to 100 letters, digits and _.-"))
        try:
            record = self._store.get(command.id)
        except Damaged as error:
            return _result(command.id, Failed("Interrupted", str(error)))
        if record is not None and record.result is not None:
            return record.result
        kind = self._kinds.get(command.kind if record is None else record.kind)
        if record is not None and (kind is None or kind.after_crash is AfterCrash.INTERRUPTED):
            return await self._interrupted(record, kind)
        by_boot = kind is not None and kind.after_crash is AfterCrash.BY_BOOT
        if record is not None and by_boot and record.boot_id != self._node.boot_id:
            return self._rebooted(record)
        # A repeat was in time once: what does no harm runs again whenever it comes, a reboot when it had begun.
        harmless = kind is not None and kind.after_crash is AfterCrash.AGAIN
        begun = record is not None and (harmless or record.began is not None)
        deadline = None if begun or command.start_within is None else at + command.start_within
        return await self._start(command, kind, deadline)

    async def _start(self, command: Command, kind: Kind | None, deadline: float | None) -> CommandResult:
        """Runs a new command, or again one whose repeat runs again."""
        now = self._clock()
        record = Record(command.id, command.kind, command.payload, command.idempotency_key, now, self._node.boot_id)
        try:
            self._store.make_room(now)
            if kind is None:
                raise Failed("UnsupportedCommand", f"this bcd knows the kinds {', '.join(self._kinds)}")
            if command.kind not in self._node.config.commands_allow:
                raise Refused("NotAllowed", f"this node accepts {', '.join(self._node.config.commands_allow) or 'no commands'}")
            order = Running(record, _object(command.payload), self._store, self._clock)
            limit = kind.limit(order.payload)
        except Ended as error:
            return self._finish(record, _result(command.id, error))
        except Full as error:
            return _result(command.id, Refused("NotRecorded", str(error)))
        return await self._in_turn(kind, order, limit, deadline)

    async def _in_turn(self, kind: Kind, order: Running, limit: float, deadline: float | None) -> CommandResult:
        """Waits for those that run alone; then the record, then the effect. `deadline`: the latest start, monotonic."""
        try:
            async with asyncio.timeout_at(deadline):
                if kind.alone:
                    await self._alone.acquire()
        except TimeoutError:
            return self._finish(
                order.record, _result(order.id, Expired("", "another command ran until it was too late to start"))
            )
        try:
            if deadline is not None and time.monotonic() >= deadline:
                return self._finish(order.record, _result(order.id, Expired("", "it came too late to start")))
            order.keep()
            _log.info("command %s (%s) starts", order.id, order.record.kind)
            return self._finish(order.record, await self._run(kind, order, limit), order)
        except Full as error:
            return _result(order.id, Refused("NotRecorded", str(error)))
        finally:
            if kind.alone:
                self._alone.release()

    async def _run(self, kind: Kind, order: Running, limit: float) -> CommandResult:
        """The one runner: a bug in one command is that command's failure, and goes loud as `Bug`."""
        try:
            async with asyncio.timeout(limit):
                return CommandResult(order.id, "succeeded", "", _payload(await kind.run(order, self._node)))
        except TimeoutError:
            return _result(order.id, Failed("TimedOut", f"not done within {limit:g} s"))
        except Ended as error:
            return _result(order.id, error)
        except FieldError as error:
            return _result(order.id, Failed(type(error).__name__, str(error)))
        except Exception as error:  # noqa: BLE001 - the one runner
            _log.exception("command %s (%s)", order.id, order.record.kind)
            return _result(order.id, Failed("Bug", f"{type(error).__name__}: {error}"))

    def _finish(self, record: Record, result: CommandResult, order: Running | None = None) -> CommandResult:
        record = order.record if order else record
        _log.info("command %s (%s): %s %s", record.id, record.kind, result.status, result.reason)
        try:
            self._store.put(replace(record, result=result))
        except Full as error:  # the answer goes out all the same; a repeat after a restart finds it interrupted
            _log.error("%s", error)
        return result


def _object(text: str) -> Payload:
    """A command's payload. Raises Failed (BadPayload)."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise Failed("BadPayload", f"the payload is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Failed("BadPayload", "the payload is not a JSON object")
    return value


def _payload(value: Payload) -> str:
    """An answer as JSON; of one that is too long what is short in it, such as `passed`."""
    text = json.dumps(value)
    if len(text) <= MAX_PAYLOAD:
        return text
    short = {key: item for key, item in value.items() if len(json.dumps(item)) <= 200}
    return json.dumps({**short, "message": f"the rest of the answer is left out: it is longer than {MAX_PAYLOAD} bytes"})


def _result(command_id: str, error: Ended) -> CommandResult:
    return CommandResult(command_id, error.status, error.reason, _payload({"message": str(error)[:2000], **error.payload}))
