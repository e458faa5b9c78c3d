"""What an offer does to a node (SPEC B2, "Applying"): a plan, which is data, each step with its reason.

Three snapshots of a node matter: the *applied* one (the platform's view), the *latest* one (perhaps advisory), and the
*baseline*, per section the last one applied without an error: a section that is missing for a while must not hide what went
away meanwhile. Planning the same offer again plans nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import ADVISORY

from receiver.events import event
from receiver.planning.diff import Sections, diff, failed, failure, remembering, unlisted
from receiver.planning.missing import ClearMissing, MissingRow, SetMissing, Source, plan_missing
from receiver.values import Change, Event, Offer, OutcomeStatus, Payload


@dataclass(frozen=True, slots=True)
class Baseline:
    """A section's last good one that was applied: its hash, and the first snapshot that had it.

    `unlisted`: GPUs of earlier ones that it does not list although nothing says that they are gone (planning.diff.unlisted).
    """

    hash: str
    snapshot_id: str
    unlisted: Sequence[Payload] = ()


@dataclass(frozen=True, slots=True)
class Current:
    """A node's inventory as stored. `advisory`: what it reports now must not change the platform's view (SPEC B2, Trust)."""

    advisory: bool = False
    applied_digest: str | None = None
    applied_id: str | None = None
    applied_sections: Mapping[str, str] | None = None
    latest_id: str | None = None
    latest_sections: Mapping[str, str] | None = None
    baselines: Mapping[str, Baseline] | None = None
    missing: Mapping[str, MissingRow] | None = None


@dataclass(frozen=True, slots=True)
class AppendSnapshot:
    """Append a snapshot of the offer's hashes."""

    id: str
    advisory: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SetApplied:
    """The node's applied digest from now on, and with a snapshot that is applied, its id."""

    digest: str
    snapshot_id: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class SetBaseline:
    """A section's last good one is this."""

    name: str
    hash: str
    reason: str
    unlisted: Sequence[Payload] = ()


@dataclass(frozen=True, slots=True)
class Publish:
    """Write an event."""

    event: Event
    reason: str


Step = AppendSnapshot | SetApplied | SetBaseline | SetMissing | ClearMissing | Publish


@dataclass(frozen=True, slots=True)
class InventoryPlan:
    """How the offer ends, the snapshot it is answered with, and what to write for it."""

    status: OutcomeStatus
    snapshot_id: str | None
    steps: tuple[Step, ...]


def plan_inventory(current: Current, offer: Offer, before: Sections, after: Sections, snapshot_id: str) -> InventoryPlan:
    """The plan for an offer whose bytes are known to be what it says.

    `before` and `after` hold the decoded baseline's and offer's sections of diff.COMPARED, where their hashes differ.
    `snapshot_id` is a fresh id, used if a snapshot is appended.
    """
    if current.advisory:
        return _advisory(current, offer, snapshot_id)
    missing = list(_missing(current, offer, after))
    changed = changed_sections(offer.hashes, current.applied_sections)
    if not changed:
        return InventoryPlan("unchanged", current.applied_id, (*missing, *_found_unchanged(current, offer.digest)))
    before = _with_unlisted(current, before)
    steps: list[Step] = [
        AppendSnapshot(
            snapshot_id, False, "the first inventory" if current.applied_id is None else f"{', '.join(changed)} differ"
        ),
        SetApplied(offer.digest, snapshot_id, "it is applied"),
        *_baselines(current, offer, before, after),
        *missing,
        *_events(current, offer, changed, diff(before, after), snapshot_id),
    ]
    return InventoryPlan("applied", snapshot_id, tuple(steps))


def changed_sections(offered: Mapping[str, str], stored: Mapping[str, str] | None) -> tuple[str, ...]:
    """Names of offered sections that are not the stored ones, sorted; what is not offered has not changed."""
    return tuple(sorted(name for name, value in offered.items() if (stored or {}).get(name) != value))


def _found_unchanged(current: Current, digest: str) -> Iterator[Step]:
    """So that an offer which only lacks a section is not asked for again with every report."""
    if current.applied_digest != digest:
        yield SetApplied(digest, None, "every section that is there is the applied one")


def _with_unlisted(current: Current, before: Sections) -> Sections:
    gpus = (current.baselines or {}).get("gpus")
    if gpus is None or not gpus.unlisted or "gpus" not in before:
        return before
    return {**before, "gpus": remembering(cast(pb.GpusSection, before["gpus"]), gpus.unlisted)}


def _baselines(current: Current, offer: Offer, before: Sections, after: Sections) -> Iterator[Step]:
    known = current.baselines or {}
    for name, value in sorted(offer.hashes.items()):
        if name in known and known[name].hash == value:
            continue
        if not (name in after and failed(after[name])):
            both = name == "gpus" and name in before and name in after
            kept = unlisted(cast(pb.GpusSection, before[name]), cast(pb.GpusSection, after[name])) if both else ()
            yield SetBaseline(name, value, "the first" if name not in known else "it is another", kept)


def _missing(current: Current, offer: Offer, after: Sections) -> Iterator[Step]:
    now: dict[str, tuple[str, Source]] = {one.name: (one.error, "report") for one in offer.missing}
    now |= {name: (failure(section), "section") for name, section in after.items() if failed(section)}
    yield from plan_missing(current.missing or {}, now, last_good(current), frozenset(("report", "section")))


def last_good(current: Current) -> dict[str, str]:
    """Section name to the last snapshot that has it without an error: the applied one where it holds the baseline's bytes."""
    applied = current.applied_sections or {}
    return {
        name: current.applied_id if current.applied_id is not None and applied.get(name) == one.hash else one.snapshot_id
        for name, one in (current.baselines or {}).items()
    }


def _events(
    current: Current, offer: Offer, changed: tuple[str, ...], changes: tuple[Change, ...], snapshot_id: str
) -> Iterator[Step]:
    images_only = current.applied_id is not None and changed == ("images",)
    payload = {
        "snapshotId": snapshot_id,
        "digest": offer.digest,
        "sections": list(changed),
        "changes": [as_json(one) for one in changes],
    }
    name = "node.images.changed" if images_only else "node.inventory.changed"
    yield Publish(event(name, payload), f"{', '.join(changed)} differ")
    for change in changes:
        told = {key: value for key, value in as_json(change).items() if key != "type"}
        yield Publish(event(f"node.{change.type}", {"snapshotId": snapshot_id, **told}), "it differs from the last good one")


def as_json(change: Change) -> dict[str, object]:
    """A change as events and `inventory.diff` show it: `{type, deviceId?, before, after}`."""
    device = {} if change.device_id is None else {"deviceId": change.device_id}
    return {"type": change.type, **device, "before": change.before, "after": change.after}


def _advisory(current: Current, offer: Offer, snapshot_id: str) -> InventoryPlan:
    """A tenant has the machine: what it says is kept as its word, and changes nothing else."""
    changed = changed_sections(offer.hashes, current.latest_sections)
    digest = ADVISORY + offer.digest
    applied = [] if current.applied_digest == digest else [SetApplied(digest, None, "the node is tenant-controlled")]
    if not changed:
        same = current.applied_digest is not None and current.applied_digest.removeprefix(ADVISORY) == offer.digest
        return InventoryPlan("unchanged", current.latest_id, () if same else tuple(applied))
    payload = {"snapshotId": snapshot_id, "digest": offer.digest, "sections": list(changed), "changes": [], "advisory": True}
    told = Publish(event("node.inventory.changed", payload), f"{', '.join(changed)} differ from the latest")
    return InventoryPlan(
        "advisory", snapshot_id, (AppendSnapshot(snapshot_id, True, "the node is tenant-controlled"), *applied, told)
    )
