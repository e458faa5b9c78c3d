"""What a person sees of nodes, GPUs, atoms and pools on a terminal and in a pipe."""

import io
from datetime import UTC, datetime
from typing import Any

from receiver.client.render import render
from receiver.events import EVENTS

NOW = datetime(2026, 11, 29, 16, 23, 30, tzinfo=UTC)
SINCE = "2026-11-29T16:20:01Z"
GPUS = [f"GPU-{number}" for number in range(8)]


def shown(value: dict[str, Any], method: str, columns: int = 0) -> list[str]:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return columns > 0

    out = Screen()
    render(value, "table", out, NOW, method)
    return out.getvalue().splitlines()


def device(number: int, **fields: Any) -> dict[str, Any]:
    whole = {"id": GPUS[number], "present": True, "healthy": True, "serial": f"16{number}", "faults": []}
    return {**whole, "attributes": {"index": number, "gpuProduct": "H100-SXM5-80GB"}, **fields}


def atom(number: int, **fields: Any) -> dict[str, Any]:
    return {"id": GPUS[number], "deviceId": GPUS[number], "generation": "1", "bookable": True, "healthy": True, **fields}


def node(**fields: Any) -> dict[str, Any]:
    faulty = device(1, healthy=False, faults=[{"code": "Xid48"}])
    return {
        "id": "node_1",
        "hostname": "gpu-1",
        "status": "adopted",
        "trust": "platform",
        "connected": True,
        "noScheduleReasons": [{"owner": "health", "type": "FabricManagerDown"}],
        "devices": [device(0), faulty],
        "atoms": [atom(0), atom(1, bookable=False, reason="Xid48")],
        **fields,
    }


def test_a_node_is_a_line_with_what_can_be_booked_and_what_is_against_it() -> None:
    lines = shown({"nodes": [node(wouldNoSchedule=[{"owner": "health", "type": "GpuLost"}])], "nextCursor": None}, "nodes.list")
    assert lines[0].split() == ["id", "hostname", "status", "bookable", "noSchedule", "connected"]
    assert "1 of 2    FabricManagerDown, (GpuLost)" in lines[1]


def test_a_node_has_a_line_a_gpu_and_its_atoms_only_where_they_are_not_the_gpus() -> None:
    lines = shown(node(), "nodes.get")
    assert "bookable            1 of 2" in lines
    assert "noScheduleReasons   FabricManagerDown by health" in lines
    first = lines.index("devices")
    assert lines[first + 1].split() == ["index", "id", "bookable", "why", "state", "gpuProduct", "serial"]
    assert lines[first + 3].split() == ["1", "GPU-1", "0", "of", "1", "Xid48", "Xid48", "H100-SXM5-80GB", "161"]
    assert "atoms" not in lines
    shared = [atom(0, id="MIG-1", profile="1g.10gb"), atom(1)]
    lines = shown(node(atoms=shared), "nodes.get")
    assert lines[lines.index("atoms") + 2].split() == ["MIG-1", "1g.10gb", "yes", "1"]


def test_an_order_answers_what_it_may_have_changed_and_no_more() -> None:
    kept = {"by": "operator", "reason": "fan", "since": SINCE, "until": None}
    lines = shown(node(status="maintenance", maintenance=kept, poolId=None), "nodes.maintenance")
    assert [line.split()[0] for line in lines] == [
        "id",
        "hostname",
        "status",
        "bookable",
        "noScheduleReasons",
        "trust",
        "maintenance",
    ]
    assert "reason=fan" in lines[-1]


def test_conditions_that_are_over_come_last() -> None:
    rows = [{"type": "GpuLost", "status": "false"}, {"type": "Xid79", "status": "true", "deviceId": "GPU-1"}]
    lines = shown(node(conditions=rows), "nodes.get")
    first = lines.index("conditions")
    assert [line.split()[0] for line in lines[first + 2 : first + 4]] == ["Xid79", "GpuLost"]


def test_a_verdict_without_a_policy_is_an_event_only() -> None:
    verdicts = [{"code": "Xid109", "deviceId": "GPU-1", "count": "3", "policy": None, "source": "pool", "action": "none"}]
    lines = shown(node(verdicts=verdicts), "nodes.get")
    assert "event only" in lines[lines.index("verdicts") + 2]


def test_a_list_of_one_method_is_not_drawn_as_that_of_another() -> None:
    held = {"nodes": [{"nodeId": "node_1", "images": [{"digest": "sha256:ab", "name": "llama", "bytes": "1"}]}]}
    assert shown(held, "images.list")[1].split() == ["node_1", "llama"]
    free = {"atoms": [{"id": "GPU-1", "nodeId": "node_1", "deviceId": "GPU-1", "attributes": {"gpuProduct": "B200"}}]}
    assert shown(free, "atoms.list")[:2] == ["id     nodeId  gpuProduct", "GPU-1  node_1  B200"]


def obstacle(**fields: Any) -> dict[str, Any]:
    whole = {"scope": "node", "deviceId": None, "atomId": None, "by": "health", "since": SINCE, "enforced": True, "message": None}
    return {**whole, **fields}


def why(*obstacles: dict[str, Any], **fields: Any) -> dict[str, Any]:
    devices = [{"deviceId": one, "index": number, "atoms": 1, "bookable": 0, "booked": 0} for number, one in enumerate(GPUS)]
    state = {"nodeId": "node_1", "hostname": "gpu-1", "status": "adopted", "trust": "platform", "connected": True}
    return {**state, "answer": "Nothing can be booked.", "obstacles": list(obstacles), "devices": devices, **fields}


def test_why_says_what_by_whom_since_when_and_what_ends_it_with_a_command_on_one_line() -> None:
    command = f"better-compute api devices.clear deviceId={GPUS[3]} reason=... {'x' * 60}"
    fault = obstacle(scope="device", deviceId=GPUS[3], what="Xid48", by="xid", message="48, DBE", ends=command)
    lines = shown(why(fault, poolId="pool_1", pool="h100", mode="enforce"), "nodes.why", columns=60)
    assert lines[:6] == [
        "gpu-1  node_1  adopted, pool h100 (enforce), connected",
        "Nothing can be booked.",
        "",
        "Xid48 on GPU 3 GPU-3  by xid, since 2026-11-29T16:20:01Z (3m ago)",
        "  48, DBE",
        f"  ends: {command}",
    ]


def test_why_says_once_what_is_the_same_of_many_gpus() -> None:
    rows = [
        obstacle(scope="device", deviceId=one, what="Xid48", by="xid", message=f"of {one}", ends=f"clear deviceId={one}")
        for one in GPUS[:5]
    ]
    lines = shown(why(*rows, obstacle(what="maintenance", ends="nodes.adopt")), "nodes.why")
    assert [line for line in lines if "by xid" in line] == [
        "Xid48 on 5 GPUs (index 0, 1, 2, 3, 4)  by xid, since 2026-11-29T16:20:01Z (3m ago)"
    ]
    assert "  of <deviceId>" in lines
    assert "  ends: clear deviceId=<deviceId>" in lines


def test_why_marks_what_a_pool_only_observes_and_who_has_root() -> None:
    lines = shown(
        why(obstacle(what="GpuLost", enforced=False, ends="..."), trust="tenant-controlled", connected=False), "nodes.why"
    )
    assert lines[0] == "gpu-1  node_1  adopted, no pool, tenant-controlled, not connected, last seen -"
    assert "GpuLost (would be, the pool observes)  by health, since 2026-11-29T16:20:01Z (3m ago)" in lines


def test_what_a_node_says_moves_no_cursor() -> None:
    lines = shown(why(obstacle(what="Xid13", message="\x1b[2J\x1b[H pid=1", ends="-"), hostname="a\x1b[31m"), "nodes.why", 80)
    assert "\x1b" not in "".join(lines[:5])
    assert r"  \x1b[2J\x1b[H pid=1" in lines


def test_every_event_type_is_told_in_words_whatever_its_payload_lacks() -> None:
    for kind in EVENTS.values():
        for told in ({}, {"before": "ab" * 32, "after": None}, dict.fromkeys(kind.fields, None), dict.fromkeys(kind.fields, "x")):
            payload = {name.removesuffix("?"): value for name, value in told.items()}
            (line,) = shown({"events": [{"time": SINCE, "type": kind.name, "payload": payload}]}, "events.list")[1:]
            assert kind.name in line


def test_an_audit_says_who_did_what_why_and_not_twice_to_which_node() -> None:
    payload = {"method": "nodes.move", "by": "alice", "reason": "rack 12", "request": {"nodeId": "node_1", "poolId": "pool_1"}}
    rows = [{"time": SINCE, "type": "api.write", "nodeId": "node_1", "payload": {**payload, "schemaVersion": 1}}]
    assert "nodes.move by alice (poolId=pool_1): rack 12  node_1" in shown({"events": rows}, "events.list")[1]
