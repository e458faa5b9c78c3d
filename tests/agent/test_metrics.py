"""bcd's own figures, as Prometheus asks for them."""

import asyncio
import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent import metrics
from agent.collection import Tally
from agent.faults import Ledger, Places, Seen
from agent.identity import Access, Certificate, NotJoined
from agent.sections import Collected, Failed, Section
from agent.session import messages as m
from agent.session.stream import LinkState, Sent
from agent.status import report

GPU = "GPU-5b9a"
BUS = "00000000:18:00.0"


@dataclass
class Parts:
    """The parts of a daemon that are measured, as far as they are."""

    tally: Tally = field(default_factory=Tally)
    abandoned: int = 0
    ledger: Ledger = field(default_factory=lambda: Ledger("boot"))
    log: m.KernelLog | None = None
    state: LinkState = field(default_factory=lambda: LinkState("connecting", 1_700_000_000.5, "unix:/s"))
    sent: Sent = field(default_factory=Sent)
    joined: Certificate | None = None

    def kernel_log(self) -> m.KernelLog | None:
        return self.log

    def access(self) -> Access:
        if self.joined is None:
            raise NotJoined("no identity")
        return Access("node_1", (), self.joined)

    @property
    def sources(self) -> Any:
        return metrics.Sources(self, self, self, self)  # type: ignore[arg-type]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def ask(port: int) -> tuple[int, str]:
    caller = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    caller.request("GET", "/metrics")
    with caller.getresponse() as response:
        return response.status, response.read().decode()


def samples(parts: Parts) -> dict[str, float]:
    """`name{label=value,...}` -> value, labels in order of their names."""

    async def main() -> str:
        port = free_port()
        async with metrics.serving(f"127.0.0.1:{port}", parts.sources):
            status, text = await asyncio.to_thread(ask, port)
        assert status == 200
        return text

    return {
        f"{s.name}{{{','.join(f'{key}={value}' for key, value in sorted(s.labels.items()))}}}": s.value
        for family in text_string_to_metric_families(asyncio.run(main()))
        for s in family.samples
    }


def seen(code: int, device: str, seq: int, kind: str = "Xid") -> Callable[[Ledger], Ledger]:
    places = Places(shown={BUS: device} if device else {}, inventory=True)
    return lambda ledger: ledger.add(Seen(kind, code, BUS, "pid=1, GPU has fallen off the bus.", seq, 1.0), places)


def test_collections_tell_how_each_section_ended_and_how_long_they_took() -> None:
    parts = Parts()
    parts.tally.count(Collected((Section("os", b""),), (Failed("gpus", "Hang", "no answer"),)), 2.5)
    parts.tally.count(Collected((Section("os", b""), Section("gpus", b"")), ()), 0.5)
    parts.tally.abandoned, parts.abandoned = 3, 1
    found = samples(parts)
    assert (found["bcd_collection_seconds_count{}"], found["bcd_collection_seconds_sum{}"]) == (2, 3.0)
    assert found["bcd_section_results_total{result=ok,section=os}"] == 2
    assert (
        found["bcd_section_results_total{result=Hang,section=gpus}"],
        found["bcd_section_results_total{result=ok,section=gpus}"],
    ) == (1, 1)
    assert (
        found["bcd_section_results_total{result=ok,section=nics}"] == 0
    )  # known from the start: a rate can be had of the first one
    assert (found["bcd_workers_abandoned_total{}"], found["bcd_workers_stuck{}"]) == (3, 1)


def test_faults_tell_records_by_code_and_what_stands_open_on_each_gpu() -> None:
    ledger = Ledger("boot")
    for step in (seen(79, GPU, 1), seen(79, GPU, 2), seen(94, "", 3), seen(20034, "", 4, "SXid")):
        ledger = step(ledger)
    found = samples(Parts(ledger=ledger))
    assert (found["bcd_xids_total{xid=79}"], found["bcd_xids_total{xid=94}"], found["bcd_sxids_total{sxid=20034}"]) == (2, 1, 1)
    faults = {name: value for name, value in found.items() if name.startswith("bcd_open_faults")}
    assert (len(faults), faults[f"bcd_open_faults{{action=reboot-node,bus_id={BUS},device={GPU},type=Xid79}}"]) == (3, 1)


def test_the_kernel_log_is_told_once_it_was_tried() -> None:
    assert not [name for name in samples(Parts()) if name.startswith("bcd_kernel")]
    told = report(None, kernel_log=m.KernelLog(True, False, 17, 0, 2)).kernel_log
    found = samples(Parts(log=told))
    assert found["bcd_kernel_log_available{}"] == 1
    assert (found["bcd_kernel_records_lost_total{}"], found["bcd_kernel_records_overflowed_total{}"]) == (17, 2)


def test_the_session_is_in_one_state_and_what_was_sent_is_counted() -> None:
    parts = Parts(state=LinkState("connected", 1_700_000_000.5, "unix:/s", 7))
    for message in (m.StatusReport(1, m.Status()), m.StatusReport(2, m.Status()), m.Bodies("d", (Section("os", b"abc"),), 10)):
        parts.sent.count(message)
    found = samples(parts)
    assert [found[f"bcd_session_state{{state={state}}}"] for state in metrics.STATES] == [0, 1, 0]
    assert (found["bcd_session_since_timestamp_seconds{}"], found["bcd_session_epoch{}"]) == (1_700_000_000.5, 7)
    assert (found["bcd_reports_sent_total{}"], found["bcd_sections_sent_total{}"]) == (2, 1)
    assert (found["bcd_offers_sent_total{}"], found["bcd_section_bytes_sent_total{}"]) == (0, 3)


def test_whether_the_node_has_joined_and_its_certificates_life_are_told() -> None:
    assert [value for name, value in samples(Parts()).items() if name.startswith(("bcd_joined", "bcd_cert"))] == [0]
    found = samples(Parts(joined=Certificate("r:1", "", "", "", 1_700_000_000.0, 1_702_592_000.0)))
    assert found["bcd_joined{}"] == 1
    assert found["bcd_certificate_begin_timestamp_seconds{}"] == 1_700_000_000
    assert found["bcd_certificate_expiry_timestamp_seconds{}"] == 1_702_592_000


def test_its_own_memory_and_files_are_told() -> None:
    found = samples(Parts())
    assert found["process_resident_memory_bytes{}"] > 1 << 20
    assert 0 < found["process_open_fds{}"] < found["process_max_fds{}"]


def test_a_scrape_of_an_event_loop_that_stands_still_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PATIENCE", 0.1)
    answers: list[tuple[int, str]] = []

    async def main() -> None:
        port = free_port()
        async with metrics.serving(f"127.0.0.1:{port}", Parts().sources):
            asking = threading.Thread(target=lambda: answers.append(ask(port)))
            asking.start()
            asking.join()  # in the loop

    asyncio.run(main())
    assert answers[0][0] == 500


def test_an_address_that_is_taken_costs_the_metrics_only(caplog: pytest.LogCaptureFixture) -> None:
    async def main(port: int) -> str:
        async with metrics.serving(f"127.0.0.1:{port}", Parts().sources):
            return "runs"

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert asyncio.run(main(taken.getsockname()[1])) == "runs"
    assert "no metrics: cannot listen on 127.0.0.1:" in caplog.text


def test_its_library_is_not_loaded_without_the_setting() -> None:
    code = "import sys, agent.service; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False).returncode == 0
