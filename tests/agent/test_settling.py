"""The first minutes of a boot: gpus is left out until it is whole."""

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import encode

from agent.sections import Collected, Failed, Section
from agent.settling import judge, retry_delay

BUS = ("00000000:18:00.0", "00000000:2A:00.0")


def section(
    answering: int = 2,
    bound: int = 2,
    error: str = "",
    fabric: str = "",
    lost: int = 0,
    assigned: int = 0,
    driver: str = "nvidia",
) -> pb.GpusSection:
    message = pb.GpusSection()
    for bus_id in BUS[:bound]:
        message.pci_functions.add(bus_id=bus_id, device_id="2330", class_code="030200", driver=driver)
    message.pci_functions.add(bus_id="00000000:07:00.0", device_id="22a3", class_code="068000", driver="nvidia")
    for number in range(answering + lost + assigned):
        gpu = message.gpus.add(uuid=f"GPU-{number}", state="lost" if answering <= number < answering + lost else "ok")
        gpu.assigned = number >= answering + lost
        if fabric:
            gpu.fabric.state = fabric
    if error:
        message.error.reason = error
    return message


def collected(gpus: pb.GpusSection) -> Collected:
    return Collected((Section("cpu", b"cpu"), Section("gpus", encode(gpus))), (Failed("nics", "Bug", "x"),))


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        (section(0, error="DriverNotLoaded"), "NVML does not answer: DriverNotLoaded"),
        (section(fabric="in-progress"), "in progress"),
        (section(answering=1), "1 of 2 GPUs"),
        (section(answering=1, lost=1), "1 of 2 GPUs"),
        (section(answering=0), "0 of 2 GPUs"),
    ],
)
def test_leaves_gpus_out_in_the_first_minutes_only(gpus: pb.GpusSection, why: str) -> None:
    early = judge(collected(gpus), uptime=599.0, settle=600.0)
    assert [s.name for s in early.sections] == ["cpu"]
    assert [(f.name, f.reason) for f in early.failed] == [("gpus", "settling"), ("nics", "Bug")]
    assert why in early.failed[0].message
    assert judge(collected(gpus), uptime=600.0, settle=600.0) == collected(gpus)


@pytest.mark.parametrize(
    "gpus",
    [
        section(),
        section(fabric="completed"),
        section(fabric="not-started"),
        section(answering=0, assigned=2, driver="vfio-pci"),
        section(0, 0),
    ],
)
def test_reports_at_once_what_is_settled(gpus: pb.GpusSection) -> None:
    assert judge(collected(gpus), uptime=5.0, settle=600.0) == collected(gpus)


def test_a_hang_settles_too_and_another_section_does_not() -> None:
    hang = Collected((), (Failed("gpus", "Hang", "no answer within 60 s"),))
    assert judge(hang, 5.0, 600.0).failed == (Failed("gpus", "settling", "NVML does not answer: no answer within 60 s"),)
    assert judge(hang, 700.0, 600.0) == hang
    other = Collected((), (Failed("disks", "Hang", "x"), Failed("gpus", "Bug", "y")))
    assert judge(other, 5.0, 600.0) == other


def test_tries_every_15_s_and_the_last_time_when_it_ends() -> None:
    settling = judge(collected(section(answering=1)), 10.0, 600.0)
    assert retry_delay(settling, 10.0, 600.0) == 15.0
    assert retry_delay(settling, 594.0, 600.0) == pytest.approx(6.0)
    assert retry_delay(collected(section()), 10.0, 600.0) is None
