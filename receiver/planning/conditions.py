"""Conditions that bcd itself finds (SPEC B3, "From status reports"): they are exactly as its last report says.

One more of them is a row in condition_types.py and a row in the agent's table (SPEC A6).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from receiver.events import event
from receiver.planning.condition_types import DAEMON_NODE_CONDITIONS
from receiver.planning.faults import as_fault
from receiver.planning.inventory import Publish
from receiver.values import Condition, ConditionStatus, Fault

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


@dataclass(frozen=True, slots=True)
class ConditionRow:
    """A condition as stored; its key is (node, type, device). `no_schedule`: it is a reason not to place on the node."""

    type: str
    device_id: str
    bus_id: str
    status: ConditionStatus
    reason: str
    message: str
    advisory: bool
    no_schedule: bool = False

    @property
    def key(self) -> Key:
        """Type, and the device where it is of one."""
        return self.type, self.device_id or self.bus_id


@dataclass(frozen=True, slots=True)
class SetCondition:
    """Write this row."""

    row: ConditionRow
    reason: str


def plan_conditions(
    stored: Mapping[Key, ConditionRow], reported: Iterable[Condition], advisory: bool
) -> Iterator[SetCondition | Publish]:
    """Steps from the stored rows of DAEMON_NODE_CONDITIONS to what a report says; none when it says the same.

    True while reported true, unknown while reported so, false once it is not reported. What was never true or unknown has no
    row; nor has what is new of a node that would come to more than MOST. `advisory`: a tenant has the machine, and the rows
    are its word (SPEC B2, Trust).
    """
    now = {key: ConditionRow(row.type, row.device_id, row.bus_id, "false", "", "", advisory) for key, row in stored.items()}
    now |= {row.key: row for row in (_row(one, advisory) for one in reported)}
    for key, row in sorted(now.items()):
        before = stored.get(key)
        if row != before and (before is not None or (row.status != "false" and len(now) <= MOST)):
            yield from _change(before, row)


def _row(one: Condition, advisory: bool) -> ConditionRow:
    assert one.status is not None  # sort_out() drops it
    return ConditionRow(one.type, one.device_id, one.bus_id, one.status, one.reason, one.message, advisory)


def _change(before: ConditionRow | None, row: ConditionRow) -> Iterator[SetCondition | Publish]:
    reason = "it is reported for the first time" if before is None else f"it was {before.status} {before.reason}".rstrip()
    yield SetCondition(row, reason)
    if before is None or _told(before) != _told(row):
        yield Publish(event("node.condition.changed", _payload(row)), reason)


def _told(row: ConditionRow) -> tuple[str, str, bool]:
    """What events tell apart: the message is for people who look, and whose word a condition is that is not there is nothing."""
    return row.status, row.reason, row.advisory and row.status != "false"


def _payload(row: ConditionRow) -> dict[str, object]:
    named = {"deviceId": row.device_id, "busId": row.bus_id}
    return {
        "condition": row.type,
        "status": row.status,
        "reason": row.reason,
        "noSchedule": row.no_schedule,
        **{key: value for key, value in named.items() if value},
        **({"advisory": True} if row.advisory else {}),
    }
