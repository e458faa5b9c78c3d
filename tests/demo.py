"""`make demo`: the main job, end to end, on this machine.

An embedded Postgres and a receiver start; bcd reports for this host and for recorded ones, and the receiver tells what it knows:
an inventory, its history, what differs after a GPU and a disk went; then the story of what it concludes (tests/story.py), and of
a node that proves itself and one that is repaired (tests/story_acceptance.py, story_repair.py). Nothing is left behind.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.end_to_end.processes import Fleet, fleet
from tests.hosts_catalog import copy, drop_gpu, swap_disk
from tests.story import Story, older_table
from tests.story_acceptance import a_node_proves_itself
from tests.story_repair import a_node_is_repaired

STARTED = time.monotonic()


def say(text: str) -> None:
    """One line of progress, with the seconds so far."""
    print(f"[{time.monotonic() - STARTED:5.1f} s] {text}", file=sys.stderr, flush=True)


def show(run: Fleet, method: str, **arguments: object) -> None:
    """Prints a command as a person would type it, and its answer, drawn for where this is shown."""
    pairs = " ".join(f"{key}={_quoted(value)}" for key, value in arguments.items())
    print(f"\n$ better-compute api {method} {pairs}".rstrip(), flush=True)
    subprocess.run(run.asking(method, **arguments), check=True, timeout=60)


def _quoted(value: object) -> str:
    text = str(value)
    return f"'{text}'" if " " in text else text


def inventory(run: Fleet) -> None:
    """What nodes have, and what differs."""
    lab = copy("h100-sxm-8", run.base / "hosts" / "lab")
    say("this host and an 8 x H100 host join, each with a token: its key is made there, its certificate is the receiver's")
    print(f"\n$ bcd join --token-file token\n{run.join('this-host', None)}", flush=True)
    say("starting bcd for both")
    for name, host in {"this-host": None, "lab": lab}.items():
        run.daemon(name, host)
    nodes = {name: run.applied(name)["nodeId"] for name in run.daemons}
    say("both inventories are applied")
    show(run, "nodes.list")
    show(run, "inventory.get", nodeId=nodes["lab"])
    say("the H100 host loses a GPU, and somebody swaps a disk")
    drop_gpu(lab, 3)
    swap_disk(lab, "nvme3n1")
    run.bcd("lab", "refresh")
    show(run, "inventory.history", nodeId=nodes["lab"])
    show(run, "inventory.diff", nodeId=nodes["lab"])
    show(run, "events.list", nodeId=nodes["lab"])
    say("it is taken out of the fleet")
    run.daemons["lab"].stop()
    show(run, "nodes.retire", nodeId=nodes["lab"], reason="the lab gives it back")


def main() -> None:
    """Runs the demo; an error says which step failed."""
    with tempfile.TemporaryDirectory(prefix="bc-demo-") as directory:
        base = Path(directory)
        models = older_table(base / "models.json")
        say("starting Postgres and the receiver, with two CAs of its own")
        with fleet(base, "--models", str(models), secure=True) as run:
            inventory(run)
            story = Story(run, say, lambda method, **arguments: show(run, method, **arguments))
            story.tell(models)
            a_node_proves_itself(story)
            a_node_is_repaired(story)
            say("stopping")
    say("done; nothing is left behind")


if __name__ == "__main__":
    main()
