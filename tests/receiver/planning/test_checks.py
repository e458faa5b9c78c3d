"""What a check's command comes to (SPEC B7): the reasons of a failed attempt, and results in which a node says anything."""

import pytest

from receiver.planning.checks import CHECKS, Verdict, verdict
from receiver.planning.view import CommandState
from receiver.values import Json

FAILED = {"check": "row-remap.failure", "result": "fail", "reason": "it failed", "deviceId": "GPU-1"}
UNKNOWN = {"check": "xid.recent", "result": "unknown", "reason": "records were lost"}
NARROW = {"check": "pcie.link", "result": "unknown", "reason": "idle and reduced"}


def of(kind: str, state: str, reason: str = "", result: Json = None, late: float = -1.0) -> Verdict:
    return verdict(kind, "cmd_1", {"cmd_1": CommandState(state, reason, result, late)})


@pytest.mark.parametrize(
    ("state", "reason", "status", "fails"),
    [
        ("failed", "Bug", "failed", "diag.nvml:failed"),
        ("refused", "NotAllowed", "refused", "diag.nvml:failed"),
        ("cancelled", "not now", "cancelled", "diag.nvml:failed"),
        ("expired", "NotSent", "expired", "Expired"),
        ("expired", "", "expired", "Expired"),
    ],
)
def test_a_command_that_did_not_succeed_fails_it_with_its_reason_kept(state: str, reason: str, status: str, fails: str) -> None:
    found = of("diag.nvml", state, reason, {"passed": True})
    assert (found.status, found.reason, found.fails) == (status, reason, fails)
    assert reason in found.message


@pytest.mark.parametrize(
    ("checks", "fails"),
    [
        ([FAILED], "diag.nvml:row-remap.failure"),
        ([UNKNOWN, FAILED], "diag.nvml:row-remap.failure"),
        ([NARROW, UNKNOWN], "diag.nvml:xid.recent"),
        ([{**NARROW, "result": "fail"}], "diag.nvml:pcie.link"),
        ([NARROW], "diag.nvml:failed"),
        ([], "diag.nvml:failed"),
    ],
)
def test_a_diagnosis_that_did_not_pass_names_what_failed_else_what_is_unknown(checks: list[Json], fails: str) -> None:
    assert of("diag.nvml", "succeeded", result={"passed": False, "checks": checks}).fails == fails


@pytest.mark.parametrize(
    "result",
    [
        None, [], "passed", 7, {}, {"passed": None}, {"passed": "true"}, {"passed": 1}, {"unreadable": "{"},
        {"checks": {"check": 1}}, {"checks": [1, None, {"check": 7, "result": "fail"}, {"check": "a b\n", "result": "fail"}]},
        {"passed": False, "checks": [{"result": "fail"}, {"check": "x" * 65, "result": "fail"}], "results": 7},
    ],
)  # fmt: skip
def test_a_result_that_is_none_does_not_pass(result: Json) -> None:
    for kind in ("diag.nvml", "diag.dcgm"):
        assert of(kind, "succeeded", result=result).fails == f"{kind}:failed"


def test_dcgm_s_tests_that_failed_are_named_in_words() -> None:
    results = [{"test": "PCIe", "status": "Pass", "gpu": "0"}, {"test": "GPU Memory", "status": "Fail", "gpu": "3"}]
    found = of("diag.dcgm", "succeeded", result={"passed": False, "results": results})
    assert (found.fails, found.message) == ("diag.dcgm:failed", "diag.dcgm did not pass: GPU Memory of GPU 3")


def test_what_passed_is_good_and_a_refresh_is_when_it_succeeded() -> None:
    assert of("diag.nvml", "succeeded", result={"passed": True, "checks": [NARROW]}) == Verdict("succeeded")
    assert of("inventory.refresh", "succeeded", result={"status": "applied"}) == Verdict("succeeded")
    assert of("inventory.refresh", "failed", "TimedOut").fails == "inventory.refresh:failed"


@pytest.mark.parametrize("kind", CHECKS)
def test_a_command_that_was_sent_has_its_kind_s_limit_from_its_latest_start(kind: str) -> None:
    limit = CHECKS[kind].limit
    assert of(kind, "sent", late=limit - 0.1) == Verdict("running")
    assert of(kind, "sent", late=limit).fails == "Expired"
    assert of(kind, "queued", late=-0.1) == Verdict("running")
    assert of(kind, "queued", late=0.0).fails == "Expired"


def test_a_command_that_is_gone_or_of_another_receiver_s_kind_is_not_waited_for_without_end() -> None:
    assert verdict("diag.nvml", "cmd_9", {}).fails == "diag.nvml:failed"
    assert of("burn-in", "sent", late=0.0).fails == "Expired"
    assert of("burn-in", "succeeded", result={"passed": True}).fails == "burn-in:failed"


def test_a_check_whose_command_is_not_stored_yet_runs() -> None:
    assert verdict("diag.nvml", None, {}) == Verdict("running")
