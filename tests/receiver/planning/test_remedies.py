"""What would repair a device (SPEC B4's remedies)."""

from typing import Any

import pytest

from receiver.planning import faults
from receiver.planning.remedies import Remedy, remedies
from receiver.planning.view import Counted, Device, Draft, Facts, Health, Node

GPU, SWITCH = "GPU-1", "00000000:05:00.0"
FACTS = Facts("node_1", boot_id="boot-1")
ASKS = "154, GPU recovery action changed from 0x0 (None) to 0x{} (words)"


def finding(code: str, **values: Any) -> Health:
    return Health(GPU, "inventory", code, detail=values)


def xid(number: int, text: str = "words", count: int = 1) -> Counted:
    return Counted(f"Xid{number}", GPU, "boot-1", count, count, message=f"{number}, {text}")


def remedy(*rows: Health | Counted) -> Remedy | None:
    draft = Draft()
    for row in rows:
        draft.put("health" if isinstance(row, Health) else "faults", row)
    faults.judge(FACTS, Draft(), draft)
    found = remedies(FACTS, draft)
    return found[0] if found else None


def action(*rows: Health | Counted) -> str | None:
    found = remedy(*rows)
    return None if found is None else found.action


PENDING, FAILED = finding("RowRemapPending", rowRemap=True), finding("RowRemapFailure", rowRemap=True)
ECC, LOST = finding("EccUncorrectable", dram=1), finding("GpuLost", busId="b")


def asks_nvml(word: str) -> Health:
    return finding("RecoveryActionRequired", recoveryAction=word)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((LOST,), "reboot-node"),
        ((ECC,), "inspect"),
        ((ECC, PENDING), "reset-gpu"),
        ((ECC, asks_nvml("node-reboot")), "reboot-node"),
        ((PENDING,), "reset-gpu"),
        ((PENDING, FAILED), "replace"),
        ((FAILED,), "replace"),
        ((finding("SramThresholdExceeded", sramThresholdExceeded=True),), "replace"),
        ((asks_nvml("gpu-reset"),), "reset-gpu"),
        ((asks_nvml("drain-p2p"),), "drain-and-reset"),
        ((asks_nvml("unknown-12"),), "inspect"),
        ((xid(79),), "reboot-node"),
        ((xid(48),), "drain-and-reset"),
        ((xid(48), PENDING), "reset-gpu"),
        ((xid(64), FAILED), "replace"),
        ((xid(79), FAILED), "reboot-node"),
    ],
)
def test_the_remedy_of_what_is_open(rows: tuple[Health | Counted, ...], expected: str) -> None:
    found = remedy(*rows)
    assert found is not None
    assert (found.action, found.automatic) == (expected, expected in ("reset-gpu", "reboot-node"))


def test_the_recovery_action_can_raise_what_happens_and_never_lower_it() -> None:
    for asks in (asks_nvml("gpu-reset"), xid(154, ASKS.format(1)[5:])):
        assert action(xid(79), asks) == "reboot-node", "Xid 79 reboots also when the driver asks for a reset"
    for asks in (asks_nvml("node-reboot"), xid(154, ASKS.format(2)[5:])):
        assert action(xid(48), asks) == "reboot-node"


def test_154_alone_asks_for_nothing_and_after_a_clear_nothing_either() -> None:
    asks = xid(154, ASKS.format(2)[5:], count=3)
    assert remedy(asks) is None
    cleared = Health(GPU, "xid", "Xid154", "boot-1", 3, 3, detail={"message": asks.message}, closed_reason="cleared")
    assert action(asks, cleared, xid(48)) == "drain-and-reset"


def test_what_is_closed_asks_for_nothing() -> None:
    assert remedy(Health(GPU, "inventory", "GpuLost", detail={"busId": "b"}, closed_reason="gone")) is None


def test_a_gpu_that_has_left_the_node_needs_nothing_here() -> None:
    draft = Draft(node=Node(inventory_boot="boot-1"))
    draft.put("health", Health(GPU, "xid", "Xid79", "boot-0", 1, detail={"message": "79, x", "action": "reboot-node"}))
    assert remedies(FACTS, draft) == ()
    draft.put("devices", Device(GPU))
    assert [one.action for one in remedies(FACTS, draft)] == ["reboot-node"]


def test_each_device_has_its_own_switches_included() -> None:
    draft = Draft(health={LOST.key: LOST})
    draft.put("faults", Counted("Xid48", "GPU-0", "boot-1", 1, 1, message="48, x"))
    draft.put("faults", Counted("SXid11004", SWITCH, "boot-1", 1, 1, message="11004, Fatal, x"))
    faults.judge(FACTS, Draft(), draft)
    assert [(one.device_id, one.codes) for one in remedies(FACTS, draft)] == [
        ("GPU-0", ("Xid48",)),
        (GPU, ("GpuLost",)),
        (SWITCH, ("SXid11004",)),
    ]
