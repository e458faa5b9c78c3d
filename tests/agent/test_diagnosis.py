"""The diagnosis of a host from end to end: the worker's answers through the checks."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent.checks import FAIL, PASS, UNKNOWN, Diagnosis
from agent.collection import Collector
from agent.collectors import Options
from agent.diagnosis import DiagnosisFailed, diagnose, facts
from agent.faults import Ledger, Places, Seen
from agent.kernel_log import Look
from agent.sections import Failed
from tests.nvml_stub import Stub, stub
from tests.nvml_stub.sample import UUIDS, full, record

CLEAN = Look(Ledger("boot", cursor=9, from_start=True))


def host(tmp_path: Path, **answers: object) -> Path:
    """A host with two GPUs, other answers for the first."""
    return record(tmp_path / "host", changed(**answers))


def changed(**answers: object) -> dict[str, Any]:
    nvml = full()
    nvml["devices"][0].update({"retiredPagesDoubleBit": 0, **answers})
    return nvml


def ask(directory: Path, log: Look = CLEAN, driver: Stub | None = None, **options: Any) -> Diagnosis:
    collector = Collector(directory, Options(), str(driver.library) if driver else "", 30)
    return asyncio.run(diagnose(collector, log, **{"interval": 0.01, **options}))


def not_passed(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    return [(r.check, r.verdict, r.device_id) for r in diagnosis.results if not r.passes]


@pytest.mark.parametrize("real", [False, True])
def test_a_healthy_host_passes(tmp_path: Path, real: bool) -> None:
    diagnosis = ask(host(tmp_path), driver=stub(tmp_path, changed()) if real else None, expected=2)
    assert (diagnosis.passed, not_passed(diagnosis)) == (True, [])
    assert len(diagnosis.results) == 2 + 2 * 5


@pytest.mark.parametrize(
    ("answers", "check"),
    [
        ({"eccVolatileDram": 3}, "ecc.uncorrectable"),
        ({"remappedRows": [0, 1, 1, 0]}, "row-remap.pending"),
        ({"remappedRows": [0, 1, 0, 1]}, "row-remap.failure"),
        ({"sramThresholdExceeded": True}, "row-remap.failure"),
        ({"currentPcieWidth": 8}, "pcie.link"),
    ],
)
@pytest.mark.parametrize("real", [False, True])
def test_each_bad_answer_fails_its_check_of_its_gpu_only(tmp_path: Path, answers: Any, check: str, real: bool) -> None:
    diagnosis = ask(host(tmp_path, **answers), driver=stub(tmp_path, changed(**answers)) if real else None)
    assert not_passed(diagnosis) == [(check, FAIL, UUIDS[0])]


def test_a_narrow_link_of_an_idle_gpu_is_unknown_and_passes(tmp_path: Path) -> None:
    diagnosis = ask(host(tmp_path, currentPcieWidth=8, utilization=[0, 0]))
    assert [(r.verdict, r.device_id) for r in diagnosis.results if r.check == "pcie.link"] == [
        (UNKNOWN, UUIDS[0]),
        (PASS, UUIDS[1]),
    ]
    assert diagnosis.passed


def test_an_xid_is_found_at_its_gpu_by_bus_id(tmp_path: Path) -> None:
    assert CLEAN.ledger is not None
    ledger = CLEAN.ledger.add(Seen("Xid", 79, "00000000:18:00.0", "79, x", 1, 0.0), Places())
    assert not_passed(ask(host(tmp_path), Look(ledger))) == [("xid.recent", FAIL, UUIDS[0])]


def test_a_log_with_holes_does_not_pass(tmp_path: Path) -> None:
    diagnosis = ask(host(tmp_path), Look(Ledger("boot", cursor=9, from_start=True, lost=2)))
    assert not_passed(diagnosis) == [("xid.recent", UNKNOWN, uuid) for uuid in UUIDS]


def test_fewer_gpus_than_expected_fail(tmp_path: Path) -> None:
    assert not_passed(ask(host(tmp_path), expected=8)) == [("gpu.count", FAIL, "")]


def test_a_driver_that_hangs_is_a_verdict_within_its_limit(tmp_path: Path) -> None:
    nvml = changed()
    nvml["devices"][0]["uuid"] = {"hang": True}
    diagnosis = ask(record(tmp_path / "host", nvml), limit=1.0)
    assert not_passed(diagnosis) == [("nvml.init", FAIL, ""), ("gpu.count", UNKNOWN, "")]
    assert diagnosis.results[0].outcome.reason.startswith("Hang: no answer within 1 s")


def test_a_driver_that_is_not_there_is_a_verdict(tmp_path: Path) -> None:
    diagnosis = ask(record(tmp_path / "host", {"init": {"error": "DRIVER_NOT_LOADED"}}))
    assert not_passed(diagnosis) == [("nvml.init", FAIL, ""), ("gpu.count", UNKNOWN, "")]


def test_our_own_bug_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    broken = "import sys, types\ndef collect(ctx):\n    return 1 / 0\n"
    (site / "sitecustomize.py").write_text(
        broken + 'sys.modules["agent.collectors.gpus"] = types.SimpleNamespace(collect=collect)\n'
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    with pytest.raises(DiagnosisFailed, match="Bug: ZeroDivisionError") as caught:
        ask(host(tmp_path))
    assert caught.value.reason == "Bug"


def test_the_payload_is_json(tmp_path: Path) -> None:
    told = ask(host(tmp_path, eccVolatileDram=1)).told()
    assert json.loads(json.dumps(told)) == told
    assert told["passed"] is False
    bad = [check for check in told["checks"] if check["result"] == "fail"]
    assert [(c["check"], c["deviceId"], c["busId"]) for c in bad] == [("ecc.uncorrectable", UUIDS[0], "00000000:18:00.0")]


def test_readings_that_failed_as_a_whole_leave_the_link_unknown(tmp_path: Path) -> None:
    collector = Collector(host(tmp_path), Options(), "", 30)
    asked = asyncio.run(collector.run(["gpus"])) | {"readings": Failed("readings", "NvmlError", "nvmlInit: UNKNOWN")}
    found = facts(asked, CLEAN)
    assert {uuid: r.failed for uuid, r in found.readings.items()} == dict.fromkeys(UUIDS, ("nvmlInit: UNKNOWN",))
