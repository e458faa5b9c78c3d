"""Conditions that bcd itself finds (SPEC B3, "From status reports"): they are exactly as its last report says.

One more of them is a row in condition_types.py and a row in the agent's table (SPEC A6).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from receiver.planning.condition_types import DAEMON_NODE_CONDITIONS
from receiver.planning.faults import as_fault
from receiver.planning.view import ConditionRow, Draft, Facts, set_conditions
from receiver.values import Condition, Fault

Key = tuple[str, str]  # type and device, as the table is keyed
DEVICE_CHARACTERS = 128  # of a device id or bus id: they are part of a key
MOST = 1024  # rows of a node; no machine has as many, and a hostile one is not to fill the table


@dataclass(frozen=True, slots=True)
class Sorted:
    """A report's conditions by what becomes of them. `bad`: the types of those that are dropped."""

    conditions: tuple[Condition, ...] = ()
    faults: tuple[Fault, ...] = ()
    bad: tuple[str, ...] = ()


def sort_out(reported: Iterable[Condition]) -> Sorted:
    """Tells conditions, faults and what is neither apart.

    Bad is: a type that reports may not set, a status that is none, a device that nothing could be called, a fault without its
    device, and whatever a report says twice.
    """
    conditions: dict[Key, Condition] = {}
    faults: dict[Key, Fault] = {}
    bad = []
    for one in reported:
        key = (one.type, one.device)
        fault = as_fault(one)
        if one.status is None or len(one.device) > DEVICE_CHARACTERS or len(one.bus_id) > DEVICE_CHARACTERS:
            bad.append(one.type)
        elif fault is not None and key not in faults:
            faults[key] = fault
        elif one.type in DAEMON_NODE_CONDITIONS and key not in conditions:
            conditions[key] = one
        else:
            bad.append(one.type)
    return Sorted(tuple(conditions.values()), tuple(faults.values()), tuple(bad))


def report(facts: Facts, draft: Draft, reported: Iterable[Condition]) -> None:
    """The rows of DAEMON_NODE_CONDITIONS as a report has them, whatever else it says; what follows from them: reasons.py.

    True while reported true, unknown while reported so, false once it is not reported. What was never true or unknown has no
    row; nor has what is new of a device when there are MOST rows. Of a tenant's machine they are its word (SPEC B2, Trust).
    """
    stored = {key: row for key, row in draft.conditions.items() if key[0] in DAEMON_NODE_CONDITIONS}
    mine = [one for one in reported if one.type in DAEMON_NODE_CONDITIONS]
    said = {row.key: row for row in (_row(one, facts.advisory) for one in mine)}
    room = MOST - len(stored)
    new = [row for key, row in said.items() if key not in stored and row.status != "false"]
    known = [said.get(key) or _cleared(row, facts.advisory) for key, row in stored.items()]
    set_conditions(
        draft, DAEMON_NODE_CONDITIONS, (*known, *(row for at, row in enumerate(new) if at < room or not row.device_id))
    )


def _row(one: Condition, advisory: bool) -> ConditionRow:
    status = one.status or "unknown"  # sort_out() drops one without
    return ConditionRow(one.type, one.device, one.bus_id, status, one.reason, one.message, advisory=advisory)


def _cleared(row: ConditionRow, advisory: bool) -> ConditionRow:
    return ConditionRow(row.type, row.device_id, row.bus_id, "false", advisory=advisory)
