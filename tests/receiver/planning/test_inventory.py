"""Planning an offer: pure, so any history can be played. What is planned is written by a model of the store."""

from collections.abc import Mapping
from dataclasses import replace

from bettercompute.contract.sections import decode, section_hash
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.events import EVENTS
from receiver.planning.diff import COMPARED
from receiver.planning.inventory import (
    AppendSnapshot,
    Baseline,
    Current,
    InventoryPlan,
    Publish,
    SetApplied,
    SetBaseline,
    plan_inventory,
)
from receiver.planning.missing import ClearMissing, SetMissing
from receiver.values import Offer
from tests.receiver.builders import disk, disks, gpu, gpus, host, offer

BODIES: dict[str, bytes] = {}  # every section's bytes that were ever offered, by hash


def decoded(hashes: Mapping[str, str]) -> dict[str, Message]:
    return {name: decode(name, BODIES[value]) for name, value in hashes.items() if name in COMPARED}


def plan(current: Current, given_offer: Offer, snapshot_id: str = "inv_x") -> InventoryPlan:
    """Plans as apply does: with the decoded sections whose hashes differ from the baseline's."""
    baselines = {name: one.hash for name, one in (current.baselines or {}).items()}
    differing = {name: value for name, value in given_offer.hashes.items() if baselines.get(name) != value}
    before = {name: value for name, value in baselines.items() if name in differing}
    return plan_inventory(current, given_offer, decoded(before), decoded(differing), snapshot_id)


def written(current: Current, given_offer: Offer, made: InventoryPlan) -> Current:
    """The node as the store holds it after a plan."""
    baselines, missing = dict(current.baselines or {}), dict(current.missing or {})
    for step in made.steps:
        match step:
            case AppendSnapshot(id=identity):
                current = replace(current, latest_id=identity, latest_sections=given_offer.hashes)
            case SetApplied(digest=digest, snapshot_id=None):
                current = replace(current, applied_digest=digest)
            case SetApplied(digest=digest, snapshot_id=identity):
                current = replace(current, applied_digest=digest, applied_id=identity, applied_sections=given_offer.hashes)
            case SetBaseline(name=name, hash=value):
                baselines[name] = Baseline(value, made.snapshot_id or "")
            case SetMissing(row=row):
                missing[row.name] = row
            case ClearMissing(name=name):
                del missing[name]
    return replace(current, baselines=baselines, missing=missing)


def make(count: int, serial: str, error: bool, left_out: frozenset[str]) -> Offer:
    listed = gpus(error="Error") if error else gpus(*(gpu(number) for number in range(count)))
    bodies = host(gpus=listed, disks=disks(disk("sda", serial)))
    BODIES.update({section_hash(data): data for data in bodies.values()})
    kept = {name: data for name, data in bodies.items() if name not in left_out}
    return offer(kept, **dict.fromkeys(sorted(left_out), "Hang"))


OFFERS = st.builds(
    make,
    st.integers(0, 3),
    st.sampled_from("AB"),
    st.booleans(),
    st.frozensets(st.sampled_from(("gpus", "disks", "os")), max_size=3),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(OFFERS, min_size=1, max_size=6), st.booleans())
def test_planning_twice_plans_nothing(offers: list[Offer], advisory: bool) -> None:
    current = Current(advisory=advisory)
    for number, one in enumerate(offers):
        first = plan(current, one, f"inv_{number}")
        assert all(step.reason for step in first.steps)
        current = written(current, one, first)
        second = plan(current, one, "inv_again")
        assert (second.status, second.steps) == ("unchanged", ())


@settings(max_examples=300, deadline=None)
@given(st.lists(OFFERS, min_size=1, max_size=8))
def test_events_of_a_history_tell_the_same_gpus_as_its_ends(offers: list[Offer]) -> None:
    """However sections come and go meanwhile, added less missing is the last good list less the first good one."""
    current, balance = Current(), 0
    good: list[int] = []
    for number, one in enumerate(offers):
        made = plan(current, one, f"inv_{number}")
        current = written(current, one, made)
        told = [step.event.type for step in made.steps if isinstance(step, Publish)]
        balance += told.count("node.gpu.added") - told.count("node.gpu.missing")
        section = decoded({"gpus": one.hashes["gpus"]})["gpus"] if "gpus" in one.hashes else None
        if section is not None and not section.HasField("error"):
            good.append(len(section.gpus))  # type: ignore[attr-defined]
    assert balance == (good[-1] - good[0] if good else 0)


def test_every_event_is_of_a_listed_type() -> None:
    current = written(Current(), one := make(3, "A", False, frozenset()), plan(Current(), one))
    made = plan(current, make(1, "B", False, frozenset()))
    published = [step.event for step in made.steps if isinstance(step, Publish)]
    assert len(published) == 4
    for each in published:
        known = {name.removesuffix("?") for name in EVENTS[each.type].fields}
        required = {name for name in EVENTS[each.type].fields if not name.endswith("?")}
        assert required <= each.payload.keys() - {"schemaVersion"} <= known


def test_sections_told_are_those_that_differ_from_the_applied_snapshot() -> None:
    current = written(Current(), one := make(2, "A", False, frozenset({"os"})), plan(Current(), one))
    made = plan(current, make(1, "A", False, frozenset({"disks"})))
    (changed, *_) = [step.event for step in made.steps if isinstance(step, Publish)]
    assert changed.payload["sections"] == ["gpus", "os"]
