"""By what is kept of a session an honest bcd is never taken for two, however it ends, and two are never taken for one."""

import json
from pathlib import Path

import pytest

from agent.session.kept import Trace

NODE = "node_01hz7pj0w80000000000000000"


def test_a_run_that_ended_in_a_session_is_followed_by_a_new_instance_with_its_epoch(tmp_path: Path) -> None:
    first = Trace(tmp_path)
    assert (first.now.epoch, first.previous, len(first.now.instance)) == (None, "", 32)
    first.opening(NODE)
    first.welcomed(41)
    second = Trace(tmp_path)
    assert second.now.instance != first.now.instance
    assert (second.now.epoch, second.previous) == (41, first.now.instance)
    second.opening(NODE)
    second.welcomed(42)
    assert (second.now.epoch, second.previous) == (42, "")


def test_a_run_whose_session_may_have_begun_unseen_goes_on_under_its_instance_however_often(tmp_path: Path) -> None:
    first = Trace(tmp_path)
    first.opening(NODE)
    first.welcomed(41)
    killed = Trace(tmp_path)
    killed.opening(NODE)  # and killed before a Welcome
    for _ in range(3):
        again = Trace(tmp_path)
        assert (again.now.instance, again.now.epoch) == (killed.now.instance, 41)
        again.opening(NODE)


def test_who_was_superseded_is_another_instance_from_then_on(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    trace.opening(NODE)
    trace.welcomed(41)
    before = trace.now.instance
    trace.superseded()
    assert trace.now.instance != before
    assert (trace.now.epoch, trace.previous) == (41, before), (
        "once: a late word of a killed run of its own may have superseded it"
    )
    assert json.loads((tmp_path / "session.json").read_text())["instance"] == trace.now.instance
    trace.opening(NODE)
    trace.welcomed(43)
    assert trace.previous == ""


def test_another_node_s_epoch_says_nothing(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    trace.opening(NODE)
    trace.welcomed(41)
    trace.opening(NODE)
    assert trace.now.epoch == 41
    trace.opening(NODE.replace("1h", "1j"))
    assert trace.now.epoch is None


def test_the_epoch_of_an_earlier_version_is_taken(tmp_path: Path) -> None:
    (tmp_path / "session.json").write_text('{"format": 1, "epoch": 41}')
    trace = Trace(tmp_path)
    trace.opening(NODE)
    assert (trace.now.epoch, trace.previous) == (41, "")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"epoch": "7"}', '{"epoch": -1}', '{"epoch": true}', '{"instance": 7}'])
def test_a_damaged_file_says_nothing_and_is_replaced(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "session.json").write_text(content)
    trace = Trace(tmp_path)
    assert trace.now.epoch is None
    assert "is lost" in caplog.text
    trace.opening(NODE)
    trace.welcomed(42)
    assert Trace(tmp_path).now.epoch == 42


def test_runs_whose_disk_takes_nothing_are_one_instance_however_often_they_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the epoch that the disk has and an instance of its own, each of them would be a copy of the one before."""
    kept = Trace(tmp_path)
    kept.opening(NODE)
    kept.welcomed(41)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agent.session.kept.write_atomic", full)
    kept.opening(NODE)
    kept.welcomed(42)
    for epoch in (43, 44):
        run = Trace(tmp_path)
        run.opening(NODE)
        assert (run.now.instance, run.now.epoch) == (kept.now.instance, 41)
        run.welcomed(epoch)
    run.superseded()
    copy = run.now.instance
    run.opening(NODE)
    assert run.now.instance == copy != kept.now.instance, "who was superseded is another one, whatever the disk has"


def test_an_epoch_that_cannot_be_kept_does_not_stop_the_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace(tmp_path / "absent")
    trace.opening(NODE)
    trace.welcomed(1)
    assert trace.now.epoch == 1
    assert "cannot keep the session's epoch" in caplog.text
