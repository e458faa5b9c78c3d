"""Acceptance (SPEC B7): how an `adopting` node proves itself and is taken into service. Pure; runs behind every writer of a node.

A node that has nothing to prove passes at once (`NoChecks`): one without a pool, a site agent, or one whose pool's
`policy.acceptance` is empty. Of the others each check is a command (planning/checks.py); an attempt is judged when all of them
have ended. One that the node no longer stands for - it is in maintenance, a tenant's, another one's duplicate - is cancelled: it
was neither passed nor failed, and another begins when the node is ready again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bettercompute.contract.sections import ADVISORY

from receiver.events import event
from receiver.ids import Mint
from receiver.planning.checks import CHECKS, OPEN, RUNNING, Verdict, verdict
from receiver.planning.inventory_conditions import baseline
from receiver.planning.lifecycle import become
from receiver.planning.view import Attempt, CommandEnd, CommandOrder, ConditionRow, Draft, Facts, set_conditions
from receiver.values import Json, Payload

TYPE, DUPLICATE = "AcceptanceFailed", "DuplicateIdentity"
NO_CHECKS, NO_INVENTORY, UNSUPPORTED = "NoChecks", "NoInventory", "UnsupportedCheck"
BY = "acceptance"  # who wants the commands
START_WITHIN = 600.0  # seconds
PATIENCE = 600.0  # seconds for the inventory of a boot


def settle(facts: Facts, before: Draft, draft: Draft) -> None:
    """Begins, follows and ends the node's attempt."""
    interrupt(draft)
    if draft.node.trust_epoch != before.node.trust_epoch:
        return  # what is known is of the time before
    attempt = draft.attempts.get(draft.node.attempt)
    if attempt is not None and attempt.state == RUNNING:
        _follow(facts, draft, attempt)
    elif ready(facts, draft):
        _begin(facts, draft)
    elif _waited_long(facts, before, draft) and _may_begin(facts, draft):
        _without_inventory(draft, ())


# ---- when


def ready(facts: Facts, draft: Draft) -> bool:
    """Whether an attempt may begin: `adopting`, connected, the platform's, nobody's duplicate, and an inventory of this boot is
    applied with its `gpus`. A failed attempt is sticky: only nodes.adopt begins another.
    """
    return _may_begin(facts, draft) and _shows_its_gpus(facts, draft)


def _may_begin(facts: Facts, draft: Draft) -> bool:
    attempt = draft.attempts.get(draft.node.attempt)
    failed = attempt is not None and attempt.state == "failed"
    return facts.online and not facts.advisory and not failed and not _against(draft) and _status(draft, TYPE) == "false"


def _against(draft: Draft) -> str:
    """Why the node can prove nothing now; empty: it can."""
    node = draft.node
    if node.status != "adopting":
        return f"the node is {node.status}"
    if node.trust != "platform":
        return f"the node is {node.trust}"
    return DUPLICATE if _status(draft, DUPLICATE) == "true" else ""


def _status(draft: Draft, kind: str) -> str:
    """Of the rows of a condition: true where one is, else unknown where one is."""
    found = {row.status for row in draft.conditions.values() if row.type == kind}
    return "true" if "true" in found else "unknown" if "unknown" in found else "false"


def _shows_its_gpus(facts: Facts, draft: Draft) -> bool:
    """Whether an inventory collected in this boot is applied, with its GPUs, and is the platform's: its digest is forgotten when
    a lease ends, and a tenant's is marked."""
    node = draft.node
    digest = (node.plan_key or {}).get("digest")
    platforms = isinstance(digest, str) and not digest.startswith(ADVISORY)
    return bool(facts.boot_id) and node.inventory_boot == facts.boot_id and platforms and "gpus" in facts.fresh


def _waited_long(facts: Facts, before: Draft, draft: Draft) -> bool:
    same = (before.node.status, before.node.attempt) == (draft.node.status, draft.node.attempt)
    return same and facts.waited is not None and facts.waited >= PATIENCE


# ---- an attempt's way


def checks(facts: Facts) -> tuple[str, ...]:
    """The kinds of commands that the node has to pass, each once, in the policy's order; none for who has nothing to prove."""
    if facts.pool is None or facts.kind == "site-agent":
        return ()
    return tuple(dict.fromkeys(str(one["kind"]) for one in facts.pool.policy.acceptance))


def _begin(facts: Facts, draft: Draft) -> None:
    """Orders the checks. What they are given and the baseline are the inventory's: behind a writer that has not loaded it, the
    node is queued to be planned again with it."""
    if facts.sections is None:
        draft.plan_again = True
        return
    if draft.node.attempt in draft.attempts:  # it was cancelled
        draft.node = replace(draft.node, attempt=draft.node.attempt + 1)
    kinds, number = checks(facts), draft.node.attempt
    if not kinds:
        _pass(facts, draft, NO_CHECKS, ())
        return
    if unknown := [kind for kind in kinds if kind not in CHECKS]:
        listed = [_check(one, "failed" if one in unknown else "cancelled", UNSUPPORTED * (one in unknown)) for one in kinds]
        known = f"this receiver knows the checks {', '.join(CHECKS)}"
        _fail(draft, UNSUPPORTED, f"{', '.join(unknown)}: no such check; {known}", listed)
        return
    draft.put("attempts", Attempt(number, checks=[_check(one) for one in kinds]))
    for kind in kinds:
        key = f"acceptance:{facts.node_id}:{number}:{kind}"
        draft.commands.append(CommandOrder(kind, CHECKS[kind].payload(facts), key, BY, START_WITHIN))
    _tell(draft, ConditionRow(TYPE, status="unknown", reason="Running", message=f"its checks run: {', '.join(kinds)}"))


def place(draft: Draft, mint: Mint) -> None:
    """Gives the commands of an attempt that begins their ids, and tells of it."""
    if not draft.commands:
        return
    draft.commands = [replace(one, id=mint("cmd")) for one in draft.commands]
    attempt, ids = draft.attempts[draft.node.attempt], {one.kind: one.id for one in draft.commands}
    listed = [_check(str(one["kind"]), command_id=ids[one["kind"]]) for one in attempt.checks]
    draft.put("attempts", replace(attempt, checks=listed))
    told = {"attempt": attempt.attempt, "commandIds": list(ids.values()), "checks": list(ids)}
    draft.events.append(event("node.acceptance.started", told))


def _follow(facts: Facts, draft: Draft, attempt: Attempt) -> None:
    """Notes what the checks came to; ends the attempt when that is known of all of them."""
    verdicts = [verdict(str(one["kind"]), one.get("commandId"), facts.commands) for one in attempt.checks]
    listed = [_noted(one, found) for one, found in zip(attempt.checks, verdicts, strict=True)]
    draft.ends += _late(attempt.checks, verdicts, facts)
    draft.put("attempts", replace(attempt, checks=listed))
    if any(one.status == RUNNING for one in verdicts):
        return
    for one, found in zip(listed, verdicts, strict=True):
        if found.fails:
            _fail(draft, found.fails, found.message, listed, one.get("commandId"))
            return
    if not _shows_its_gpus(facts, draft):  # it has booted since
        if facts.waited is not None and facts.waited >= PATIENCE:
            _without_inventory(draft, listed)
    elif facts.sections is None:
        draft.plan_again = True
    else:
        _pass(facts, draft, "Passed", listed)


def interrupt(draft: Draft) -> None:
    """Cancels the attempts that run, but the present one of a node that can still prove itself."""
    reason = _against(draft)
    for attempt in list(draft.attempts.values()):
        if attempt.state == RUNNING and (reason or attempt.attempt != draft.node.attempt):
            _cancel(draft, attempt, reason or "another attempt begins")


def _cancel(draft: Draft, attempt: Attempt, reason: str) -> None:
    """The attempt ends without a verdict, and what still runs for it is not waited for."""
    running = [one for one in attempt.checks if one["status"] == RUNNING]
    draft.ends += [CommandEnd(str(one["commandId"]), "cancelled", reason) for one in running if one.get("commandId")]
    listed = [{**one, "status": "cancelled", "reason": reason} if one in running else one for one in attempt.checks]
    draft.put("attempts", replace(attempt, state="cancelled", reason=reason, checks=listed))
    if _status(draft, TYPE) == "unknown":
        _tell(draft, ConditionRow(TYPE, status="false"))


def _pass(facts: Facts, draft: Draft, reason: str, listed: Sequence[Payload]) -> None:
    """The node is in service with the inventory that it has now as its baseline. Where that is another than before, the node is
    planned again: what was missed by the old one is not by this."""
    become(draft, "adopted", reason)
    draft.put("attempts", Attempt(draft.node.attempt, "passed", reason, listed))
    draft.events.append(event("node.adopted", {"attempt": draft.node.attempt, "specGeneration": 1}))
    now = baseline(facts.sections or {})
    draft.plan_again |= draft.node.baseline not in (None, now)
    draft.node = replace(draft.node, baseline=now)
    _tell(draft, ConditionRow(TYPE, status="false", reason=reason))


def _fail(draft: Draft, reason: str, message: str, listed: Sequence[Payload], command_id: Json = None) -> None:
    """The node stays as it is, until nodes.adopt begins another attempt."""
    draft.put("attempts", Attempt(draft.node.attempt, "failed", reason, listed))
    told = {"attempt": draft.node.attempt, "reason": reason, **({"commandId": command_id} if command_id else {})}
    draft.events.append(event("node.acceptance.failed", told))
    _tell(draft, ConditionRow(TYPE, reason=reason, message=message))


def _without_inventory(draft: Draft, listed: Sequence[Payload]) -> None:
    minutes = PATIENCE / 60
    _fail(draft, NO_INVENTORY, f"no inventory of this boot came with its GPUs within {minutes:g} minutes", listed)


def _tell(draft: Draft, row: ConditionRow) -> None:
    set_conditions(draft, (TYPE,), [row])


# ---- its rows


def _check(kind: str, status: str = RUNNING, reason: str = "", command_id: str = "") -> Payload:
    more = {"commandId": command_id, "reason": reason}
    return {"kind": kind, "status": status, **{key: value for key, value in more.items() if value}}


def _noted(check: Payload, found: Verdict) -> Payload:
    return _check(str(check["kind"]), found.status, found.reason, str(check.get("commandId") or ""))


def _late(listed: Sequence[Payload], verdicts: Sequence[Verdict], facts: Facts) -> Iterator[CommandEnd]:
    """The commands that are not waited for any longer."""
    for one, found in zip(listed, verdicts, strict=True):
        state = facts.commands.get(str(one.get("commandId")))
        if found.status == "expired" and state is not None and state.state in OPEN:
            yield CommandEnd(str(one["commandId"]), "expired", found.reason)
