"""What the receiver concludes from a fleet of recorded hosts, step by step: the story of `make demo` and of an end-to-end test.

Each step does one thing to the fleet, waits for what must follow, shows it as an operator sees it, and raises where it is not so.
Everything is real but the hosts, which are recorded, and placement, which is a few lines of SQL (tests/receiver/placement.py).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from bettercompute.contract import gpu_models

from tests import hosts_catalog as hosts
from tests.end_to_end.processes import Fleet, wait_for
from tests.queue_command import url_of
from tests.receiver import placement

FALLEN = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
DOUBLE_BIT = "pid=21044, name=python3, An uncorrectable double bit error (DBE) has been detected on GPU."


@dataclass
class Story:
    """A fleet under way. `say` tells what happens, `drawn` calls a method and shows its answer; a test leaves both out."""

    run: Fleet
    say: Callable[[str], None] = lambda text: None
    drawn: Callable[..., None] | None = None
    hosts: dict[str, Path] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)

    def show(self, method: str, **arguments: object) -> None:
        """Shows an answer to whoever watches."""
        if self.drawn is not None:
            self.drawn(method, **arguments)

    def order(self, method: str, **arguments: object) -> None:
        """Has something done, and shows the answer to whoever watches."""
        (self.drawn or self.run.api)(method, **arguments)

    # ---- the fleet

    def add(self, name: str, recorded: str, seed: int | None = None) -> None:
        """Starts bcd on a copy of a recorded host; with a seed it is another machine of the model."""
        directory = hosts.copy(recorded, self.run.base / "hosts" / name)
        if seed is not None:
            hosts.another_machine(directory, seed)
        self.hosts[name] = directory
        self.run.daemon(name, directory)
        self.nodes[name] = self.run.applied(name)["nodeId"]

    def reboot(self, name: str) -> None:
        """The host comes back with what is in it now."""
        hosts.new_boot(self.hosts[name])
        self.run.daemons[name].start()
        self.run.applied(name)

    # ---- what is so

    def node(self, name: str) -> Any:
        """nodes.get."""
        return self.run.api("nodes.get", nodeId=self.nodes[name])

    def bookable(self, name: str) -> list[str]:
        """The ids of the node's bookable atoms."""
        return sorted(one["id"] for one in self.run.api("atoms.list", nodeId=self.nodes[name], limit=1000)["atoms"])

    def gpus(self, name: str) -> list[str]:
        """The UUIDs of the GPUs that are in the host, in NVML's order."""
        return [hosts.gpu_of(self.hosts[name], index)[0] for index in range(8)]

    def reasons(self, name: str) -> list[str]:
        """The node's noScheduleReasons."""
        return [one["type"] for one in self.node(name)["noScheduleReasons"]]

    def conditions(self, name: str) -> set[tuple[str, str]]:
        """Type and device of the node's conditions that are true."""
        return {(one["type"], one.get("deviceId") or "") for one in self.node(name)["conditions"] if one["status"] == "true"}

    def database(self) -> "psycopg.Connection[Any]":
        """The receiver's Postgres, as a placement system connects to it."""
        return psycopg.connect(url_of(str(self.run.base / "receiver")))

    def xid(self, name: str, index: int, code: int, text: str = FALLEN) -> str:
        """The driver of a host logs an XID; the GPU's UUID."""
        hosts.say_xid(self.hosts[name], index, code, text)
        return hosts.gpu_of(self.hosts[name], index)[0]

    def until(self, what: str, so: Callable[[], bool]) -> None:
        """Waits until it is so. Raises TimeoutError that names it."""
        wait_for(what, so, 30.0, 0.1)

    # ---- the steps

    def begin(self) -> None:
        """Two H100 hosts of one model and an A100 host in MIG mode; all GPUs of the first are bookable."""
        self.add("h100-a", "h100-sxm-8")
        self.add("h100-b", "h100-sxm-8", seed=2)
        self.add("a100-mig", "a100-mig-8")
        policy = '{"disruptionBudget": 0}'  # a person repairs here
        pool = self.run.api("pools.create", name="h100", gpuModel="H100", policy=policy, reason="demo")["id"]
        for name in ("h100-a", "h100-b"):
            self.run.api("nodes.move", nodeId=self.nodes[name], poolId=pool, reason="demo")
        self.until("8 bookable GPUs", lambda: self.bookable("h100-a") == sorted(self.gpus("h100-a")))
        self.say("all are applied and adopted: 8 GPUs of h100-a are bookable")
        self.show("nodes.list")
        self.show("atoms.list", nodeId=self.nodes["h100-a"])

    def a_gpu_fails(self) -> None:
        """XID 48 takes one GPU out of placement; what is booked on it stays booked."""
        gpu = self.gpus("h100-a")[2]
        with self.database() as tx:
            one = next(one for one in placement.find(tx, 1000) if one.atom_id == gpu)
            assert placement.book(tx, "demo-booking", one)
        self.say("a customer books GPU 2 of h100-a; then the driver reports XID 48 of it")
        assert self.xid("h100-a", 2, 48, DOUBLE_BIT) == gpu
        self.until("XID 48 to be concluded", lambda: ("Xid48", gpu) in self.conditions("h100-a"))
        assert self.bookable("h100-a") == sorted(set(self.gpus("h100-a")) - {gpu}), "the 7 others"
        assert self.reasons("h100-a") == []
        with self.database() as tx:
            assert tx.execute("SELECT ended_at FROM bookings WHERE booking_id = 'demo-booking'").fetchone() == (None,)
        self.show("nodes.why", nodeId=self.nodes["h100-a"])

    def a_node_fails(self) -> None:
        """XID 79 takes a whole node out of placement."""
        self.say("XID 79 on h100-b: the whole node is NoSchedule")
        gpu = self.xid("h100-b", 0, 79)
        self.until("XID 79 to be concluded", lambda: self.reasons("h100-b") == ["Xid79"])
        assert self.bookable("h100-b") == []
        assert ("Xid79", gpu) in self.conditions("h100-b")
        self.show("nodes.why", nodeId=self.nodes["h100-b"])

    def a_clear_holds(self) -> None:
        """A clear, 10 unchanged reports: it stays clear. One more XID: it opens again."""
        gpu = self.gpus("h100-a")[2]
        self.say("XID 48 is cleared; reports repeat it, and it stays clear; one more XID 48 opens it again")
        with self.database() as tx:
            placement.end(tx, "demo-booking")
        self.order("devices.clear", deviceId=gpu, reason="burn-in passed")
        self.until("8 bookable GPUs", lambda: len(self.bookable("h100-a")) == 8)
        for number in range(10):
            self.run.bcd("h100-a", "refresh")
            assert gpu in self.bookable("h100-a"), f"after report {number + 1}"
        self.xid("h100-a", 2, 48, DOUBLE_BIT)
        self.until("XID 48 to open again", lambda: gpu not in self.bookable("h100-a"))
        self.run.api("devices.clear", deviceId=gpu, reason="demo goes on")
        self.until("8 bookable GPUs", lambda: len(self.bookable("h100-a")) == 8)

    def two_gpus_one_reason(self) -> None:
        """XID 79 on two GPUs, one of them cleared: still NoSchedule."""
        self.say("XID 79 on a second GPU of h100-b; the first is cleared: the node is still NoSchedule")
        first, second = self.gpus("h100-b")[0], self.xid("h100-b", 1, 79)
        self.until("the second XID 79", lambda: ("Xid79", second) in self.conditions("h100-b"))
        self.run.api("devices.clear", deviceId=first, reason="reseated")
        assert self.reasons("h100-b") == ["Xid79"]
        assert ("Xid79", first) not in self.conditions("h100-b")
        self.show("nodes.why", nodeId=self.nodes["h100-b"])
        self.run.api("devices.clear", deviceId=second, reason="reseated")
        assert self.reasons("h100-b") == []
        assert len(self.bookable("h100-b")) == 8

    def mig_changes(self) -> None:
        """A MIG instance is taken away: its atom goes, the others stay as they are."""
        self.until("MIG atoms", lambda: len(self.bookable("a100-mig")) > 8)
        before = self.bookable("a100-mig")
        self.say(f"somebody takes away a MIG instance of a100-mig, which has {len(before)} atoms")
        hosts.merge_mig(self.hosts["a100-mig"], 0)
        self.run.bcd("a100-mig", "refresh")
        self.until("one atom less", lambda: len(self.bookable("a100-mig")) == len(before) - 1)
        assert set(self.bookable("a100-mig")) < set(before)
        self.show("events.list", nodeId=self.nodes["a100-mig"], type="node.mig.layout.changed")

    def a_gpu_moves(self) -> None:
        """GPU 7 of h100-a goes into h100-b, and h100-a gets a new one. The new owner waits until the old one lets go."""
        moved = hosts.gpu_of(self.hosts["h100-a"], 7)
        self.say("GPU 7 of h100-a is put into h100-b, and a new GPU into its place; h100-b is up first")
        for name in ("h100-a", "h100-b"):
            self.run.daemons[name].stop()
        hosts.put_gpu(self.hosts["h100-b"], 7, *moved)
        hosts.put_gpu(self.hosts["h100-a"], 7, "GPU-11111111-2222-4333-8444-555555555555", "1652423000001")
        self.reboot("h100-b")
        self.until("DuplicateIdentity", lambda: ("DuplicateIdentity", moved[0]) in self.conditions("h100-b"))
        self.show("nodes.why", nodeId=self.nodes["h100-b"])
        snapshots = self.run.api("inventory.history", nodeId=self.nodes["h100-b"])["snapshots"]
        self.reboot("h100-a")
        self.until("the old owner to let go", lambda: moved[0] in self.bookable("h100-b"))
        assert self.run.api("inventory.history", nodeId=self.nodes["h100-b"])["snapshots"] == snapshots, "no new inventory"
        assert self.reasons("h100-b") == []
        self.until("h100-a to have its new GPU", lambda: self.bookable("h100-a") == sorted(self.gpus("h100-a")))
        self.show("devices.history", deviceId=moved[0])

    def a_tenant_lies(self) -> None:
        """A lease gives a tenant root: what the node reports changes nothing. Its end: the node's word counts again."""
        node = self.nodes["h100-b"]
        self.say("a tenant leases h100-b and has root there: GPUs vanish, XIDs appear, and nothing is believed")
        self.run.api("nodes.setTrust", nodeId=node, trust="tenant-controlled", leaseId="lease-demo", reason="bare metal lease")
        assert self.bookable("h100-b") == [], "not the platform's to place on"
        before = self.node("h100-b")
        hosts.drop_gpu(self.hosts["h100-b"], 3)
        self.xid("h100-b", 0, 79)
        self.run.bcd("h100-b", "refresh")
        self.until(
            "the tenant's inventory",
            lambda: self.run.api("inventory.history", nodeId=node)["snapshots"][0]["advisory"],
        )
        after = self.node("h100-b")
        for key in ("devices", "noScheduleReasons", "labels", "appliedSnapshotId"):
            assert after.get(key) == before.get(key), key
        self.show("inventory.history", nodeId=node)
        self.say("the lease ends, and with it the node's certificate; the machine is wiped, joins again, and its word counts")
        self.run.api("nodes.setTrust", nodeId=node, trust="platform", reason="lease ended")
        self.run.daemons["h100-b"].stop()
        if self.run.port:
            self.run.join("h100-b", self.hosts["h100-b"], node)
        self.reboot("h100-b")
        self.until("the missing GPU to be told", lambda: self.reasons("h100-b") == ["GpuMissing"])
        self.show("nodes.why", nodeId=node)
        self.say("an operator takes what is left as complete")
        self.run.api("nodes.adopt", nodeId=node, reason="goes on with 7 GPUs until the spare comes")
        self.until("7 bookable GPUs", lambda: len(self.bookable("h100-b")) == 7)

    def a_name_is_learnt(self, path: Path) -> None:
        """The models table gains a name: GpuModelUnknown clears, and the node has sent no new inventory."""
        self.say("a GPU that the models table does not know; then the table knows it")
        self.add("rtx", "geforce-workstation")
        self.until("GpuModelUnknown", lambda: "GpuModelUnknown" in self.reasons("rtx"))
        self.show("nodes.why", nodeId=self.nodes["rtx"])
        snapshots = self.run.api("inventory.history", nodeId=self.nodes["rtx"])["snapshots"]
        self.run.receiver.stop()
        path.write_text(gpu_models.FILE.read_text())
        self.run.restart_receiver()
        self.until("GpuModelUnknown to clear", lambda: "GpuModelUnknown" not in self.reasons("rtx"))
        assert self.run.api("inventory.history", nodeId=self.nodes["rtx"])["snapshots"] == snapshots
        self.show("nodes.get", nodeId=self.nodes["rtx"])

    def tell(self, models: Path) -> None:
        """All steps, in order. `models`: the table that the receiver was started with (`older_table`)."""
        self.begin()
        self.a_gpu_fails()
        self.a_node_fails()
        self.a_clear_holds()
        self.two_gpus_one_reason()
        self.mig_changes()
        self.a_gpu_moves()
        self.a_tenant_lies()
        self.a_name_is_learnt(models)


def older_table(path: Path) -> Path:
    """Writes the models table as it was before it knew the RTX 4090."""
    table = json.loads(gpu_models.FILE.read_text())
    unknown = "RTX-4090"
    table["version"] -= 1
    table["products"] = [row for row in table["products"] if row["model"] != unknown]
    table["families"].pop(unknown)
    path.write_text(json.dumps(table))
    return path
