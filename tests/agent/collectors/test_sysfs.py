import pytest

from agent.collectors import sysfs


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2100000\n", 2100000), ("0", 0), ("-1", None), ("", None), (None, None), ("abc", None), ("4294967295", 2**32 - 1)],
)
def test_number(text: str | None, expected: int | None) -> None:
    assert sysfs.number(text) == expected


def test_number_that_does_not_fit_is_none() -> None:
    assert sysfs.number("4294967296") is None
    assert sysfs.number("4294967296", bits=64) == 1 << 32
    assert sysfs.number("8000000", bits=48, base=16) == 128 << 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("48K", 48 << 10),
        ("107520K\n", 107520 << 10),
        ("1G", 1 << 30),
        ("2m", 2 << 20),
        ("4096", 4096),
        ("", None),
        ("K", None),
        ("1GB", None),
        ("-1K", None),
        ("99999999999999999E", None),
    ],
)
def test_size(text: str, expected: int | None) -> None:
    assert sysfs.size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3,8\n", [0, 1, 2, 3, 8]),
        ("0", [0]),
        ("8,0-1,1", [0, 1, 8]),
        ("0,8,252-255", [0, 8, 252, 253, 254, 255]),
        ("\n", []),
        (None, []),
        ("(null)", []),
        ("3-1", []),
        ("1,x,2", [1, 2]),
    ],
)
def test_cpu_list(text: str | None, expected: list[int]) -> None:
    assert sysfs.cpu_list(text) == expected


def test_cpu_list_is_bounded_when_damaged() -> None:
    assert len(sysfs.cpu_list("0-999999")) == (1 << 16) + 1


def test_kilobytes_of_meminfo_and_of_a_node() -> None:
    assert sysfs.kilobytes("MemTotal:       24684084 kB\nMemFree:        1 kB\n", "MemTotal") == 24684084 << 10
    assert sysfs.kilobytes("\nNode 0 MemTotal:       131881196 kB\nNode 0 MemFree: 1 kB\n", "MemTotal") == 131881196 << 10
    assert sysfs.kilobytes("MemTotal: lots", "MemTotal") is None
    assert sysfs.kilobytes("SwapMemTotal: 5 kB", "MemTotal") is None


@pytest.mark.parametrize(
    ("mib", "expected"), [(24105, 24064), (24064, 24064), (24191, 24064), (24192, 24320), (0, 0), (127, 0), (128, 256)]
)
def test_rounded_to_the_nearest_256_mib(mib: int, expected: int) -> None:
    assert sysfs.rounded(mib << 20) == expected << 20


def test_device_tree_string_ends_in_nul() -> None:
    assert sysfs.device_tree(b"NVIDIA Jetson AGX Orin\0") == "NVIDIA Jetson AGX Orin"
    assert sysfs.device_tree(b"nvidia,p3737\0nvidia,tegra234\0") == "nvidia,p3737"
    assert sysfs.device_tree(b"\0") is None
    assert sysfs.device_tree(None) is None


def test_memory_blocks_are_the_numbered_ones() -> None:
    assert sysfs.memory_blocks(["memory0", "memory32", "meminfo", "memory_failure", "memory", "cpu0"]) == {"memory0", "memory32"}
