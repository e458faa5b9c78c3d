"""`bcd xid` on a large log with one XID in 10,000 lines, beside `grep -c 'NVRM: Xid'` on the same file; a matched line's cost.

CPU time, the least of some runs in turn: the file is in memory, and both are one thread.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench import Row

RUNS = 5
RARE = 10_000  # lines to one XID
_OTHERS = (
    "XFS (nvme0n1p2): Mounting V5 Filesystem",
    "cni0: port 20(vetha96ec2b3) entered promiscuous mode",
    "TCP: request_sock_TCP: Possible SYN flooding on port 10250. Sending cookies.  Check SNMP counters.",
    "mlx5_core 0000:dc:00.0: Port module event: module 0, Cable plugged",
)
_XID = "NVRM: Xid (PCI:0000:{bus:02x}:00): 79, pid=1234, name=python, GPU has fallen off the bus."
_BCD = (sys.executable, "-m", "agent.cli", "xid")
_PEAK = (
    "import re, sys\nfrom agent import cli\ncli.main(sys.argv[1:])\n"
    "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)"
)


def rows(megabytes: int) -> Iterator[Row]:
    """Speed beside grep with and without line numbers, the cost of a matched line, and memory beside an empty log."""
    with tempfile.TemporaryDirectory(prefix="bc-bench-") as directory:
        large, matching, empty = (Path(directory) / name for name in ("large", "matching", "empty"))
        size = _write(large, megabytes << 20, RARE)
        lines = _write(matching, 32 << 20, 1) // len(_line(0, 1))
        empty.touch()
        grep, table, each = _cpu(["grep", "-c", "NVRM: Xid", large], [*_BCD, large], [*_BCD, "--each", large])
        note = f"{size >> 20} MiB, one XID in {RARE} lines"
        speed = [size / seconds / 1e6 for seconds in (grep, table, each)]
        yield Row("speed of bcd xid", speed[1], "MB/s", "grep -c", speed[0], 0.25, at_least=True, note=note)
        yield Row("speed of bcd xid --each", speed[2], "MB/s", "grep -c", speed[0], 0.25, at_least=True, note=note)
        table, each = (seconds / lines * 1e6 for seconds in _cpu([*_BCD, matching], [*_BCD, "--each", matching]))
        yield Row("bcd xid, a matched line", table, "us", "the limit", 15.0, 1.0, note=f"{lines} lines")
        yield Row("bcd xid --each, a matched line", each, "us", "the limit", 15.0, 1.0, note=f"{lines} lines")
        yield Row("peak RSS of bcd xid", _peak(large), "MiB", "on an empty log", _peak(empty), 1.1, note=note)


def _line(number: int, every: int) -> bytes:
    text = _XID.format(bus=number % 8) if number % every == 0 else _OTHERS[number % len(_OTHERS)]
    return f"Mar  5 09:14:02 gpu-node-1 kernel: [{number:6d}.123456] {text}\n".encode()


def _write(path: Path, size: int, every: int) -> int:
    """A log of about `size` bytes, in blocks of 10,000 lines; its size."""
    block = b"".join(_line(number, every) for number in range(RARE))
    with path.open("wb") as log:
        for _ in range(max(1, size // len(block))):
            log.write(block)
    return path.stat().st_size


def _cpu(*commands: Sequence[str | Path]) -> list[float]:
    """Seconds of CPU of each command, the least of RUNS; they take turns, so that they meet the same machine."""
    spent: list[list[float]] = [[] for _ in commands]
    for _ in range(RUNS):
        for command, times in zip(commands, spent, strict=True):
            with tempfile.TemporaryFile() as out:  # not /dev/null: with that, grep stops at the first match
                process = subprocess.Popen([str(part) for part in command], stdout=out)
                _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, command)
            times.append(usage.ru_utime + usage.ru_stime)
    return [min(times) for times in spent]


def _peak(log: Path) -> float:
    """MiB that a process of `bcd xid` has had at most. Of its own memory map: ru_maxrss has its parent's in it."""
    done = subprocess.run([sys.executable, "-c", _PEAK, "xid", log], capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1]) / 1024
