"""Rows of `conditions` and `node_faults`, and the arms that write them in the statement of a status report."""

from collections.abc import Iterable, Sequence
from typing import Any

from receiver.planning.conditions import ConditionRow, SetCondition
from receiver.planning.conditions import Key as ConditionKey
from receiver.planning.faults import Counted, CountFault
from receiver.planning.faults import Key as FaultKey

# What a load selects of the node `n`: conditions of the types %(types)s, and the faults of its present boot.
COLUMNS = """
  (SELECT jsonb_agg(jsonb_build_array(c.type, c.device_id, c.bus_id, c.status, c.reason, c.message, c.advisory, c.no_schedule))
   FROM conditions c WHERE c.node_id = n.id AND c.type = ANY(%(types)s)),
  (SELECT jsonb_agg(jsonb_build_array(f.code, f.device_id, f.count, f.told))
   FROM node_faults f WHERE f.node_id = n.id AND f.boot_id = n.boot_id)"""

# For a statement with `doc(d)`; `%(node)s` is the node. `since` moves with the status only.
ARMS = """
  conditions AS (
    INSERT INTO conditions AS old (node_id, type, device_id, tenant_id, bus_id, status, reason, message, advisory, no_schedule)
    SELECT n.id, c.type, c.device, n.tenant_id, c.bus, c.status, c.reason, c.message, c.advisory, c.no_schedule
    FROM doc, nodes n, jsonb_to_recordset(d -> 'conditions') AS c(
      type text, device text, bus text, status text, reason text, message text, advisory boolean, no_schedule boolean)
    WHERE n.id = %(node)s
    ON CONFLICT (node_id, type, device_id) DO UPDATE
      SET tenant_id = excluded.tenant_id, bus_id = excluded.bus_id, status = excluded.status, reason = excluded.reason,
        message = excluded.message, advisory = excluded.advisory, no_schedule = excluded.no_schedule,
        since = CASE WHEN old.status = excluded.status THEN old.since ELSE excluded.since END),
  faults AS (
    INSERT INTO node_faults (node_id, boot_id, device_id, code, tenant_id, count, told)
    SELECT n.id, n.boot_id, f.device, f.code, n.tenant_id, f.count, f.told
    FROM doc, nodes n, jsonb_to_recordset(d -> 'faults') AS f(device text, code text, count bigint, told bigint)
    WHERE n.id = %(node)s
    ON CONFLICT (node_id, boot_id, device_id, code) DO UPDATE
      SET tenant_id = excluded.tenant_id, count = excluded.count, told = excluded.told),
  forgotten AS (
    DELETE FROM node_faults f USING nodes n
    WHERE n.id = %(node)s AND f.node_id = n.id AND f.boot_id <> n.boot_id)"""


def as_conditions(column: Sequence[Sequence[Any]] | None) -> dict[ConditionKey, ConditionRow]:
    """The conditions that COLUMNS selected. (The key's device is a bus id where there is no GPU's UUID: told apart here.)"""
    rows = [ConditionRow(kind, "" if device == bus else device, bus, *rest) for kind, device, bus, *rest in column or ()]
    return {row.key: row for row in rows}


def as_faults(column: Sequence[Sequence[Any]] | None) -> dict[FaultKey, Counted]:
    """The faults that COLUMNS selected."""
    return {(code, device): Counted(count, told) for code, device, count, told in column or ()}


def as_document(steps: Iterable[object]) -> dict[str, Any]:
    """The steps that concern conditions and faults, as ARMS read them."""
    rows = [step.row for step in steps if isinstance(step, SetCondition)]
    counted = [step for step in steps if isinstance(step, CountFault)]
    return {
        "conditions": [
            {
                "type": row.type,
                "device": row.key[1],
                "bus": row.bus_id,
                "status": row.status,
                "reason": row.reason,
                "message": row.message,
                "advisory": row.advisory,
                "no_schedule": row.no_schedule,
            }
            for row in rows
        ],
        "faults": [
            {"device": one.fault.device, "code": one.fault.code, "count": one.fault.count, "told": one.told} for one in counted
        ],
    }
