"""Labels that operators write: SPEC B2, "Labels"."""

import pytest

from receiver.errors import Invalid, OverLimit, Refusal, Refused
from receiver.planning.operator_labels import write
from receiver.planning.view import Draft, Facts, Label, LabelSource
from receiver.values import LABELS
from tests.receiver.builders import NODE


def labelled(*held: tuple[str, str, LabelSource]) -> Draft:
    return Draft(labels={key: Label(key, value, source) for key, value, source in held})


def test_an_operator_writes_changes_and_removes_labels_of_source_operator_only() -> None:
    draft = labelled(("rack", "r1", "operator"), ("old", "x", "operator"), ("gpu.count", "8", "inventory"))
    write({"rack": "r2", "example.com/owner": "team-a", "empty": ""}, ["old", "absent"])(Facts(NODE), draft)
    assert set(draft.labels.values()) == {
        Label("rack", "r2", "operator"),
        Label("example.com/owner", "team-a", "operator"),
        Label("empty", "", "operator"),
        Label("gpu.count", "8", "inventory"),
    }


@pytest.mark.parametrize("source", ["inventory", "system"])
@pytest.mark.parametrize(("labels", "remove"), [({"held": "9"}, []), ({}, ["held"])], ids=["written", "removed"])
def test_a_key_that_inventory_or_system_holds_is_refused_by_name(
    labels: dict[str, str], remove: list[str], source: LabelSource
) -> None:
    draft = labelled(("held", "8", source))
    with pytest.raises(Refused, match=f"label held is held by source {source}: '8'"):
        write(labels, remove)(Facts(NODE), draft)


@pytest.mark.parametrize("key", ["bc.dev/driver.x", "bc.dev/anything"])
def test_the_prefix_bc_dev_is_refused_by_name(key: str) -> None:
    with pytest.raises(Refused, match=key):
        write({key: "1"}, [])(Facts(NODE), Draft())
    with pytest.raises(Refused, match=key):
        write({}, [key])(Facts(NODE), Draft())


def test_a_key_that_the_inventory_may_write_is_refused_before_it_has() -> None:
    with pytest.raises(Refused, match=r"gpu\.model"):
        write({"gpu.model": "H100"}, [], reserved=["gpu.model"])(Facts(NODE), Draft())


@pytest.mark.parametrize(
    ("labels", "remove", "error", "named"),
    [
        ({"": "x"}, [], Invalid, "''"),
        ({"-a": "x"}, [], Invalid, "'-a'"),
        ({"a/b/c": "x"}, [], Invalid, "'a/b/c'"),
        ({"Upper.Prefix/a": "x"}, [], Invalid, "Upper"),
        ({"a" * 64: "x"}, [], Invalid, "aaaa"),
        ({"a\n": "x"}, [], Invalid, "a"),
        ({"rack": "r 1"}, [], Invalid, "label rack: 'r 1'"),
        ({"rack": "x\n"}, [], Invalid, "label rack"),
        ({"rack": "ü"}, [], Invalid, "label rack"),
        ({"rack": "r" * 64}, [], OverLimit, "label rack: a value of 64 characters, at most 63"),
        ({"rack": "1"}, ["rack"], Invalid, "label rack is to be written and to be removed"),
    ],
)
def test_what_is_no_label_is_refused_by_name(labels: dict[str, str], remove: list[str], error: type[Refusal], named: str) -> None:
    with pytest.raises(error, match=named):
        write(labels, remove)


def test_the_longest_value_and_as_many_labels_as_are_allowed_are_taken() -> None:
    draft = labelled(*((f"k{number}", "1", "operator") for number in range(LABELS - 1)))
    write({"rack": "r" * 63}, [])(Facts(NODE), draft)
    with pytest.raises(OverLimit, match=str(LABELS)):
        write({"another": "1"}, [])(Facts(NODE), draft)
