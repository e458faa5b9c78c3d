"""A log as a simulation would have it, told by hand: for tests of the checker."""

from collections.abc import Mapping
from typing import Any

from tests.simulation import invariants
from tests.simulation.log import Entry

POOL, NODE, OTHER, GPU = "pool_1", "node_1", "node_2", "GPU-1"
CAUSE = {"deviceId": GPU, "source": "xid", "code": "Xid79", "bootId": "boot-1"}
BUDGET, CALM = {"disruptionBudget": 1, "breaker": {"minNodes": 3}}, {"disruptionBudget": 9, "breaker": {"minNodes": 1}}


class Story:
    """A log in the making. A step is a transaction of its own, ten seconds after the last, unless it says otherwise."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.at, self.tx = 0.0, 0
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}

    def tell(self, what: str, key: str, node: str = NODE, seconds: float = 10.0, **value: Any) -> None:
        """A row becomes this; columns that are not named stay."""
        row = self.rows.setdefault((what, key), {})
        row.update(value)
        self.at, self.tx = self.at + seconds, self.tx + (seconds > 0)
        self.entries.append(Entry(len(self.entries), self.tx, self.at, what, node, key, dict(row)))

    def node(self, node: str = NODE, seconds: float = 10.0, **value: Any) -> None:
        """A node is so from now on."""
        born = {"status": "adopted", "trust": "platform", "pool_id": POOL, "draining": False, "boot_id": "boot-1"}
        self.tell("nodes", node, node, seconds, **{**({} if ("nodes", node) in self.rows else born), **value})

    def pool(self, policy: Mapping[str, Any], mode: str = "enforce") -> None:
        """A pool, as it is from now on."""
        self.tell("pools", POOL, "", mode=mode, policy=policy)

    def fault(self, open_now: bool = True, node: str = NODE, gpu: str = GPU, boot: str = "boot-1", **more: Any) -> None:
        """A fault is open, or closed."""
        closed = None if open_now else "then"
        self.tell("device_health", gpu, node, **{"source": "xid", "code": "Xid79", "boot_id": boot, "closed_at": closed, **more})

    def run(self, state: str, run: str = "run_1", node: str = NODE, seconds: float = 10.0, **value: Any) -> None:
        """A run is in this state."""
        born = {"kind": "node.reboot", "devices": [GPU], "causes": [CAUSE], "by": "", "force": False, "observed": False}
        more = {} if ("remediation_runs", run) in self.rows else {**born, "boot_id": "boot-1", "command_id": None}
        self.tell("remediation_runs", run, node, seconds, **{**more, "state": state, **value})
        self.tell("remediation_steps", run, node, 0.0, state=state)
        if state in invariants._TOLD and not value.get("observed"):
            self.event(f"node.remediation.{invariants._TOLD[state]}", node, runId=run)

    def event(self, kind: str, node: str = "", **payload: Any) -> None:
        """An event in the transaction of the last step."""
        self.tell("events", kind, node, 0.0, pool_id=POOL, payload=payload)

    def start(self, run: str = "run_1", node: str = NODE, **value: Any) -> None:
        """A run that waits starts: its command is there, and the node drains."""
        command = f"cmd_{run}"
        self.tell("remediation_steps", run, node, state="waiting")
        self.run("running", run, node, command_id=command, **value)
        self.node(node, 0.0, draining=True)
        self.tell("disruptions", f"dis_{run}", node, 0.0, pool_id=POOL, kind="remediation", owner=run, ended_at=None)
        kind = self.rows["remediation_runs", run]["kind"]
        self.tell("commands", command, node, 0.0, kind=kind, idempotency_key=f"remediation:{run}", state="queued")

    def effect(self, run: str = "run_1", node: str = NODE, boot: str = "boot-2") -> None:
        """The node reboots, and says that it did."""
        self.tell("commands", f"cmd_{run}", node, state="sent")
        self.tell("effects", f"cmd_{run}", node, kind="node.reboot", boot_id="boot-1")
        self.node(node, boot_id=boot)
        self.tell("commands", f"cmd_{run}", node, state="succeeded")
        self.run("verifying", run, node)

    def succeed(self, run: str = "run_1", node: str = NODE, cleared: bool = True) -> None:
        """The repair is proven: in one transaction its fault closes and the node takes bookings again."""
        self.run("succeeded", run, node)
        if cleared:
            row = {"source": "xid", "code": "Xid79", "boot_id": "boot-1", "closed_at": "then"}
            self.tell("device_health", GPU, node, 0.0, **row)
        self.node(node, 0.0, draining=False)
        self.tell("disruptions", f"dis_{run}", node, 0.0, ended_at="then")

    def book(self, live: bool = True, node: str = NODE, gpu: str = GPU, name: str = "b1") -> None:
        """A booking begins or ends."""
        self.tell("bookings", name, node, device_id=gpu, atom_id=gpu, ended_at=None if live else "then")


def fleet(policy: Mapping[str, Any] = BUDGET) -> Story:
    """A pool of two nodes in service; one has a fault, and a repair of it is queued."""
    story = Story()
    story.pool(policy)
    story.node()
    story.node(OTHER)
    story.fault()
    story.run("queued", seconds=0.0)
    return story


def healed() -> Story:
    """A booking ends, the node is rebooted, and the fault is gone."""
    story = fleet()
    story.book()
    story.run("waiting")
    story.book(live=False)
    story.start()
    story.effect()
    story.succeed()
    return story
