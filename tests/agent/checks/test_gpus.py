"""The checks of one GPU: pass, fail, not applicable and unknown, each for its reason."""

from collections.abc import Callable

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.checks import GPU, gpus
from agent.checks.facts import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Facts, Outcome, Reading, Readings
from agent.faults import Ledger, Places, Seen

UUID, BUS = "GPU-11111111-2222-3333-4444-555555555555", "00000000:18:00.0"
SEEN_ALL = Ledger("boot", cursor=9, from_start=True)


def gpu(**fields: object) -> pb.Gpu:
    """A GPU in state ok."""
    return pb.Gpu(uuid=UUID, bus_id=BUS, index=0, **({"state": "ok"} | fields))  # type: ignore[arg-type]


def ecc(*, current: bool | None = True, aggregate: int = 0, **counts: int) -> pb.Ecc:
    return pb.Ecc(current=current, volatile=pb.EccCounts(**counts), aggregate=pb.EccCounts(dram=aggregate))


def failed(*functions: str) -> list[pb.Unreadable]:
    return [pb.Unreadable(path=function) for function in functions]


def verdict(check: Callable[[Facts, pb.Gpu], Outcome], of: pb.Gpu, facts: Facts | None = None) -> str:
    return check(facts or Facts(), of).verdict


@pytest.mark.parametrize("check", [name for name in GPU if name != "xid.recent"])
def test_nothing_passes_for_a_lost_gpu_and_nothing_applies_to_an_assigned_one(check: str) -> None:
    whole = {"ecc": ecc(sram=0, dram=0), "row_remap": pb.RowRemap(), "pcie_max": pb.PcieLink(width=16)}
    assert verdict(GPU[check], gpu(state="lost", **whole)) == UNKNOWN
    assert verdict(GPU[check], gpu(assigned=True, **whole)) == NOT_APPLICABLE


# -- ecc.uncorrectable


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (gpu(ecc=ecc(sram=0, dram=0, total=0)), PASS),
        (gpu(ecc=ecc(sram=0, dram=0, aggregate=9)), PASS),  # the board's life is shown only
        (gpu(ecc=ecc(sram=1, dram=0)), FAIL),
        (gpu(ecc=ecc(sram=0, dram=1)), FAIL),
        (gpu(ecc=ecc(total=2)), FAIL),  # a driver that does not tell DRAM from SRAM
        (gpu(ecc=ecc(dram=0, total=2)), FAIL),
        (gpu(ecc=ecc(sram=0, dram=0, total=2)), PASS),  # what is elsewhere is not what the check is about
        (gpu(ecc=ecc()), UNKNOWN),
        (gpu(ecc=ecc(current=False, sram=4)), NOT_APPLICABLE),
        (gpu(), NOT_APPLICABLE),
        (gpu(unreadable=failed("nvmlDeviceGetEccMode")), UNKNOWN),
    ],
)
def test_ecc_fails_on_volatile_errors_of_dram_or_sram(of: pb.Gpu, expected: str) -> None:
    assert verdict(gpus.ecc_uncorrectable, of) == expected


def test_ecc_shows_the_boards_life() -> None:
    assert gpus.ecc_uncorrectable(Facts(), gpu(ecc=ecc(sram=0, dram=2, aggregate=7))).reason == (
        "uncorrectable errors since the driver was loaded: DRAM 2, SRAM 0; in the board's life: DRAM 7"
    )


# -- row-remap.*


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (gpu(row_remap=pb.RowRemap(uncorrectable=3)), PASS),
        (gpu(row_remap=pb.RowRemap(pending=True)), FAIL),
        (gpu(retired_pages=pb.RetiredPages(pending=False)), PASS),
        (gpu(retired_pages=pb.RetiredPages(pending=True)), FAIL),
        (gpu(), NOT_APPLICABLE),
        (gpu(unreadable=failed("nvmlDeviceGetRemappedRows")), UNKNOWN),
    ],
)
def test_pending_fails_while_a_reset_is_needed(of: pb.Gpu, expected: str) -> None:
    assert verdict(gpus.row_remap_pending, of) == expected


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (gpu(row_remap=pb.RowRemap(uncorrectable=3)), PASS),
        (gpu(row_remap=pb.RowRemap(failure=True)), FAIL),
        (gpu(row_remap=pb.RowRemap(), ecc=pb.Ecc(current=True, sram_threshold_exceeded=True)), FAIL),
        (gpu(retired_pages=pb.RetiredPages(single_bit=40, double_bit=23)), PASS),
        (gpu(retired_pages=pb.RetiredPages(single_bit=40, double_bit=24)), FAIL),
        (gpu(), NOT_APPLICABLE),
        (gpu(unreadable=failed("nvmlDeviceGetRetiredPages")), UNKNOWN),
    ],
)
def test_failure_is_a_failed_remap_the_sram_threshold_or_no_page_left(of: pb.Gpu, expected: str) -> None:
    assert verdict(gpus.row_remap_failure, of) == expected


# -- pcie.link


def link(*readings: tuple[int | None, int | None], failed: tuple[str, ...] = ()) -> Facts:
    """Facts with readings of (width, utilization)."""
    return Facts(readings={UUID: Readings(tuple(Reading(pcie_width=w, utilization=u) for w, u in readings), failed)})


X16 = gpu(pcie_max=pb.PcieLink(width=16))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (link((16, 0)), PASS),
        (link((8, 0), (16, 0)), PASS),
        (link((8, 90), (8, 0), (8, 0)), FAIL),  # under load in one of them
        (link((8, 0), (8, 0), (8, 0)), UNKNOWN),  # idle and reduced
        (link((8, None), (8, None), (8, None)), UNKNOWN),
        (link((8, 90)), UNKNOWN),  # one reading is no three
        (link((None, 0)), NOT_APPLICABLE),
        (link((None, 0), failed=("nvmlDeviceGetCurrPcieLinkWidth",)), UNKNOWN),
        (Facts(), UNKNOWN),  # not read at all
    ],
)
def test_link_fails_when_narrow_in_three_readings_under_load(facts: Facts, expected: str) -> None:
    assert verdict(gpus.pcie_link, X16, facts) == expected


def test_link_of_an_x8_slot_passes_at_x8() -> None:
    assert verdict(gpus.pcie_link, gpu(pcie_max=pb.PcieLink(width=8)), link((8, 0))) == PASS


def test_link_without_a_maximum_does_not_apply() -> None:
    assert verdict(gpus.pcie_link, gpu(), link((8, 0))) == NOT_APPLICABLE
    assert verdict(gpus.pcie_link, gpu(unreadable=failed("nvmlDeviceGetMaxPcieLinkWidth")), link((8, 0))) == UNKNOWN


# -- xid.recent


def log(*codes: int, ledger: Ledger = SEEN_ALL, error: str = "") -> Facts:
    """Facts whose ledger holds these XIDs of the GPU."""
    places = Places({BUS: UUID}, inventory=True)
    for number, code in enumerate(codes):
        ledger = ledger.add(Seen("Xid", code, BUS, f"{code}, pid=1, text", number, 0.0), places)
    return Facts(ledger=ledger, log_error=error)


@pytest.mark.parametrize(
    ("facts", "expected", "warning"),
    [
        (log(), PASS, False),
        (log(79), FAIL, False),  # policy node
        (log(48), FAIL, False),  # policy device
        (log(13, 31), PASS, False),  # application
        (log(154), PASS, False),  # informational
        (log(9999), PASS, True),  # no table knows it
        (log(9999, 79), FAIL, False),
        (log(ledger=Ledger("boot", cursor=9, from_start=False)), UNKNOWN, False),
        (log(ledger=Ledger("boot", cursor=9, from_start=True, lost=3)), UNKNOWN, False),
        (log(79, ledger=Ledger("boot", cursor=9, from_start=True, lost=3)), FAIL, False),
        (log(error="cannot read /dev/kmsg"), UNKNOWN, False),
        (log(79, error="cannot read /dev/kmsg"), FAIL, False),
        (Facts(log_error="cannot read /dev/kmsg"), UNKNOWN, False),
    ],
)
def test_xid_recent_fails_on_policies_and_never_passes_a_log_with_holes(facts: Facts, expected: str, warning: bool) -> None:
    outcome = gpus.xid_recent(facts, gpu())
    assert (outcome.verdict, outcome.warning) == (expected, warning)


def test_xid_recent_lists_what_it_passes_and_names_what_it_fails_on() -> None:
    assert gpus.xid_recent(log(13, 13), gpu()).reason.startswith("seen: Xid 13 (graphics engine exception")
    assert gpus.xid_recent(log(13, 13), gpu()).reason.endswith(", 2 times")
    assert gpus.xid_recent(log(13, 79), gpu()).reason == "Xid 79 (GPU has fallen off the bus), once"
    assert gpus.xid_recent(log(9999), gpu()).reason == "seen: Xid 9999 (a number no table knows), once"


def test_xid_recent_is_told_of_a_lost_gpu_too() -> None:
    assert gpus.xid_recent(log(79), gpu(state="lost")).verdict == FAIL


def test_another_gpus_xid_is_not_this_ones() -> None:
    other = SEEN_ALL.add(Seen("Xid", 79, "00000000:2A:00.0", "79, x", 1, 0.0), Places({"00000000:2A:00.0": "GPU-2"}))
    assert gpus.xid_recent(Facts(ledger=other), gpu()).verdict == PASS
