"""What would repair a device, from what is open of it (SPEC B4's remedies; what is done about it: B8).

The worst wins: an XID's own action, a finding's, the driver's recovery action (which NVML and Xid 154 tell), so that the latter
can raise what happens and never lower it. While a GPU is to be replaced, no reset of it is started.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from receiver.planning.faults import left_with_its_gpu, verdict_on
from receiver.planning.findings import FINDINGS, REPLACE
from receiver.planning.verdicts import ACTIONS, is_switch
from receiver.planning.view import Draft, Facts, Health

AUTOMATIC = ("reset-gpu", "reboot-node")


@dataclass(frozen=True, slots=True)
class Remedy:
    """`action`: a word of xids.json's actions, or REPLACE. `codes`: what is open of the device, sorted."""

    device_id: str
    action: str
    codes: tuple[str, ...]

    @property
    def automatic(self) -> bool:
        """Whether it may be started without a person."""
        return self.action in AUTOMATIC


def remedies(facts: Facts, draft: Draft) -> tuple[Remedy, ...]:
    """One for each device that something is open of: GPUs, and NVSwitches by their bus ids. Sorted."""
    here = [
        row for row in draft.health.values() if row.device_id not in facts.owners and not left_with_its_gpu(facts, draft, row)
    ]
    rows = [row for row in here if row.open]
    switches = [row for row in draft.conditions.values() if is_switch(row.type) and row.status == "true"]
    gpus = {row.device_id for row in rows}
    return (
        *(_of_gpu(facts, draft, gpu, [row for row in rows if row.device_id == gpu]) for gpu in sorted(gpus)),
        *(
            Remedy(
                switch, _worst(str(row.evidence.get("action", "none")) for row in mine), tuple(sorted(row.type for row in mine))
            )
            for switch in sorted({row.device_id for row in switches})
            for mine in [[row for row in switches if row.device_id == switch]]
        ),
    )


def _of_gpu(facts: Facts, draft: Draft, device_id: str, rows: Iterable[Health]) -> Remedy:
    actions = [*(action_of(row) for row in rows), *_asked_for(facts, draft, device_id)]
    action = _worst(one for one in actions if one != REPLACE)
    if REPLACE in actions and action != "reboot-node":
        action = REPLACE
    return Remedy(device_id, action, tuple(sorted({row.code for row in rows})))


def action_of(row: Health) -> str:
    """The remedy of one fault or finding alone."""
    return row.detail["action"] if row.source == "xid" else FINDINGS[row.code].remedy(row.detail)


def _asked_for(facts: Facts, draft: Draft, device_id: str) -> Iterator[str]:
    """What the driver asked for in Xids 154 of this boot since the last clear: they open nothing, and raise what is open."""
    for one in draft.faults.values():
        said = verdict_on(facts, one.code, one.message)
        cleared = draft.health.get((device_id, "xid", one.code, one.boot_id))
        counts = cleared is None or one.count > cleared.cleared_count
        if one.device_id == device_id and said.linked and not one.foreign and counts:
            yield said.action


def _worst(actions: Iterable[str]) -> str:
    return max(actions, key=ACTIONS.index, default="none")
