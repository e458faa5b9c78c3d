import errno
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors.memory import collect, swap_areas
from tests.agent.collectors import dmi
from tests.agent.collectors.tree import Content, context

DMI = "/sys/firmware/dmi/tables/DMI"
BLOCKS = "/sys/devices/system/memory"
NODE = "/sys/devices/system/node"


def blocks(count: int, size: str = "8000000") -> dict[str, Content]:
    """`count` memory blocks, of 128 MiB unless told otherwise."""
    files: dict[str, Content] = {f"{BLOCKS}/memory{n}/state": "online\n" for n in range(count)}
    return files | {f"{BLOCKS}/block_size_bytes": f"{size}\n", f"{BLOCKS}/probe": ""}


def meminfo(kilobytes: int) -> dict[str, Content]:
    return {"/proc/meminfo": f"MemTotal:       {kilobytes} kB\nMemFree:        24182584 kB\n"}


def test_total_is_the_dimms_sum(tmp_path: Path) -> None:
    table = dmi.table(dmi.array(), dmi.dimm(0x40), dmi.empty_slot(0x41), dmi.dimm(0x42, size=16384, locator="P1-DIMMB1"))
    section = collect(context(tmp_path, {DMI: table, **blocks(5), **meminfo(900)}))
    assert (section.total_bytes, section.total_source, section.slots, section.ecc) == (80 << 30, "dimms", 3, "multi-bit")
    assert section.dimms[0] == pb.Dimm(
        locator="P1-DIMMA1",
        bank="P0_Node0_Channel0_Dimm0",
        bytes=64 << 30,
        type="DDR5",
        speed_mts=5600,
        configured_mts=4800,
        manufacturer="Samsung",
        part="M321R8GA0BB0-CQKZJ",
        serial="80CE012344F0A1B2C3",
    )


@pytest.mark.parametrize(
    "table",
    [
        dmi.table(),
        dmi.table(dmi.array(), dmi.empty_slot(0x40)),
        dmi.table(dmi.array(), dmi.dimm(0x40), dmi.dimm(0x41, size=0xFFFF)),  # one of unknown size: no sum to trust
        b"",
    ],
)
def test_total_is_the_memory_blocks_without_a_sum(tmp_path: Path, table: bytes) -> None:
    section = collect(context(tmp_path, {DMI: table, **blocks(192), **meminfo(24684084)}))
    assert (section.total_bytes, section.total_source) == (24 << 30, "memory-blocks")


def test_total_is_memtotal_rounded_without_dimms_and_blocks(tmp_path: Path) -> None:
    section = collect(context(tmp_path, meminfo(24684084)))
    assert (section.total_bytes, section.total_source) == (94 * (256 << 20), "meminfo")
    assert not section.HasField("slots")
    assert not section.HasField("ecc")


def test_jitter_of_memtotal_changes_nothing(tmp_path: Path) -> None:
    sections = [collect(context(tmp_path, meminfo(24684084 + change))) for change in (0, -4096, 4096, 20000)]
    assert all(section == sections[0] for section in sections)


def test_blocks_of_a_gpus_memory_do_not_count(tmp_path: Path) -> None:
    files = blocks(12) | {f"{NODE}/has_cpu": "0\n"}
    files |= {f"{NODE}/node0/memory{n}": None for n in range(8)} | {f"{NODE}/node1/memory{n}": None for n in range(8, 12)}
    assert collect(context(tmp_path, files)).total_bytes == 1 << 30


def test_filled_slots_with_one_locator_are_both_there_in_a_stable_order(tmp_path: Path) -> None:
    dimms = [
        dmi.dimm(n, locator="DIMM 0", bank=bank, serial=serial)
        for n, bank, serial in ((1, "B", "2"), (2, "A", "9"), (3, "B", "1"))
    ]
    sections = [collect(context(tmp_path, {DMI: dmi.table(*order)})) for order in (dimms, dimms[::-1])]
    assert sections[0] == sections[1]
    assert [(d.bank, d.serial) for d in sections[0].dimms] == [("A", "9"), ("B", "1"), ("B", "2")]


def test_arrays_that_disagree_are_mixed(tmp_path: Path) -> None:
    assert collect(context(tmp_path, {DMI: dmi.table(dmi.array(0x20, ecc=6), dmi.array(0x21, ecc=3))})).ecc == "mixed"


def test_unreadable_table_is_named_and_the_next_source_taken(tmp_path: Path) -> None:
    files = {DMI: dmi.table(dmi.array(), dmi.dimm(0x40)), **blocks(192)}
    section = collect(context(tmp_path, files, errors={DMI: errno.EACCES}))
    assert list(section.unreadable) == [pb.Unreadable(path=DMI, errno=errno.EACCES)]
    assert section.total_source == "memory-blocks"
    assert not section.dimms


def test_table_of_absurd_size_is_named_and_not_parsed(tmp_path: Path) -> None:
    section = collect(context(tmp_path, {DMI: bytes((1 << 20) + 1), **blocks(192)}))
    assert list(section.unreadable) == [pb.Unreadable(path=DMI, errno=errno.EFBIG)]
    assert section.total_source == "memory-blocks"


@pytest.mark.parametrize("text", ["", "MemTotal: unknown\n", "\0\0\0"])
def test_damaged_meminfo_leaves_the_total_absent(tmp_path: Path, text: str) -> None:
    section = collect(context(tmp_path, {"/proc/meminfo": text, f"{BLOCKS}/block_size_bytes": "zz\n"}))
    assert not section.HasField("total_bytes")
    assert not section.HasField("total_source")


def test_swap_by_path_without_zram() -> None:
    text = (
        "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
        "/swap.img                               file\t\t8388604\t\t1024\t\t-2\n"
        "/dev/zram0                              partition\t16777212\t0\t\t100\n"
        "/dev/nvme0n1p3                          partition\t1048572\t\t0\t\t-3\n"
        "/srv/my\\040swap\\040(deleted)             file\t\t4\t\t0\t\t-4\n"
    )
    assert swap_areas(text) == [
        pb.SwapArea(path="/dev/nvme0n1p3", type="partition", bytes=1048572 << 10),
        pb.SwapArea(path="/srv/my swap (deleted)", type="file", bytes=4096),
        pb.SwapArea(path="/swap.img", type="file", bytes=8388604 << 10),
    ]


def test_swap_in_use_changes_nothing(tmp_path: Path) -> None:
    line = "Filename Type Size Used Priority\n/swap.img file 8388604 {} -2\n"
    idle, busy = (collect(context(tmp_path, {"/proc/swaps": line.format(used)})) for used in (0, 4096))
    assert idle == busy


def test_damaged_swaps_are_skipped() -> None:
    assert swap_areas("Filename Type Size Used Priority\n/swap.img\n/a file many 0 0\n") == []
    assert swap_areas("") == []


def test_empty_host_gives_an_empty_section(tmp_path: Path) -> None:
    assert collect(context(tmp_path)) == pb.MemorySection()
