"""The checks of the node, and what makes a diagnosis pass."""

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent import checks
from agent.checks import node
from agent.checks.facts import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Facts, Outcome, readings
from agent.faults import Ledger, Places, Seen
from agent.sections import Failed

SEEN_ALL = Ledger("boot", cursor=9, from_start=True)
BUSES = tuple(f"00000000:{number:02X}:00.0" for number in range(0x18, 0x1B))


def function(bus_id: str, driver: str = "nvidia", class_code: str = "030200") -> pb.PciFunction:
    return pb.PciFunction(bus_id=bus_id, driver=driver, class_code=class_code)


def section(answering: int = 3, functions: int = 3, **fields: object) -> pb.GpusSection:
    found = [pb.Gpu(uuid=f"GPU-{n}", index=n, bus_id=BUSES[n], state="ok") for n in range(answering)]
    return pb.GpusSection(gpus=found, pci_functions=[function(bus) for bus in BUSES[:functions]], **fields)  # type: ignore[arg-type]


ERROR = section(answering=0, error=pb.NvmlFailure(reason="DriverNotLoaded", message="nvmlInitWithFlags: DRIVER_NOT_LOADED"))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(section()), PASS),
        (Facts(ERROR), FAIL),
        (Facts(failure=Failed("gpus", "Hang", "no answer within 60 s")), FAIL),
        (Facts(failure=Failed("gpus", "WorkerDied", "SIGSEGV")), FAIL),
        (Facts(failure=Failed("gpus", "IdentityUnstable", "two GPUs say")), UNKNOWN),
        (Facts(pb.GpusSection()), NOT_APPLICABLE),
        (Facts(pb.GpusSection(pci_functions=[function(BUSES[0], "vfio-pci")])), NOT_APPLICABLE),
        (Facts(), UNKNOWN),
    ],
)
def test_nvml_init_fails_where_a_gpu_should_answer_and_does_not(facts: Facts, expected: str) -> None:
    assert node.nvml_init(facts).verdict == expected


def test_nvml_init_names_the_hang() -> None:
    assert node.nvml_init(Facts(failure=Failed("gpus", "Hang", "no answer within 60 s"))).reason == "Hang: no answer within 60 s"


def lost() -> pb.GpusSection:
    found = section(answering=2)
    found.gpus.add(uuid="GPU-2", bus_id=BUSES[2], state="lost")
    return found


def assigned() -> pb.GpusSection:
    found = section(answering=2, functions=2)
    found.pci_functions.append(function(BUSES[2], "vfio-pci"))
    found.gpus.add(uuid="GPU-2", bus_id=BUSES[2], state="ok", assigned=True)
    return found


@pytest.mark.parametrize(
    ("gpus", "number", "expected"),
    [
        (section(), 3, PASS),
        (section(), 2, FAIL),
        (section(), 8, FAIL),
        (section(), None, PASS),
        (section(answering=2), None, FAIL),  # PCI shows one more
        (section(answering=2), 2, PASS),  # as expected
        (lost(), 3, FAIL),
        (lost(), None, FAIL),
        (assigned(), 3, PASS),
        (assigned(), None, PASS),
        (ERROR, 3, UNKNOWN),
        (None, 3, UNKNOWN),
        (pb.GpusSection(), None, NOT_APPLICABLE),
        (pb.GpusSection(), 8, FAIL),
        (pb.GpusSection(), 0, PASS),
    ],
)
def test_gpu_count_is_what_is_expected_or_what_pci_shows(gpus: pb.GpusSection | None, number: int | None, expected: str) -> None:
    assert node.gpu_count(Facts(gpus, expected=number)).verdict == expected


def test_gpu_count_names_who_is_gone() -> None:
    assert node.gpu_count(Facts(lost(), expected=3)).reason == f"2 GPUs, 3 expected; lost: GPU-2 at {BUSES[2]}"
    assert node.gpu_count(Facts(section(answering=2))).reason == f"no answer from the GPU at {BUSES[2]}, which PCI shows"


def seen(*faults: Seen, places: Places | None = None) -> Ledger:
    ledger = SEEN_ALL
    for fault in faults:
        ledger = ledger.add(fault, places or Places({BUSES[0]: "GPU-0"}, inventory=True))
    return ledger


def test_xids_of_the_listed_gpus_are_left_to_them() -> None:
    assert node.xid_recent(Facts(section(), ledger=seen(Seen("Xid", 79, BUSES[0], "79, x", 1, 0.0)))) is None


def test_an_xid_of_an_unknown_bus_id_fails_the_node_with_its_bus_id() -> None:
    outcome = node.xid_recent(Facts(section(), ledger=seen(Seen("Xid", 79, "00000000:99:00.0", "79, x", 1, 0.0))))
    assert outcome == Outcome(FAIL, "Xid 79 (GPU has fallen off the bus), once, at 00000000:99:00.0")


def test_a_fatal_sxid_fails_the_node() -> None:
    fault = Seen("SXid", 20034, "00000000:07:00.0", "20034, Fatal, Link 48 LTSSM Fault Up", 1, 0.0)
    outcome = node.xid_recent(Facts(section(), ledger=seen(fault)))
    assert outcome is not None
    assert outcome.verdict == FAIL


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(pb.GpusSection(), ledger=SEEN_ALL), PASS),
        (Facts(pb.GpusSection(), ledger=Ledger("boot")), UNKNOWN),
        (Facts(pb.GpusSection(), log_error="cannot read /dev/kmsg"), UNKNOWN),
    ],
)
def test_without_gpus_the_log_is_judged_for_the_node(facts: Facts, expected: str) -> None:
    outcome = node.xid_recent(facts)
    assert outcome is not None
    assert outcome.verdict == expected


# -- the diagnosis


@pytest.mark.parametrize(
    ("check", "verdict", "passes"),
    [
        ("ecc.uncorrectable", PASS, True),
        ("ecc.uncorrectable", NOT_APPLICABLE, True),
        ("ecc.uncorrectable", UNKNOWN, False),
        ("ecc.uncorrectable", FAIL, False),
        ("pcie.link", UNKNOWN, True),
        ("pcie.link", FAIL, False),
        ("xid.recent", UNKNOWN, False),
    ],
)
def test_fails_on_any_fail_and_on_unknowns_but_the_links(check: str, verdict: str, passes: bool) -> None:
    good = checks.Result("nvml.init", Outcome(PASS, "x"))
    assert checks.Diagnosis((good, checks.Result(check, Outcome(verdict, "x")))).passed is passes


def test_tells_each_check_of_each_gpu_by_index() -> None:
    told = checks.run(Facts(section(), ledger=SEEN_ALL)).told()
    assert [(c["check"], c.get("deviceId")) for c in told["checks"]] == [
        ("nvml.init", None),
        ("gpu.count", None),
        *((name, f"GPU-{n}") for n in range(3) for name in checks.GPU),
    ]
    assert all(c["result"] in (PASS, FAIL, NOT_APPLICABLE, UNKNOWN) and c["reason"] for c in told["checks"])


def test_readings_are_by_uuid_and_a_gpu_without_one_has_none() -> None:
    found = readings(b'[{"uuid": null, "readings": [{}], "failed": []}, {"uuid": "GPU-1", "readings": [{"pcieWidth": 8}],'
                     b' "failed": ["nvmlDeviceGetPowerUsage"]}]')  # fmt: skip
    assert list(found) == ["GPU-1"]
    assert found["GPU-1"].failed == ("nvmlDeviceGetPowerUsage",)
    assert (found["GPU-1"].readings[0].pcie_width, found["GPU-1"].readings[0].processes) == (8, None)
