"""CPU of one collection's child on the 8 x H100 host, beside interpreter start + import pynvml + reading the same files."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent.collection import Collector
from agent.collectors import COLLECTORS, Options, collect
from agent.host import MAX_FILE, Host
from agent.recorded import open_host, open_nvml
from tests.bench import Row
from tests.hosts_catalog import HOSTS
from tests.nvml_stub import stub

REPEATS = 15
HOST = "h100-sxm-8"
_FLOOR = "import sys, pynvml\nfor path in open(sys.argv[1]).read().split('\\0'): open(path, 'rb').read()"


def rows() -> Iterator[Row]:
    """One row. The stub library answers NVML's calls, so pynvml's own cost is in the figure."""
    with tempfile.TemporaryDirectory(prefix="bc-bench-") as directory:
        base = Path(directory)
        listed = base / "files"
        listed.write_text("\0".join(_files_read()))
        driver = stub(base, json.loads((HOSTS[HOST] / "nvml.json").read_text()))
        parent = Collector(HOSTS[HOST], Options(), str(driver.library), 60.0)
        request = parent._request(list(COLLECTORS), (), {})  # what the daemon's own parent would ask
        worker = [sys.executable, "-P", "-m", "agent.collectors.worker"]
        # As installed: with compiled modules, which the run before the first counted one writes.
        environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        figure = _cpu(worker, request, environ)
        floor = _cpu([sys.executable, "-P", "-c", _FLOOR, str(listed)], b"", environ)
        yield Row("child CPU of a collection, 8 x H100", figure, "ms", "python + pynvml + the same files", floor, 3.0)


def _files_read() -> list[str]:
    """The files below the recorded host that a collection of all sections reads."""
    seen: dict[str, None] = {}

    class Tracing(type(open_host(HOSTS[HOST]))):  # type: ignore[misc]
        def read(self, path: str, limit: int = MAX_FILE, follow: bool = True) -> bytes:
            data: bytes = super().read(path, limit, follow)
            seen[str(self.resolve(path))] = None
            return data

    plain = open_host(HOSTS[HOST])
    host: Host = Tracing(**{name: getattr(plain, name) for name, one in plain.__dataclass_fields__.items() if one.init})
    for name in COLLECTORS:
        collect(name, host, open_nvml(HOSTS[HOST]))
    return list(seen)


def _cpu(argv: list[str], request: bytes, env: Mapping[str, str]) -> float:
    """Median CPU of the command in ms, user and system, over REPEATS runs."""
    spent = []
    for _ in range(REPEATS + 1):
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env)
        assert child.stdin is not None
        child.stdin.write(request)
        child.stdin.close()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{argv[:4]} ended with {child.returncode}")
        spent.append(1000 * (usage.ru_utime + usage.ru_stime))
    return statistics.median(spent[1:])
