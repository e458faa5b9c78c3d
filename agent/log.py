"""One event a line on standard error: for a person, for the journal (its priorities), or as JSON."""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping

# sd-daemon(3): a line's priority as the journal reads it.
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class _Text(logging.Formatter):
    def __init__(self, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.name}: {_one_line(self, record)}"
        if self._journal:
            return f"<{_PRIORITIES.get(record.levelno, 6)}>{text}"
        return f"{_time(record)} {record.levelname.lower()} {text}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        return json.dumps({"time": _time(record), "level": level, "logger": record.name, "message": _one_line(self, record)})


def setup(form: str, environ: Mapping[str, str] = os.environ) -> None:
    """Sends every logger's events to standard error; `form` is `text` or `json`. May be called again."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text("JOURNAL_STREAM" in environ))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)


def _one_line(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info:
        text += "\n" + formatter.formatException(record.exc_info)
    return text.replace("\n", "\\n")


def _time(record: logging.LogRecord) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{stamp}.{int(record.msecs):03d}Z"
