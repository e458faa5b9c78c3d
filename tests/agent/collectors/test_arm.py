import pytest

from agent.collectors import arm


def test_midr_keeps_variant_and_revision() -> None:
    fields = {"CPU implementer": "0x41", "CPU architecture": "8", "CPU variant": "0x3", "CPU part": "0xd0c", "CPU revision": "1"}
    assert arm.midr_of(fields) == "0x00000000413fd0c1"


@pytest.mark.parametrize("missing", ["CPU implementer", "CPU part"])
def test_midr_is_absent_when_cpuinfo_lacks_a_part(missing: str) -> None:
    fields = {"CPU implementer": "0x41", "CPU variant": "0x3", "CPU part": "0xd0c", "CPU revision": "1"}
    assert arm.midr_of({key: value for key, value in fields.items() if key != missing}) is None
