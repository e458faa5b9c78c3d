"""`better-compute api`: what it takes, what it prints, how it ends."""

import asyncio
import io
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import encode
from bettercompute.control.v1 import inventory_pb2, nodes_pb2

from receiver.client import cli as client
from receiver.client.methods import answer, find, methods, parse
from receiver.client.render import render, render_line
from tests.receiver.live import serving

NOW = datetime(2026, 11, 29, 16, 23, 30, tzinfo=UTC)
PROGRAM = Path(sys.executable).parent / "better-compute"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = client.main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ---- what it takes


def test_methods_are_those_of_the_descriptors() -> None:
    verbs = {
        "acceptance": "get",
        "atoms": "list",
        "commands": "cancel get list",
        "devices": "clear get history reset transfer",
        "events": "list watch",
        "images": "list",
        "inventory": "diff get history refresh",
        "joinTokens": "create list revoke",
        "nodes": "adopt delete diag get label list maintenance move reboot resolveIdentity retire setTrust why",
        "pools": "confirmHygiene create delete get list maintenance resumeRemediation set",
        "remediation": "cancel get list",
        "tokens": "create list revoke",
    }
    assert list(methods()) == [f"{noun}.{verb}" for noun, row in verbs.items() for verb in row.split()]


def test_keys_are_read_by_their_types_and_by_either_spelling() -> None:
    request = parse(find("inventory.history"), ["nodeId=node_1", "limit=7", "tenant_id=a=b"])
    assert request == inventory_pb2.InventoryServiceHistoryRequest(node_id="node_1", limit=7, tenant_id="a=b")


def test_an_object_is_json_and_labels_may_be_pairs() -> None:
    def read(method: str, pair: str) -> Any:
        return answer(parse(find(method), [pair]))[pair.partition("=")[0]]

    assert read("pools.set", 'policy={"xid": {"109": {"policy": null}}}') == {"xid": {"109": {"policy": None}}}
    assert read("nodes.label", "labels=rack=r12, cost=a=b") == {"rack": "r12", "cost": "a=b"}
    assert read("nodes.label", 'labels={"rack": "r,12"}') == {"rack": "r,12"}
    assert read("nodes.maintenance", "until=2026-11-30T08:00:00Z") == "2026-11-30T08:00:00Z"


@pytest.mark.parametrize(
    ("method", "pairs", "says"),
    [
        ("nodes.label", ["labels=rack"], ["labels='rack'", "key=value,key=value,... or a JSON object"]),
        ("nodes.label", ["labels=rack=a,,b=c"], ["labels='rack=a,,b=c'"]),
        ("nodes.label", ['labels={"rack": 1}'], ["labels=", "is not key=value"]),
        ("pools.set", ["policy={'expect'}"], ["policy=", "is not a JSON object"]),
        ("pools.set", ["policy=[1]"], ["policy='[1]' is not a JSON object"]),
        ("nodes.maintenance", ["until=tomorrow"], ["until='tomorrow' is not a time such as"]),
        ("inventry.get", [], ["inventry.get", "inventory.get", "nodes.list", "pools.create"]),
        ("inventory.get", ["nodeid=x"], ["nodeid", "did you mean nodeId", "snapshotId (text)"]),
        ("inventory.get", ["node"], ["'node' is not key=value", "nodeId"]),
        ("inventory.history", ["limit=many"], ["limit='many'", "whole number"]),
        ("inventory.history", ["limit=-1"], ["limit='-1'", "not negative"]),
        ("inventory.history", ["limit=99999999999"], ["limit='99999999999'", "whole number"]),
        ("inventory.history", ["limit="], ["limit=''", "whole number"]),
    ],
)
def test_what_cannot_be_sent_names_the_key_and_what_is_valid(
    capsys: pytest.CaptureFixture[str], method: str, pairs: list[str], says: list[str]
) -> None:
    code, out, err = run(capsys, "api", method, *pairs)
    assert (code, out) == (2, "")
    assert [word for word in says if word not in err] == []


def test_options_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "api", "--server", "unix:/nowhere", "nodes.list", "limit=1", "--format", "json", "status=x")
    assert (code, "unix:/nowhere" in err) == (2, True)


def test_help_tells_the_exit_codes_and_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        client.main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert "exit codes" in text
    assert all(f"{key}=" in text for method in methods().values() for key in method.keys)


# ---- what it prints


def test_an_absent_field_is_null_in_an_answer_and_left_out_in_a_section() -> None:
    sections = inventory_pb2.Sections(os=pb.OsSection(hostname="gpu-1"))
    told = answer(inventory_pb2.InventoryServiceGetResponse(snapshot_id="inv_1", sections=sections))
    assert told["appliedSnapshotId"] is None
    assert told["createdAt"] is None
    assert list(told["sections"]) == ["os"]
    assert told["sections"]["os"]["hostname"] == "gpu-1"
    assert "kernelRelease" not in told["sections"]["os"]


def test_lists_maps_and_defaults_are_shown() -> None:
    told = answer(inventory_pb2.InventoryServiceHistoryResponse(snapshots=[inventory_pb2.Snapshot(id="inv_1")]))
    assert told == {
        "snapshots": [{"id": "inv_1", "digest": "", "advisory": False, "createdAt": None, "sections": {}, "changed": []}],
        "nextCursor": None,
    }


def shown(value: dict[str, Any], form: str = "table", terminal: int = 0) -> str:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return terminal > 0

    out = Screen()
    render(value, form, out, NOW)
    return out.getvalue()


SNAPSHOTS = {
    "snapshots": [{"id": "inv_1", "digest": "ab" * 32, "createdAt": "2026-11-29T16:20:01.5Z", "changed": ["os", "gpus"]}],
    "nextCursor": "17",
}


def test_a_table_in_a_pipe_is_plain_with_ages_and_short_hashes() -> None:
    assert shown(SNAPSHOTS).splitlines() == [
        "id     createdAt                      changed   digest",
        "inv_1  2026-11-29T16:20:01Z (3m ago)  os, gpus  abababababab",
        "go on with cursor=17",
    ]


def test_a_table_on_a_terminal_fits_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    coloured = shown({"cards": [{"id": "card_1", "wide": "w" * 34, "model": "H100"}]}, terminal=1)
    assert "\x1b[1m" in coloured, "headings are bold"
    lines = re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0].split() == ["id", "model"], "what is too wide is left out, what fits behind it is not"
    assert lines[-1] == "not shown for want of width: wide"


def test_an_empty_list_says_so() -> None:
    assert shown({"snapshots": [], "nextCursor": None}) == "no snapshots\n"


def test_nested_answers_are_drawn_below_headings() -> None:
    gpus = [{"uuid": "GPU-1", "vramBytes": str(80 << 30), "mig": {"current": True, "pending": None}, "ecc": {}}]
    text = shown({"snapshotId": "inv_1", "sections": {"gpus": {"error": None, "gpus": gpus}, "os": {"hostname": "[b]x"}}})
    assert text.splitlines() == [
        "snapshotId  inv_1",
        "",
        "gpus",
        "",
        "gpus.gpus",
        "uuid   health  vramBytes",
        "GPU-1  ok      80 GiB",
        "",
        "os",
        "hostname  [b]x",
    ]


def test_a_policy_is_shown_as_it_is_typed() -> None:
    assert '{"xid": {"109": {"policy": null}}}' in shown({"id": "pool_1", "policy": {"xid": {"109": {"policy": None}}}})


def test_lists_in_a_row_are_short() -> None:
    rows = [{"uuid": "GPU-1", "links": [{"link": n} for n in range(18)]}, {"uuid": "GPU-2", "links": [{"link": 0}, {"link": 1}]}]
    assert shown({"cards": rows}).splitlines() == ["uuid   links", "GPU-1  18 entries", "GPU-2  link=0 | link=1"]
    flags = shown({"flags": [f"f{number}" for number in range(20)], "one": ["a", "b"]}).splitlines()
    assert flags == ["flags  20: f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, ...", "one    a, b"]


def test_what_is_nested_in_a_cell_is_in_brackets() -> None:
    change = {"type": "disk.replaced", "before": {"serial": "A", "tags": ["x", "y"]}}
    assert shown({"rows": [{"payload": {"changes": [change], "digest": None}}]}).splitlines() == [
        "payload",
        "changes=(type=disk.replaced before=(serial=A tags=(x, y)))",
    ]


def test_gpus_are_a_line_each_in_their_order_with_what_is_wrong() -> None:
    links = [{"link": 0, "active": True}, {"link": 1, "active": False}]
    mig = {"capable": True, "current": True, "pending": True, "instances": [{"profile": "1g.10gb"}, {"profile": "1g.10gb"}]}
    gpus = [
        {"uuid": "GPU-b", "index": 1, "state": "lost", "nvlinks": links, "rowRemap": {"pending": True}},
        {"uuid": "GPU-a", "index": 0, "state": "ok", "mig": mig, "ecc": {"volatile": {"total": "0"}}, "power": {"maxMw": 1}},
        {"uuid": "GPU-c", "assigned": True, "mig": {"capable": True, "current": False, "pending": True}},
    ]
    text = shown({"snapshotId": "inv_1", "sections": {"gpus": {"gpus": gpus}}}).splitlines()
    assert text[5:] == [
        "index  uuid   health                   mig                    nvlinks",
        "0      GPU-a  ok                       on: 2 x 1g.10gb        -",
        "1      GPU-b  lost, row remap pending  -                      1 of 2 active",
        "-      GPU-c  assigned to a VM         off, on after a reset  -",
    ]


def test_events_and_changes_are_told_in_words() -> None:
    swap = {"before": {"name": "sda", "serial": "A", "wwn": "1"}, "after": {"name": "sda", "serial": "B", "wwn": "1"}}
    seven, two = ([{"profile": profile}] * count for profile, count in (("1g.10gb", 7), ("3g.40gb", 2)))
    payloads = [
        ("node.inventory.changed", {"snapshotId": "inv_1", "sections": ["disks", "os"], "changes": [{}, {}]}),
        ("node.inventory.changed", {"snapshotId": "inv_2", "sections": ["os"], "changes": [], "advisory": True}),
        ("node.disk.replaced", {"snapshotId": "inv_1", **swap}),
        ("node.gpu.missing", {"deviceId": "GPU-1", "before": {"index": 1, "name": "H100"}, "after": None}),
        ("node.mig.layout.changed", {"deviceId": "GPU-1", "before": {"instances": seven}, "after": {"instances": two}}),
        ("node.xid", {"deviceId": "GPU-1", "xid": 79, "message": "fallen off", "schemaVersion": 1}),
        ("node.joined", {"by": "hello", "schemaVersion": 1}),
    ]
    events = [{"id": "evt_1", "type": kind, "payload": payload, "nodeId": "node_1"} for kind, payload in payloads]
    text = shown({"events": events, "nextCursor": "1.2"}).splitlines()
    assert [re.split("  +", line)[1] for line in text[:-1]] == [
        "what",
        "disks, os in inv_1; 2 changes",
        "os in inv_2; advisory",
        "sda: serial A -> B",
        "GPU-1: H100, index 1",
        "GPU-1: instances 7 x 1g.10gb -> 2 x 3g.40gb",
        "Xid 79 on GPU-1: fallen off",
        "by hello",
    ]
    assert "sda: serial A -> B" in shown({"from": "inv_1", "to": "inv_2", "changes": [{"type": "disk.replaced", **swap}]})


def test_history_has_the_hashes_of_what_changed() -> None:
    row = {"id": "inv_2", "sections": {"os": "ab" * 32, "cpu": "cd" * 32}, "changed": ["os"]}
    assert shown({"snapshots": [row], "nextCursor": None}).splitlines() == ["id     changed", "inv_2  os abababab"]


def test_a_text_wraps_on_a_terminal_and_keeps_room_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    rows = [{"id": "evt_1", "type": "t", "payload": {"note": "word " * 30}, "nodeId": "node_1"}]
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown({"events": rows, "nextCursor": "1.1"}, terminal=1)).splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.count("word") for line in lines) == 30
    assert "not shown for want of width: nodeId" in lines[-2]


def test_nothing_that_a_node_says_moves_the_cursor() -> None:
    text = shown({"hostname": "a\x1b[2Jb\nc\u202ed\x9bé"})
    assert text == "hostname  a\\x1b[2Jb\\x0ac\\x202ed\\x9bé\n"


def test_json_and_yaml_say_the_same_in_the_same_order() -> None:
    read = json.loads(shown(SNAPSHOTS, "json"))
    assert read == yaml.safe_load(shown(SNAPSHOTS, "yaml")) == SNAPSHOTS
    assert list(read) == list(yaml.safe_load(shown(SNAPSHOTS, "yaml")))


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("json", '{"event": {"id": "evt_1", "payload": {"a": 1}}, "cursor": "1.2"}\n'),
        ("yaml", "---\nevent:\n  id: evt_1\n  payload:\n    a: 1\ncursor: '1.2'\n"),
        ("table", "a 1\n"),
    ],
)
def test_a_stream_is_a_line_or_a_document_each(form: str, expected: str) -> None:
    out = io.StringIO()
    render_line({"event": {"id": "evt_1", "payload": {"a": 1}}, "cursor": "1.2"}, form, out, NOW)
    assert out.getvalue() == expected


# ---- against a server


@pytest.fixture
def target(database: str) -> Iterator[str]:
    """The API of a receiver in another thread."""
    ready, done, found = threading.Event(), threading.Event(), []

    async def main() -> None:
        async with serving(database) as served:
            daemon = served.daemon(node_id="node_01hf7yat000000000000000000")
            await daemon.connect()
            await daemon.offer({"os": encode(pb.OsSection(hostname="gpu-1"))})
            found.append(served.receiver.config.listen_api)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(20)
    yield found[0]
    done.set()
    thread.join()


def test_answers_and_refusals_end_with_their_codes(capsys: pytest.CaptureFixture[str], target: str) -> None:
    node = "nodeId=node_01hf7yat000000000000000000"
    code, out, _ = run(capsys, "api", "inventory.get", node, "--server", target, "--format", "json")
    assert (code, json.loads(out)["sections"]["os"]["hostname"]) == (0, "gpu-1")
    code, out, _ = run(capsys, "api", "nodes.list", "--server", target)
    assert (code, "gpu-1" in out) == (0, True)
    code, out, err = run(capsys, "api", "nodes.get", "nodeId=node_x", "--server", target)
    assert (code, out, "NOT_FOUND: no node node_x" in err) == (1, "", True)
    code, _, err = run(capsys, "api", "inventory.history", node, "limit=2000", "--server", target)
    assert (code, "INVALID_ARGUMENT" in err and "1,000" in err) == (2, True)
    code, _, err = run(capsys, "api", "nodes.list", "--server", target.removesuffix("a") + "s")
    assert (code, "does not know nodes.list" in err) == (2, True)


def test_watch_prints_each_event_until_it_is_interrupted(target: str) -> None:
    argv = [str(PROGRAM), "api", "events.watch", "cursor=0.0", "--server", target, "--format", "json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [json.loads(process.stdout.readline())["event"]["type"] for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert (told, process.wait(20)) == (["node.joined", "node.inventory.changed"], 0)


def test_a_pipe_that_is_closed_is_no_error(target: str) -> None:
    argv = [str(PROGRAM), "api", "events.watch", "cursor=0.0", "--server", target, "--format", "json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(20)) == ("", 0)


def test_an_unreachable_server_is_named_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "api", "nodes.list", "--server", "127.0.0.1:1")
    assert (code, out) == (2, "")
    assert "127.0.0.1:1" in err
    assert "BETTER_COMPUTE_SERVER" in err


def test_the_server_comes_from_the_environment() -> None:
    done = subprocess.run(
        [PROGRAM, "api", "nodes.list"],
        env={"BETTER_COMPUTE_SERVER": "unix:/nowhere.sock"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, "unix:/nowhere.sock" in done.stderr) == (2, True)


def test_is_part_of_the_base_install() -> None:
    """No database library, and nothing that draws before something is drawn."""
    heavy = ["sqlalchemy", "psycopg", "alembic", "rich", "yaml"]
    code = f"import sys, receiver.client.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"


def test_a_node_without_labels_still_reads() -> None:
    assert "labels" in answer(nodes_pb2.Node(id="node_1"))
