"""The conversation's rules, one by one: what goes out, and when."""

from dataclasses import replace

import pytest

from agent.sections import Section
from agent.session import machine
from agent.session import messages as m
from agent.session.machine import (
    Acknowledged,
    Answered,
    Close,
    CollectAgain,
    CommandDone,
    HelloChanged,
    InventoryChanged,
    Lost,
    Opened,
    Ordered,
    Output,
    Phase,
    State,
    StatusChanged,
    Tick,
    Welcomed,
    step,
)

HELLO = m.Hello("0.1.0", "boot-1", "instance-1", digest="d1")
CPU, DISKS = Section("cpu", b"c" * 10), Section("disks", b"d" * 20)


def inventory(digest: str) -> m.InventoryOffer:
    return m.InventoryOffer(digest, (CPU, DISKS), (), 100.0, "boot-1", "first")


def status(digest: str, abandoned: int = 0) -> m.Status:
    return m.Status(digest=digest, abandoned_workers=abandoned)


def welcome(applied: str = "") -> m.Welcome:
    return m.Welcome("node_1", 7, 30.0, applied, 1 << 20)


def result(digest: str, what: str, **more: object) -> m.InventoryResult:
    return m.InventoryResult(digest, what, **more)  # type: ignore[arg-type]


class Talk:
    """A machine that is fed, and what came of it."""

    def __init__(self, digest: str = "d1", applied: str | None = None) -> None:
        self.state = State()
        self.now = 1000.0
        if digest:
            self.feed(InventoryChanged(inventory(digest)), StatusChanged(status(digest)))
        if applied is not None:
            self.open(applied)

    def open(self, applied: str = "") -> list[Output]:
        return self.feed(Opened(HELLO), welcome(applied))

    def feed(self, *events: object, after: float = 0.0) -> list[Output]:
        self.now += after
        out: list[Output] = []
        for event in events:
            self.state, outputs = step(self.state, event, self.now)
            out += outputs
        return out

    def collect(self, digest: str) -> list[Output]:
        return self.feed(InventoryChanged(inventory(digest)), StatusChanged(status(digest)))


def kinds(outputs: list[Output]) -> list[str]:
    return [type(output).__name__ for output in outputs]


# ---- hello and welcome


def test_greets_and_says_nothing_before_the_welcome() -> None:
    talk = Talk()
    assert talk.feed(Opened(HELLO)) == [HELLO]
    assert talk.feed(StatusChanged(status("d1", 1)), InventoryChanged(inventory("d2")), Tick(), after=5) == []


def test_after_welcome_reports_and_then_offers_what_is_not_applied() -> None:
    talk = Talk()
    assert talk.open("other") == [HELLO, Welcomed(7), m.StatusReport(1, status("d1")), inventory("d1")]


@pytest.mark.parametrize("applied", ["d1", "advisory:d1"])
def test_after_welcome_only_reports_what_is_applied(applied: str) -> None:
    talk = Talk()
    assert kinds(talk.open(applied)) == ["Hello", "Welcomed", "StatusReport"]
    assert talk.state.is_applied


def test_before_the_first_collection_reports_without_a_digest_and_offers_when_it_ends() -> None:
    talk = Talk(digest="")
    assert kinds(talk.open()) == ["Hello", "Welcomed", "StatusReport"]
    assert kinds(talk.collect("d1")) == ["InventoryOffer", "StatusReport"]


def test_gives_up_a_gateway_that_does_not_welcome() -> None:
    talk = Talk()
    talk.feed(Opened(HELLO))
    assert talk.state.deadline == talk.now + machine.WELCOME_LIMIT
    assert talk.feed(Tick(), after=machine.WELCOME_LIMIT - 1) == []
    assert talk.feed(Tick(), after=1) == [Close(None)]
    assert talk.state.phase is Phase.CLOSED


def test_says_hello_again_only_when_drivers_or_capabilities_differ() -> None:
    talk = Talk(applied="d1")
    same = replace(HELLO, digest="d2", previous_epoch=7)
    able = replace(HELLO, capabilities=("nvml",))
    assert talk.feed(HelloChanged(same)) == []
    assert talk.feed(HelloChanged(able)) == [able]
    assert talk.feed(HelloChanged(able)) == []


def test_what_changed_between_hello_and_welcome_is_said_after_it() -> None:
    talk = Talk()
    able = replace(HELLO, capabilities=("nvml",))
    assert talk.feed(Opened(HELLO), HelloChanged(able)) == [HELLO]
    assert able in talk.feed(welcome("d1"))


# ---- reports


def test_reports_every_interval() -> None:
    talk = Talk(applied="d1")
    assert talk.state.deadline == talk.now + 30.0
    assert talk.feed(Tick(), after=29.9) == []
    assert talk.feed(Tick(), after=0.1) == [m.StatusReport(2, status("d1"))]
    assert talk.state.deadline == talk.now + 30.0


def test_reports_a_change_at_once_and_further_ones_once_a_second() -> None:
    talk = Talk(applied="d1")
    assert talk.feed(StatusChanged(status("d1", 1)), after=0.1) == [m.StatusReport(2, status("d1", 1))]
    assert talk.feed(StatusChanged(status("d1", 2)), after=0.1) == []
    assert talk.feed(StatusChanged(status("d1", 3)), after=0.1) == []
    assert talk.state.deadline == pytest.approx(talk.now + 0.8)
    assert talk.feed(Tick(), after=0.8001) == [m.StatusReport(3, status("d1", 3))]
    assert talk.feed(StatusChanged(status("d1", 4)), after=5.0) == [m.StatusReport(4, status("d1", 4))]


def test_what_moved_with_a_report_that_was_due_does_not_hold_up_a_change() -> None:
    """Pressure is another in each report at its interval; an XID a moment later must not wait for a second."""
    talk = Talk(applied="d1")
    assert talk.feed(StatusChanged(status("d1", 1)), Tick(), after=30.0) == [m.StatusReport(2, status("d1", 1))]
    assert talk.feed(StatusChanged(status("d1", 2)), after=0.01) == [m.StatusReport(3, status("d1", 2))]
    assert talk.feed(StatusChanged(status("d1", 3)), after=0.01) == []


def test_the_same_status_is_no_change() -> None:
    talk = Talk(applied="d1")
    assert talk.feed(StatusChanged(status("d1")), after=5.0) == []


def test_a_collection_that_found_the_same_waits_for_the_next_report() -> None:
    """Each XID makes bcd collect 2 s later; the report of that must not be what the next XID waits for."""
    talk = Talk(applied="d1")
    later = replace(status("d1"), collected_at=2.0)
    assert talk.feed(StatusChanged(later), after=5.0) == []
    assert talk.feed(StatusChanged(replace(later, abandoned_workers=1)), after=0.1) == [
        m.StatusReport(2, replace(later, abandoned_workers=1))
    ]


def test_each_session_counts_its_reports_from_one_and_says_all() -> None:
    talk = Talk(applied="d1")
    talk.feed(Tick(), after=30.0)
    assert talk.feed(Lost(), Opened(HELLO), welcome("d1")) == [HELLO, Welcomed(7), m.StatusReport(1, status("d1"))]


# ---- offers


def test_sends_the_sections_that_are_wanted_and_no_others() -> None:
    talk = Talk(applied="")
    assert talk.feed(m.InventoryRequest(False, ("disks", "unheard-of"), "d1")) == [m.Bodies("d1", (DISKS,), 1 << 20)]


def test_sends_nothing_when_nothing_is_wanted_and_waits_for_the_result() -> None:
    talk = Talk(applied="")
    assert talk.feed(m.InventoryRequest(False, (), "d1")) == []
    assert talk.state.phase is Phase.SENT
    assert talk.feed(result("d1", "unchanged")) == [Answered(result("d1", "unchanged"))]
    assert (talk.state.phase, talk.state.is_applied) == (Phase.IDLE, True)


@pytest.mark.parametrize("what", ["applied", "unchanged", "advisory"])
def test_an_accepted_offer_is_not_made_again(what: str) -> None:
    talk = Talk(applied="")
    talk.feed(result("d1", what))
    assert talk.collect("d1") == []
    assert kinds(talk.feed(Tick(), after=30.0)) == ["StatusReport"]


def test_offers_when_asked_even_what_it_believes_applied() -> None:
    talk = Talk(applied="d1")
    assert talk.feed(m.InventoryRequest(offer=True)) == [inventory("d1")]


def test_does_not_offer_again_while_the_offer_is_under_way() -> None:
    talk = Talk(applied="")
    assert talk.feed(m.InventoryRequest(offer=True), Tick(), InventoryChanged(inventory("d1"))) == []
    assert talk.state.phase is Phase.OFFERED


def test_a_newer_offer_replaces_the_one_under_way() -> None:
    talk = Talk(applied="")
    assert kinds(talk.collect("d2")) == ["InventoryOffer", "StatusReport"]
    assert talk.feed(m.InventoryRequest(False, ("cpu",), "d1")) == [], "the old one is no longer answered"
    assert talk.feed(result("d1", "applied")) == []
    assert kinds(talk.feed(m.InventoryRequest(False, ("cpu",), "d2"))) == ["Bodies"]


def test_a_change_back_to_the_applied_one_is_offered_while_another_is_under_way() -> None:
    talk = Talk(applied="d1")
    talk.collect("d2")
    assert kinds(talk.feed(InventoryChanged(inventory("d1")))) == ["InventoryOffer"]


def test_an_offer_without_an_answer_is_made_again_later() -> None:
    talk = Talk(applied="")
    for _ in range(4):
        talk.feed(Tick(), after=30.0)
    assert talk.state.phase is Phase.IDLE
    assert "InventoryOffer" not in kinds(talk.feed(Tick(), after=machine.UNANSWERED_HOLD - 1))
    assert "InventoryOffer" in kinds(talk.feed(Tick(), after=1))


def test_a_late_result_counts() -> None:
    talk = Talk(applied="")
    talk.feed(Tick(), after=machine.ANSWER_LIMIT)
    talk.feed(result("d1", "applied"))
    assert talk.state.is_applied


def test_what_was_applied_is_known_until_the_next_gateway_says_otherwise() -> None:
    talk = Talk(applied="d1")
    talk.feed(Lost())
    assert talk.state.is_applied
    assert kinds(talk.open("")) == ["Hello", "Welcomed", "StatusReport", "InventoryOffer"]


# ---- refusals and retries


def test_a_refusal_collects_once_more_and_the_second_is_final_for_an_hour() -> None:
    talk = Talk(applied="")
    refused = result("d1", "refused", section="cpu", reason="does not parse")
    assert talk.feed(refused) == [Answered(refused), CollectAgain("cpu", "does not parse")]
    assert talk.feed(m.InventoryRequest(offer=True), Tick()) == [], "not before the collection"
    assert kinds(talk.collect("d1")) == ["InventoryOffer"]
    assert talk.feed(refused) == [Answered(refused)]
    assert talk.collect("d1") == []
    assert talk.feed(m.InventoryRequest(offer=True)) == []
    assert "InventoryOffer" not in kinds(talk.feed(Tick(), after=3599.0))
    assert talk.state.deadline is not None
    assert talk.state.deadline <= talk.now + 1.0
    assert "InventoryOffer" in kinds(talk.feed(Tick(), after=1.0))


def test_a_new_digest_after_a_refusal_is_offered_at_once() -> None:
    talk = Talk(applied="")
    talk.feed(result("d1", "refused"))
    assert kinds(talk.collect("d2")) == ["InventoryOffer", "StatusReport"]


def test_a_refusal_outlives_the_session() -> None:
    talk = Talk(applied="")
    talk.feed(result("d1", "refused"))
    talk.collect("d1")
    talk.feed(result("d1", "refused"), Lost())
    assert kinds(talk.open("")) == ["Hello", "Welcomed", "StatusReport"]


def test_retry_offers_again_after_its_time_and_not_before() -> None:
    talk = Talk(applied="")
    talk.feed(result("d1", "retry", retry_after=10.0))
    assert talk.state.deadline == talk.now + 10.0
    assert talk.feed(m.InventoryRequest(offer=True), Tick(), after=9.0) == []
    assert talk.feed(Tick(), after=1.0) == [inventory("d1")]


def test_a_result_of_a_newer_gateway_ends_the_offer_without_a_loop() -> None:
    talk = Talk(applied="")
    assert kinds(talk.feed(result("d1", "unspecified"))) == ["Answered"]
    assert not talk.state.is_applied
    assert talk.feed(Tick(), after=1.0) == []


# ---- commands

DONE = m.CommandResult("cmd_1", "succeeded")


def test_an_order_is_told_and_answered_by_whoever_runs_it() -> None:
    talk = Talk(applied="d1")
    order = m.Command("cmd_1", "diag.nvml")
    assert talk.feed(order) == [Ordered(order)]
    assert talk.feed(CommandDone(DONE)) == [DONE]


def test_a_result_is_sent_again_after_a_while_until_it_is_acknowledged() -> None:
    talk = Talk(applied="d1")
    talk.feed(CommandDone(DONE))
    assert DONE not in talk.feed(Tick(), after=machine.RESULT_GAP - 1)
    assert talk.state.deadline == talk.now + 1
    assert DONE in talk.feed(Tick(), after=1.0)
    assert talk.feed(m.CommandAck("cmd_1")) == [Acknowledged("cmd_1")]
    assert DONE not in talk.feed(Tick(), after=machine.RESULT_GAP)


def test_results_without_an_acknowledgement_are_sent_in_the_next_session_and_each_once() -> None:
    talk = Talk(applied="d1")
    other = m.CommandResult("cmd_2", "refused", "NotAllowed")
    talk.feed(CommandDone(DONE), Lost())
    assert talk.feed(CommandDone(other)) == []
    assert talk.open("d1")[-2:] == [DONE, other]
    assert talk.feed(m.CommandAck("cmd_1"), Lost()) == [Acknowledged("cmd_1")]
    assert talk.open("d1")[-1] == other
    assert DONE not in talk.open("d1")


def test_a_repeat_s_result_replaces_the_one_that_waits() -> None:
    talk = Talk(applied="d1")
    talk.feed(Lost(), CommandDone(m.CommandResult("cmd_1", "failed")), CommandDone(DONE))
    assert [output for output in talk.open("d1") if isinstance(output, m.CommandResult)] == [DONE]


# ---- the end, and what does not belong


@pytest.mark.parametrize("opened", [True, False])
def test_the_gateway_s_end_closes(opened: bool) -> None:
    talk = Talk()
    talk.feed(Opened(HELLO), *([welcome()] if opened else []))
    end = m.SessionEnd("draining", 3.0)
    assert talk.feed(end) == [Close(end)]
    assert (talk.state.phase, talk.state.deadline) == (Phase.CLOSED, None)


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize(
    "event",
    [
        m.Unknown("of_tomorrow"),
        m.InventoryRequest(False, ("cpu",), "other"),
        result("other", "applied"),
        m.InventoryRequest(True),
        m.Command("cmd_1", "node.reboot"),
        m.CommandAck("cmd_1"),
        welcome("d1"),
        m.SessionEnd("revoked"),
        Lost(),
        Tick(),
        HelloChanged(HELLO),
        object(),
    ],
)
def test_no_event_is_out_of_place_anywhere(phase: Phase, event: object) -> None:
    offered = inventory("d1") if phase in (Phase.OFFERED, Phase.SENT) else None
    state = State(phase=phase, since=1000.0, seq=1, reported_at=1000.0, offered=offered, inventory=inventory("d1"), applied="d1")
    after, _ = step(state, event, 1000.0)
    assert after.inventory == state.inventory


def test_an_unknown_message_changes_nothing() -> None:
    talk = Talk(applied="d1")
    before = talk.state
    assert talk.feed(m.Unknown("of_tomorrow")) == []
    assert talk.state == before
