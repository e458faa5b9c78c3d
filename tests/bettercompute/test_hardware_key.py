"""The hardware key: every listed placeholder is dropped, no identity is, and what counts is what the SPEC names."""

import hashlib
import json
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract import placeholders
from bettercompute.contract.hardware_key import Identifiers, claimed, identifiers, provisional
from bettercompute.contract.placeholders import RULES, is_serial, is_uuid
from google.protobuf.json_format import ParseDict

from tests.hosts_catalog import HOSTS

ROWS = [
    line.split("\t")[:2] for line in Path(placeholders.__file__).with_name("firmware-placeholders.tsv").read_text().splitlines()
]
SERIALS = [value for field, value in ROWS if field.endswith(".serial") and not field.startswith("dimm.")]
UUID = "4c4c4544-0051-3510-8043-b7c04f4d3532"


# -- placeholders


@pytest.mark.parametrize(
    "value", [*SERIALS, *(value for field, value in ROWS if field.startswith(("chassis.", "board.version")))]
)
def test_a_listed_value_is_no_serial(value: str) -> None:
    text = "" if value == r"\e" else value
    assert not is_serial(text)
    assert not is_serial(f"  {text.upper()} ")


@pytest.mark.parametrize(
    ("rule", "values"),
    {
        "no letter or digit": (".........", "- -", "___", ""),
        "one character repeated": ("0000", "ffffffff", "XXXXXXXX", "1", "SN-000000"),
        "one byte repeated": ("fefefefe", "0xabababab", "a5a5a5a5a5"),
        "a run of digits": ("0123456789", "1234567890", "9876543210", "345", "SYS-1234567890", "123456789012345678901234"),
        "to be filled": ("To Be Filled By O.E.M.", "To be filled on plant", "to_be_filled", "Type1 - TBD by OEM"),
        "default string": ("Default string", "DEFAULT_STRING", "OEM default string inject", "Default string-CF-WCP-ADO"),
        "a word for none": ("None", "N/A", "not specified", "(null)", "Not Available", "O.E.M", "empty"),
        "the field's own name": (
            "Chassis Serial Number",
            "Base Board Serial",
            "SystemSerialNumb",
            "Type2 - Board Serial",
            "Serial #",
        ),
        "a build variable": ("$(DEFAULT_STRING)", "X$(SERIAL)"),
    }.items(),
)
def test_each_rule_catches_what_no_row_lists(rule: str, values: tuple[str, ...]) -> None:
    for value in values:
        assert RULES[rule](value.strip().lower()), value
        assert not is_serial(value)


def test_every_rule_is_tested() -> None:
    cases = test_each_rule_catches_what_no_row_lists.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {rule for rule, _ in cases} == set(RULES)


@pytest.mark.parametrize(
    "serial",
    ["S482913X3B51230", "7B4K2X3", "CZ20010ABC", "J1001DRE", "2102312QRS10K8000012", "C8A0LAN48192733", "SN4711", "MXQ1234567"],
)
def test_a_real_serial_stays(serial: str) -> None:
    assert is_serial(serial)


@pytest.mark.parametrize("value", [value for field, value in ROWS if field == "system.uuid"])
def test_a_listed_uuid_is_none_in_both_spellings(value: str) -> None:
    a, b, c, rest = value.split("-", 3)
    other = "-".join(bytes.fromhex(part)[::-1].hex() for part in (a, b, c)) + "-" + rest
    assert not is_uuid(value)
    assert not is_uuid(other)


@pytest.mark.parametrize(
    "value",
    [
        "00112233-4455-6677-8899-aabbccddeeff",
        "fefefefe-fefe-fefe-fefe-fefefefefefe",
        "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "",
        "Not Settable",
    ],
)
def test_a_uuid_with_a_pattern_or_without_form_is_none(value: str) -> None:
    assert not is_uuid(value)


@pytest.mark.parametrize("value", [UUID, UUID.upper(), *(value for field, value in ROWS if field == "system.uuid.unique")])
def test_a_uuid_that_looks_like_a_placeholder_and_is_none_stays(value: str) -> None:
    assert is_uuid(value)


# -- identifiers


def nic(mac: str = "b8:3f:d2:00:00:01", **fields: object) -> pb.Nic:
    return pb.Nic(**({"permanent_mac": mac, "kind": "ethernet", "bus_id": "00000000:4B:00.0", "driver": "mlx5_core"} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "left_out",
    [
        nic("be:3a:f2:b6:05:9f"),  # locally administered: a BMC's gadget, a VM
        nic("01:00:5e:00:00:01"),
        nic("00:00:00:00:00:00"),
        nic("ff:ff:ff:ff:ff:ff"),
        nic("b8:3f:d2:03:26:58:7f:5c"),
        nic("no mac"),
        nic(""),
        nic(kind="infiniband"),
        nic(kind="wlan"),
        nic(bus_id=""),
        nic(driver="cdc_ether"),
        nic(driver="r8152"),
    ],
)
def test_only_permanent_global_macs_of_ethernet_on_pci_count(left_out: pb.Nic) -> None:
    good = nic("B8:3F:D2:00:00:02")
    assert identifiers(None, pb.NicsSection(nics=[left_out, good])).macs == ("b8:3f:d2:00:00:02",)


@pytest.mark.parametrize(
    ("system", "board", "chassis", "serial"),
    [
        ("  s1a2b3c4 ", "B1X", "C1X", "S1A2B3C4"),
        ("Default string", "b1x", "C1X", "B1X"),
        ("", "0123456789", "C1X", "C1X"),
        ("", "", "None", None),
    ],
)
def test_the_serial_is_the_systems_else_the_boards_else_the_chassis(
    system: str, board: str, chassis: str, serial: str | None
) -> None:
    section = pb.SystemSection(serial=system, board=pb.Board(serial=board), chassis=pb.Chassis(serial=chassis))
    assert identifiers(section).serial == serial


def test_the_key_is_the_hash_of_the_lines_of_the_spec() -> None:
    system = pb.SystemSection(product_uuid=UUID.upper(), serial=" s1x ")
    nics = pb.NicsSection(nics=[nic("b8:3f:d2:00:00:02"), nic("b8:3f:d2:00:00:01"), nic("b8:3f:d2:00:00:01")])
    gpus = pb.GpusSection(gpus=[pb.Gpu(uuid="GPU-b"), pb.Gpu(uuid="GPU-A"), pb.Gpu(bus_id="00000000:18:00.0")])
    lines = f"bc-hwkey-v1\nuuid:{UUID}\nserial:S1X\nmac:b8:3f:d2:00:00:01\nmac:b8:3f:d2:00:00:02\ngpu:GPU-A\ngpu:GPU-b\n"
    assert identifiers(system, nics, gpus).key == hashlib.sha256(lines.encode()).hexdigest()
    assert identifiers(None).key == hashlib.sha256(b"bc-hwkey-v1\n").hexdigest()


@pytest.mark.parametrize(
    ("found", "trusted"),
    [
        (Identifiers(), False),
        (Identifiers(uuid=UUID), False),
        (Identifiers(gpus=("GPU-1", "GPU-2")), False),  # one kind, however many
        (Identifiers(uuid=UUID, serial="S1"), True),
        (Identifiers(macs=("b8:3f:d2:00:00:01",), gpus=("GPU-1",)), True),
    ],
)
def test_two_independent_kinds_are_trusted(found: Identifiers, trusted: bool) -> None:
    assert found.is_trusted is trusted


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (pb.GpusSection(gpus=[pb.Gpu(uuid="GPU-1", state="ok")]), None),
        (pb.GpusSection(), None),
        (None, "section gpus is missing"),
        (pb.GpusSection(error=pb.NvmlFailure(reason="Error", message="x")), "NVML does not answer: Error"),
        (pb.GpusSection(gpus=[pb.Gpu(uuid="GPU-1", state="lost")]), "GPU-1 lost or assigned"),
        (pb.GpusSection(gpus=[pb.Gpu(bus_id="00000000:18:00.0", assigned=True)]), "00000000:18:00.0 lost or assigned"),
        (
            pb.GpusSection(
                pci_functions=[
                    pb.PciFunction(bus_id="00000000:18:00.0", class_code="030200", driver="vfio-pci"),
                    pb.PciFunction(bus_id="00000000:07:00.0", class_code="068000"),  # a switch
                ]
            ),
            "00000000:18:00.0 lost or assigned",
        ),
    ],
)
def test_a_key_without_all_gpus_is_provisional(gpus: pb.GpusSection | None, reason: str | None) -> None:
    assert provisional(pb.SystemSection(), pb.NicsSection(), gpus) == reason


def test_a_key_without_a_section_is_provisional() -> None:
    assert provisional(None, pb.NicsSection(), pb.GpusSection()) == "section system is missing"
    assert provisional(pb.SystemSection(), None, pb.GpusSection()) == "section nics is missing"


KINDS = {
    "h100-sxm-8": ("uuid", "serial", "mac", "gpu"),
    "gb200-tray": ("uuid", "serial", "mac", "gpu"),
    "vfio-vmhost": ("uuid", "serial", "mac"),
    "this-machine": (),  # a microVM: no firmware, a local MAC
    "bare-proc-sys": ("mac",),
}


@pytest.mark.parametrize(("name", "kinds"), KINDS.items())
def test_recorded_hosts_keep_the_kinds_that_they_have(name: str, kinds: tuple[str, ...]) -> None:
    sections = json.loads((HOSTS[name] / "expected.json").read_text())
    found = identifiers(
        ParseDict(sections["system"], pb.SystemSection()),
        ParseDict(sections["nics"], pb.NicsSection()),
        ParseDict(sections["gpus"], pb.GpusSection()),
    )
    assert found.kinds == kinds


def test_recorded_hosts_have_different_keys() -> None:
    keys = {}
    for name in HOSTS:
        sections = json.loads((HOSTS[name] / "expected.json").read_text())
        found = identifiers(ParseDict(sections["system"], pb.SystemSection()), ParseDict(sections["nics"], pb.NicsSection()))
        keys[name] = found.key
    shared = [name for name in keys if list(keys.values()).count(keys[name]) > 1]
    assert set(shared) <= {"this-machine", "bare-proc-sys", "l4-cloud-vm"}, "only those that have no identity"


# -- what is claimed at a join


def test_a_machine_that_claims_what_it_reports_has_one_key() -> None:
    """Join and inventory use one function (SPEC B2), placeholders included."""
    system = pb.SystemSection(product_uuid=UUID.upper(), serial=" s1x ")
    ports = [pb.Nic(kind="ethernet", bus_id="0000:4b:00.0", permanent_mac="B8:3F:D2:00:00:01")]
    reported = identifiers(system, pb.NicsSection(nics=ports), pb.GpusSection(gpus=[pb.Gpu(uuid="GPU-2"), pb.Gpu(uuid="GPU-1")]))
    assert claimed(UUID, "S1X", ["b8:3f:d2:00:00:01"], ["GPU-1", "GPU-2"]) == reported
    assert claimed("", "To Be Filled By O.E.M.", ["02:00:00:00:00:01", "no MAC"], [""]) == Identifiers()
