"""What an escalation hands to a person (SPEC B8): the kernel's lines, the gpus section, the last diagnosis."""

from bettercompute.contract.sections import decode
from google.protobuf.json_format import MessageToDict

from receiver.planning.view import Draft, Facts, Run
from receiver.store.database import Connection
from receiver.values import Json, Payload

_GPUS = """SELECT s.body FROM nodes n JOIN sections s ON s.hash = decode(n.section_baselines -> 'gpus' ->> 0, 'hex')
WHERE n.id = %s"""
_DIAGNOSIS = """SELECT id, state, reason, result, finished_at FROM commands
WHERE node_id = %s AND starts_with(kind, 'diag.') AND result IS NOT NULL ORDER BY finished_at DESC LIMIT 1"""


def evidence(tx: Connection, facts: Facts, draft: Draft, run: Run) -> Payload:
    """`faults`: those of the run's devices, with the kernel's line of each as `message`; `gpus`: the section as it was last
    applied, in protobuf's JSON; `diagnosis`: the last one's command and result. What there is not is left out."""
    gpus = tx.execute(_GPUS, [facts.node_id]).fetchone()
    diagnosis = tx.execute(_DIAGNOSIS, [facts.node_id]).fetchone()
    return {
        "causes": list(run.causes),
        "faults": _faults(draft, run),
        **({"gpus": MessageToDict(decode("gpus", gpus[0]))} if gpus else {}),
        **({"diagnosis": _diagnosis(*diagnosis)} if diagnosis else {}),
    }


def _faults(draft: Draft, run: Run) -> list[Json]:
    """In the order of their keys: the open ones of device health, and every other line that is counted of these devices."""
    mine = {*run.devices, *(one["deviceId"] for one in run.causes)}
    rows = [row for row in draft.health.values() if row.device_id in mine and row.open]
    health = [
        {
            "deviceId": row.device_id,
            "code": row.code,
            "source": row.source,
            "bootId": row.boot_id,
            "count": row.count,
            **({"message": row.detail["message"]} if row.detail.get("message") else {"values": dict(row.detail)}),
        }
        for row in sorted(rows, key=lambda row: row.key)
    ]
    told = {(row.code, row.device_id, row.boot_id) for row in rows}
    counted = [
        {
            "deviceId": one.device_id,
            "code": one.code,
            "source": "xid",
            "bootId": one.boot_id,
            "count": one.count,
            "message": one.message,
        }
        for one in sorted(draft.faults.values(), key=lambda one: one.key)
        if one.device_id in mine and (one.code, one.device_id, one.boot_id) not in told
    ]
    return health + counted


def _diagnosis(command_id: str, state: str, reason: str, result: Json, ended: object) -> Payload:
    return {"commandId": command_id, "state": state, "reason": reason, "result": result, "endedAt": str(ended)}
