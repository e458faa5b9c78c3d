"""Remediation in Postgres (SPEC B8): the steps of runs, and what follows from them: commands, disruptions, escalations.

One receiver at a time has the singleton `remediation`: it takes the nodes with open runs one after the other, each in a fenced
transaction of its own. Who orders or cancels a run does so under the node's lock too, and wakes it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from receiver import ids
from receiver.apply import command, pool_stops
from receiver.apply.act import act
from receiver.apply.alone import alone
from receiver.apply.evidence import evidence
from receiver.apply.health import node_of
from receiver.errors import NotFound
from receiver.events import event
from receiver.planning import repair_orders
from receiver.planning.escalation import Past
from receiver.planning.node import Rule
from receiver.planning.remediation import REBOOT, REPAIRS, RESET, open_runs
from receiver.planning.repairing import Progress, Seen, step
from receiver.planning.view import CommandState, Draft, Facts, Run, RunKind
from receiver.singletons import Run as Transaction
from receiver.store.database import LOST_RACE, Connection
from receiver.store.view import REMEDIATION
from receiver.values import Json, Payload

EVERY = 5.0  # seconds between two looks at all open runs, when nothing wakes it
START_WITHIN = timedelta(minutes=10)  # of a command
WINDOW = timedelta(days=7)  # of runs that count
NOT_ASKED = "its pool has not been asked yet"

# Those that wait for a first look, and those that are named.
_FRESH = """
SELECT node_id FROM remediation_runs WHERE ended_at IS NULL AND state = 'queued'
UNION SELECT node_id FROM remediation_runs WHERE ended_at IS NULL AND node_id = ANY(%s)
"""
# Those that wait for a first look come first: a node that has just failed is seen to at once.
_DUE = """
SELECT n.id, n.tenant_id, n.pool_id, CASE WHEN n.trust = 'platform' AND n.status IN ('adopting', 'adopted')
  AND bool_and(r.state = 'waiting' AND NOT r.force AND NOT r.observed AND r.boot_id = n.boot_id) THEN max(r.reason) END
FROM remediation_runs r JOIN nodes n ON n.id = r.node_id WHERE r.ended_at IS NULL
GROUP BY n.id ORDER BY bool_or(r.state = 'queued') DESC, min(r.id)
"""
_NODE = """
SELECT n.tenant_id, n.pool_id, EXISTS (
  SELECT FROM remediation_runs r WHERE r.node_id = n.id AND r.state IN ('queued', 'waiting') AND NOT r.force)
FROM nodes n WHERE n.id = %s
"""
_NODE_NOW = "SELECT bc_clock(), inventory_rev FROM nodes WHERE id = %s"
_PROGRESS = """
SELECT r.id, r.created_at, r.started_at, c.finished_at, c.inventory_rev, c.state, c.reason, c.result
FROM remediation_runs r LEFT JOIN commands c ON c.id = r.command_id WHERE r.node_id = %s AND r.ended_at IS NULL
"""
# (The index is by created_at: a run waits for its bookings as long as they last, and is rarely older than twice the window.)
_PAST = """
SELECT r.id, r.started_at, r.ended_at, r.causes FROM remediation_runs r
WHERE r.node_id = %(node)s AND r.created_at > bc_clock() - 8 * %(window)s AND r.started_at > bc_clock() - %(window)s
  AND r.ended_at IS NOT NULL AND NOT r.observed AND r.kind = ANY(%(repairs)s)
ORDER BY r.started_at DESC
"""
_DISRUPT = """INSERT INTO disruptions (id, pool_id, node_id, kind, owner)
SELECT %(id)s, n.pool_id, n.id, 'remediation', %(owner)s FROM nodes n WHERE n.id = %(node)s"""
_OVER = "UPDATE disruptions SET ended_at = bc_clock() WHERE owner = %s AND kind = 'remediation' AND ended_at IS NULL"
_NODE_OF = "SELECT node_id FROM remediation_runs WHERE id = %s"
_TRIES = "SELECT count(*) FROM commands WHERE node_id = %s AND starts_with(idempotency_key, %s)"
_GIVE_UP = """UPDATE commands SET state = 'cancelled', reason = 'its run has ended', finished_at = bc_clock()
WHERE id = %s AND finished_at IS NULL"""


def work(run: Transaction) -> None:
    """The work of the singleton: judges the pools' breakers, then takes each node's runs on. A node that cannot be is logged, and
    holds up no other. Of many that wait for the gate of their pool, one is asked for all while it is closed."""
    run(pool_stops.watch)
    closed: dict[tuple[str, str | None], str | None] = {}
    for node_id, tenant, pool_id, waits in run(due):
        if waits is None or closed.get((tenant, pool_id)) != waits:
            gate = run(partial(_step_alone, node_id=node_id))
            closed[tenant, pool_id] = gate or closed.get((tenant, pool_id))


def work_soon(run: Transaction, node_ids: Iterable[str]) -> None:
    """Takes the runs of these nodes on, and those that were just queued: they do not wait until `work` has been everywhere."""
    for node_id in run(partial(_first, node_ids=sorted(node_ids))):
        run(partial(_step_alone, node_id=node_id))


def _first(tx: Connection, node_ids: Sequence[str]) -> list[str]:
    """Looks for them, and steps the first: mostly there is no other, and a transaction less is a wait less. Answers the rest."""
    found = fresh(tx, node_ids)
    for node_id in found[:1]:
        _step_alone(tx, node_id)
    return found[1:]


def fresh(tx: Connection, node_ids: Sequence[str]) -> list[str]:
    """The nodes with runs that nobody has looked at, and those of these that have open ones."""
    return [row[0] for row in tx.execute(_FRESH, [list(node_ids)]).fetchall()]


def due(tx: Connection) -> list[tuple[str, str, str | None, str | None]]:
    """The nodes with open runs, their tenants and pools; and, where they only wait for it to be over, for what."""
    return tx.execute(_DUE).fetchall()


def _step_alone(tx: Connection, node_id: str) -> str | None:
    gates: list[str | None] = []
    alone(tx, node_id, lambda: gates.append(step_node(tx, node_id)), "repairs of a node cannot go on", LOST_RACE)
    return gates[-1] if gates else None


def step_node(tx: Connection, node_id: str, mint: ids.Mint = ids.mint) -> str | None:
    """Takes the open runs of a node as far as they go now. Raises LookupError for a node that does not exist.

    The pool's gate is passed before the node is locked: in that order everywhere. Answers why it was closed; None: it was open,
    or nobody had to pass it.
    """
    row = tx.execute(_NODE, [node_id]).fetchone()
    if row is None:
        raise LookupError(f"no node {node_id}")
    tenant, pool_id, waiting = row
    gate = pool_stops.gate(tx, tenant, pool_id, mint) if waiting else None

    def rule(facts: Facts, draft: Draft) -> None:
        moved = draft.node.pool_id != pool_id or not waiting
        step(facts, draft, _seen(tx, node_id, NOT_ASKED if moved else gate))

    change(tx, node_id, rule, mint)
    return gate


def settle(tx: Connection, node_id: str, mint: ids.Mint = ids.mint) -> Draft:
    """Ends at once which runs of a node that has become a person's, or a tenant's, may not go on. (Its pool is not asked.)"""
    return change(tx, node_id, lambda facts, draft: step(facts, draft, _seen(tx, node_id, NOT_ASKED)), mint)


def change(tx: Connection, node_id: str, rule: Rule, mint: ids.Mint = ids.mint) -> Draft:
    """Lets a rule change the node's runs, and does what follows: commands, disruptions, and what is told of an escalation."""

    def amend(facts: Facts, draft: Draft) -> None:
        before = dict(draft.runs)
        rule(facts, draft)
        for run in list(draft.runs.values()):
            _follow(tx, facts, draft, before.get(run.id), run, mint)

    return act(tx, node_id, amend, mint=mint)


def reboot(tx: Connection, node_id: str, by: str, reason: str, force: bool = False, mint: ids.Mint = ids.mint) -> str:
    """Orders a reboot; the run's id. Raises Refused where the node may not be touched, Invalid for force without a reason."""
    return _order(tx, node_id, repair_orders.reboot(by, reason, force), (REBOOT,), by, mint)


def reset(tx: Connection, device_id: str, by: str, reason: str, force: bool = False, mint: ids.Mint = ids.mint) -> str:
    """Orders a reset of a GPU, with its group; the run's id. Raises NotFound for no such device, else as `reboot`."""
    return _order(tx, node_of(tx, device_id), repair_orders.reset(device_id, by, reason, force), (RESET,), by, mint)


def diagnose(
    tx: Connection,
    node_id: str,
    kind: RunKind,
    payload: Payload,
    by: str,
    reason: str,
    force: bool = False,
    mint: ids.Mint = ids.mint,
) -> str:
    """Orders a diagnosis by a command of this kind, diag.nvml or diag.dcgm; the run's id. Raises as `reboot`."""
    return _order(tx, node_id, repair_orders.diagnose(kind, payload, by, reason, force), (kind,), by, mint)


def _order(tx: Connection, node_id: str, rule: Rule, kinds: tuple[RunKind, ...], by: str, mint: ids.Mint) -> str:
    draft = change(tx, node_id, rule, mint)
    tx.execute("SELECT pg_notify(%s, %s)", [REMEDIATION, node_id])
    touched = {one.run_id for one in draft.steps}
    return next(run.id for run in open_runs(draft, *kinds) if run.id in touched and run.by == by)


def cancel(tx: Connection, run_id: str, by: str, reason: str = "", mint: ids.Mint = ids.mint) -> Draft:
    """Cancels a run (planning/repair_orders.py). Raises NotFound, and Refused for one that has ended."""
    row = tx.execute(_NODE_OF, [run_id]).fetchone()
    if row is None:
        raise NotFound(f"no run {run_id}")
    return change(tx, row[0], repair_orders.cancel(run_id, by, reason), mint)


# ---- what follows


def _follow(tx: Connection, facts: Facts, draft: Draft, old: Run | None, run: Run, mint: ids.Mint) -> None:
    if run.state == "running" and run.command_id is None:
        draft.put("runs", _with_command(tx, facts.node_id, run, mint))
        if old is None or old.state != "running":
            tx.execute(_DISRUPT, {"id": mint("dis"), "owner": run.id, "node": facts.node_id})
    if run.ended:
        tx.execute(_OVER, [run.id])
        if run.command_id is not None:
            tx.execute(_GIVE_UP, [run.command_id])
    if run.escalated and (old is None or not old.escalated):
        told = [run.id, *(one.id for one in _past(tx, facts.node_id) if one.id != run.id)]
        payload: Payload = {"runs": told, "reason": run.reason, "evidence": evidence(tx, facts, draft, run)}
        draft.events.append(event("node.remediation.escalated", payload))


def _with_command(tx: Connection, node_id: str, run: Run, mint: ids.Mint) -> Run:
    """Queues the run's command; another one where the node was too busy for the last."""
    key = f"remediation:{run.id}"
    row = tx.execute(_TRIES, [node_id, key]).fetchone()
    if row is not None and row[0]:
        key = f"{key}:{row[0] + 1}"
    until = tx.execute("SELECT bc_clock() + %s", [START_WITHIN]).fetchone()
    assert until is not None
    payload = {**run.payload, "force": True} if run.kind == REBOOT and run.force else run.payload
    queued = command.queue(tx, node_id, run.kind, payload, key, until[0], run.by or "remediation", mint)
    return replace(run, command_id=queued)


# ---- what is beside the node's rows


def _seen(tx: Connection, node_id: str, gate: str | None) -> Seen:
    row = tx.execute(_NODE_NOW, [node_id]).fetchone()
    assert row is not None  # it is locked
    progress = {found[0]: _progress(*found[1:]) for found in tx.execute(_PROGRESS, [node_id]).fetchall()}
    return Seen(row[0], progress, _past(tx, node_id), row[1], gate)


def _progress(
    queued: datetime,
    began: datetime | None,
    ended: datetime | None,
    rev: int | None,
    state: str | None,
    reason: str,
    result: Json,
) -> Progress:
    return Progress(queued, began, None if state is None else CommandState(state, reason, result), ended, rev)


def _past(tx: Connection, node_id: str) -> list[Past]:
    rows = tx.execute(_PAST, {"node": node_id, "window": WINDOW, "repairs": list(REPAIRS)}).fetchall()
    return [Past(*row) for row in rows]
