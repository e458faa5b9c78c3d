"""Hours of `bcd run` on this host: `python -m tests.bench soak --minutes 120`. As root: it writes to the kernel log.

A line in the kernel log each second (every minute one that looks like an XID of an unknown GPU), a uevent of a disk every 10 s, a
receiver that is killed every 5 minutes. Memory and descriptors are read each minute; the slope is that of the second half.
"""

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench import Row
from tests.end_to_end.processes import Fleet, fleet, rss

SLOPE = 0.5  # MiB an hour
KILL_EVERY, EVENT_EVERY, XID_EVERY = 300, 10, 60  # seconds
XID = "NVRM: Xid (PCI:0000:99:00): 13, pid=4711, name=soak, Graphics Exception"


def rows(minutes: float) -> Iterator[Row]:
    """Two rows: the slope of memory, and descriptors at the end beside those after the first ten minutes."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, fleet(Path(directory), secure=True) as run:
        bcd = run.daemon("soak", None, {"BCD_KMSG_TRUST_USERSPACE": "true"})
        run.applied("soak")
        samples = list(_watched(run, minutes))
        bcd.running()
        run.applied("soak")
    half = [(at / 3600, memory) for at, memory, _ in samples if at >= 30 * minutes]
    first = next(files for at, _, files in samples if at >= min(600, 30 * minutes))
    note = f"{minutes:g} min, {samples[-1][1]:.1f} MiB at the end"
    yield Row("slope of bcd's memory", slope(half), "MiB/h", "the limit", SLOPE, 1.0, note=note)
    yield Row("descriptors of bcd", float(samples[-1][2]), "", "after its first minutes", float(first), 1.0)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The least squares slope through (x, y).

    >>> slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)])
    2.0
    """
    return statistics.linear_regression([x for x, _ in points], [y for _, y in points]).slope


def _watched(run: Fleet, minutes: float) -> Iterator[tuple[float, float, int]]:
    """Lets the time go by with all that happens; (seconds, MiB, descriptors) each minute. Progress goes to stderr."""
    pid, began = run.daemons["soak"].pid, time.monotonic()
    disk = next(path for path in sorted(Path("/sys/block").iterdir()) if (path / "device").exists() or "virtual" not in str(path))
    for second in itertools.count(1):
        time.sleep(max(0.0, began + second - time.monotonic()))
        Path("/dev/kmsg").write_text(f"<4>{XID}\n" if second % XID_EVERY == 0 else f"<6>soak: line {second}\n")
        if second % EVENT_EVERY == 0:
            (disk / "uevent").write_text("add\n")
        if second % KILL_EVERY == 0:
            run.receiver.kill()
            run.receiver.start()
        if second % 60 == 0:
            memory, files = rss(pid), len(list(Path(f"/proc/{pid}/fd").iterdir()))
            sys.stderr.write(f"{second // 60} min: {memory:.2f} MiB, {files} descriptors\n")
            yield time.monotonic() - began, memory, files
        if time.monotonic() - began >= 60 * minutes:
            return
