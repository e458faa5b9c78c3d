"""What must never be so in a fleet that repairs itself (SPEC B8), looked for in what was witnessed (log.py). Pure.

An invariant is a function of the world before an entry, and the entry; it answers what is wrong, in words. One more costs a row
in RULES. The rules are not the receiver's: they say in their own words what its loops have to keep to.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.simulation.log import ENDED, Entry, Row, World

WINDOW = 600.0  # seconds of the breaker
RACE = 0.01  # of the fleet's seconds, ten of a real clock: a start did not see what was written in the same moment
NEXT: Mapping[str | None, tuple[str, ...]] = {
    None: ("queued",),
    "queued": ("waiting", "verifying", "cancelled"),
    "waiting": ("running", "verifying", "cancelled"),
    "running": ("verifying", "failed", "cancelled", "succeeded"),
    "verifying": ("succeeded", "failed", "cancelled"),
    **dict.fromkeys(ENDED, ()),
}
REPAIRS = ("node.reboot", "gpu.reset")


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold after an entry."""

    rule: str
    entry: Entry
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text} (at {self.entry.at:.3f}, entry {self.entry.seq}, node {self.entry.node or '-'})"


Rule = Callable[[World, Entry], Iterator[str]]


def check(log: Iterable[Entry]) -> list[Violation]:
    """All violations, in the order of the log."""
    world = World()
    found: list[Violation] = []
    pending: dict[str, Pending] = {}
    for entry in log:
        due = pending.get(entry.node)
        if due is not None and due.entry.tx != entry.tx:
            found += _proven(world, pending.pop(entry.node))
        found += [Violation(rule.__name__, entry, text) for rule in RULES.get(entry.what, ()) for text in rule(world, entry)]
        if _succeeds(world, entry):
            pending[entry.node] = Pending(entry, world.runs[entry.key][1])
        world.apply(entry)
    return [*found, *(one for due in pending.values() for one in _proven(world, due)), *_told_as_it_was(world)]


# ---- when a repair starts


def _start(world: World, entry: Entry) -> Row | None:
    """The run that starts with this row of `disruptions`; None: it is none of a repair that begins."""
    if entry.value["kind"] != "remediation" or entry.value["ended_at"] is not None or entry.key in world.disruptions:
        return None
    return world.runs.get(entry.value["owner"], ("", {}))[1]


def within_budget(world: World, entry: Entry) -> Iterator[str]:
    """No more disruptions of a pool are open than its budget has, whoever's they are."""
    run, pool = _start(world, entry), entry.value["pool_id"]
    if run is None or pool is None or run.get("force"):
        return
    budget, nodes = world.pools[pool]["policy"].get("disruptionBudget", "5%"), world.in_service(pool)
    allowed = budget if isinstance(budget, int) else _share(float(budget.rstrip("%")), nodes)
    there = 1 + sum(row["pool_id"] == pool for _, row in world.disruptions.values())
    if there > allowed:
        yield f"{there} disruptions of {pool} are open, its budget {budget} of {nodes} nodes is {allowed}"


def _share(percent: float, nodes: int) -> int:
    return max(1, int(percent * nodes / 100 + 1e-9)) if percent else 0


def nobody_is_hit(world: World, entry: Entry) -> Iterator[str]:
    """A repair starts where nothing is booked: on the whole node, or for a reset on the GPUs of its group."""
    run = _start(world, entry)
    if run is not None and not run.get("force"):
        yield from _bookings_on(world, entry.node, run)


def _bookings_on(world: World, node: str, run: Row) -> Iterator[str]:
    whole = run.get("kind") != "gpu.reset"
    for booking, row in world.bookings[node].items():
        if whole or row["device_id"] in run["devices"]:
            yield f"booking {booking} of {row['device_id']} is live"


def where_it_may(world: World, entry: Entry) -> Iterator[str]:
    """Repairs start on nodes of the platform that nobody has in maintenance, in pools that enforce and are not paused. (A person
    may have a node diagnosed in maintenance, and repaired by force.)"""
    run = _start(world, entry)
    if run is None:
        return
    node, pool = world.nodes[entry.node], world.pool_of(entry.node)
    if node["trust"] != "platform":
        yield f"the node is {node['trust']}"
    person = run.get("force") or run.get("kind") not in REPAIRS
    if node["status"] not in ("adopted", "adopting") and not (person and node["status"] == "maintenance"):
        yield f"the node is in {node['status']}"
    if run.get("observed"):
        yield "the run only observes"
    if run.get("force"):
        return
    if pool and not run.get("by") and world.pools[pool]["mode"] != "enforce":
        yield f"pool {pool} is in mode {world.pools[pool]['mode']}"
    for kind in ("remediation", "maintenance"):
        if (pool, kind) in world.stops:
            yield f"pool {pool} is stopped: {kind}"


def breaker_holds(world: World, entry: Entry) -> Iterator[str]:
    """No repair starts while too many nodes of the pool have turned unhealthy in the last ten minutes."""
    run, pool = _start(world, entry), entry.value["pool_id"]
    if run is None or pool is None or run.get("force"):
        return
    turned = {node for at, node in world.turns[pool] if entry.at - WINDOW < at <= entry.at - RACE}
    least, nodes = world.pools[pool]["policy"].get("breaker", {}).get("minNodes", 2), world.in_service(pool)
    if len(turned) >= least and 10 * len(turned) > nodes:
        yield f"{len(turned)} of {nodes} nodes turned unhealthy within {WINDOW:g} s"


# ---- what comes of it


def nothing_slips_in(world: World, entry: Entry) -> Iterator[str]:
    """Nothing is booked on a node, or of a group of GPUs, that is being repaired."""
    if entry.value["ended_at"] is not None or entry.key in world.bookings[entry.node]:
        return
    for node, row in world.disruptions.values():
        run = world.runs.get(row["owner"], ("", {}))[1]
        if node == entry.node and run and (run["kind"] == "node.reboot" or entry.value["device_id"] in run["devices"]):
            yield f"{entry.value['device_id']} is booked while {row['owner']} disrupts the node"


def run_goes_on(world: World, entry: Entry) -> Iterator[str]:
    """The history of a run leads from state to state as it may."""
    before, now = world.states.get(entry.key), entry.value["state"]
    if before != now and now not in NEXT[before]:
        yield f"run {entry.key} goes from {before} to {now}"


def run_stays_ended(world: World, entry: Entry) -> Iterator[str]:
    """What has ended stays as it is, and what only observes does nothing."""
    known = world.runs.get(entry.key)
    if known and known[1]["state"] in ENDED:
        yield f"run {entry.key} was {known[1]['state']} and is {entry.value['state']}"
    if entry.value["observed"] and entry.value["command_id"]:
        yield f"run {entry.key} only observes, and has command {entry.value['command_id']}"


def one_at_a_time(world: World, entry: Entry) -> Iterator[str]:
    """One reboot of a node is under way, whatever its causes, or one reset of a GPU."""
    mine = entry.value
    if mine["state"] in ENDED or mine["kind"] not in REPAIRS or mine["observed"]:
        return
    for key, (node, row) in world.runs.items():
        open_one = node == entry.node and key != entry.key and row["state"] not in ENDED and not row["observed"]
        if open_one and row["kind"] == mine["kind"] and (mine["kind"] == "node.reboot" or {*row["devices"]} & {*mine["devices"]}):
            yield f"{key} and {entry.key} are both open, and both a {mine['kind']}"


def sent_where_it_may(world: World, entry: Entry) -> Iterator[str]:
    """While a tenant has the machine, nothing is asked of it but its inventory."""
    node, row = world.nodes.get(entry.node, {}), entry.value
    new = world.commands.get(entry.key, ("", {}))[1].get("state") != "sent"
    if row["state"] == "sent" and new and node.get("trust") != "platform" and row["kind"] != "inventory.refresh":
        yield f"{row['kind']} {entry.key} is sent to a node that is {node.get('trust')}"


def command_ends_once(world: World, entry: Entry) -> Iterator[str]:
    """A command that has ended stays as it is, and a run has one command."""
    known = world.commands.get(entry.key)
    if known and known[1]["state"] not in ("queued", "sent") and known[1] != entry.value:
        yield f"{entry.key} was {known[1]['state']} and is {entry.value['state']}"
    key = entry.value["idempotency_key"]
    if not known and any(row["idempotency_key"] == key and node == entry.node for node, row in world.commands.values()):
        yield f"{key} has a second command {entry.key}"


def effect_is_due(world: World, entry: Entry) -> Iterator[str]:
    """What happens to a machine was asked for, happens once, and no reboot takes a booking along."""
    node, row = world.commands.get(entry.key, ("", {}))
    if world.effects[entry.key]:
        yield f"{entry.key} has its effect again"
    if node != entry.node or row.get("state") == "queued":
        yield f"{entry.key} was not sent to this node"
    run = world.run_of(entry.key)
    if run and entry.value["kind"] in REPAIRS and not run["force"]:
        yield from _bookings_on(world, entry.node, run)


def one_reboot_a_fault(world: World, entry: Entry) -> Iterator[str]:
    """No machine is rebooted twice for one opening of a fault. (A person may order what he likes.)"""
    run = world.run_of(entry.key)
    if not run or run["by"] or entry.value["kind"] != "node.reboot":
        return
    for fault, opening in world.openings_of(run):
        earlier = world.rebooted_for.get((fault, opening))
        if earlier and earlier != entry.key:
            yield f"{' '.join(fault)} had its reboot by {earlier}, and has another by {entry.key}"


# ---- what a success is worth


@dataclass(frozen=True, slots=True)
class Pending:
    """A run that has succeeded in a transaction whose other entries may be still to come. `before`: the run before it."""

    entry: Entry
    before: Row


def _succeeds(world: World, entry: Entry) -> bool:
    known = entry.what == "remediation_runs" and world.runs.get(entry.key)
    return bool(known) and entry.value["state"] == "succeeded" != known[1]["state"] and entry.value["kind"] in REPAIRS  # type: ignore[index]


def _proven(world: World, due: Pending) -> Iterator[Violation]:
    """A repair has succeeded when the node has booted again (a reboot), and nothing is open of the GPUs that it was for."""
    run, node = due.entry.value, world.nodes[due.entry.node]
    if run["kind"] == "node.reboot" and node["boot_id"] == run["boot_id"]:
        yield Violation("success_is_proven", due.entry, f"{due.entry.key} has succeeded in boot {run['boot_id']} itself")
    named = {one["deviceId"] for one in run["causes"]}
    for fault in sorted(world.faults[due.entry.node]):
        if fault[0] in named or (run["kind"] == "node.reboot" and fault[0] in run["devices"]):
            yield Violation("success_is_proven", due.entry, f"{due.entry.key} has succeeded, and {' '.join(fault)} is open")


# ---- what is told

_TOLD = {"queued": "queued", "running": "started", "succeeded": "succeeded", "failed": "failed"}


def told_when_paused(world: World, entry: Entry) -> Iterator[str]:
    """The events of a pool's breaker take turns."""
    kind, pool = entry.key, entry.value["pool_id"]
    if kind not in ("pool.remediation.paused", "pool.remediation.resumed"):
        return
    last = next(
        (one.key for one in reversed(world.events) if one.key.startswith("pool.remediation.") and one.value["pool_id"] == pool),
        "",
    )
    if last == kind or (not last and kind.endswith("resumed")):
        yield f"{kind} of {pool} comes after {last or 'nothing'}"


def _told_as_it_was(world: World) -> Iterator[Violation]:
    """The events of a run are the story of its states: queued and ended once, started before it ended."""
    stories: dict[str, list[Entry]] = {}
    for one in world.events:
        if one.key.startswith("node.remediation.") and "runId" in one.value["payload"]:
            stories.setdefault(one.value["payload"]["runId"], []).append(one)
    for run, (_, row) in world.runs.items():
        told = [one.key.rpartition(".")[2] for one in stories.get(run, [])]
        told = [one for one in told if one in _TOLD.values()]
        last = _TOLD.get(row["state"])
        if row["observed"]:
            continue
        wrong = len(set(told)) != len(told) or told[:1] != ["queued"] or (last and told[-1:] != [last])
        if wrong:
            yield Violation(
                "told_as_it_was", stories[run][-1] if run in stories else NONE, f"{run} is {row['state']}, told was {told}"
            )


NONE = Entry(0, 0, 0.0, "events", "", "", {})

RULES: Mapping[str, tuple[Rule, ...]] = {
    "disruptions": (within_budget, nobody_is_hit, where_it_may, breaker_holds),
    "bookings": (nothing_slips_in,),
    "remediation_runs": (run_stays_ended, one_at_a_time),
    "remediation_steps": (run_goes_on,),
    "commands": (sent_where_it_may, command_ends_once),
    "effects": (effect_is_due, one_reboot_a_fault),
    "events": (told_when_paused,),
}


# ---- what is left at the end


def loose_ends(log: Iterable[Entry], pool: str) -> list[str]:
    """What is neither repaired nor in the hands of a person, once a pool has come to rest."""
    world = World()
    for entry in log:
        world.apply(entry)
    nodes = {node: row for node, row in world.nodes.items() if row["pool_id"] == pool}
    escalated = {one.node for one in world.events if one.key == "node.remediation.escalated"}
    held = {node for node, row in nodes.items() if row["status"] == "maintenance" and node in escalated}
    return [
        *(f"{node} is {row['status']}" for node, row in nodes.items() if row["status"] != "adopted" and node not in held),
        *(f"{node} has {sorted(world.faults[node])}" for node in nodes.keys() - held if world.faults[node]),
        *(f"{node} is draining" for node in nodes.keys() - held if nodes[node]["draining"]),
        *(
            f"{run} of {node} is {row['state']}"
            for run, (node, row) in world.runs.items()
            if node in nodes and row["state"] not in ENDED
        ),
        *(f"disruption {key} of {node} is open" for key, (node, _) in world.disruptions.items() if node in nodes),
        *(
            f"{key} of {node} is {row['state']}"
            for key, (node, row) in world.commands.items()
            if node in nodes and row["state"] in ("queued", "sent")
        ),
    ]
