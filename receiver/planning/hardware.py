"""The hardware key of a node and who else has it (SPEC B2, "Hardware key"; B1, "DuplicateIdentity"). Pure.

What a key is made of, and when a report may not replace one: bettercompute/contract/hardware_key.py, which Join uses too.
"""

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import cast

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.hardware_key import TRUSTED, Identifiers, identifiers, provisional
from google.protobuf.message import Message

from receiver.events import event
from receiver.planning.devices import OUT
from receiver.planning.view import ConditionRow, Draft, Facts, HardwareKey
from receiver.values import Payload

TYPE, REASON = "DuplicateIdentity", "HardwareKey"


def plan(facts: Facts, draft: Draft) -> None:
    """The node's key as this inventory gives it, what is told when it is another, and DuplicateIdentity where another has it."""
    before, key = draft.hardware, _key(facts, draft.hardware)
    if key is not None:
        draft.hardware = key = replace(key, trusted=_is_trusted(facts, draft, key))
        if before is not None and not before.provisional and before.key != key.key:
            changed = {"before": before.key, "after": key.key, "identifiers": differences(before.identifiers, key.identifiers)}
            draft.events.append(event("node.hardware.changed", changed))
        if before is not None and before.trusted and (before.key, True) != (key.key, key.trusted):
            draft.key_released = True
    _tell(draft, _holder(facts, key) if draft.node.status not in OUT else None)


def claim(facts: Facts, draft: Draft, claimed: Identifiers) -> None:
    """What a machine says of itself when it joins: its provisional key, until a report gives one. It is held against nobody, but
    where another node has the same trusted one, this is the duplicate. A key that a report gave stays, and is held again.
    """
    key = claimed_key(claimed, draft.hardware)
    if key is not None:
        draft.hardware = key = replace(key, trusted=_is_trusted(facts, draft, key))
    _tell(draft, _holder(facts, key))


def claimed_key(claimed: Identifiers, stored: HardwareKey | None) -> HardwareKey | None:
    """The key that a node has once it joined: the stored one where a report gave it, else what it claims, if that is anything."""
    if not claimed.kinds or (stored is not None and not stored.provisional):
        return stored
    return HardwareKey(claimed.key, provisional=True, identifiers=as_json(claimed), distinct=stored.distinct if stored else ())


def key_of(sections: Mapping[str, Message], fresh: Set[str], stored: HardwareKey | None) -> str | None:
    """The key that the node has once these sections are planned: theirs, or the stored one where they may not replace it."""
    found = _found(sections, fresh)
    return found.key if found is not None else stored.key if stored is not None else None


def release(draft: Draft) -> None:
    """The node holds its key against nobody any more; nodes that were its duplicates plan again."""
    if draft.hardware is not None and draft.hardware.trusted:
        draft.hardware = replace(draft.hardware, trusted=False)
        draft.key_released = True


def tell_apart(draft: Draft, other: str) -> None:
    """Two machines whose firmware lies: the pair is remembered, and while the node has this key it is not trusted."""
    if draft.hardware is not None:
        release(draft)
        draft.hardware = replace(draft.hardware, distinct=tuple(sorted({*draft.hardware.distinct, other})))


def as_json(found: Identifiers) -> Payload:
    """The identities as they are stored and shown, each kind only where it is there.

    >>> as_json(Identifiers(serial="S1X", gpus=("GPU-1",)))
    {'serial': 'S1X', 'gpu': ['GPU-1']}
    """
    kinds = {"uuid": found.uuid, "serial": found.serial, "mac": list(found.macs), "gpu": list(found.gpus)}
    return {kind: value for kind, value in kinds.items() if value}


def differences(before: Payload, after: Payload) -> Payload:
    """The kinds that differ, each as it was and as it is; null: there was none.

    >>> differences({"serial": "S1X", "gpu": ["GPU-1"]}, {"serial": "S1X", "gpu": ["GPU-2"]})
    {'gpu': {'before': ['GPU-1'], 'after': ['GPU-2']}}
    """
    kinds = [kind for kind in {**before, **after} if before.get(kind) != after.get(kind)]
    return {kind: {"before": before.get(kind), "after": after.get(kind)} for kind in kinds}


def _found(sections: Mapping[str, Message], fresh: Set[str]) -> Identifiers | None:
    """The identities of a report that may replace a stored key; None of one that may not: something is missing or away."""
    system, nics, gpus = (sections.get(name) if name in fresh else None for name in ("system", "nics", "gpus"))
    told = (cast(pb.SystemSection | None, system), cast(pb.NicsSection | None, nics), cast(pb.GpusSection | None, gpus))
    return None if provisional(*told) is not None else identifiers(*told)


def _key(facts: Facts, stored: HardwareKey | None) -> HardwareKey | None:
    """The key of the report, or the stored one where the report may not replace it. Who was told apart is remembered."""
    found = _found(facts.sections or {}, facts.fresh)
    if found is None:
        return stored
    return HardwareKey(found.key, identifiers=as_json(found), distinct=stored.distinct if stored else ())


def _is_trusted(facts: Facts, draft: Draft, key: HardwareKey) -> bool:
    """Enough kinds, told by a report, and nobody else has it: the first one keeps it. A key that was told apart from another's
    stays untrusted."""
    told_apart = key.distinct and draft.hardware is not None and draft.hardware.key == key.key
    sure = _enough(key) and not key.provisional
    return sure and not facts.same_key and not told_apart and draft.node.status not in OUT


def _enough(key: HardwareKey) -> bool:
    return len(key.identifiers) >= TRUSTED


def _holder(facts: Facts, key: HardwareKey | None) -> str | None:
    """The other node that has the same trusted key, unless an operator told the two apart."""
    if key is None or not _enough(key):
        return None
    return min(set(facts.same_key).difference(key.distinct), default=None)


def _tell(draft: Draft, holder: str | None) -> None:
    """The node's own row of DuplicateIdentity is of this evidence, or of a duplicate session: that one is not ours."""
    row = draft.conditions.get((TYPE, ""))
    if row is not None and row.status == "true" and row.reason != REASON:
        return
    if holder is not None:
        message = f"node {holder} has this hardware key"
        draft.put("conditions", ConditionRow(TYPE, reason=REASON, message=message, evidence={"otherNode": holder}))
    elif row is not None and row.status == "true":
        draft.put("conditions", ConditionRow(TYPE, status="false"))
