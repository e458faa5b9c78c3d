"""The NVIDIA driver's lines, as data/kmsg says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kmsg import record
from agent.kmsg.xid import GpuNamed, Sxid, Xid, fallen, gpu_named, parse
from tests.agent.kmsg import LINES, Line, as_sxid, as_xid

XID = "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus."
RECORDS = [line for line in LINES if line.form in ("kmsg-text", "kmsg-raw")]
LEGACY = [line.text[line.text.index("NVRM") :] for line in LINES if line.legacy]


def text_of(line: Line) -> tuple[str, bool]:
    """A record's text, and whether the kernel wrote it."""
    if line.form == "kmsg-text":
        return line.text, True
    parsed = record.parse(line.text.encode())
    assert isinstance(parsed, record.Record)
    return parsed.text, parsed.facility == record.KERNEL


@pytest.mark.parametrize("line", RECORDS, ids=lambda line: line.note)
def test_a_record_of_the_corpus_is_what_it_says(line: Line) -> None:
    text, kernel = text_of(line)
    found = parse(text)
    assert as_xid(found) == line.trusted
    assert as_sxid(found) == line.sxid
    assert kernel or line.expect is None


def test_the_corpus_is_whole() -> None:
    assert len(LINES) == 188
    assert len(LEGACY) == 3


@pytest.mark.parametrize("text", LEGACY)
def test_old_drivers_addresses_count_only_when_asked_for(text: str) -> None:
    assert parse(text) is None
    found = parse(text, legacy=True)
    assert isinstance(found, Xid)
    assert found.legacy


def test_a_current_address_is_not_legacy() -> None:
    assert parse(XID, legacy=True) == Xid(79, "00000000:18:00.0", "79, GPU has fallen off the bus.")


@pytest.mark.parametrize(
    ("mig", "gi", "ci"),
    [("", None, None), (" GPU-I:05", 5, None), (" GPU-I:07 GPU-CI:00", 7, 0), (" GPU-CI:01", None, 1)],
)
def test_the_mig_instance_is_no_part_of_bus_id_and_message(mig: str, gi: int | None, ci: int | None) -> None:
    found = parse(f"NVRM: Xid (PCI:0000:65:00{mig}): 43, Ch 00000018")
    assert found == Xid(43, "00000000:65:00.0", "43, Ch 00000018", gi, ci)


@pytest.mark.parametrize(
    ("address", "bus"),
    [
        ("0000:ca:00", "00000000:CA:00.0"),
        ("0000:CA:1F.7", "00000000:CA:1F.7"),
        ("10001:84:00", "00010001:84:00.0"),
        ("DEADBEEF:01:02", "DEADBEEF:01:02.0"),
    ],
)
def test_the_bus_id_has_nvmls_form(address: str, bus: str) -> None:
    found = parse(f"NVRM: Xid (PCI:{address}): 79")
    assert isinstance(found, Xid)
    assert found.bus_id == bus


@pytest.mark.parametrize("code", ["0", "79", "999", "4294967295"])
def test_any_number_is_an_xid(code: str) -> None:
    assert parse(f"NVRM: Xid (PCI:0000:18:00): {code}, x") == Xid(int(code), "00000000:18:00.0", f"{code}, x")


@pytest.mark.parametrize("end", ["", " ", "\n", "\r\n", " \t \n\n"])
def test_blanks_at_the_end_are_not_the_message(end: str) -> None:
    assert parse("NVRM: Xid (PCI:0000:18:00): 46" + end) == Xid(46, "00000000:18:00.0", "46")


@pytest.mark.parametrize(
    "text",
    [
        " " + XID,
        "x " + XID,
        "x\n" + XID,
        "nvrm: xid (PCI:0000:18:00): 79, x",
        "NVRM: Xid (PCI:0000:18:00): 79 x",
        "NVRM: Xid (PCI:0000:18:00): 79x",
        "NVRM: Xid (PCI:0000:18:00): -79, x",
        "NVRM: Xid (PCI:0000:18:00):  79, x",
        "NVRM: Xid (PCI:0000:18:00) 79, x",
        "NVRM: Xid (PCI:0000:18): 79, x",
        "NVRM: Xid (PCI:18:00): 79, x",
        "NVRM: Xid (PCI:000:18:00): 79, x",
        "NVRM: Xid (PCI:000000000:18:00): 79, x",
        "NVRM: Xid (PCI:0000:18:00.8): 79, x",
        "NVRM: Xid (PCI:0000:1g:00): 79, x",
        "NVRM: Xid (PCI:0000:18:00 GPU-I:): 79, x",
        "NVRM: Xid (PCI:0000:18:00 GPU-X:01): 79, x",
        "NVRM: Xid (PCI:0000:18:00): 4294967296, x",
        "NVRM: Xid (PCI:0000:18:00): " + "9" * 5000 + ", x",
        "NVRM: Xid (PCI:0000:18:00): ٧٩, x",
        "NVRM: Xid (0118:00): 79, x",
        "NVRM: Xid (0000:18:00",
        "",
    ],
)
def test_anything_else_is_no_xid(text: str) -> None:
    assert parse(text, legacy=True) is None


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-nvswitch: SXid (PCI:0000:c4:00.0): 12028, Fatal, x",
        "nvidia-nvswitch0: SXid (PCI:0000:c4:00): 12028, Fatal, x",
        "nvidia-nvswitch0: SXid (0000:c4:00.0): 12028, Fatal, x",
        "nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 1202, Fatal, x",
        "nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 12028 Fatal, x",
        "nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 99999999999, Fatal, x",
        "x nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 12028, Fatal, x",
    ],
)
def test_anything_else_is_no_sxid(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("rest", "fatal", "detail"),
    [
        ("Fatal, Link 48", True, False),
        ("Non-fatal, Link 48", False, False),
        ("Correctable, Link 48", False, False),
        ("Fatality, Link 48", None, False),
        ("SOE HALTED", None, False),
        ("Severity 1 Engine instance 48", None, True),
        ("Severity word", None, False),
        ("Data {0x00140004}", None, True),
        ("SOE HALT data[0] = 0x1", None, True),
        ("", None, False),
    ],
)
def test_an_sxid_is_a_head_with_a_word_or_a_detail(rest: str, fatal: bool | None, detail: bool) -> None:
    found = parse(f"nvidia-nvswitch12: SXid (PCI:0000:c4:00.1): 26006, {rest}")
    assert found == Sxid(26006, "00000000:C4:00.1", f"26006, {rest}".rstrip(), fatal, detail)


@given(st.text(max_size=15))
def test_a_process_cannot_choose_another_fault_by_its_name(name: str) -> None:
    found = parse(f"NVRM: Xid (PCI:0000:18:00): 43, pid=1, name={name}, Ch 00000010")
    assert found == Xid(43, "00000000:18:00.0", f"43, pid=1, name={name}, Ch 00000010")


@given(
    st.text(max_size=60), st.sampled_from(["", "NVRM: Xid (", "NVRM: Xid (PCI:0000:18:00", "nvidia-nvswitch0: SXid (PCI:", XID])
)
def test_no_text_raises(text: str, head: str) -> None:
    assert isinstance(parse(head + text), Xid | Sxid | None)
    assert isinstance(gpu_named(head + text), GpuNamed | None)
    assert isinstance(fallen(head + text), bool)


UUID = "GPU-5f3a8c21-7b94-1e0d-a6c2-93d41b7e2f08"


@pytest.mark.parametrize("text", [f"NVRM: GPU at PCI:0000:1a:00: {UUID}", f"NVRM: GPU at 0000:1a:00.0: {UUID}\n"])
def test_the_driver_names_the_gpu_of_a_bus_id(text: str) -> None:
    assert gpu_named(text) == GpuNamed("00000000:1A:00.0", UUID)


@pytest.mark.parametrize(
    "text",
    [f"x NVRM: GPU at PCI:0000:18:00: {UUID}", f"NVRM: GPU at PCI:0000:18: {UUID}", "NVRM: GPU at PCI:0000:18:00: GPU-5f3a", XID],
)
def test_anything_else_names_no_gpu(text: str) -> None:
    assert gpu_named(text) is None


FALLEN = [line for line in LINES if "fallen off" in line.text and line.expect is None and line.text.startswith("NVRM")]


@pytest.mark.parametrize(
    "text",
    [
        *(line.text for line in FALLEN if "Xid" not in line.text),
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and",
        "NVRM: The NVIDIA GPU device at PCI:0000:b3:00 failed.",
    ],
)
def test_a_gpu_that_is_gone_without_an_xid_is_seen(text: str) -> None:
    assert fallen(text)


@pytest.mark.parametrize("text", [XID, "x: NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", "fell off the bus", ""])
def test_an_xid_or_a_quotation_is_no_such_line(text: str) -> None:
    assert not fallen(text)
