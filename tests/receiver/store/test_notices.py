"""What the statement of a plan notifies of: whom, and that it comes with the commit of what was written, or not at all."""

import json
from collections.abc import Iterator

import psycopg
import pytest

from receiver.events import event
from receiver.planning.view import CommandOrder, Draft, Notice, Order, Run
from receiver.store.attempts import CHANNEL
from receiver.store.database import Connection
from receiver.store.statement import Statement
from receiver.store.view import REMEDIATION, RESERVATIONS, notices
from tests.receiver.builders import NODE, join

RUN = Run("run_1", "node.reboot")
TOLD = event("node.gpu.cleared", {"deviceId": "GPU-1", "code": "Xid79", "reason": "cleared"})


@pytest.fixture
def listener(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        for channel in (REMEDIATION, RESERVATIONS, CHANNEL):
            connection.execute(f"LISTEN {channel}")
        yield connection


@pytest.mark.parametrize(
    ("draft", "reported", "channels"),
    [
        (Draft(), True, []),
        (Draft(orders=[Order("node.reboot")]), False, [REMEDIATION]),
        (Draft(turns=["Xid79"]), False, [REMEDIATION]),
        (Draft(runs={RUN.id: RUN}), False, []),
        (Draft(runs={RUN.id: RUN}), True, [REMEDIATION]),
        (Draft(runs={RUN.id: RUN}, events=[TOLD]), False, [REMEDIATION]),
        (Draft(events=[TOLD]), True, []),
        (Draft(commands=[CommandOrder("diag.nvml", {}, "key", "acceptance", 60.0)]), False, [CHANNEL]),
        (Draft(notices=[Notice("AtomUnhealthy"), Notice("AtomUnhealthy", "GPU-1")]), False, [RESERVATIONS] * 2),
    ],
)
def test_who_is_told_of_a_plan(draft: Draft, reported: bool, channels: list[str]) -> None:
    assert [one["channel"] for one in notices(NODE, draft, reported)] == channels


def test_notices_come_with_the_commit_in_the_form_of_their_channel(tx: Connection, listener: psycopg.Connection) -> None:
    join(tx)
    draft = Draft(turns=["Xid79"], notices=[Notice("AtomUnhealthy", 'GPU-"1"')])
    statement = Statement(NODE, notices=notices(NODE, draft))
    assert statement.empty, "they write nothing"
    assert statement.run(tx)
    assert list(listener.notifies(timeout=0.1)) == []
    tx.commit()
    heard = [(one.channel, one.payload) for one in listener.notifies(timeout=5, stop_after=2)]
    assert heard[0] == (REMEDIATION, NODE)
    assert heard[1][0] == RESERVATIONS
    assert json.loads(heard[1][1]) == {"reason": "AtomUnhealthy", "deviceId": 'GPU-"1"', "nodeId": NODE}


@pytest.mark.parametrize("holds", [True, False])
def test_nobody_is_told_of_what_was_not_written(tx: Connection, listener: psycopg.Connection, holds: bool) -> None:
    join(tx)
    statement = Statement(NODE, guard=str(holds), notices=[{"channel": REMEDIATION, "payload": NODE}])
    statement.set("draining", True)
    assert statement.run(tx) is holds
    tx.commit()
    assert [one.payload for one in listener.notifies(timeout=0.3)] == [NODE] * holds
    assert tx.execute("SELECT draining FROM nodes").fetchone() == (holds,)
