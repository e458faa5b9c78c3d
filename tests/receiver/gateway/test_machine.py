"""The conversation of one stream, as a table (SPEC A3, B11). No network, no clock, no database."""

from collections.abc import Callable
from typing import Any

import pytest
from bettercompute.contract.sections import digest, section_hash

from receiver.gateway import limits
from receiver.gateway import messages as m
from receiver.gateway.limits import Limit, NodeLimits
from receiver.gateway.machine import Machine, Phase
from receiver.gateway.work import (
    Apply,
    Bad,
    Begin,
    Begun,
    Due,
    Ended,
    Failed,
    FindCommands,
    FindWanted,
    Job,
    Judge,
    Leave,
    Queued,
    Rewrite,
    Store,
    Stored,
    Wanted,
)
from receiver.values import Command, CommandResult, InventoryOutcome, Offer, Pressure, SectionRef, SessionStart, Status

NODE = "node_01hf7yat000000000000000000"
HELLO = m.Hello("0.3", "0.1.0", "boot", "instance")
COMMANDS = (Command("cmd_1", "diag.nvml", {}, "a", None), Command("cmd_2", "node.reboot", {}, "b", 60.0))


def offer_of(bodies: dict[str, bytes]) -> Offer:
    refs = tuple(SectionRef(name, 1, section_hash(body), len(body)) for name, body in sorted(bodies.items()))
    return Offer(digest({ref.name: ref.hash for ref in refs}), refs)


class Stream:
    """A machine at time 0, with what it counted."""

    def __init__(self, applied: str | None = None, opened: bool = True) -> None:
        self.met: list[Limit] = []
        self.machine = Machine(NODE, NodeLimits(), 30.0, self.met.append)
        self.now = 0.0
        if opened:
            self.on(HELLO)
            self.on(Begun(SessionStart(NODE, "default", 7, applied, 0, False)))

    def on(self, event: object) -> tuple[Any, ...]:
        return self.machine.on(event, self.now)


def report(of: str) -> m.Report:
    return m.Report(Status(of))


BODIES = {"os": b"o" * 10, "cpu": b"c" * 3}
OFFER = offer_of(BODIES)


def chunks(*names: str) -> list[m.Chunk]:
    return [m.Chunk(OFFER.digest, name, BODIES[name], True) for name in names]


def test_hello_takes_an_epoch_and_is_welcomed() -> None:
    stream = Stream(opened=False)
    assert stream.on(HELLO) == (Begin(HELLO),)
    welcome = stream.on(Begun(SessionStart(NODE, "default", 7, "advisory:aa", 0, False), COMMANDS))
    assert welcome == (m.Welcome(NODE, 7, 30.0, "advisory:aa"), *COMMANDS), "what is due comes right after"


@pytest.mark.parametrize(
    ("version", "reason"),
    [("1.0", "protocol-unsupported"), ("12.3", "protocol-unsupported"), ("", "bad-message"), ("x.1", "bad-message")],
)
def test_another_major_ends_the_session(version: str, reason: str) -> None:
    stream = Stream(opened=False)
    (end,) = stream.on(m.Hello(version, "", "", ""))
    assert (end.reason, stream.machine.phase) == (reason, Phase.ENDED)


def test_another_minor_is_welcome() -> None:
    assert isinstance(Stream(opened=False).on(m.Hello("0.99", "", "", ""))[0], Begin)


@pytest.mark.parametrize("message", [report("aa"), OFFER, chunks("os")[0]])
def test_a_message_before_hello_is_a_bad_one(message: object) -> None:
    (end,) = Stream(opened=False).on(message)
    assert end.reason == "bad-message"


def test_a_second_hello_rewrites_drivers_only() -> None:
    stream = Stream()
    assert stream.on(HELLO) == (Rewrite(HELLO),)
    assert stream.machine.phase is Phase.OPEN


def test_a_message_of_a_newer_peer_changes_nothing() -> None:
    assert Stream().on(m.Ignored()) == ()


def test_asks_for_an_offer_when_a_digest_differs() -> None:
    stream = Stream(applied="aa")
    assert stream.on(report("bb")) == (Judge(Status("bb")), m.Request(offer=True))


@pytest.mark.parametrize("applied", ["aa", "advisory:aa"])
def test_asks_for_nothing_when_the_digest_is_the_applied_one(applied: str) -> None:
    assert Stream(applied=applied).on(report("aa")) == (Judge(Status("aa")),)


def test_asks_for_nothing_before_the_first_collection_or_while_an_offer_is_under_way() -> None:
    stream = Stream()
    assert stream.on(report("")) == (Judge(Status("")),)
    stream.on(OFFER)
    assert stream.on(report("bb")) == (Judge(Status("bb")),)


def test_asks_again_when_the_chunks_of_an_offer_stay_away() -> None:
    stream = Stream()
    stream.on(OFFER)
    stream.on(Wanted(OFFER, ("os", "cpu")))
    stream.now = 100.0
    stream.on(chunks("os")[0])
    stream.now = 200.0
    assert len(stream.on(report("bb"))) == 1
    stream.now = 221.0
    assert stream.on(report("bb"))[1:] == (m.Request(offer=True),)


def test_an_offer_is_applied_when_its_sections_have_come_in_any_order_of_chunks() -> None:
    stream = Stream()
    assert stream.on(OFFER) == (FindWanted(OFFER),)
    assert stream.on(Wanted(OFFER, ("cpu", "os"))) == (m.Request(sections=("cpu", "os"), digest=OFFER.digest),)
    assert stream.on(m.Chunk(OFFER.digest, "os", b"oooo", False)) == ()
    assert stream.on(chunks("cpu")[0]) == ()
    assert stream.on(m.Chunk(OFFER.digest, "os", b"oooooo", True)) == (Apply(OFFER, BODIES),)
    result = stream.on(Ended(InventoryOutcome("applied", OFFER.digest, "inv_1")))
    assert result == (m.Result(OFFER.digest, "applied", snapshot_id="inv_1"),)
    assert stream.on(report(OFFER.digest)) == (Judge(Status(OFFER.digest)),)


def test_an_offer_whose_bytes_are_all_known_is_applied_at_once() -> None:
    stream = Stream()
    stream.on(OFFER)
    assert stream.on(Wanted(OFFER, ())) == (m.Request(digest=OFFER.digest), Apply(OFFER, {}))


def test_a_newer_offer_replaces_the_one_under_way() -> None:
    stream, newer = Stream(), offer_of({"os": b"new"})
    stream.on(OFFER)
    stream.on(Wanted(OFFER, ("os", "cpu")))
    assert stream.on(newer) == (FindWanted(newer),)
    stream.on(Wanted(newer, ("os",)))
    assert [stream.on(chunk) for chunk in chunks("os", "cpu")] == [(), ()], "chunks of the old one are late, not bad"
    assert stream.on(m.Chunk(newer.digest, "os", b"new", True)) == (Apply(newer, {"os": b"new"}),)


@pytest.mark.parametrize(("data", "last"), [(b"o" * 11, False), (b"o" * 11, True), (b"o" * 9, True), (b"", True)])
def test_a_section_of_another_length_is_refused_and_the_session_goes_on(data: bytes, last: bool) -> None:
    stream = Stream()
    stream.on(OFFER)
    stream.on(Wanted(OFFER, ("os",)))
    (result,) = stream.on(m.Chunk(OFFER.digest, "os", data, last))
    assert (result.status, result.section) == ("refused", "os")
    assert "10 were offered" in result.reason
    assert stream.on(OFFER) == (FindWanted(OFFER),)


def test_an_empty_section_is_one_last_chunk() -> None:
    stream, offer = Stream(), offer_of({"images": b""})
    stream.on(offer)
    stream.on(Wanted(offer, ("images",)))
    assert stream.on(m.Chunk(offer.digest, "images", b"", True)) == (Apply(offer, {"images": b""}),)


def test_a_section_that_was_not_asked_for_is_a_bad_message() -> None:
    stream = Stream()
    stream.on(OFFER)
    stream.on(Wanted(OFFER, ("os",)))
    (end,) = stream.on(chunks("cpu")[0])
    assert (end.reason, "cpu" in end.detail) == ("bad-message", True)


def test_chunks_after_the_result_are_ignored() -> None:
    assert Stream().on(chunks("os")[0]) == ()


def _big() -> Offer:
    ref = SectionRef("os", 1, "0" * 64, limits.SECTION_BYTES.most + 1)
    return Offer(digest({"os": ref.hash}), (ref,))


@pytest.mark.parametrize(
    ("offer", "section", "words", "limit"),
    [
        (_big(), "os", "RESOURCE_EXHAUSTED: bytes a section", limits.SECTION_BYTES),
        (
            offer_of({f"s{n}": b"x" for n in range(17)}),
            "",
            "INVALID_ARGUMENT: sections an offer: 17, at most 16",
            limits.SECTIONS,
        ),
        (Offer("ab" * 32, OFFER.sections), "", "digest", None),
        (Offer(digest({}), (OFFER.sections[0],) * 2), "cpu", "2 times", None),
    ],
)
def test_an_impossible_offer_is_refused_before_any_byte(offer: Offer, section: str, words: str, limit: Limit | None) -> None:
    stream = Stream()
    (result,) = stream.on(offer)
    assert (result.status, result.section) == ("refused", section)
    assert words in result.reason
    assert stream.met == ([limit] if limit else [])


def test_offers_over_the_rate_are_put_off_and_counted() -> None:
    stream = Stream()
    for _ in range(limits.OFFERS.burst):
        assert isinstance(stream.on(OFFER)[0], FindWanted)
    (result,) = stream.on(OFFER)
    assert (result.status, result.retry_after) == ("retry", pytest.approx(300.0))
    assert "offers an hour" in result.reason
    assert stream.met == [limits.OFFERS]
    stream.now = 300.0
    assert isinstance(stream.on(OFFER)[0], FindWanted)


def test_a_tenant_controlled_node_offers_less_often() -> None:
    stream = Stream()
    for status, limit in (("advisory", limits.TENANT_OFFERS), ("applied", limits.OFFERS)):
        stream.on(Ended(InventoryOutcome(status, OFFER.digest)))  # type: ignore[arg-type]
        answers = [stream.on(OFFER)[0] for _ in range(limits.OFFERS.burst + 1)]
        assert [isinstance(answer, FindWanted) for answer in answers].count(True) == limit.burst
        assert limit.name in answers[-1].reason


def test_section_bytes_over_the_days_amount_are_put_off() -> None:
    stream = Stream()
    size = limits.SECTION_BYTES.most
    refs = tuple(SectionRef(f"s{n}", 1, f"{n:064x}", size) for n in range(9))
    offer = Offer(digest({ref.name: ref.hash for ref in refs}), refs)
    stream.on(offer)
    (result,) = stream.on(Wanted(offer, tuple(ref.name for ref in refs)))
    assert result.status == "retry"
    assert "section bytes a node and day" in result.reason
    assert stream.met == [limits.DAILY_BYTES]


def test_reports_over_the_rate_end_the_session_and_say_so() -> None:
    stream = Stream()
    for _ in range(limits.REPORTS.burst):
        assert isinstance(stream.on(report(""))[0], Judge)
    (end,) = stream.on(report(""))
    assert (end.reason, end.detail) == ("bad-message", "RESOURCE_EXHAUSTED: status reports a second: at most 2")
    assert stream.met == [limits.REPORTS]


def test_what_is_no_message_ends_the_session_and_is_counted() -> None:
    stream = Stream()
    (end,) = stream.on(Bad("no", limits.CONDITIONS))
    assert (end.reason, end.detail, stream.met) == ("bad-message", "no", [limits.CONDITIONS])


@pytest.mark.parametrize("phase", ["new", "open"])
def test_a_reason_from_outside_ends_the_stream_once(phase: str) -> None:
    stream = Stream(opened=phase == "open")
    end = m.End("superseded")
    assert stream.on(Leave(end)) == (end,)
    assert stream.on(Leave(end)) == ()


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (Begin(HELLO), lambda out: out[0].reason == "overloaded" and out[0].retry_after),
        (FindWanted(OFFER), lambda out: out[0].status == "retry" and out[0].retry_after),
        (Apply(OFFER, {}), lambda out: out[0].status == "retry" and out[0].digest == OFFER.digest),
        (Judge(Status("")), lambda out: out == ()),
    ],
)
def test_a_database_that_does_not_answer_costs_a_retry_and_no_report(job: Job, expected: Callable[[Any], bool]) -> None:
    assert expected(Stream().on(Failed(job, "down", ours=True)))


def test_an_offer_that_the_database_failed_is_not_counted_against_the_node() -> None:
    stream = Stream()
    for _ in range(3 * limits.OFFERS.burst):
        assert isinstance(stream.on(OFFER)[0], FindWanted)
        (result,) = stream.on(Failed(FindWanted(OFFER), "down", True, 22.0))
        assert (result.status, result.retry_after) == ("retry", 22.0)
    assert stream.met == []


def test_what_the_database_cannot_hold_is_a_bad_message() -> None:
    (end,) = Stream().on(Failed(Judge(Status("")), "out of range", ours=False))
    assert end.reason == "bad-message"


def test_commands_that_are_due_are_sent_in_order() -> None:
    stream = Stream()
    assert stream.on(Queued()) == (FindCommands(),)
    assert stream.on(Due(COMMANDS)) == COMMANDS


def test_a_result_is_acknowledged_when_it_is_stored_and_not_before() -> None:
    stream = Stream()
    result = CommandResult("cmd_1", "succeeded")
    assert stream.on(result) == (Store(result),)
    assert stream.on(Failed(Store(result), "the database does not answer", ours=True)) == ()
    assert stream.on(Stored("cmd_1")) == (m.Ack("cmd_1"),)


def test_nothing_is_sent_before_welcome() -> None:
    assert Stream(opened=False).on(Queued()) == ()


def test_conditions_that_reports_may_not_set_are_counted_with_every_report() -> None:
    stream = Stream()
    found: list[tuple[str, ...]] = []
    stream.machine.bad = found.append
    stream.on(m.Report(Status("")))
    stream.on(m.Report(Status(""), ("AcceptanceFailed",)))
    assert found == [("AcceptanceFailed",)]


def test_each_report_is_looked_at_and_one_that_is_no_news_is_not_judged() -> None:
    stream, seen = Stream(applied="aa"), list[m.Report]()
    stream.machine.news = lambda report: seen.append(report) or report.pressure is None  # type: ignore[func-returns-value]
    calm = m.Report(Status("aa"), pressure=Pressure(1.0, 2.0, 3.0, 4.0))
    assert stream.on(report("aa")) == (Judge(Status("aa")),)
    assert stream.on(calm) == ()
    assert stream.on(calm._replace(status=Status("bb"))) == (m.Request(offer=True),), "what is not applied is asked for again"
    assert [one.status.digest for one in seen] == ["aa", "aa", "bb"]
