"""Pressure: PSI and steal, sampled with the report."""

import math
from pathlib import Path

import pytest

from agent.host import Host
from agent.pressure import CpuTimes, Sampler, cpu_times, some_avg10, steal
from agent.recorded import open_host
from agent.session.messages import Pressure
from tests.hosts_catalog import HOSTS, copy

PSI = "some avg10=1.53 avg60=0.87 avg300=0.25 total=91204112\nfull avg10=9.00 avg60=0.00 avg300=0.00 total=120411\n"


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        (PSI, 1.53),
        ("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", 0.0),  # kernels before 5.13 have no `full` for cpu
        ("full avg10=1.00 total=1\n", None),
        ("", None),
        ("\n\n", None),
        ("some avg60=1.00\n", None),
        ("some avg10=many\n", None),
        ("some avg10=nan\n", None),
        ("some avg10=-1\n", None),
        ("some avg10=400.00\n", None),
        ("\0" * 4096, None),
    ],
)
def test_reads_the_share_of_time_in_which_something_waited(text: str, percent: float | None) -> None:
    assert some_avg10(text) == percent


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("cpu  4705 150 1120 16250 520 0 30 25 900 900\ncpu0 1 1", CpuTimes(22800, 25)),
        ("cpu 1 1 1 1 1 1 1 1", CpuTimes(8, 1)),
        ("cpu 1 1 1 1 1 1 1", None),  # before 2.6.11
        ("cpu0 1 1 1 1 1 1 1 1", None),
        ("cpu 1 1 1 1 x 1 1 1", None),
        ("cpu 1 1 1 1 -1 1 1 1", None),
        ("", None),
    ],
)
def test_reads_the_cpu_line(text: str, times: CpuTimes | None) -> None:
    assert cpu_times(text) == times


@pytest.mark.parametrize(
    ("before", "now", "percent"),
    [
        (None, CpuTimes(1000, 500), 0.0),
        (CpuTimes(1000, 100), CpuTimes(2000, 350), 25.0),
        (CpuTimes(1000, 100), CpuTimes(1000, 100), 0.0),
        (CpuTimes(1000, 100), CpuTimes(2000, 50), 0.0),
        (CpuTimes(2000, 100), CpuTimes(1000, 200), 0.0),
        (CpuTimes(1000, 0), CpuTimes(1001, 50), 100.0),
        (CpuTimes(1000, 100), None, 0.0),
    ],
)
def test_steal_is_the_share_since_the_sample_before(before: CpuTimes | None, now: CpuTimes | None, percent: float) -> None:
    assert steal(before, now) == percent


def set_stat(host: Path, total: int, stolen: int) -> None:
    (host / "root/proc/stat").write_text(f"cpu  {total - stolen} 0 0 0 0 0 0 {stolen} 0 0\n")


def test_samples_at_the_interval_and_not_between(tmp_path: Path) -> None:
    host, clock = copy("h100-sxm-8", tmp_path), [0.0]
    sampler = Sampler(lambda: open_host(host), lambda: clock[0])
    set_stat(host, 10_000, 5_000)
    assert sampler.now() == Pressure(0.12, 0.12, 0.12, 0.0, number=1)
    for kind in ("cpu", "memory", "io"):
        (host / f"root/proc/pressure/{kind}").write_text(PSI)
    set_stat(host, 11_000, 5_500)
    clock[0] = 5.0
    assert sampler.now() == Pressure(0.12, 0.12, 0.12, 0.0, number=1), "the receiver can tell that it is the same one"
    clock[0] = 29.9  # a report is made a little before its time
    assert sampler.now() == Pressure(1.53, 1.53, 1.53, 50.0, number=2)


@pytest.mark.parametrize("name", ["a100-mig-8", "h100-sxm-8"])
def test_a_kernel_without_psi_has_no_pressure_at_all(name: str) -> None:
    sampled = Sampler(lambda: open_host(HOSTS[name]), lambda: 0.0).now()
    assert (sampled is None) is (name == "a100-mig-8")


def test_psi_that_is_switched_off_is_none() -> None:
    """With `psi=0` the files are there and answer EOPNOTSUPP."""
    host = open_host(HOSTS["h100-sxm-8"])
    off = Host(host.root, errors={f"/proc/pressure/{kind}": 95 for kind in ("cpu", "memory", "io")})
    assert Sampler(lambda: off, lambda: 0.0).now() is None


def test_this_machine_answers() -> None:
    sampled = Sampler(Host, lambda: 0.0).now()
    assert sampled is None or all(0 <= value <= 100 and not math.isnan(value) for value in (sampled.cpu, sampled.io))
