"""SPEC B6, sentence by sentence: what is wrong with a node without a word of its own, and what a sweep may not believe."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from receiver.planning.condition_types import NODE_CONDITION_TYPES, types_of
from receiver.planning.hygiene import RULES, Guarded, Moment, Options, Seen, Stop, guard, protocol, settle, version, wanted
from receiver.planning.reasons import settle as settle_reasons
from receiver.planning.view import ConditionRow, Draft, Facts

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
MOMENT = Moment(NOW, NOW - timedelta(days=9))
OPTIONS = Options(min_daemon_version="0.2")
WELL = Seen(
    daemon_version="0.2.0",
    protocol_version="0.3",
    certificate_from=NOW - timedelta(days=10),
    certificate_until=NOW + timedelta(days=20),
    connected=True,
    collected_at=NOW - timedelta(hours=1),
    last_seen=NOW - timedelta(seconds=10),
)


def causes(
    moment: Moment = MOMENT, options: Options = OPTIONS, stands: Mapping[str, Any] | None = None, **seen: Any
) -> dict[str, Any]:
    return wanted(replace(WELL, **seen), moment, options, stands or {})


def raised(**fields: Any) -> set[str]:
    return set(causes(**fields))


def before(**ago: float) -> datetime:
    return NOW - timedelta(**ago)


def test_nothing_is_wrong_with_a_node_that_is_well() -> None:
    assert causes() == {}
    assert wanted(Seen(), MOMENT, OPTIONS, {}) == {}  # nor with one that was never here


def test_every_condition_of_hygiene_has_its_rule_and_keeps_placement_away() -> None:
    assert RULES.keys() == types_of("hygiene")
    assert {NODE_CONDITION_TYPES[name].no_schedule for name in RULES} == {"yes"}


# ---- DaemonOutdated


@pytest.mark.parametrize(
    ("found", "least", "outdated"),
    [
        ("0.1.9", "0.2", True),
        ("0.2.0", "0.2", False),
        ("0.2", "0.2.0", False),
        ("0.10.0", "0.9.0", False),
        ("v0.1.0", "0.2", True),
        ("0.2.0rc1", "0.2.0", True),
        ("0.2.0.dev4+g1234", "0.2.0", True),
        ("0.2.0-5-gabcdef", "0.2.0", False),
        ("0.2.0+local", "0.2.0", False),
        ("1.0", "0.2", False),
        ("unknown", "0.2", False),  # not known to be older
        ("", "0.2", False),
        ("0.1.0", "", False),  # unset: never
    ],
)
def test_outdated_is_a_daemon_below_the_oldest_that_is_supported(found: str, least: str, outdated: bool) -> None:
    assert ("DaemonOutdated" in raised(daemon_version=found, options=Options(min_daemon_version=least))) is outdated


def test_the_message_names_both_versions() -> None:
    assert causes(daemon_version="0.1.0")["DaemonOutdated"] == ("Outdated", "bcd 0.1.0 is older than 0.2")


@pytest.mark.parametrize("text", ["", "x", "0.2.0foo", "1" * 10, "0." * 9, "0.2 ."])
def test_what_is_no_version_is_none(text: str) -> None:
    assert version(text) is None
    assert protocol(text) is None


# ---- ProtocolUnsupported


@pytest.mark.parametrize(
    ("found", "most", "unsupported"),
    [
        ("0.3", "0.3", False),
        ("0.2", "0.3", False),
        ("0.4", "0.3", True),
        ("0.10", "0.9", True),
        ("1.0", "0.3", True),
        ("0.3", "1.0", True),
        ("1.1", "1.2", False),
        ("nonsense", "0.3", True),
        ("", "0.3", False),
    ],
)
def test_unsupported_is_a_protocol_above_the_highest_or_of_another_major(found: str, most: str, unsupported: bool) -> None:
    assert ("ProtocolUnsupported" in raised(protocol_version=found, options=Options(protocol_max=most))) is unsupported


def test_the_highest_protocol_is_the_receivers_own_by_default() -> None:
    assert "ProtocolUnsupported" not in raised(protocol_version=Options().protocol_max)
    assert "ProtocolUnsupported" in raised(protocol_version="0.99")


# ---- CertificateExpiring


@pytest.mark.parametrize(
    ("life", "left", "expiring"),
    [
        (30, timedelta(days=3), False),  # a tenth of its life
        (30, timedelta(days=3) - timedelta(seconds=1), True),
        (5, timedelta(days=1), False),  # a day is more than a tenth of five
        (5, timedelta(days=1) - timedelta(seconds=1), True),
        (30, timedelta(days=-1), True),
    ],
)
def test_expiring_is_a_certificate_with_less_left_than_a_share_of_its_life_and_a_time(
    life: int, left: timedelta, expiring: bool
) -> None:
    until = NOW + left
    assert ("CertificateExpiring" in raised(certificate_from=until - timedelta(days=life), certificate_until=until)) is expiring


def test_share_and_time_are_settings_and_an_end_is_told_as_such() -> None:
    options = Options(cert_expiring_fraction=0.5, cert_expiring_min_seconds=60)
    assert "CertificateExpiring" not in raised(options=options)
    assert "CertificateExpiring" in raised(options=options, certificate_from=before(days=21))
    reason, message = causes(certificate_until=before(seconds=1))["CertificateExpiring"]
    assert (reason, message) == ("Expired", "its certificate ended 2026-11-29T11:59:59Z")
    assert causes(certificate_until=NOW + timedelta(hours=1), certificate_from=None)["CertificateExpiring"][0] == "Expiring"
    assert "CertificateExpiring" not in raised(certificate_until=None)  # none is known


# ---- InventoryStale


@pytest.mark.parametrize(("hours", "stale"), [(36, False), (39.5, False), (39.7, True), (1000, True)])
def test_stale_is_a_collection_older_than_three_rescans_with_their_jitter(hours: float, stale: bool) -> None:
    assert ("InventoryStale" in raised(collected_at=before(hours=hours))) is stale


def test_stale_is_only_a_node_that_is_connected_and_has_collected() -> None:
    assert "InventoryStale" not in raised(collected_at=before(days=9), connected=False)
    assert "InventoryStale" not in raised(collected_at=None)
    assert "InventoryStale" in raised(collected_at=before(hours=4), options=Options(rescan_interval=3600))


def test_nodes_have_time_to_tell_of_a_collection_after_a_time_without_receivers() -> None:
    early, late = Moment(NOW, before(minutes=4)), Moment(NOW, before(minutes=6))
    old = before(days=3)
    assert "InventoryStale" not in raised(moment=early, collected_at=old)
    assert "InventoryStale" in raised(moment=late, collected_at=old)
    assert "InventoryStale" in raised(moment=early, collected_at=old, stands={"InventoryStale": ("NotCollected", "")})


# ---- NotReporting


@pytest.mark.parametrize(("seconds", "silent"), [(299, False), (300, False), (301, True)])
def test_not_reporting_is_a_node_without_a_report_for_ten_intervals(seconds: float, silent: bool) -> None:
    assert ("NotReporting" in raised(last_seen=before(seconds=seconds))) is silent
    assert "NotReporting" not in raised(last_seen=before(seconds=seconds), options=Options(status_interval=60))


def test_who_has_had_no_session_is_not_missed() -> None:
    assert "NotReporting" not in raised(last_seen=None)


@pytest.mark.parametrize(("minutes", "silent"), [(1, False), (9.9, False), (10.1, True)])
def test_silence_counts_from_when_a_receiver_had_been_serving_for_ten_intervals(minutes: float, silent: bool) -> None:
    """All receivers were stopped for 20 minutes, and have been there for so many."""
    moment = Moment(NOW, before(minutes=minutes))
    assert ("NotReporting" in raised(moment=moment, last_seen=before(minutes=20 + minutes))) is silent


def test_only_a_report_ends_it() -> None:
    """A node that was dead before the receivers stopped is no better for it."""
    moment, stands = Moment(NOW, before(minutes=1)), {"NotReporting": ("NoReport", "no status report since then")}
    assert "NotReporting" in raised(moment=moment, last_seen=before(days=1), stands=stands)
    assert "NotReporting" not in raised(moment=moment, last_seen=before(minutes=1), stands=stands)


def test_without_a_memory_of_receivers_silence_counts_from_the_last_report() -> None:
    assert "NotReporting" in raised(moment=Moment(NOW, None), last_seen=before(minutes=6))


# ---- what is not believed


def test_what_a_session_from_before_the_end_of_a_lease_said_changes_nothing() -> None:
    stands = {"DaemonOutdated": ("Outdated", "as it was")}
    told: dict[str, Any] = {"daemon_version": "0.2.0", "protocol_version": "9.9", "collected_at": before(days=9)}
    assert causes(believed=False, stands=stands, **told) == stands
    assert raised(believed=False, last_seen=before(days=1), certificate_until=NOW) == {"NotReporting", "CertificateExpiring"}


# ---- the guard

POOL = ("default", "pool_1")


def guarded(count: int, size: int, stop: Stop | None = None) -> Guarded:
    key = (POOL, "NotReporting")
    return guard({key: count} if count else {}, {POOL: size}, {key: stop} if stop else {})


@pytest.mark.parametrize(
    ("count", "size", "over"),
    [(5, 24, True), (5, 25, False), (4, 4, False), (5, 5, True), (20_000, 100_000, False), (20_001, 100_000, True)],
)
def test_suspended_is_what_hits_more_than_a_fifth_of_a_pool_and_at_least_five_nodes(count: int, size: int, over: bool) -> None:
    found = guarded(count, size)
    assert bool(found.suspended) is over
    assert found.begin == ((((POOL, "NotReporting"), count),) if over else ())


def test_it_is_told_once_and_goes_on_when_it_is_fewer_or_confirmed() -> None:
    assert guarded(10, 20, Stop(7)) == Guarded(frozenset({(POOL, "NotReporting")}))
    assert guarded(3, 20, Stop(7)) == Guarded(end=(7,))
    assert guarded(0, 20, Stop(7)) == Guarded(end=(7,))
    assert guarded(10, 20, Stop(7, confirmed=True)) == Guarded()  # until it is fewer: a sweep may be cut short
    assert guarded(0, 20, Stop(7, confirmed=True)) == Guarded(end=(7,))


def test_pools_and_conditions_are_guarded_each_for_itself() -> None:
    other = ("default", "")
    newly = {(POOL, "NotReporting"): 9, (POOL, "DaemonOutdated"): 2, (other, "NotReporting"): 1}
    assert guard(newly, {POOL: 10, other: 1000}, {}).suspended == {(POOL, "NotReporting")}


# ---- onto the rows


def test_a_condition_and_its_reason_come_and_go_with_the_cause() -> None:
    draft = Draft()
    settle(draft, {"NotReporting": ("NoReport", "no status report since then")})
    settle_reasons(Facts("node_1"), Draft(), draft)
    assert draft.node.no_schedule_reasons == ("NotReporting",)
    assert [(one.payload["condition"], one.payload["status"], one.payload["noSchedule"]) for one in draft.events] == [
        ("NotReporting", "true", True)
    ]
    after = draft.copy()
    settle(after, {})
    settle_reasons(Facts("node_1"), draft, after)
    assert after.node.no_schedule_reasons == ()
    assert [(one.payload["condition"], one.payload["status"]) for one in after.events] == [("NotReporting", "false")]


def test_what_is_suspended_is_not_newly_true_and_what_stands_stays() -> None:
    found = {"NotReporting": ("NoReport", "a"), "InventoryStale": ("NotCollected", "b")}
    draft = Draft(conditions={("InventoryStale", ""): ConditionRow("InventoryStale", reason="NotCollected", message="b")})
    settle(draft, found, {"NotReporting", "InventoryStale"})
    assert list(draft.conditions) == [("InventoryStale", "")]
    assert draft.conditions["InventoryStale", ""].status == "true"


def test_conditions_of_others_are_not_touched() -> None:
    row = ConditionRow("NvmlUnavailable")
    draft = Draft(conditions={row.key: row})
    settle(draft, {})
    assert draft.conditions == {row.key: row}
