"""Which GPUs a reset concerns (SPEC A7, `gpu.reset`): the GPU itself, or all that NVLink ties to it. Pure.

bcd decides on the machine what is reset; this is what the platform waits for and takes out of placement before.
"""

from collections.abc import Iterator, Mapping

from receiver.planning.view import Device, Draft

_BEFORE_AMPERE = ("kepler", "maxwell", "pascal", "volta", "turing", "")  # "": it does not say


def group(draft: Draft, device_id: str) -> tuple[str, ...]:
    """The devices that are reset with one, sorted: every NVLink peer, of a peer too, where links are not trained one by one.

    That is before Ampere, and with Ampere on NVSwitches while the fabric manager is down.
    """
    here = {device.id: device for device in draft.devices.values() if device.present}
    target = here.get(device_id)
    if target is None or not _together(draft, target, here):
        return (device_id,)
    found, todo = {device_id}, [target]
    while todo:
        new = [peer for peer in _peers(todo.pop(), here) if peer.id not in found]
        found |= {peer.id for peer in new}
        todo += new
    return tuple(sorted(found))


def _together(draft: Draft, device: Device, here: Mapping[str, Device]) -> bool:
    architecture = str(device.attributes.get("architecture", "")).lower()
    fabric = draft.conditions.get(("FabricManagerDown", ""))
    unmanaged = fabric is not None and fabric.status == "true"
    return architecture in _BEFORE_AMPERE or (architecture == "ampere" and unmanaged and bool(_switches(device, here)))


def _peers(device: Device, here: Mapping[str, Device]) -> Iterator[Device]:
    """GPUs at the other end of a link, and those behind the same switches."""
    for other in here.values():
        if other.attributes.get("pciBusId") in _linked(device) or _switches(device, here) & _switches(other, here):
            yield other


def _linked(device: Device) -> frozenset[str]:
    return frozenset(device.attributes.get("nvlinkPeers", ()))


def _switches(device: Device, here: Mapping[str, Device]) -> frozenset[str]:
    """What its links reach that is no GPU of the node."""
    return _linked(device) - {str(one.attributes.get("pciBusId", "")) for one in here.values()}
