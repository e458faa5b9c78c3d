"""How loaded the host is (SPEC A5): PSI and CPU steal, sampled for the status report that carries them.

A sample is taken when a report is made and the last one is as old as the interval: so each report at its interval has a fresh
one, and nothing is sent because of it alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from agent.errors import Unreadable
from agent.host import Host
from agent.session.messages import Pressure

INTERVAL = 30.0  # seconds
_SLACK = 1.0  # a report's timer may be early by less
_KINDS = ("cpu", "memory", "io")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Clock ticks since boot over all CPUs: all of them, and those stolen by the hypervisor."""

    total: int
    steal: int


def some_avg10(text: str) -> float | None:
    """Percent of the last 10 s in which something waited, from /proc/pressure/*; None for another text.

    >>> some_avg10("some avg10=1.53 avg60=0.87 avg300=0.25 total=91204112\\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1")
    1.53
    """
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["some"]:
            values = dict(word.partition("=")[::2] for word in words)
            try:
                percent = float(values.get("avg10", ""))
            except ValueError:
                return None
            return percent if 0 <= percent <= 100 else None
    return None


def cpu_times(text: str) -> CpuTimes | None:
    """The first line of /proc/stat; guest times are in user's already. None for another text.

    >>> cpu_times("cpu  4705 150 1120 16250 520 0 30 25 0 0\\ncpu0 4705 150 1120 16250 520 0 30 25 0 0")
    CpuTimes(total=22800, steal=25)
    """
    words = text.split("\n", 1)[0].split()
    if len(words) < 9 or words[0] != "cpu" or not all(word.isdigit() for word in words[1:9]):
        return None
    numbers = [int(word) for word in words[1:9]]  # user nice system idle iowait irq softirq steal
    return CpuTimes(sum(numbers), numbers[7])


def steal(before: CpuTimes | None, now: CpuTimes | None) -> float:
    """Percent of CPU time stolen between two samples; 0 for the first, and for counters that went back."""
    if before is None or now is None or now.total <= before.total or now.steal < before.steal:
        return 0.0
    return min(100.0, 100.0 * (now.steal - before.steal) / (now.total - before.total))


@dataclass(frozen=True, slots=True)
class _State:
    at: float | None = None
    times: CpuTimes | None = None
    pressure: Pressure | None = None
    number: int = 0  # of the samples so far


class Sampler:
    """The last sample, taken anew when it is asked for and too old."""

    def __init__(self, host: Callable[[], Host], clock: Callable[[], float]) -> None:
        self._host = host
        self._clock = clock
        self._state = _State()

    def now(self) -> Pressure | None:
        """The sample of now, at most INTERVAL old; None on a kernel without PSI."""
        at, state = self._clock(), self._state
        if state.at is not None and at - state.at < INTERVAL - _SLACK:
            return state.pressure
        pressure, times = read(self._host(), state.times)
        pressure = replace(pressure, number=state.number + 1) if pressure else None
        self._state = _State(at, times, pressure, state.number + 1)
        return pressure


def read(host: Host, before: CpuTimes | None) -> tuple[Pressure | None, CpuTimes | None]:
    """A sample, and the CPU times that the next one needs; `before` are those of the last one."""
    times = cpu_times(_text(host, "/proc/stat"))
    cpu, memory, io = (some_avg10(_text(host, f"/proc/pressure/{kind}")) for kind in _KINDS)
    if cpu is None or memory is None or io is None:
        return None, times
    return Pressure(cpu, memory, io, steal(before, times)), times


def _text(host: Host, path: str) -> str:
    try:
        return host.read(path).decode(errors="replace")
    except Unreadable:  # no PSI (ENOENT), switched off (EOPNOTSUPP), or out of reach: there is no figure
        return ""
