"""The health probe's side in the daemon (SPEC A6): asks a child every `probe.interval`, compares with the last collection, and
keeps what only two probes together tell: the PCIe replay counters and the answers that did not come.
"""

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.sections import Failed, Section

LIMIT = 15.0  # seconds for an answer
HANGS = 2  # answers in a row that did not come: NVML hangs
RETRY = 15.0  # seconds to the next probe after one that did not answer
HOUR = 3600.0

_log = logging.getLogger("bcd.probe")


@dataclass(frozen=True, slots=True)
class Answer:
    """One probe. `skipped`: asking would have woken a GPU. `error`: NVML's code, `Hang`, or why the child failed."""

    skipped: str = ""
    error: str = ""
    gpus: tuple[pb.Gpu, ...] = ()
    replays: Mapping[str, int] = field(default_factory=dict)  # UUID -> counter
    widths: Mapping[str, int] = field(default_factory=dict)  # UUID -> lanes now


@dataclass(frozen=True, slots=True)
class History:
    """What the probes of one boot have told. Times are seconds of one monotonic clock."""

    boot_id: str = ""
    last: Answer | None = None
    hangs: int = 0  # in a row, up to now
    replays: Mapping[str, tuple[tuple[float, int], ...]] = field(default_factory=dict)  # UUID -> (time, counter), oldest first

    @property
    def is_hung(self) -> bool:
        """NVML did not answer so often that it hangs."""
        return self.hangs >= HANGS


def decode(outcome: Section | Failed) -> Answer:
    """A child's answer (agent/collectors/probe.py)."""
    if isinstance(outcome, Failed):
        return Answer(error=outcome.reason)
    said = json.loads(outcome.data)
    if "gpus" not in said:
        return Answer(skipped=said.get("skipped", ""), error=said.get("error", ""))
    gpus = pb.GpusSection.FromString(base64.b64decode(said["gpus"])).gpus
    return Answer(gpus=tuple(gpus), replays=said.get("replays", {}), widths=said.get("widths", {}))


def differs(answer: Answer, section: pb.GpusSection | None) -> str | None:
    """What the probe saw that the last collection's section does not say, in words; None: nothing. Skipped and hung ones see
    nothing, but a collection that failed is another after an answer."""
    if answer.skipped or answer.error == "Hang":
        return None
    if section is None:
        return None if answer.error else "NVML answers again"
    if answer.error or section.HasField("error"):
        return "NVML answers otherwise" if bool(answer.error) != section.HasField("error") else None
    now = {gpu.uuid: _probed(gpu) for gpu in answer.gpus}
    then = {gpu.uuid: _probed(gpu) for gpu in section.gpus if gpu.state == "ok" and not gpu.assigned and gpu.uuid}
    if gone := sorted(then.keys() ^ now.keys()):
        return f"{', '.join(gone)} came or went"
    changed = sorted(uuid for uuid in now if now[uuid] != then[uuid])
    return f"{', '.join(changed)} changed" if changed else None


def _probed(gpu: pb.Gpu) -> pb.Gpu:
    """Of a GPU what the probe reads: both sides are cut down to this."""
    part = pb.Gpu(uuid=gpu.uuid)
    for name in ("row_remap", "fabric"):
        if gpu.HasField(name):
            getattr(part, name).CopyFrom(getattr(gpu, name))
    if gpu.HasField("recovery_action"):
        part.recovery_action = gpu.recovery_action
    if gpu.retired_pages.HasField("pending"):
        part.retired_pages.pending = gpu.retired_pages.pending
    if gpu.ecc.HasField("volatile"):
        part.ecc.volatile.CopyFrom(gpu.ecc.volatile)
    if gpu.ecc.HasField("sram_threshold_exceeded"):
        part.ecc.sram_threshold_exceeded = gpu.ecc.sram_threshold_exceeded
    return part


def learn(history: History, answer: Answer, boot_id: str, now: float) -> History:
    """The history after one more probe. Another boot begins it anew; a counter that went back (a reset) begins its own."""
    if history.boot_id != boot_id:
        history = History(boot_id)
    if answer.skipped:
        return replace(history, last=answer)
    hangs = history.hangs + 1 if answer.error == "Hang" else 0
    if answer.error:
        return replace(history, last=answer, hangs=hangs)
    replays = {uuid: _counted(history.replays.get(uuid, ()), now, count) for uuid, count in answer.replays.items()}
    return History(boot_id, answer, hangs, replays)


def _counted(before: tuple[tuple[float, int], ...], now: float, count: int) -> tuple[tuple[float, int], ...]:
    """The samples of the last hour and the youngest that is older."""
    if before and count < before[-1][1]:
        before = ()
    older = [sample for sample in before if sample[0] <= now - HOUR][-1:]
    return (*older, *(sample for sample in before if sample[0] > now - HOUR), (now, count))


def risen(samples: Sequence[tuple[float, int]]) -> float | None:
    """By how much a counter rose in an hour, at the most between two of its samples and the last; None for a single one.

    Samples further apart than an hour are taken to have risen evenly.
    """
    if len(samples) < 2:
        return None
    end, last = samples[-1]
    return max((last - count) / max(1.0, (end - at) / HOUR) for at, count in samples[:-1])


class Prober:
    """One long-running part of the daemon. `ask()` runs the child's task; `told(history, difference)` hears of each probe."""

    def __init__(
        self,
        interval: Callable[[], float],
        ask: Callable[[], Awaitable[Section | Failed]],
        section: Callable[[], pb.GpusSection | None],
        boot_id: Callable[[], str],
        told: Callable[[str | None], None],
    ) -> None:
        self._interval = interval
        self._ask = ask
        self._section = section
        self._boot_id = boot_id
        self._told = told
        self._resettled = asyncio.Event()
        self.history = History()

    def collected(self) -> None:
        """A collection has read the GPUs: NVML answers, whatever probes found before (they may be skipped from now on)."""
        self.history = replace(self.history, hangs=0)

    def resettle(self) -> None:
        """The settings have changed."""
        self._resettled.set()

    async def run(self) -> None:
        """A probe each interval; 0 is never. After one without an answer the next comes sooner."""
        while True:
            interval = self._interval()
            wait = min(interval, RETRY) if self.history.last and self.history.last.error == "Hang" else interval
            self._resettled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait or None):
                    await self._resettled.wait()
                continue
            await self.probe()

    async def probe(self) -> None:
        """One probe."""
        answer = decode(await self._ask())
        now = asyncio.get_running_loop().time()
        self.history = learn(self.history, answer, self._boot_id(), now)
        difference = differs(answer, self._section())
        if difference:
            _log.info("the health probe sees a difference: %s", difference)
        elif answer.error == "Hang":
            _log.warning("the health probe had no answer within %g s", LIMIT)
        self._told(difference)
