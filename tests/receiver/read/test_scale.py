"""Reading at the size of a fleet (SPEC B9): 100,000 nodes of eight GPUs under `make proof-conclude`, a tenth in `make test`."""

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from receiver.read import queries
from receiver.read.api import READS
from receiver.read.tokens import Scope
from receiver.store.embedded import EmbeddedPostgres
from tests.receiver.read import large
from tests.receiver.read.fleet import EVERYTHING, NODES, Fleet, made, scans
from tests.receiver.read.large import BUSY, QUIET, command_id, device_id, image, node_id, pool_id, run_id, snapshot_id, token_id
from tests.repetitions import within

PAGE, NOTHING = within(0.05), within(0.5)  # seconds

# No node has it, by every operator; two are of common values that no node has both of.
MATCH_NOTHING = [
    "gpu.model=NOPE",
    "nope",
    "gpu.present!=true",
    "gpu.model notin (H100,H200,B200,A100)",
    "!gpu.model",
    "gpu.count>100",
    "memory.GiB<1024",
    "gpu.model=H200,gpu.vramGiB=80",
    "gpu.present=true,cpu.arch=x86_64,gpu.vramGiB>80,gpu.model in (H100,A100),!nope",
    "canary,gpu.count<4",
]
MATCH = [
    "",
    "gpu.present=true",
    "gpu.model=H100",
    "canary=yes",
    "gpu.present,canary",
    "rack=r7",
    "gpu.count>4",
    "gpu.count<5",
    "tier!=spot,!nope,memory.GiB>1024,gpu.vramGiB>100,gpu.model notin (H100)",
]
LATE = f"{node_id(NODES - 8)}/GPU/0"  # a cursor of atoms.list near its end

# Each method of the API that reads, and how many rows of one table a page may take: a page of nodes has their labels and atoms,
# and a selector may have to look at each node once.
OF_PAGE, OF_FLEET = 15_000, round(1.3 * NODES)
QUESTIONS: dict[str, list[tuple[int, dict[str, str]]]] = {
    "inventory.get": [(OF_PAGE, {"nodeId": node_id(5)}), (OF_PAGE, {"nodeId": node_id(5), "snapshotId": snapshot_id(5)})],
    "inventory.history": [(OF_PAGE, {"nodeId": node_id(5)})],
    "inventory.diff": [(OF_PAGE, {"nodeId": node_id(5)})],
    "nodes.get": [(OF_PAGE, {"nodeId": node_id(5)})],
    "nodes.why": [(OF_PAGE, {"nodeId": node_id(50)}), (OF_PAGE, {"deviceId": device_id(50, 3)})],
    "nodes.list": [
        (OF_PAGE, {}),
        (OF_PAGE, {"cursor": node_id(NODES - 50)}),
        (OF_PAGE, {"poolId": pool_id(3)}),
        (OF_PAGE, {"poolId": pool_id(large.POOLS)}),
        (OF_PAGE, {"status": "retired"}),
        (OF_PAGE, {"status": "deleted"}),
        (OF_PAGE, {"poolId": pool_id(3), "status": "adopted", "condition": "RebootRequired"}),
        (OF_FLEET, {"condition": "FabricManagerDown"}),
        (OF_PAGE, {"condition": "NoSuch"}),
        (OF_PAGE, {"selector": "canary=yes"}),
        *((OF_FLEET, {"selector": one}) for one in (*MATCH, *MATCH_NOTHING)),
    ],
    "atoms.list": [
        (OF_PAGE, {}),
        (OF_PAGE, {"cursor": LATE}),
        (OF_PAGE, {"nodeId": node_id(5)}),
        (OF_PAGE, {"poolId": pool_id(3)}),
        (OF_PAGE, {"poolId": pool_id(large.POOLS)}),
        (OF_PAGE, {"selector": "canary=yes"}),
        *((OF_FLEET, {"selector": one}) for one in (*MATCH, *MATCH_NOTHING)),
        *((OF_FLEET, {"selector": one, "cursor": LATE}) for one in MATCH),
    ],
    "images.list": [
        (OF_PAGE, {"poolId": pool_id(3)}),
        *((OF_PAGE, {"poolId": pool_id(3), "digest": image(number)}) for number in (1, 20, 40, 41)),
    ],
    "pools.list": [(OF_FLEET, {})],
    "pools.get": [(OF_PAGE + NODES // 10, {"poolId": pool_id(3)})],
    "devices.get": [(OF_PAGE, {"deviceId": device_id(50, 3)})],
    "devices.history": [(OF_PAGE, {"deviceId": device_id(50, 3)}), (OF_PAGE, {"serial": "165000403"})],
    "acceptance.get": [(OF_PAGE, {"nodeId": node_id(5)}), (OF_PAGE, {"nodeId": node_id(5), "attempt": "1"})],
    "commands.get": [(OF_PAGE, {"commandId": command_id(50, 2)})],
    "commands.list": [
        *((OF_PAGE, {"cursor": one}) for one in ("", command_id(50, 1))),
        *((OF_PAGE, {"nodeId": node_id(50), **keys}) for keys in ({}, {"kind": "node.reboot"}, {"state": "failed"})),
        *((OF_PAGE, {"state": one}) for one in ("open", "queued", "sent", "succeeded", "failed", "cancelled")),
        *((OF_PAGE, {"kind": one}) for one in ("diag.nvml", "node.reboot", "nope")),
        (OF_PAGE, {"kind": "node.reboot", "state": "sent"}),
        (OF_PAGE, {"kind": "diag.nvml", "state": "failed"}),
    ],
    "remediation.get": [(OF_PAGE, {"runId": run_id(50)})],
    "remediation.list": [
        *((OF_PAGE, {"cursor": one}) for one in ("", run_id(100))),
        (OF_PAGE, {"nodeId": node_id(50)}),
        *((OF_PAGE, {"poolId": pool_id(10), **keys}) for keys in ({}, {"state": "open"}, {"state": "cancelled"})),
        (OF_PAGE, {"poolId": pool_id(3), "state": "failed"}),
        *((OF_PAGE, {"state": one}) for one in ("open", "queued", "running", "succeeded", "failed", "cancelled")),
        *((OF_PAGE, {"escalated": one}) for one in ("true", "false")),
        (OF_PAGE, {"escalated": "true", "state": "cancelled"}),
    ],
    "tokens.list": [*((OF_PAGE, {"cursor": one}) for one in ("", token_id(NODES // 2), token_id(1)))],
    "joinTokens.list": [*((OF_PAGE, {"cursor": one}) for one in ("", token_id(NODES // 2), token_id(1)))],
    "events.list": [
        (OF_PAGE, {}),
        (OF_PAGE, {"nodeId": node_id(QUIET)}),
        (OF_PAGE, {"nodeId": node_id(BUSY)}),
        (OF_PAGE, {"nodeId": node_id(BUSY), "cursor": f"21.{20 * NODES + NODES // 2}"}),
        *((OF_PAGE, {"type": one}) for one in ("node.*", "node.gpu.*", "pool.*", "fleet.*", "node.xid", "nope")),
        *((OF_PAGE, {"type": one, "cursor": "19.0"}) for one in ("node.*", "pool.*", "node.joined")),
    ],
}


@pytest.fixture(scope="module")
def fleet(server: EmbeddedPostgres) -> Iterator[Fleet]:
    with made(server, f"fleet_{os.getpid()}") as filled:
        yield filled


def test_every_method_that_reads_is_asked_here() -> None:
    assert QUESTIONS.keys() == READS.keys()


@pytest.mark.parametrize("scope", [EVERYTHING, Scope("default")], ids=["all tenants", "one tenant"])
def test_every_statement_of_every_method_uses_an_index_and_reads_few_rows(fleet: Fleet, scope: Scope) -> None:
    wrong: list[str] = []
    for method, questions in QUESTIONS.items():
        for most, keys in questions:
            statements = fleet.explained(method, scope, keys)
            assert statements
            for statement, plan in statements:
                found = list(scans(plan))
                wrong += [f"{method} {keys}: {one} of {statement}" for one in found if one.index is None or one.rows > most]
    assert not wrong, "\n\n".join(wrong)


def test_the_first_and_the_last_page_of_bookable_atoms_are_quick(fleet: Fleet) -> None:
    asked: list[dict[str, str]] = [{}, {"cursor": LATE}, *({"selector": one} for one in MATCH)]
    took = [(keys, fleet.seconds("atoms.list", **keys)) for keys in asked]
    assert not [(keys, seconds) for keys, seconds in took if seconds > PAGE]


def test_a_selector_that_no_node_matches_is_answered_in_time(fleet: Fleet) -> None:
    slow = [(one, took) for one in MATCH_NOTHING if (took := fleet.seconds("atoms.list", selector=one)) > NOTHING]
    assert not slow
    assert all(not fleet.ask("atoms.list", selector=one).atoms for one in MATCH_NOTHING)


@pytest.mark.parametrize("what", large.HOSTILE)
def test_pages_stay_quick_when(fleet: Fleet, server: EmbeddedPostgres, what: str) -> None:
    settled = () if "analyzed" in what else ("VACUUM ANALYZE",)
    fleet.engine.dispose()  # a database in use cannot be copied
    with made(server, f"hostile_{os.getpid()}", fleet.url.split("/")[3].split("?")[0], (large.HOSTILE[what], *settled)) as other:
        left = other.ask("atoms.list", limit="1000")
        assert "analyzed" in what or 0 < len(left.atoms) < 20
        first = {one: other.seconds("atoms.list", selector=one) for one in MATCH}
        assert not {one: took for one, took in first.items() if took > NOTHING}
        assert other.seconds("atoms.list", cursor=LATE) < PAGE
        nothing = {one: other.seconds("atoms.list", selector=one) for one in MATCH_NOTHING}
        assert not {one: took for one, took in nothing.items() if took > NOTHING}


def test_events_of_a_quiet_node_and_of_a_rare_type_are_found_at_once(fleet: Fleet) -> None:
    quiet = fleet.ask("events.list", nodeId=node_id(QUIET))
    assert len(quiet.events) == 3
    rare = fleet.ask("events.list", type="pool.*", limit="50")
    assert [one.type for one in rare.events] == ["pool.remediation.paused"] * 20
    assert fleet.seconds("events.list", nodeId=node_id(QUIET)) < PAGE
    assert fleet.seconds("events.list", type="pool.*") < PAGE


def test_a_walk_over_pages_is_the_whole_list_in_order(fleet: Fleet) -> None:
    with psycopg.connect(fleet.url) as connection:
        all_of_them = connection.execute("SELECT node_id, id, generation FROM bookable_atoms ORDER BY 1, 2, 3").fetchall()
    walked: list[Any] = []
    cursor = ""
    while True:
        page = fleet.ask("atoms.list", limit="1000", cursor=cursor)
        walked += [(one.node_id, one.id, one.generation) for one in page.atoms]
        if not page.HasField("next_cursor"):
            break
        cursor = page.next_cursor
    assert walked == all_of_them
    assert len(walked) > NODES // 2


def test_types_of_events_are_found_without_reading_the_events(fleet: Fleet) -> None:
    with fleet.engine.connect() as connection:
        types = queries.event_types(connection)
    assert types == sorted({"node.joined", "node.xid", "node.gpu.missing", "node.condition.changed", "pool.remediation.paused"})
