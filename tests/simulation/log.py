"""What a simulation was witnessed to do: entries in order, and the fleet as it stands after each of them. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]
FaultKey = tuple[str, str, str, str]  # device, source, code, boot
UNHEALTHY = ("NvmlUnavailable", "FabricManagerDown")  # conditions that make a node unhealthy beside its open faults (SPEC B8)
ENDED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Entry:
    """A change of a row. `what`: its table; `value`: its columns now; `tx`: whose change; `at`: seconds of the fleet's time."""

    seq: int
    tx: int
    at: float
    what: str
    node: str
    key: str
    value: Row


@dataclass(slots=True)
class World:
    """All rows as they are after some of the entries."""

    pools: dict[str, Row] = field(default_factory=dict)
    stops: dict[tuple[str, str], Row] = field(default_factory=dict)  # by pool and kind: those in force
    nodes: dict[str, Row] = field(default_factory=dict)
    bookings: dict[str, dict[str, Row]] = field(default_factory=lambda: defaultdict(dict))  # live ones by node and id
    disruptions: dict[str, tuple[str, Row]] = field(default_factory=dict)  # open ones: node and row
    runs: dict[str, tuple[str, Row]] = field(default_factory=dict)  # node and row
    states: dict[str, str] = field(default_factory=dict)  # of runs, as their history tells
    commands: dict[str, tuple[str, Row]] = field(default_factory=dict)
    effects: Counter[str] = field(default_factory=Counter)  # by command
    faults: dict[str, set[FaultKey]] = field(default_factory=lambda: defaultdict(set))  # open ones by node
    bad: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # conditions of UNHEALTHY by node
    openings: Counter[FaultKey] = field(default_factory=Counter)  # how often each fault was opened
    turns: dict[str, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))  # by pool: when which node
    rebooted_for: dict[tuple[FaultKey, int], str] = field(default_factory=dict)  # fault and opening: the command
    events: list[Entry] = field(default_factory=list)

    def apply(self, entry: Entry) -> None:
        """What this entry says is so from now on."""
        CHANGES[entry.what](self, entry)

    def pool_of(self, node: str) -> str:
        """The node's pool, or nothing."""
        return self.nodes[node]["pool_id"] or "" if node in self.nodes else ""

    def in_service(self, pool: str) -> int:
        """How many nodes of the pool are adopted."""
        return sum(one["status"] == "adopted" and one["pool_id"] == pool for one in self.nodes.values())

    def disrupted(self, node: str) -> bool:
        """Whether a disruption of the node is open, whoever's."""
        return any(at == node for at, _ in self.disruptions.values())

    def run_of(self, command: str) -> Row:
        """The run that a command is of; empty: of none."""
        return next((row for _, row in self.runs.values() if row["command_id"] == command), {})

    def openings_of(self, run: Row) -> Iterator[tuple[FaultKey, int]]:
        """What a run is for: each fault, and which of its openings."""
        for one in run["causes"]:
            fault = (one["deviceId"], one["source"], one["code"], one["bootId"])
            yield fault, self.openings[fault]

    def turned(self, entry: Entry, unhealthy: bool) -> None:
        """The node has turned unhealthy with this entry, if it was not before and is in service."""
        node = self.nodes.get(entry.node, {})
        if unhealthy and node.get("status") == "adopted" and node["pool_id"] and not self.disrupted(entry.node):
            self.turns[node["pool_id"]].append((entry.at, entry.node))


def _pool(world: World, entry: Entry) -> None:
    world.pools[entry.key] = entry.value


def _stop(world: World, entry: Entry) -> None:
    if entry.value["confirmed_by"] and entry.key == "remediation":  # a person knows of the turns so far
        world.turns[entry.value["pool_id"]].clear()
    _keep(world.stops, (entry.value["pool_id"], entry.key), entry.value, entry.value["ended_at"] is None)


def _node(world: World, entry: Entry) -> None:
    world.nodes[entry.node] = entry.value


def _fault(world: World, entry: Entry) -> None:
    row = entry.value
    fault, open_ones = (entry.key, row["source"], row["code"], row["boot_id"]), world.faults[entry.node]
    if row["closed_at"] is not None:
        open_ones.discard(fault)
    elif fault not in open_ones:
        world.turned(entry, not open_ones and not world.bad[entry.node])
        world.openings[fault] += 1
        open_ones.add(fault)


def _condition(world: World, entry: Entry) -> None:
    bad = world.bad[entry.node]
    if entry.key not in UNHEALTHY:
        return
    if entry.value["status"] != "true":
        bad.discard(entry.key)
        return
    world.turned(entry, not bad and not world.faults[entry.node])
    bad.add(entry.key)


def _booking(world: World, entry: Entry) -> None:
    _keep(world.bookings[entry.node], entry.key, entry.value, entry.value["ended_at"] is None)


def _disruption(world: World, entry: Entry) -> None:
    _keep(world.disruptions, entry.key, (entry.node, entry.value), entry.value["ended_at"] is None)


def _run(world: World, entry: Entry) -> None:
    world.runs[entry.key] = entry.node, entry.value


def _step(world: World, entry: Entry) -> None:
    world.states[entry.key] = entry.value["state"]


def _command(world: World, entry: Entry) -> None:
    world.commands[entry.key] = entry.node, entry.value


def _effect(world: World, entry: Entry) -> None:
    world.effects[entry.key] += 1
    run = world.run_of(entry.key)
    if run and entry.value["kind"] == "node.reboot":
        world.rebooted_for.update(dict.fromkeys(world.openings_of(run), entry.key))


def _event(world: World, entry: Entry) -> None:
    world.events.append(entry)


def _nothing(world: World, entry: Entry) -> None:
    pass


def _keep(rows: dict[Any, Any], key: object, row: object, there: bool) -> None:
    if there:
        rows[key] = row
    else:
        rows.pop(key, None)


CHANGES: Mapping[str, Callable[[World, Entry], None]] = {
    "pools": _pool,
    "pool_stops": _stop,
    "nodes": _node,
    "device_health": _fault,
    "conditions": _condition,
    "bookings": _booking,
    "disruptions": _disruption,
    "remediation_runs": _run,
    "remediation_steps": _step,
    "commands": _command,
    "acceptance_attempts": _nothing,
    "effects": _effect,
    "events": _event,
}
