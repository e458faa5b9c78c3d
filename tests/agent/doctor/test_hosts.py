"""Doctor on every recorded host: what it prints is the golden, and it takes no two seconds.

A golden is tests/agent/doctor/golden/<name>.txt, as `bcd doctor --host` prints it. `UPDATE_GOLDEN=1` rewrites them.
"""

import asyncio
import os
import time
from pathlib import Path

import pytest

from agent import doctor
from agent.config import Config
from agent.doctor import render
from agent.doctor.command import examine
from agent.doctor.found import Place
from agent.doctor.line import Line
from tests import hosts_catalog
from tests.hosts_catalog import HOSTS
from tests.repetitions import PROOF, within

GOLDEN = Path(__file__).with_name("golden")
EXIT_CODES = {
    "a100-mig-8": 1,  # a pending row remap, a MIG mode change
    "bare-proc-sys": 1,  # no kernel log, hardly an identity
    "driver-not-loaded": 2,
    "gb200-tray": 0,
    "geforce-workstation": 0,
    "h100-sxm-8": 0,
    "hgx-b200-8": 0,
    "l4-cloud-vm": 1,
    "lost-gpu": 2,
    "this-machine": 1,
    "vfio-vmhost": 0,
}


def look(directory: Path, config: Config | None = None, strict: bool = False) -> tuple[Line, ...]:
    return asyncio.run(examine(Place(config or Config(), directory, ask_receiver=False), strict))


def of(lines: tuple[Line, ...], subject: str) -> Line:
    """The only line of a subject."""
    (line,) = (line for line in lines if line.subject == subject)
    return line


def golden(name: str, lines: tuple[Line, ...]) -> None:
    shown = "".join(f"{line}\n" for line in render.text(lines))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(shown)
    assert shown == path.read_text()


def test_every_recorded_host_has_a_verdict() -> None:
    assert set(EXIT_CODES) == set(HOSTS)


@pytest.mark.parametrize("name", HOSTS)
def test_a_recorded_host_is_the_golden_within_two_seconds(name: str) -> None:
    took: list[float] = []
    while not took or (PROOF and min(took) >= 2.0 and len(took) < 3):  # the machine may be busy
        begin = time.monotonic()
        lines = look(HOSTS[name])
        took.append(time.monotonic() - begin)
    golden(name, lines)
    assert doctor.exit_code(lines) == EXIT_CODES[name]
    assert min(took) < within(2.0)


def test_one_bad_gpu_is_named_and_the_others_are_not(tmp_path: Path) -> None:
    directory = hosts_catalog.copy("h100-sxm-8", tmp_path)
    hosts_catalog.wear_out_gpu(directory, 3)
    lines = look(directory)
    golden("h100-one-bad-gpu", lines)
    readme = Path(hosts_catalog.__file__).parent.parent / "README.md"
    page = [line.rstrip() for line in render.text(lines, width=118)]
    _, _, shown = readme.read_text().partition("    $ bcd doctor\n")
    block = [line.removeprefix("    ") for line in shown.split("\n\n")[0].splitlines()]
    assert len(block) > 8
    assert [line for line in block if line not in page and line != "..."] == []
    assert [line.facts["index"] for line in lines if line.subject == "gpu" and line.verdict != doctor.PASS] == [3]
    assert doctor.exit_code(lines) == 2


def test_a_gpu_that_fell_off_the_bus_is_named_at_its_bus_id(tmp_path: Path) -> None:
    directory = hosts_catalog.copy("l4-cloud-vm", tmp_path)
    slot = hosts_catalog.slot_of(directory, 0)
    hosts_catalog.lose_gpu(directory, 0)
    lines = look(directory)
    told = [line for line in lines if line.verdict == doctor.FAIL]
    assert {line.subject for line in told} == {"gpu", "xid"}
    assert all(f"0000{slot.upper()}" in line.text for line in told)


@pytest.mark.parametrize("query", ["init", "uuid", "memoryUsed"])
def test_a_driver_that_hangs_is_named_within_the_limit(query: str, tmp_path: Path) -> None:
    directory = hosts_catalog.copy("l4-cloud-vm", tmp_path)
    hosts_catalog.hang(directory, query)
    begin = time.monotonic()
    lines = look(directory, Config(collect_limit=1.0))
    assert time.monotonic() - begin < within(4.0)
    if query == "memoryUsed":  # a reading of the moment: the GPU is known, its load is not
        assert of(lines, "gpu").text.endswith(": its load is not known: Hang: no answer within 1 s; its process was ended")
        assert of(lines, "gpu").verdict == doctor.UNKNOWN
    else:
        line = of(lines, "driver")
        assert line.verdict == doctor.FAIL
        assert line.text.startswith("NVML does not answer: Hang: no answer within 1 s")
        assert line.todo
    assert of(lines, "disks").verdict == doctor.PASS, "the others are told all the same"


def test_strict_makes_a_failure_of_what_cannot_be_told() -> None:
    lines = look(HOSTS["bare-proc-sys"], strict=True)
    assert {line.subject for line in lines if line.verdict == doctor.FAIL} == {"kernel log", "xid"}
    assert [line.verdict for line in lines if line.subject == "hardware key"] == [doctor.WARNING]
    assert doctor.exit_code(lines) == 2


def test_a_log_with_a_hole_cannot_tell_the_xids(tmp_path: Path) -> None:
    directory = hosts_catalog.copy("h100-sxm-8", tmp_path)
    records = (directory / "kmsg").read_text().splitlines(keepends=True)
    begins = [n for n, line in enumerate(records) if not line.startswith(" ")]
    (directory / "kmsg").write_text("".join(records[: begins[40]] + records[begins[43] :]))
    lines = look(directory)
    assert of(lines, "kernel log").text == "read, but 3 records of this boot were lost"
    assert of(lines, "xid").verdict == doctor.UNKNOWN
    assert doctor.exit_code(lines) == 1


def test_an_xid_of_no_known_gpu_is_a_failure_with_its_bus_id(tmp_path: Path) -> None:
    directory = hosts_catalog.copy("h100-sxm-8", tmp_path)
    hosts_catalog.append_kmsg(directory, "NVRM: Xid (PCI:0000:99:00): 13, pid=1, name=x, Graphics Exception", level=4)
    line = of(look(directory), "xid")
    assert line.verdict == doctor.FAIL
    assert "00000000:99:00.0: no GPU is known there" in line.text


def test_an_unknown_xid_is_a_warning_and_an_application_one_is_only_listed(tmp_path: Path) -> None:
    directory = hosts_catalog.copy("h100-sxm-8", tmp_path)
    hosts_catalog.append_kmsg(directory, "NVRM: Xid (PCI:0000:18:00): 13, pid=1, name=x, Graphics Exception", level=4)
    assert (of(look(directory), "xid").verdict, doctor.exit_code(look(directory))) == (doctor.PASS, 0)
    hosts_catalog.append_kmsg(directory, "NVRM: Xid (PCI:0000:18:00): 9999, pid=1, name=x, New", level=4)
    assert (of(look(directory), "xid").verdict, doctor.exit_code(look(directory))) == (doctor.WARNING, 1)
