"""Pressure (SPEC B5): levels, samples in a row, and reports without pressure."""

import pytest

from receiver.planning import pressure
from receiver.planning.pressure import MEASURES, Levels, Watch, begin, follow
from receiver.planning.telemetry import Standing, settle
from receiver.planning.view import ConditionRow, Draft, Facts
from receiver.values import Pressure

DEFAULT, NEW = Levels(), Watch("boot-1")
CALM = Pressure(0.0, 0.0, 0.0, 0.0)
RAISED = [
    ("CpuPressure", "cpu", 60.0),
    ("MemoryPressure", "memory", 20.0),
    ("IoPressure", "io", 50.0),
    ("CpuSteal", "steal", 10.0),
]


def sample(**shares: float) -> Pressure:
    return CALM._replace(**shares)  # type: ignore[arg-type]


def statuses(watch: Watch, levels: Levels = DEFAULT) -> dict[str, str]:
    """Of those that are not false."""
    return {one.type: one.status for one in watch.concluded(levels) if one.status != "false"}


def watched(*samples: Pressure | None, levels: Levels = DEFAULT, watch: Watch = NEW) -> Watch:
    for one in samples:
        watch = follow(watch, one, levels)
    return watch


def test_every_condition_has_its_figure_and_its_level() -> None:
    assert [(one.type, one.name, one.raise_at) for one in MEASURES] == RAISED


@pytest.mark.parametrize(("kind", "name", "level"), RAISED)
def test_raises_at_the_level_and_not_below(kind: str, name: str, level: float) -> None:
    assert statuses(watched(*[sample(**{name: level})] * 2)) == {kind: "true"}
    assert statuses(watched(*[sample(**{name: level - 0.01})] * 9)) == {}


@pytest.mark.parametrize(("kind", "name", "level"), RAISED)
def test_clears_below_half_of_the_level_and_keeps_its_status_between(kind: str, name: str, level: float) -> None:
    high = watched(*[sample(**{name: level})] * 2)
    assert statuses(watched(*[sample(**{name: level / 2})] * 9, watch=high)) == {kind: "true"}
    assert statuses(watched(*[sample(**{name: level / 2 - 0.01})] * 2, watch=high)) == {}


def test_a_level_must_hold_for_two_samples_in_a_row_both_ways() -> None:
    high, between, low = sample(cpu=80.0), sample(cpu=40.0), sample(cpu=10.0)
    assert statuses(watched(high)) == {}
    assert statuses(watched(high, low, high, between, high)) == {}, "never two in a row"
    raised = watched(high, high)
    assert statuses(watched(low, high, low, between, low, watch=raised)) == {"CpuPressure": "true"}
    assert statuses(watched(low, low, watch=raised)) == {}


def test_what_holds_for_one_condition_is_nothing_to_another() -> None:
    assert statuses(watched(sample(cpu=99.0), sample(io=99.0), sample(memory=99.0), sample(steal=99.0))) == {}
    assert statuses(watched(sample(cpu=99.0, io=99.0), sample(cpu=99.0))) == {"CpuPressure": "true"}


def test_levels_and_the_number_of_samples_are_settings() -> None:
    levels = Levels({**pressure.RAISE, "memory": 90.0}, samples=3)
    assert statuses(watched(*[sample(memory=80.0)] * 9, levels=levels)) == {}
    raised = watched(*[sample(memory=90.0)] * 3, levels=levels)
    assert statuses(watched(*[sample(memory=90.0)] * 2, levels=levels)) == {}
    assert statuses(raised) == {"MemoryPressure": "true"}
    assert statuses(watched(*[sample(memory=45.0)] * 9, levels=levels, watch=raised)) == {"MemoryPressure": "true"}
    assert statuses(watched(*[sample(memory=44.0)] * 3, levels=levels, watch=raised)) == {}


def test_one_sample_is_enough_where_the_setting_says_so() -> None:
    levels = Levels(samples=1)
    raised = watched(sample(cpu=60.0), levels=levels)
    assert statuses(raised) == {"CpuPressure": "true"}
    assert statuses(watched(CALM, levels=levels, watch=raised)) == {}


def test_a_sample_that_is_sent_again_is_no_other_sample() -> None:
    high = sample(cpu=80.0)
    first, second = high._replace(number=1), high._replace(number=2)
    assert statuses(watched(first, first, first)) == {}, "a storm of reports is one sample"
    assert statuses(watched(first, first, second)) == {"CpuPressure": "true"}
    assert statuses(watched(high, high)) == {"CpuPressure": "true"}, "without numbers, each report has its own"


def test_no_pressure_from_a_session_that_sent_some_makes_what_is_raised_unknown() -> None:
    watch = watched(*[sample(cpu=80.0)] * 2, None)
    assert statuses(watch) == {"CpuPressure": "unknown"}, "what is not raised stays as it is"
    assert statuses(watched(None, None, watch=watch)) == {"CpuPressure": "unknown"}


def test_no_pressure_in_another_boot_makes_what_is_raised_unknown() -> None:
    standing = {"IoPressure": Standing("true", "boot-1"), "CpuSteal": Standing("unknown", "boot-1")}
    assert statuses(watched(None, watch=begin(standing, "boot-2"))) == {"IoPressure": "unknown", "CpuSteal": "unknown"}


def test_no_pressure_from_a_session_that_sent_none_in_the_same_boot_changes_nothing() -> None:
    standing = {"IoPressure": Standing("true", "boot-1")}
    assert statuses(watched(None, None, watch=begin(standing, "boot-1"))) == {"IoPressure": "true"}


def test_what_is_unknown_is_raised_and_cleared_by_samples_and_kept_between() -> None:
    unknown = begin({"CpuPressure": Standing("unknown", "boot-1")}, "boot-2")
    assert statuses(watched(*[sample(cpu=40.0)] * 3, watch=unknown)) == {"CpuPressure": "unknown"}
    assert statuses(watched(*[sample(cpu=90.0)] * 2, watch=unknown)) == {"CpuPressure": "true"}
    assert statuses(watched(*[CALM] * 2, watch=unknown)) == {}


def test_a_report_without_pressure_interrupts_what_has_to_hold() -> None:
    assert statuses(watched(sample(cpu=80.0), None, sample(cpu=80.0))) == {}


def test_a_session_begins_with_what_stands() -> None:
    watch = begin({"CpuPressure": Standing("true", "boot-1")}, "boot-1")
    assert statuses(watch) == {"CpuPressure": "true"}
    assert statuses(watched(CALM, watch=watch)) == {"CpuPressure": "true"}
    assert statuses(watched(CALM, CALM, watch=watch)) == {}


def test_says_what_was_measured_and_the_levels() -> None:
    raised = {one.type: one for one in watched(*[sample(cpu=71.24)] * 2).concluded(Levels())}["CpuPressure"]
    assert (raised.reason, raised.message) == ("High", "cpu some avg10 is 71.2 %: raised from 60 %, cleared below 30 %")


def test_only_a_change_of_status_is_written() -> None:
    facts, draft = Facts("node_1", boot_id="boot-1"), Draft()
    settle(facts, draft, watched(*[sample(cpu=70.0)] * 2).concluded(Levels()))
    (row,) = draft.conditions.values()
    assert (row.type, row.status, row.reason, row.evidence) == ("CpuPressure", "true", "High", {"bootId": "boot-1"})
    settle(facts, draft, watched(*[sample(cpu=99.0)] * 2).concluded(Levels()))
    assert list(draft.conditions.values()) == [row], "another figure is telemetry"
    settle(facts, draft, Watch("boot-1").concluded(Levels()))
    assert draft.conditions["CpuPressure", ""] == ConditionRow("CpuPressure", status="false")


def test_pressure_of_a_tenants_machine_changes_nothing() -> None:
    draft = Draft()
    settle(Facts("node_1", advisory=True), draft, watched(*[sample(cpu=99.0)] * 2).concluded(Levels()))
    assert draft == Draft()
