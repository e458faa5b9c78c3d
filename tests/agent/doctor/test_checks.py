"""Doctor's lines from what was found, one by one: verdict, sentence, what to do."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.checks import Facts
from agent.conditions.facts import Facts as ConditionFacts
from agent.conditions.facts import Manager
from agent.conditions.reboot import Waiting
from agent.config import Config
from agent.doctor import checks, gpus
from agent.doctor.found import DataDir, Found, Member, Place, Reached
from agent.doctor.line import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARNING, Line
from agent.fault_store import Stored
from agent.faults import Ledger
from agent.identity import Certificate, Identity
from agent.kernel_log import Look
from agent.sections import Failed

HERE = Place(Config(), data_dir=Path("/var/lib/bcd"))
RECORDED = Place(Config(), host_dir=Path("/hosts/x"), ask_receiver=False)
RUNNING = {"nodeId": "node_1", "pid": 812, "session": "connected", "sessionError": "", "applied": True, "abandonedWorkers": 0}
OPEN = DataDir(Path("/var/lib/bcd"), 0o700, True, Stored(Ledger("b")))


def found(*sections: Any, **fields: Any) -> Found:
    known: dict[str, Any] = {"place": HERE, "sections": {type(s).__name__: s for s in sections}}
    return Found(**(known | fields))


def only(rule: Callable[[Found], Iterable[Line]], of: Found) -> Line:
    (line,) = rule(of)
    return line


def verdict(rule: Callable[[Found], Iterable[Line]], of: Found) -> str:
    line = only(rule, of)
    assert line.text
    assert line.todo or line.verdict in (PASS, NOT_APPLICABLE, UNKNOWN), "what is wrong says what to do"
    return line.verdict


def test_a_configuration_that_does_not_read_is_a_failure_with_its_line() -> None:
    place = replace(HERE, wrong="/etc/bcd/bcd.toml:3: unknown key 'sever'\n  the keys are server, socket")
    line = only(checks.configuration, found(place=place))
    assert line == Line("configuration", FAIL, "/etc/bcd/bcd.toml:3: unknown key 'sever'", "the keys are server, socket")
    assert only(checks.configuration, found(place=replace(HERE, source="/etc/bcd/bcd.toml"))).text == "/etc/bcd/bcd.toml reads"


def test_each_thing_that_is_wrong_in_the_configuration_has_a_line_of_its_own() -> None:
    wrong = "bcd.toml:1: settle: 'soon': no\n  how long.\nbcd.toml:2: unknown key 'sever'\n  the keys are server\n--x: 'y': no"
    lines = [(line.text, line.todo) for line in checks.configuration(found(place=replace(HERE, wrong=wrong)))]
    assert lines[:2] == [
        ("bcd.toml:1: settle: 'soon': no", "how long."),
        ("bcd.toml:2: unknown key 'sever'", "the keys are server"),
    ]
    assert lines[2] == ("--x: 'y': no", "mend it; the rest of this report goes by the defaults")


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        (None, NOT_APPLICABLE),
        (DataDir(Path("/d")), NOT_APPLICABLE),
        (OPEN, PASS),
        (DataDir(Path("/d"), 0o700, False), UNKNOWN),
        (DataDir(Path("/d"), 0o750, True, Stored(Ledger("b"))), WARNING),
        (replace(OPEN, stored=Stored(Ledger("b"), damaged="/d/faults.json is damaged: it holds no object")), WARNING),
        (replace(OPEN, stored=Stored(Ledger("b"), refused="cannot read /d/faults.json: Permission denied")), UNKNOWN),
    ],
)
def test_the_data_dir_is_0700_and_its_faults_read(directory: DataDir | None, expected: str) -> None:
    assert verdict(checks.data_dir, found(data_dir=directory)) == expected


@pytest.mark.parametrize(
    ("told", "why", "expected"),
    [
        (RUNNING, "", PASS),
        (RUNNING | {"session": "waiting", "sessionError": "UNAVAILABLE: refused"}, "", WARNING),
        (RUNNING | {"abandonedWorkers": 1}, "", WARNING),
        (None, "no bcd answers on /var/lib/bcd/bcd.sock: Connection refused", WARNING),
        (None, "asking the running bcd on /x failed: [Errno 13] Permission denied", UNKNOWN),
    ],
)
def test_the_daemon_runs_and_is_connected(told: Any, why: str, expected: str) -> None:
    assert verdict(checks.daemon, found(data_dir=OPEN, daemon=told, no_daemon=why)) == expected


def test_the_daemon_s_line_says_what_brings_a_node_back() -> None:
    told = RUNNING | {"session": "not joined", "nodeId": None}
    line = only(checks.daemon, found(data_dir=OPEN, daemon=told))
    assert (line.text, line.todo) == ("runs, process 812, and has not joined", "bcd join --token-file FILE")
    told = RUNNING | {"session": "waiting", "sessionError": "revoked: the node was retired"}
    line = only(checks.daemon, found(data_dir=OPEN, daemon=told))
    assert (line.verdict, line.todo) == (WARNING, "bcd join --force --token-file FILE, with a token that is bound to this node")


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (Look(Ledger("b", cursor=9, from_start=True)), PASS),
        (Look(Ledger("b", cursor=9, from_start=False)), UNKNOWN),
        (Look(Ledger("b", cursor=9, from_start=True, lost=4)), UNKNOWN),
        (Look(Ledger("b")), UNKNOWN),
        (
            Look(None, "reading the kernel log /dev/kmsg: Operation not permitted; reading it needs CAP_SYSLOG", "permission"),
            UNKNOWN,
        ),
    ],
)
def test_the_kernel_log_is_read_from_the_boots_first_record(log: Look, expected: str) -> None:
    assert verdict(checks.kernel_log, found(log=log)) == expected


def test_a_log_that_may_not_be_read_says_what_it_needs() -> None:
    line = only(checks.kernel_log, found(log=Look(None, "reading the kernel log /dev/kmsg: Operation not permitted; it needs X")))
    assert (line.text, line.todo) == ("reading the kernel log /dev/kmsg: Operation not permitted", "it needs X")


@pytest.mark.parametrize(
    ("section", "expected"),
    [(pb.OsSection(psi=True), PASS), (pb.OsSection(psi=False), NOT_APPLICABLE), (None, UNKNOWN)],
)
def test_psi(section: pb.OsSection | None, expected: str) -> None:
    assert verdict(checks.psi, found(*([section] if section else []))) == expected


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (pb.SystemSection(manufacturer="Dell Inc.", product="R760", serial="7B4K2X3"), PASS),
        (pb.SystemSection(), NOT_APPLICABLE),
        (
            pb.SystemSection(manufacturer="Dell", unreadable=[pb.Unreadable(path="/sys/class/dmi/id/product_uuid", errno=13)]),
            UNKNOWN,
        ),
        (pb.SystemSection(manufacturer="Dell", unreadable=[pb.Unreadable(path="/sys/class/tpm", errno=13)]), PASS),
        (None, UNKNOWN),
    ],
)
def test_dmi_that_may_not_be_read_is_not_told_from_one_that_is_not_there(section: Any, expected: str) -> None:
    assert verdict(checks.dmi, found(*([section] if section else []))) == expected


def test_a_placeholder_is_no_serial() -> None:
    line = only(checks.dmi, found(pb.SystemSection(manufacturer="ASRock", product="X670E", serial="To Be Filled By O.E.M.")))
    assert line.text == "ASRock X670E, no serial that tells it from others"


def test_the_hardware_key_counts_kinds() -> None:
    system = pb.SystemSection(product_uuid="4c4c4544-0051-3510-8043-b7c04f4d3532", serial="7B4K2X3")
    line = only(checks.hardware_key, found(system, pb.NicsSection(), pb.GpusSection()))
    assert (line.verdict, line.text) == (PASS, "2 of 4 kinds: the product UUID, serial 7B4K2X3")
    assert line.facts["trusted"] is True
    weak = only(checks.hardware_key, found(pb.SystemSection(serial="7B4K2X3"), pb.NicsSection()))
    assert (weak.verdict, weak.text.endswith("provisional: section gpus is missing")) == (WARNING, True)


H100 = pb.Gpu(uuid="GPU-1", index=0, bus_id="00000000:18:00.0", state="ok")
FUNCTION = pb.PciFunction(bus_id="00000000:18:00.0", class_code="030200", driver="nvidia")
SWITCH = ("00000000:07:00.0",)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (ConditionFacts(gpus=pb.GpusSection(gpus=[H100])), NOT_APPLICABLE),
        (ConditionFacts(gpus=pb.GpusSection(gpus=[pb.Gpu(fabric=pb.Fabric(state="completed", status="success"))])), PASS),
        (ConditionFacts(900.0, pb.GpusSection(gpus=[pb.Gpu(fabric=pb.Fabric(state="in-progress"))])), FAIL),
        (ConditionFacts(900.0, pb.GpusSection(gpus=[H100]), manager=Manager(SWITCH)), FAIL),
        (ConditionFacts(900.0, pb.GpusSection(gpus=[H100]), manager=Manager(SWITCH, 812, ("550.90.07",))), PASS),
        (ConditionFacts(failed=Failed("gpus", "Hang", "no answer")), UNKNOWN),
    ],
)
def test_the_fabric_manager_is_judged_as_its_condition(facts: ConditionFacts, expected: str) -> None:
    assert verdict(checks.fabric_manager, found(conditions=facts)) == expected


def test_what_waits_for_a_reboot_is_a_warning() -> None:
    assert verdict(checks.reboot, found(conditions=ConditionFacts(waiting=Waiting(distro=("linux-image",))))) == WARNING
    assert verdict(checks.reboot, found()) == PASS


def array(state: str) -> pb.MdArray:
    return pb.MdArray(name="md0", level="raid1", members=[pb.MdMember(name="sda1", state=state), pb.MdMember(name="sdb1")])


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (pb.DisksSection(disks=[pb.Disk(name="sda", bytes=1 << 40, root=True)], md_arrays=[array("in_sync")]), PASS),
        (pb.DisksSection(disks=[pb.Disk(name="sda", bytes=1 << 40)], md_arrays=[array("faulty")]), WARNING),
        (pb.DisksSection(), NOT_APPLICABLE),
        (None, UNKNOWN),
    ],
)
def test_a_faulty_member_of_an_array_is_a_warning(section: Any, expected: str) -> None:
    failed = {"disks": Failed("disks", "Hang", "no answer")}
    assert verdict(checks.disks, found(section) if section else found(failed=failed)) == expected


@pytest.mark.parametrize(
    ("section", "expected"),
    [(pb.NicsSection(nics=[pb.Nic(kind="ethernet")]), PASS), (pb.NicsSection(), WARNING), (None, UNKNOWN)],
)
def test_a_node_has_a_network_port(section: Any, expected: str) -> None:
    assert verdict(checks.nics, found(*([section] if section else []))) == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, [NOT_APPLICABLE]),
        ((), [NOT_APPLICABLE]),
        ((Reached("gw-1:7443", tls=True), Reached("gw-2:7443", "Connection refused", "see that it runs")), [PASS, FAIL]),
    ],
)
def test_a_receiver_that_cannot_be_reached_is_a_failure(told: tuple[Reached, ...] | None, expected: list[str]) -> None:
    assert [line.verdict for line in checks.receiver(found(receivers=told))] == expected


DAY = 86400.0
JOINED = Identity("node_1", Certificate("gw:7443", "c", "k", "a", 0.0, 30 * DAY))


@pytest.mark.parametrize(
    ("member", "expected", "text"),
    [
        (Member(), WARNING, "this node has not joined"),
        (Member(Identity("node_1")), WARNING, "this node has not joined"),
        (Member(error="/var/lib/bcd may not be entered by this user"), UNKNOWN, "/var/lib/bcd may not be entered by this user"),
        (Member(error="identity.json is damaged\n  restore it"), FAIL, "identity.json is damaged"),
        (Member(JOINED, now=DAY), PASS, "node_1, 29 d 0 h left of 30 d 0 h"),
        (Member(JOINED, now=26.9 * DAY), PASS, "node_1, 3 d 2 h left of 30 d 0 h"),
        (Member(JOINED, now=27.1 * DAY), WARNING, "node_1, 2 d 21 h left of 30 d 0 h"),
        (Member(JOINED, now=30 * DAY), FAIL, "node_1: the certificate expired on 1970-01-31T00:00:00Z"),
        (
            Member(JOINED, now=-1.0),
            FAIL,
            "node_1: by this machine's clock, 1969-12-31T23:59:59Z, the certificate is not valid yet",
        ),
    ],
)
def test_the_certificate_warns_below_a_tenth_of_its_life_and_fails_when_it_is_over(
    member: Member, expected: str, text: str
) -> None:
    line = only(checks.certificate, found(data_dir=OPEN, member=member))
    assert (line.verdict, line.text) == (expected, text)


def test_a_renewal_that_fails_is_a_warning_long_before() -> None:
    daemon = RUNNING | {"certificate": {"renewalError": "bcd: renew: the receiver gw:7443 cannot be reached"}}
    line = only(checks.certificate, found(data_dir=OPEN, member=Member(JOINED, now=DAY), daemon=daemon))
    assert (line.verdict, line.todo) == (WARNING, "bcd renew says why it is not renewed")
    assert line.text.endswith("; renewing it failed: bcd: renew: the receiver gw:7443 cannot be reached")


def test_with_insecure_there_is_no_certificate() -> None:
    place = Place(Config(insecure=True), data_dir=Path("/var/lib/bcd"))
    assert verdict(checks.certificate, found(place=place, data_dir=OPEN)) == NOT_APPLICABLE


@pytest.mark.parametrize(
    ("difference", "expected"), [(None, NOT_APPLICABLE), (0.2, PASS), (-4.9, PASS), (90.0, WARNING), (-90.0, WARNING)]
)
def test_the_clock_is_compared_with_the_receivers(difference: float | None, expected: str) -> None:
    assert verdict(checks.clock, found(data_dir=OPEN, daemon=RUNNING | {"clockDifference": difference})) == expected


def test_the_clock_says_which_of_the_two_is_ahead() -> None:
    ahead = only(checks.clock, found(data_dir=OPEN, daemon=RUNNING | {"clockDifference": -90.0}))
    assert ahead.text == "this clock is 90.0 s ahead of the receiver's"


def test_a_recorded_host_has_no_daemon_receiver_or_clock() -> None:
    rules = (checks.data_dir, checks.daemon, checks.receiver, checks.clock, checks.certificate)
    assert {verdict(rule, found(place=RECORDED)) for rule in rules} == {NOT_APPLICABLE}


# -- GPUs


def gpu(**fields: Any) -> pb.Gpu:
    known: dict[str, Any] = {"uuid": "GPU-1", "index": 0, "bus_id": "00000000:18:00.0", "state": "ok", "name": "H100"}
    return pb.Gpu(**(known | fields))


def line_of(of: pb.Gpu) -> Line:
    function = pb.PciFunction(bus_id=of.bus_id, class_code="030200", driver="vfio-pci" if of.assigned else "nvidia")
    section = pb.GpusSection(gpus=[of], pci_functions=[function])
    return only(gpus.each, found(section, facts=Facts(section, ledger=Ledger("b", cursor=9, from_start=True))))


ECC = pb.Ecc(current=True, volatile=pb.EccCounts(sram=0, dram=0))


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (gpu(ecc=ECC, row_remap=pb.RowRemap()), PASS),
        (gpu(), PASS),
        (gpu(row_remap=pb.RowRemap(pending=True)), WARNING),
        (gpu(row_remap=pb.RowRemap(failure=True)), FAIL),
        (gpu(row_remap=pb.RowRemap(failure=True, pending=True)), FAIL),
        (gpu(ecc=pb.Ecc(current=True, volatile=pb.EccCounts(sram=1, dram=0))), FAIL),
        (gpu(ecc=pb.Ecc(current=True, sram_threshold_exceeded=True, volatile=pb.EccCounts(sram=0, dram=0))), FAIL),
        (gpu(mig=pb.Mig(capable=True, current=False, pending=True)), WARNING),
        (gpu(mig=pb.Mig(capable=True, current=True, pending=True)), PASS),
        (gpu(unreadable=[pb.Unreadable(path="nvmlDeviceGetEccMode")]), UNKNOWN),
        (gpu(state="lost"), FAIL),
        (gpu(assigned=True), NOT_APPLICABLE),
    ],
)
def test_a_gpus_verdict_is_the_worst_of_its_checks(of: pb.Gpu, expected: str) -> None:
    line = line_of(of)
    assert (line.verdict, bool(line.todo)) == (expected, expected not in (PASS, NOT_APPLICABLE))
    assert line.text.startswith("H100 GPU-1 00000000:18:00.0")


def test_a_lost_gpu_is_one_line_and_one_that_nobody_knows_is_one_too() -> None:
    assert line_of(gpu(state="lost")).text.endswith("lost: NVML cannot reach it, PCI still shows it")
    section = pb.GpusSection(pci_functions=[FUNCTION])
    line = only(gpus.each, found(section, facts=Facts(section)))
    assert (line.verdict, line.text) == (FAIL, "no answer from the GPU at 00000000:18:00.0, which PCI shows")


def test_a_driver_whose_module_and_library_differ_is_a_warning() -> None:
    driver = pb.NvidiaDriver(module_version="550.90.07", library_version="550.127.05", nvml_version="12.550.127.05")
    section = pb.GpusSection(driver=driver, pci_functions=[FUNCTION], gpus=[H100])
    assert verdict(gpus.driver, found(section, facts=Facts(section))) == WARNING


def test_a_driver_that_is_not_needed_does_not_apply_and_one_that_fails_says_why() -> None:
    assert verdict(gpus.driver, found(pb.GpusSection(), facts=Facts(pb.GpusSection()))) == NOT_APPLICABLE
    error = pb.NvmlFailure(reason="NoPermission", message="nvmlInitWithFlags: NO_PERMISSION; this process may not open it")
    section = pb.GpusSection(error=error, pci_functions=[FUNCTION])
    line = only(gpus.driver, found(section, facts=Facts(section)))
    assert line.text == "NVML does not answer: NoPermission: nvmlInitWithFlags: NO_PERMISSION"
    assert (line.verdict, line.todo) == (FAIL, "this process may not open it")


def test_gpus_that_contradict_themselves_are_unknown_and_not_a_dead_driver() -> None:
    failed = Failed("gpus", "IdentityUnstable", "two GPUs say that their uuid is GPU-1")
    line = only(gpus.driver, found(failed={"gpus": failed}, facts=Facts(failure=failed)))
    assert line.verdict == UNKNOWN
    assert line.text == "the GPUs could not be read: IdentityUnstable: two GPUs say that their uuid is GPU-1"


@pytest.mark.parametrize(("reason", "todo"), [("Hang", "reboot"), ("WorkerDied", "crash")])
def test_a_driver_that_hangs_or_crashes_says_what_to_do(reason: str, todo: str) -> None:
    failed = Failed("gpus", reason, "no answer within 60 s")
    line = only(gpus.driver, found(failed={"gpus": failed}, facts=Facts(failure=failed)))
    assert (line.verdict, todo in line.todo) == (FAIL, True)
