"""Sixteen nodes, what happens to them in random order from many threads, and a witness that stands in the database.

The witness is a table that triggers fill while the writers hold their locks. Its rows of a node are therefore in the order in
which the node changed, whoever changed it, and can be played again: at each booking, was the GPU without an open fault, the node
without a reason, the atom free?
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb
from google.protobuf.message import Message

from receiver.apply.health import clear_device_health
from receiver.apply.inventory import apply_inventory
from receiver.apply.replan import drain, queue
from receiver.apply.status import record_status
from receiver.apply.telemetry import record_host_pressure
from receiver.errors import Refusal
from receiver.planning.telemetry import Conclusion
from receiver.store.database import Connection, Pool, transact
from receiver.store.words import jsonb
from receiver.values import Condition, Fault, Status
from tests.receiver import placement
from tests.receiver.builders import gpu, gpus, host, join, offer

NODES, GPUS = 16, 8
XIDS = {48: 8, 31: 8, 63: 4, 79: 1}  # and how often: policies device, none, device, node
OWNERS = ("workflow", "rollout")
WANDERER = "GPU-ffffffff"  # a GPU that somebody carries from node to node
WITNESS = """
CREATE TABLE witness (seq bigint GENERATED ALWAYS AS IDENTITY, node_id text, what text, key text, value jsonb);
CREATE FUNCTION witnessed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_TABLE_NAME = 'device_health' THEN
    INSERT INTO witness (node_id, what, key, value) VALUES (NEW.node_id, 'fault', NEW.device_id,
      jsonb_build_array(concat_ws(' ', NEW.source, NEW.code, NEW.boot_id), NEW.closed_at IS NULL));
  ELSIF TG_TABLE_NAME = 'nodes' THEN
    INSERT INTO witness (node_id, what, key, value) VALUES (NEW.id, 'node', NEW.status, NEW.no_schedule_reasons);
  ELSIF NEW.ended_at IS NULL THEN
    INSERT INTO witness (node_id, what, key, value) VALUES (NEW.node_id, 'booked', NEW.device_id, to_jsonb(NEW.atom_id));
  ELSE
    INSERT INTO witness (node_id, what, key, value) VALUES (NEW.node_id, 'ended', NEW.device_id, to_jsonb(NEW.atom_id));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER witnessed AFTER INSERT OR UPDATE ON device_health FOR EACH ROW EXECUTE FUNCTION witnessed();
CREATE TRIGGER witnessed AFTER UPDATE OF status, no_schedule_reasons ON nodes FOR EACH ROW EXECUTE FUNCTION witnessed();
CREATE TRIGGER witnessed AFTER INSERT OR UPDATE ON bookings FOR EACH ROW EXECUTE FUNCTION witnessed();
"""


@dataclass(slots=True)
class Node:
    """What the test knows of a node: all that was said to the receiver, and by whom else it was written."""

    number: int
    id: str
    epoch: int = 0
    counts: Counter[tuple[int, int]] = field(default_factory=Counter)  # XID and GPU: the highest count that was reported
    applied: int = 0  # offers that were answered "applied"
    others: dict[str, str | None] = field(default_factory=dict)  # owner to its reason
    lock: Lock = field(default_factory=Lock)

    @property
    def numbers(self) -> range:
        """Its GPUs, as builders.gpu numbers them."""
        return range(self.number * GPUS, (self.number + 1) * GPUS)


class World:
    """The nodes, and how to do something to one of them. `run` does it in a transaction."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.nodes = [Node(number, f"node_01hf7yat0000000000000001{number:02d}") for number in range(NODES)]
        self.done: Counter[str] = Counter()
        self.live: list[str] = []
        self.bookings = itertools.count()

    def run(self, work: Callable[[Connection], Any]) -> Any:
        """As the gateway and the API do."""
        return transact(self.pool, work, 60.0)

    def start(self) -> None:
        """All nodes are in service, in a pool of their own kind."""
        self.run(
            lambda tx: tx.execute("INSERT INTO pools (id, tenant_id, name, kind) VALUES ('pool_1', 'default', 'a', 'vps-host')")
        )
        for node in self.nodes:
            node.epoch = self.run(partial(join, node=node.id))
            self.run(partial(_into_pool, node=node.id))
            report_inventory(self, node, random.Random(0), good=True)
        self.run(lambda tx: tx.execute(WITNESS))


def _into_pool(tx: Connection, node: str) -> None:
    tx.execute("UPDATE nodes SET pool_id = 'pool_1' WHERE id = %s", [node])


def section(node: Node, rng: random.Random, good: bool) -> pb.GpusSection:
    """The node's GPUs: all in good health, or one that waits for a reset, is lost or is gone. And perhaps one of another node."""
    bad, kind = rng.choice(node.numbers), "good" if good else rng.choice(("good", "pending", "lost", "gone"))
    listed = []
    for number in node.numbers:
        hurt = kind if number == bad else "good"
        state = "lost" if hurt == "lost" else "ok"
        if hurt != "gone":
            listed.append(gpu(number, state=state, row_remap=pb.RowRemap(pending=hurt == "pending")))
    if not good and rng.random() < 0.1:  # two nodes may report it at once: it belongs to the first
        listed.append(gpu(0, uuid=WANDERER, serial="w", bus_id="00000000:F8:00.0", index=GPUS))
    return gpus(*listed)


def report_inventory(world: World, node: Node, rng: random.Random, good: bool = False) -> None:
    """The node offers what it has now."""
    own: dict[str, Message | None] = {
        "system": pb.SystemSection(
            manufacturer="Supermicro",
            serial=f"S{node.number:07d}X",
            product_uuid=f"{node.number:08x}-1234-5678-9abc-def012345678",
        ),
        "nics": pb.NicsSection(nics=[pb.Nic(name="ens3f0", permanent_mac=f"b8:3f:d2:00:01:{node.number:02x}", kind="ethernet")]),
        "gpus": section(node, rng, good),
    }
    bodies = host(GPUS, **own)
    outcome = world.run(lambda tx: apply_inventory(tx, node.id, offer(bodies), bodies, node.epoch))
    assert outcome.status in ("applied", "unchanged"), outcome
    with node.lock:
        node.applied += outcome.status == "applied"


def report_status(world: World, node: Node, rng: random.Random) -> None:
    """A report with every XID so far, perhaps one more, and with some conditions. It may overtake others, and be overtaken."""
    with node.lock:
        if rng.random() < 0.4:
            (code,) = rng.choices(list(XIDS), list(XIDS.values()))
            node.counts[code, rng.choice(node.numbers)] += 1
        seen = dict(node.counts)
    faults = tuple(
        Fault("xid", code, gpu(number).uuid, gpu(number).bus_id, times, f"{code}, pid=1")
        for (code, number), times in seen.items()
    )
    chosen = [kind for kind in ("NvmlUnavailable", "RebootRequired", "FabricManagerDown") if rng.random() < 0.1]
    status = Status("", conditions=tuple(Condition(kind, "true") for kind in chosen), faults=faults)
    assert world.run(lambda tx: record_status(tx, node.id, node.epoch, status))


def report_pressure(world: World, node: Node, rng: random.Random) -> None:
    """The gateway has concluded something of the node's samples."""
    said = Conclusion("CpuPressure", "true" if rng.random() < 0.2 else "false", "High")
    assert world.run(lambda tx: record_host_pressure(tx, node.id, [said], node.epoch))


def clear(world: World, node: Node, rng: random.Random) -> None:
    """An operator closes the faults of the node's GPUs, one after the other."""
    for number in node.numbers:
        try:
            world.run(partial(clear_device_health, device_id=str(gpu(number).uuid), reason="seen to", node_id=node.id))
        except Refusal:  # a finding that stands, or a GPU that is gone
            world.done["refused"] += 1


_OTHERS = """
UPDATE nodes SET no_schedule_reasons = coalesce(
  (SELECT jsonb_agg(e) FROM jsonb_array_elements(no_schedule_reasons) AS e WHERE e ->> 'owner' <> %(owner)s), '[]') || %(mine)s
WHERE id = %(node)s
"""


def reason_of_another(world: World, node: Node, rng: random.Random) -> None:
    """Another owner sets or takes away its reason, sometimes of a type that is the receiver's too."""
    owner = rng.choice(OWNERS)
    kind = rng.choice((None, None, None, None, "Draining", "NvmlUnavailable"))
    mine = jsonb([{"owner": owner, "type": kind}] if kind else [])

    def work(tx: Connection) -> None:
        tx.execute("SELECT FROM nodes WHERE id = %s FOR UPDATE", [node.id])
        assert reasons_of(tx, node.id, owner) == node.others.get(owner), "somebody touched what is not his"
        tx.execute(_OTHERS, {"owner": owner, "mine": mine, "node": node.id})

    with node.lock:  # this test's own knowledge is to be in the same order
        world.run(work)
        node.others[owner] = kind


def reasons_of(tx: Connection, node_id: str, owner: str) -> str | None:
    """The type of the one reason that an owner has."""
    row = tx.execute("SELECT no_schedule_reasons FROM nodes WHERE id = %s", [node_id]).fetchone()
    assert row is not None
    found = [one["type"] for one in row[0] if one["owner"] == owner]
    assert len(found) < 2, found
    return found[0] if found else None


def book(world: World, node: Node, rng: random.Random) -> None:
    """Placement books something, somewhere."""
    found = world.run(lambda tx: placement.find(tx))
    booking_id = f"b{next(world.bookings)}"
    if found and world.run(lambda tx: placement.book(tx, booking_id, found[0])):
        world.live.append(booking_id)
        world.done["booked"] += 1
    else:
        world.done["not booked"] += 1


def end(world: World, node: Node, rng: random.Random) -> None:
    """A booking ends."""
    try:
        booking_id = world.live.pop(rng.randrange(max(len(world.live), 1)))
    except IndexError:
        return
    world.run(lambda tx: placement.end(tx, booking_id))


def plan_again(world: World, node: Node, rng: random.Random) -> None:
    """Some nodes are queued, and the queue is drained."""
    chosen = rng.sample(world.nodes, 3)
    world.run(lambda tx: queue(tx, [one.id for one in chosen], "a test"))
    world.run(drain)


ACTIONS: dict[Callable[[World, Node, random.Random], None], int] = {
    report_status: 40,
    report_inventory: 15,
    report_pressure: 8,
    clear: 6,
    reason_of_another: 6,
    book: 25,
    end: 20,
    plan_again: 2,
}


def rush(world: World, seed: int, until: Callable[[], bool]) -> None:
    """What one thread does."""
    rng = random.Random(seed)
    while not until():
        (action,) = rng.choices(list(ACTIONS), list(ACTIONS.values()))
        action(world, rng.choice(world.nodes), rng)
        world.done[action.__name__] += 1
