"""Collecting now and waiting until the receiver has answered the offer: `bcd refresh` and `inventory.refresh`."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent import status
from agent.errors import Failed, UserError
from agent.inventory import Inventory
from agent.session import machine
from agent.session import messages as m
from agent.session.stream import Link

TIMEOUT = 120.0  # seconds, as inventory.refresh has (A7)
CONNECT_PATIENCE = 10.0  # how long a refresh waits for a receiver that is not connected


@dataclass
class Refresh:
    """What a refresh needs of the daemon. `want` answers the number of the collection, `done` that of the last one that ended."""

    link: Link
    want: Callable[[str], int]
    done: Callable[[], int]
    failure: Callable[[], str]  # of the last collection
    inventory: Callable[[], Inventory | None]
    answer: m.InventoryResult | None = None  # the receiver's last
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def answered(self, result: m.InventoryResult) -> None:
        """The receiver has answered an offer."""
        self.answer = result
        self.tell()

    def tell(self) -> None:
        """Wakes whoever waits for something of the daemon to become true."""
        self._news.set()
        self._news = asyncio.Event()

    async def local(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Collects and waits until the receiver has it, or says no, or is out of reach. `timeout`: seconds."""
        timeout = request.get("timeout", TIMEOUT)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise UserError(f"refresh: timeout is {timeout!r}; expected seconds above zero")
        number = self.want("refresh")
        try:
            async with asyncio.timeout(timeout):
                reason = await self._served(number)
        except TimeoutError:
            what = "the receiver has not answered" if self.done() >= number else "the collection has not ended"
            reason = f"{what} after {timeout:g} s"
        applied = not reason and self.link.machine.is_applied
        return {"applied": applied, "reason": reason, **status.describe(self.inventory())}

    async def command(self) -> Mapping[str, Any]:
        """The same for `inventory.refresh`, whose own limit ends the wait. Raises Failed when the receiver does not have it."""
        reason = await self._served(self.want("refresh"))
        inventory = self.inventory()
        if reason or inventory is None:
            raise Failed("NotApplied", reason or "nothing was collected")
        here = self.answer if self.answer and self.answer.digest == inventory.digest else None
        return {
            "digest": inventory.digest,
            "status": here.status if here else "unchanged",  # no offer was needed: the receiver has this digest
            "snapshotId": here.snapshot_id if here else "",
            "missing": [{"name": missing.name, "error": missing.error} for missing in status.missing(inventory)],
        }

    async def _served(self, number: int) -> str:
        """Waits for a collection and its offer's end. Empty when the receiver has the inventory, else why it has not."""
        await self._until(lambda: self.done() >= number)
        return self.failure() or await self._outcome()

    async def _outcome(self) -> str:
        link = self.link
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_PATIENCE):
                await self._until(lambda: link.machine.welcomed)
        if not link.machine.welcomed:
            return f"the receiver {link.state.server} cannot be reached: {link.state.error or 'no answer yet'}"
        await self._until(lambda: link.machine.is_applied or self._refused())
        return f"the receiver's answer: {words(self.answer)}" if self.answer and not link.machine.is_applied else ""

    def _refused(self) -> bool:
        answer, inventory = self.answer, self.inventory()
        here = answer is not None and inventory is not None and answer.digest == inventory.digest
        return self.link.machine.phase is machine.Phase.IDLE and here and answer is not None and answer.status == "refused"

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self._news.wait()


def words(result: m.InventoryResult) -> str:
    """An offer's result for a person: `refused: section gpus: does not parse`."""
    parts = [result.status, f"section {result.section}" if result.section else "", result.reason]
    return ": ".join(part for part in parts if part)
