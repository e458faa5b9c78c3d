"""Whatever NVML and the kernel log say, every check has a verdict with a reason, and no silence is read as health."""

from bettercompute.agent.v1 import inventory_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import checks
from agent.checks.facts import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Facts, Reading, Readings
from agent.faults import Ledger, Places, Seen
from agent.sections import Failed

UUID, BUS = "GPU-1", "00000000:18:00.0"
maybe = st.one_of(st.none(), st.integers(0, 3))
truth = st.one_of(st.none(), st.booleans())
counts = st.builds(pb.EccCounts, total=maybe, sram=maybe, dram=maybe)
ecc = st.builds(pb.Ecc, current=truth, volatile=counts, aggregate=counts, sram_threshold_exceeded=truth)
remap = st.builds(pb.RowRemap, correctable=st.integers(0, 9), pending=st.booleans(), failure=st.booleans())
pages = st.builds(pb.RetiredPages, single_bit=st.one_of(st.none(), st.integers(0, 70)), double_bit=maybe, pending=truth)
refused = st.lists(st.sampled_from(["nvmlDeviceGetEccMode", "nvmlDeviceGetRemappedRows"]), unique=True).map(
    lambda names: [pb.Unreadable(path=name) for name in names]
)
gpu = st.builds(
    pb.Gpu,
    uuid=st.just(UUID),
    bus_id=st.just(BUS),
    index=st.one_of(st.none(), st.just(0)),
    state=st.sampled_from(["ok", "lost", "newer"]),
    assigned=st.booleans(),
    ecc=st.one_of(st.none(), ecc),
    row_remap=st.one_of(st.none(), remap),
    retired_pages=st.one_of(st.none(), pages),
    pcie_max=st.one_of(st.none(), st.builds(pb.PcieLink, width=st.one_of(st.none(), st.just(16)))),
    unreadable=refused,
)
function = st.builds(
    pb.PciFunction,
    bus_id=st.just(BUS),
    class_code=st.sampled_from(["030200", "068000"]),
    driver=st.sampled_from([None, "nvidia", "vfio-pci"]),
)
error = st.one_of(st.none(), st.just(pb.NvmlFailure(reason="Error", message="nvmlInit: UNKNOWN")))
section = st.builds(pb.GpusSection, gpus=st.lists(gpu, max_size=1), pci_functions=st.lists(function, max_size=2), error=error)
reading = st.builds(Reading, pcie_width=st.sampled_from([None, 8, 16]), utilization=st.sampled_from([None, 0, 60]))
readings = st.builds(Readings, st.lists(reading, max_size=3).map(tuple))
xid = st.builds(
    lambda code, bus: Seen("Xid", code, bus, f"{code}, x", 1, 0.0),
    st.sampled_from([13, 48, 79, 9999]),
    st.sampled_from([BUS, "00000000:99:00.0"]),
)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger | None:
    if draw(st.booleans()):
        return None
    ledger = Ledger("b", draw(st.one_of(st.none(), st.just(9))), draw(st.booleans()), draw(st.integers(0, 2)))
    for seen in draw(st.lists(xid, max_size=3)):
        ledger = ledger.add(seen, Places({BUS: UUID}, inventory=True))
    return ledger


facts = st.builds(
    Facts,
    gpus=st.one_of(st.none(), section),
    failure=st.one_of(st.none(), st.just(Failed("gpus", "Hang", "no answer"))),
    readings=st.dictionaries(st.just(UUID), readings),
    expected=st.one_of(st.none(), st.integers(0, 2)),
    ledger=ledgers(),
    log_error=st.sampled_from(["", "cannot read /dev/kmsg"]),
)


@settings(max_examples=300, deadline=None)
@given(facts)
def test_every_check_has_a_verdict_and_a_reason(found: Facts) -> None:
    diagnosis = checks.run(found)
    assert all(r.verdict in (PASS, FAIL, NOT_APPLICABLE, UNKNOWN) and r.outcome.reason for r in diagnosis.results)
    assert {"nvml.init", "gpu.count", "xid.recent"} <= {r.check for r in diagnosis.results}
    assert diagnosis.passed == all(r.passes for r in diagnosis.results)


@settings(max_examples=300, deadline=None)
@given(facts)
def test_a_log_that_was_not_read_whole_and_an_nvml_that_does_not_answer_never_pass(found: Facts) -> None:
    verdicts = {(r.check, r.verdict) for r in checks.run(found).results}
    if found.ledger is None or not found.ledger.complete or found.log_error:
        assert ("xid.recent", PASS) not in verdicts
    if found.gpus is None or found.gpus.HasField("error"):
        assert not checks.run(found).passed


@settings(max_examples=300, deadline=None)
@given(facts)
def test_a_fault_with_a_policy_fails_wherever_it_is(found: Facts) -> None:
    if found.ledger is not None and any(fault.policy.policy for fault in found.ledger.faults.values()):
        assert ("xid.recent", FAIL) in {(r.check, r.verdict) for r in checks.run(found).results}
