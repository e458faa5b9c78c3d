"""One event a line, whatever is logged."""

import json
import logging

import pytest

from agent import log


def test_text_has_time_level_and_name(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("text", {})
    logging.getLogger("bcd.x").warning("a %s\nb", 1)
    line = capsys.readouterr().err
    assert line.endswith("Z warning bcd.x: a 1\\nb\n")
    assert line.count("\n") == 1


def test_the_journal_gets_priorities_and_its_own_times(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("text", {"JOURNAL_STREAM": "8:123"})
    logging.getLogger("bcd").error("x")
    logging.getLogger("bcd").info("y")
    assert capsys.readouterr().err == "<3>bcd: x\n<6>bcd: y\n"


def test_json_is_one_object_a_line_with_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("json", {"JOURNAL_STREAM": "8:123"})
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("bcd").exception("it failed")
    entry = json.loads(capsys.readouterr().err)
    assert (entry["level"], entry["logger"]) == ("error", "bcd")
    assert entry["message"].startswith("it failed\\nTraceback")


def test_a_second_setup_replaces_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("text", {})
    log.setup("json", {})
    logging.getLogger("bcd").info("once")
    assert len(capsys.readouterr().err.splitlines()) == 1
