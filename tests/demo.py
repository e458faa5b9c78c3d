"""`make demo`: the main job, end to end, on this machine.

An embedded Postgres and a receiver start; bcd reports for this host, for a recorded 8 x H100 host and for a recorded 8 x A100
host in MIG mode; then the H100 host loses a GPU and swaps a disk, and the receiver tells what it knows. Nothing is left behind.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.end_to_end.processes import Fleet, fleet
from tests.hosts_catalog import copy, drop_gpu, swap_disk

STARTED = time.monotonic()


def say(text: str) -> None:
    """One line of progress, with the seconds so far."""
    print(f"[{time.monotonic() - STARTED:5.1f} s] {text}", file=sys.stderr, flush=True)


def show(run: Fleet, method: str, **arguments: object) -> None:
    """Prints a command as a person would type it, and its answer, drawn for where this is shown."""
    pairs = " ".join(f"{key}={value}" for key, value in arguments.items())
    print(f"\n$ better-compute api {method} {pairs}".rstrip(), flush=True)
    subprocess.run(run.asking(method, **arguments), check=True, timeout=60)


def main() -> None:
    """Runs the demo; an error says which step failed."""
    with tempfile.TemporaryDirectory(prefix="bc-demo-") as directory:
        base = Path(directory)
        say("starting Postgres and the receiver")
        with fleet(base) as run:
            h100 = copy("h100-sxm-8", base / "hosts")
            hosts = {"this-host": None, "h100": h100, "a100-mig": copy("a100-mig-8", base / "hosts")}
            say("starting bcd for this host, an 8 x H100 host and an 8 x A100 host in MIG mode")
            for name, host in hosts.items():
                run.daemon(name, host)
            nodes = {name: run.applied(name)["nodeId"] for name in hosts}
            say("all three inventories are applied")
            show(run, "nodes.list")
            show(run, "inventory.get", nodeId=nodes["h100"])
            say("the H100 host loses a GPU, and somebody swaps a disk")
            drop_gpu(h100, 3)
            swap_disk(h100, "nvme3n1")
            run.bcd("h100", "refresh")
            show(run, "inventory.history", nodeId=nodes["h100"])
            show(run, "inventory.diff", nodeId=nodes["h100"])
            show(run, "events.list", nodeId=nodes["h100"])
            say("stopping")
    say("done; nothing is left behind")


if __name__ == "__main__":
    main()
