"""Events to stderr, one a line: for people and journald as text with its priority, or as JSON."""

import json
import logging
import os
import sys
import time
from typing import Any

from google.protobuf.message import DecodeError

# What every LogRecord has; the rest of its attributes are an event's fields.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


def setup(form: str, journal: bool) -> None:
    """Logs to stderr from now on. `form`: "text" or "json"; `journal`: journald reads it and takes priority and time itself."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text(journal))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # every attempt to connect is a warning there
    # gRPC writes a line for each TLS handshake that fails, which any peer can cause: GRPC_VERBOSITY=INFO shows them.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """Not what any stranger can cause: what is no request to the health service has gRPC log a traceback."""
    return not record.exc_info or not isinstance(record.exc_info[1], DecodeError)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _PLAIN and value not in (None, "")}


def _stamp(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class _Text(logging.Formatter):
    def __init__(self, journal: bool) -> None:
        super().__init__()
        self.journal = journal

    def format(self, record: logging.LogRecord) -> str:
        words = [record.getMessage(), *(f"{key}={_quoted(str(value))}" for key, value in _fields(record).items())]
        head = f"<{_PRIORITY.get(record.levelno, 6)}>" if self.journal else f"{_stamp(record)} {record.levelname.lower()} "
        trace = [self.formatException(record.exc_info)] if record.exc_info else []
        return head + "\n".join([" ".join(words), *trace]).replace("\n", "\\n")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = {"time": _stamp(record), "level": record.levelname.lower(), "event": record.getMessage(), **_fields(record)}
        if record.exc_info:
            event["trace"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str, ensure_ascii=False)


def _quoted(text: str) -> str:
    plain = text and not set(text) & set(' "=\n')
    return text if plain else json.dumps(text, ensure_ascii=False)
