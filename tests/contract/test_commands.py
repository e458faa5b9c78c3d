"""A7 with both ends: a command is handed over whole, and its result sent until it is acknowledged."""

import json

from agent.session import machine as agent
from agent.session import messages as said
from receiver.values import Command, CommandResult
from tests.contract.wire import Store, Wire

DIAG = Command("cmd_1", "diag.nvml", {"expect": {"gpuCount": 8}}, "acceptance:node_x:1:diag.nvml", 600.0)
PASSED = said.CommandResult("cmd_1", "succeeded", "", '{"passed": true}')


def ordered(wire: Wire) -> list[said.Command]:
    return [note.command for note in wire.notes if isinstance(note, agent.Ordered)]


def test_a_command_arrives_as_it_was_queued() -> None:
    wire = Wire()
    wire.connect()
    wire.queued(DIAG)
    (command,) = ordered(wire)
    assert (command.id, command.kind, command.idempotency_key, command.start_within) == (
        *("cmd_1", "diag.nvml", DIAG.idempotency_key),
        600.0,
    )
    assert json.loads(command.payload) == DIAG.payload


def test_a_command_that_is_too_late_is_not_one_without_a_limit() -> None:
    wire = Wire()
    wire.connect()
    wire.queued(Command("cmd_1", "node.reboot", {}, "a", 0.0))
    wire.queued(Command("cmd_2", "node.reboot", {}, "b", None))
    assert [one.start_within for one in ordered(wire)][-2:] == [0.0, None]


def test_a_result_is_stored_and_then_acknowledged() -> None:
    wire = Wire()
    wire.connect()
    wire.queued(DIAG)
    wire.done(PASSED)
    assert wire.store.results == [CommandResult("cmd_1", "succeeded", "", {"passed": True})]
    assert [note.id for note in wire.notes if isinstance(note, agent.Acknowledged)] == ["cmd_1"]
    wire.later(3600.0)
    assert len(wire.store.results) == 1, "and not said again"


def test_a_result_that_was_not_stored_comes_again_in_the_same_session_and_in_the_next() -> None:
    store = Store(broken=True)
    wire = Wire(store)
    wire.connect()
    wire.queued(DIAG)
    wire.done(PASSED)
    assert store.results == []
    store.broken = False
    wire.later(agent.RESULT_GAP + 1)
    assert len(store.results) == 1
    store.broken = True
    wire.done(said.CommandResult("cmd_2", "refused", "NotAllowed"))
    store.broken = False
    wire.connect()
    assert store.results[-1] == CommandResult("cmd_2", "refused", "NotAllowed")


def test_a_command_without_a_result_comes_with_the_next_session() -> None:
    wire = Wire()
    wire.connect()
    wire.queued(DIAG)
    wire.connect()
    assert [one.id for one in ordered(wire)] == ["cmd_1", "cmd_1"]
    wire.done(PASSED)
    wire.connect()
    assert len(ordered(wire)) == 2
