"""One event a line, whatever is in it."""

import json
import logging

import pytest

from receiver.log import _Json, _Text


def record(level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"msg": "session ended", "levelno": level, "levelname": logging.getLevelName(level)})
    vars(made).update(fields)
    made.created, made.msecs = 1_795_969_201.25, 250.0
    return made


def test_text_has_time_level_and_fields() -> None:
    line = _Text(journal=False).format(record(node="node_1", reason="a b\nc", empty=""))
    assert line == '2026-11-29T16:20:01.250Z info session ended node=node_1 reason="a b\\nc"'


def test_a_trace_is_on_the_line_of_its_event() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        made = record(logging.ERROR, exc_info=(type(error), error, None))
    made.msecs = 999.7
    line = _Text(journal=False).format(made)
    assert line == "2026-11-29T16:20:01.999Z error session ended\\nValueError: a\\nb"


@pytest.mark.parametrize(("level", "priority"), [(logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3)])
def test_journald_gets_priorities_and_its_own_time(level: int, priority: int) -> None:
    assert _Text(journal=True).format(record(level)) == f"<{priority}>session ended"


def test_json_is_one_object() -> None:
    line = _Json().format(record(reason="a\nb"))
    assert "\n" not in line
    assert json.loads(line) == {"time": "2026-11-29T16:20:01.250Z", "level": "info", "event": "session ended", "reason": "a\nb"}
