import pytest

from agent.collectors import arm


@pytest.mark.parametrize(
    ("midr", "vendor", "model"),
    [
        ("0x00000000410fd4f0", "ARM", "Neoverse-V2"),
        ("0x00000000413fd0c1", "ARM", "Neoverse-N1"),
        ("0x00000000411fd401", "ARM", "Neoverse-V1"),
        ("0x000000004e0f0100", "NVIDIA", "Olympus"),
        ("0x00000000c00fac30", "Ampere", "Ampere-1"),
        ("0x00000000410ffff0", "ARM", None),
        ("0x00000000ff0fd4f0", None, None),
    ],
)
def test_core_of_a_midr(midr: str, vendor: str | None, model: str | None) -> None:
    assert arm.core(midr) == arm.Core(midr, vendor, model)


@pytest.mark.parametrize("midr", [None, "", "0x0", "nonsense"])
def test_no_core_without_a_midr(midr: str | None) -> None:
    assert arm.core(midr) is None


def test_midr_keeps_variant_and_revision() -> None:
    fields = {"CPU implementer": "0x41", "CPU architecture": "8", "CPU variant": "0x3", "CPU part": "0xd0c", "CPU revision": "1"}
    assert arm.midr_of(fields) == "0x00000000413fd0c1"


@pytest.mark.parametrize("missing", ["CPU implementer", "CPU part"])
def test_midr_is_absent_when_cpuinfo_lacks_a_part(missing: str) -> None:
    fields = {"CPU implementer": "0x41", "CPU variant": "0x3", "CPU part": "0xd0c", "CPU revision": "1"}
    assert arm.midr_of({key: value for key, value in fields.items() if key != missing}) is None
