"""One record of /dev/kmsg."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kmsg.record import Record, Unparsed, decoded, parse

WHOLE = (
    b"4,1227,5678901,c,caller=T1946,future=1;NVRM: Xid (PCI:0000:5d:00): 79, a; b\n SUBSYSTEM=pci\n DEVICE=+pci:0000:5d:00.0\n"
)


def test_a_record_has_all_its_parts() -> None:
    assert parse(WHOLE) == Record(
        seq=1227,
        priority=4,
        stamp_us=5678901,
        flags="c",
        text="NVRM: Xid (PCI:0000:5d:00): 79, a; b",
        dictionary={"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:5d:00.0"},
    )


@pytest.mark.parametrize(("priority", "facility", "level"), [(4, 0, 4), (7, 0, 7), (12, 1, 4), (30, 3, 6), (191, 23, 7)])
def test_facility_and_level_are_the_priority_taken_apart(priority: int, facility: int, level: int) -> None:
    record = parse(b"%d,1,2,-;x" % priority)
    assert isinstance(record, Record)
    assert (record.facility, record.level) == (facility, level)


def test_a_sequence_number_has_64_bits() -> None:
    assert isinstance(parse(b"6,18446744073709551615,1,-;x"), Record)
    assert isinstance(parse(b"6,18446744073709551616,1,-;x"), Unparsed)


@pytest.mark.parametrize("flags", [b"-", b"c", b"+", b"", b"cz"])
def test_any_flag_is_taken(flags: bytes) -> None:
    record = parse(b"6,1,2," + flags + b";x")
    assert isinstance(record, Record)
    assert (record.flags, record.text, record.dictionary) == (flags.decode(), "x", {})


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb"caf\xc3\xa9", "café"),
        (rb"a\x5cb", "a\\b"),
        (rb"\x5cx41", "\\x41"),  # an escaped backslash begins no second escape
        (rb"\xff\xfe", "\ufffd\ufffd"),
        (rb"two\x0alines", "two\nlines"),
        (rb"\x \xZZ \x4 \q \XC3 \xC3", r"\x \xZZ \x4 \q \XC3 \xC3"),
        (b"raw \xff byte", "raw \ufffd byte"),
        (b"end\\", "end\\"),
    ],
)
def test_escapes_are_bytes_before_they_are_text(raw: bytes, text: str) -> None:
    record = parse(b"6,1,2,-;" + raw)
    assert isinstance(record, Record)
    assert record.text == text


def test_dictionary_lines_begin_with_a_blank_and_have_an_equals_sign() -> None:
    record = parse(b"6,1,2,-;x\n A=1\nB=2\n C\n D=a=b\n E=\\x41\n F=")
    assert isinstance(record, Record)
    assert record.dictionary == {"A": "1", "D": "a=b", "E": "A", "F": ""}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"NVRM: Xid (PCI:0000:18:00): 79",
        b"4,1227,5678901,c",
        b"4,1227,5678901;no flags",
        b"4,1227;x",
        b"-4,1,2,-;x",
        b"4, 1,2,-;x",
        b" 4,1,2,-;x",
        b"4,1,2,-\n;x",
        "٤,1,2,-;x".encode(),
        b"[ 12.5] x",
    ],
)
def test_what_is_no_record_stays_as_it_is(data: bytes) -> None:
    assert parse(data) == Unparsed(data)


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    assert isinstance(parse(data), Record | Unparsed)
    assert isinstance(parse(b"4,1,2,c;" + data), Record)
    assert isinstance(parse(b"4,1,2,c;x\n" + data), Record)


@given(st.binary(max_size=100))
def test_what_the_kernel_escapes_comes_back(data: bytes) -> None:
    escaped = b"".join(b"\\x%02x" % byte if byte < 0x20 or byte >= 0x7F or byte == 0x5C else bytes([byte]) for byte in data)
    assert decoded(escaped) == data.decode("utf-8", "replace")
