"""What a person sees of repairs, commands and acceptance."""

from typing import Any

from tests.receiver.client.test_nodes import SINCE, shown

CAUSE = {"code": "Xid79", "deviceId": "GPU-1", "bootId": "boot-1", "source": "xid"}


def run(**fields: Any) -> dict[str, Any]:
    whole = {"id": "run_1", "nodeId": "node_1", "kind": "node.reboot", "state": "waiting", "reason": "2 bookings are live"}
    return {**whole, "causes": [CAUSE], "by": None, "createdAt": SINCE, "steps": [], "devices": [], **fields}


def test_a_run_is_a_line_that_says_what_for_and_what_it_waits_for() -> None:
    lines = shown({"runs": [run(), run(id="run_2", state="failed", escalated=True)], "nextCursor": None}, "remediation.list")
    assert lines[0].split() == ["id", "nodeId", "kind", "state", "reason", "createdAt", "for"]
    assert "waiting" in lines[1]
    assert "2 bookings are live" in lines[1]
    assert lines[1].endswith("Xid79 on GPU-1")
    assert "failed, escalated" in lines[2]


def test_a_run_is_told_step_by_step_also_as_the_answer_of_an_order() -> None:
    steps = [{"time": SINCE, "state": "queued", "reason": "it hangs"}, {"time": SINCE, "state": "waiting", "reason": None}]
    for method in ("remediation.get", "remediation.cancel", "nodes.reboot", "nodes.diag", "devices.reset"):
        lines = shown(run(by="alice", steps=steps, devices=["GPU-1", "GPU-2"]), method)
        assert "for          Xid79 on GPU-1" in lines
        assert "devices      GPU-1, GPU-2" in lines
        first = lines.index("steps")
        assert lines[first + 1].split() == ["time", "state", "reason"]
        assert [line.split()[-1] for line in lines[first + 2 :]] == ["hangs", "-"]


def test_a_command_is_a_line_without_what_was_said_to_it_and_by_it() -> None:
    command = {"id": "cmd_1", "nodeId": "node_1", "kind": "diag.nvml", "state": "succeeded", "by": "acceptance"}
    whole = {**command, "idempotencyKey": "key", "payload": {"level": 2}, "result": {"passed": True}, "createdAt": SINCE}
    lines = shown({"commands": [whole], "nextCursor": "cmd_1"}, "commands.list")
    assert lines[0].split() == ["id", "nodeId", "kind", "state", "createdAt", "by"]
    assert lines[2] == "go on with cursor=cmd_1"


def test_a_diagnosis_shows_what_did_not_pass_first() -> None:
    words = ("pass", "not-applicable", "unknown", "fail")
    checks = [{"check": f"c.{word}", "result": word, "reason": "why"} for word in words]
    lines = shown(
        {"id": "cmd_1", "state": "succeeded", "payload": {}, "result": {"passed": False, "checks": checks}}, "commands.get"
    )
    first = lines.index("result.checks")
    assert lines[first + 1].split() == ["check", "result", "reason"]
    assert [line.split()[0] for line in lines[first + 2 :]] == ["c.fail", "c.unknown", "c.pass", "c.not-applicable"]
    assert "payload  -" in lines


def test_an_attempt_has_a_line_a_check_with_what_did_not_pass() -> None:
    found = {"passed": False, "checks": [{"check": "gpu.count", "result": "fail", "reason": "7 GPUs, 8 expected"}]}
    checks = [
        {"kind": "diag.nvml", "status": "failed", "reason": "gpu.count", "commandId": "cmd_1", "result": found},
        {"kind": "diag.dcgm", "status": "running", "commandId": "cmd_2"},
    ]
    lines = shown({"nodeId": "node_1", "state": "failed", "attempt": 2, "checks": checks}, "acceptance.get")
    first = lines.index("checks")
    assert lines[first + 1].split() == ["kind", "status", "reason", "found", "commandId"]
    assert "gpu.count fail: 7 GPUs, 8 expected" in lines[first + 2]
    assert lines[first + 3].split() == ["diag.dcgm", "running", "-", "-", "cmd_2"]


def test_what_does_not_go_on_in_a_pool_is_told() -> None:
    stops = [{"kind": "remediation", "since": SINCE, "detail": {"nodes": 7, "limit": 5}, "confirmedBy": None}]
    pool = {"id": "pool_1", "name": "h100", "stops": stops}
    (line,) = shown({"pools": [pool], "nextCursor": None}, "pools.list")[1:]
    assert line.endswith("remediation")
    lines = shown(pool, "pools.get")
    assert "nodes=7 limit=5" in lines[-1]


def test_an_escalation_is_one_line_without_its_evidence() -> None:
    evidence = {"causes": [CAUSE], "gpus": {"gpus": [{"name": "H100"}] * 8}, "diagnosis": {"commandId": "cmd_1"}}
    payload = {"runs": ["run_4", "run_3", "run_2", "run_1"], "reason": "more than 3 runs in 24 h", "evidence": evidence}
    rows = [{"time": SINCE, "type": "node.remediation.escalated", "nodeId": "node_1", "payload": payload}]
    (line,) = shown({"events": rows}, "events.list")[1:]
    assert "run_4 after 3 before: more than 3 runs in 24 h; Xid79 on GPU-1  node_1" in line
    assert "H100" not in line
