"""Device health (SPEC B4): what an open fault or finding does to a device and its atoms, what is told of it, and clears.

A fault takes the device's atoms out of placement, MIG instances and slots alike; the rest of the node stays as it is, and no
booking is touched. It acts in pools that only observe, too: healthy is a fact, not a decision.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from receiver.errors import Refused
from receiver.events import event
from receiver.planning.atoms import GONE, hindrance
from receiver.planning.faults import NO_POLICY, verdict_on
from receiver.planning.findings import in_words
from receiver.planning.verdicts import is_switch
from receiver.planning.view import Draft, Facts, Health, History, Notice
from receiver.values import Json

UNHEALTHY = "AtomUnhealthy"  # the reason of the notice on bc_reservations


def settle(facts: Facts, before: Draft, draft: Draft) -> None:
    """Sets what is healthy and bookable, and tells what was opened and closed since `before`."""
    faults = _open(facts, draft)
    for device in list(draft.devices.values()):
        if device.healthy != (healthy := device.present and device.id not in faults):
            draft.put("devices", replace(device, healthy=healthy))
    for atom in list(draft.atoms.values()):
        device = draft.devices[atom.device_id]
        reason = hindrance(facts, draft, atom, device) or (faults[device.id][0] if device.id in faults else None)
        now = (device.healthy and reason != GONE, reason is None, reason)
        if now != (atom.healthy, atom.bookable, atom.reason):
            draft.put("atoms", replace(atom, healthy=now[0], bookable=now[1], reason=reason))
    opened = list(_tell(facts, before, draft))
    for device_id in sorted({*opened, *_fallen(before, draft)}):
        draft.notices.append(Notice(UNHEALTHY, device_id))


def _open(facts: Facts, draft: Draft) -> Mapping[str, list[str]]:
    """Device to the codes that are open of it, sorted."""
    found: dict[str, list[str]] = {}
    for row in sorted(draft.health.values(), key=lambda row: (row.code, row.key)):
        if row.open and row.device_id not in facts.owners:
            found.setdefault(row.device_id, []).append(row.code)
    return found


def _fallen(before: Draft, draft: Draft) -> Iterator[str]:
    """Devices that were healthy and are not, or that have such an atom: also without a fault, when one is missing."""
    for device in draft.devices.values():
        if not device.healthy and (device.id not in before.devices or before.devices[device.id].healthy):
            yield device.id
    for key, atom in draft.atoms.items():
        if not atom.healthy and key in before.atoms and before.atoms[key].healthy:
            yield atom.device_id


def _tell(facts: Facts, before: Draft, draft: Draft) -> Iterator[str]:
    """Events and history of each fault that was opened or closed; answers the devices of those opened."""
    for key in sorted(draft.health):
        row, old = draft.health[key], before.health.get(key)
        if row.open == (old is not None and old.open) or row.device_id in facts.owners:
            continue
        device = draft.devices.get(row.device_id)
        serial = device.serial if device is not None else None
        product = device.attributes.get("gpuProduct") if device is not None else None
        payload: dict[str, Json] = {
            "deviceId": row.device_id,
            **({"gpuProduct": product} if product else {}),
            **({"serial": serial} if serial else {}),
            "code": row.code,
            "reason": row.closed_reason or describe(facts, row),
        }
        word = "quarantined" if row.open else "cleared"
        draft.events.append(event(f"node.gpu.{word}", payload))
        detail = {"source": row.source, **{name: payload[name] for name in ("code", "reason")}}
        draft.history.append(History(row.device_id, serial, word, detail))
        if row.open:
            yield row.device_id


def describe(facts: Facts, row: Health) -> str:
    """A fault in words for a person, without the driver's text: that holds names of a tenant's processes."""
    if row.source == "inventory":
        return in_words(row)
    return verdict_on(facts, row.code, row.detail.get("message", "")).name or f"{row.code} is in no table"


@dataclass(frozen=True, slots=True)
class Cleared:
    """What a clear has closed, and the findings of the device that stay open: codes, sorted."""

    closed: tuple[str, ...]
    stands: tuple[str, ...]


def clear(facts: Facts, draft: Draft, device_id: str, reason: str, force: bool = False, code: str | None = None) -> Cleared:
    """Closes a GPU's faults (an NVSwitch's: by its bus id), all or that of one code. To be followed by conclude().

    The counts of XIDs are kept: in the same boot only a higher one opens them again. A finding is closed with `force` only, until
    its values change. Raises Refused: naming the finding, when there is nothing else to close; when the machine is a tenant's.
    """
    if facts.advisory:
        raise Refused(f"node {facts.node_id} is tenant-controlled: its devices' health stays as it is until that ends")
    closed = {*_clear_xids(facts, draft, device_id, reason, code), *_clear_switch(draft, device_id, code)}
    findings = [row for row in draft.health.values() if row.device_id == device_id and row.source == "inventory" and row.open]
    asked = sorted((row for row in findings if code in (None, row.code)), key=lambda row: row.code)
    if asked and not force and not closed:
        named = "; ".join(f"{row.code} ({describe(facts, row)})" for row in asked)
        raise Refused(f"the inventory shows {named}: it closes when that is gone, or with force")
    for row in asked if force else ():
        draft.put("health", replace(row, closed_reason=reason))
        closed.add(row.code)
    return Cleared(tuple(sorted(closed)), tuple(sorted({row.code for row in findings} - closed)))


def _clear_xids(facts: Facts, draft: Draft, device_id: str, reason: str, code: str | None) -> Iterator[str]:
    """What is counted without being open is cleared too: should it get a policy later, it was seen and judged."""
    for one in draft.faults.values():
        key = (device_id, "xid", one.code, one.boot_id)
        if one.device_id == device_id and code in (None, one.code) and not one.foreign and key not in draft.health:
            said = verdict_on(facts, one.code, one.message)
            detail = {"message": one.message, "busId": one.bus_id, **said.as_json()}
            draft.put(
                "health", Health(device_id, "xid", one.code, one.boot_id, one.count, detail=detail, closed_reason=NO_POLICY)
            )
    for row in list(draft.health.values()):
        if row.device_id == device_id and row.source == "xid" and code in (None, row.code) and row.count > row.cleared_count:
            if row.open:
                yield row.code
            draft.put("health", replace(row, cleared_count=row.count, closed_reason=reason))


def _clear_switch(draft: Draft, bus_id: str, code: str | None) -> Iterator[str]:
    for row in list(draft.conditions.values()):
        if row.device_id == bus_id and is_switch(row.type) and code in (None, row.type):
            if row.status == "true":
                yield row.type
            draft.put("conditions", replace(row, evidence={**row.evidence, "clearedCount": row.count}))
