"""Queues a command of a running receiver, past the API (which has no method for it before issue Lifecycle).

    python -m tests.queue_command DATABASE NODE KIND [JSON] [--key KEY] [--start-within SECONDS] [--wait SECONDS]

DATABASE is a libpq URL, or the data directory of a receiver with an embedded Postgres. Prints the command as JSON: its id, and
with --wait how it ended: {"id", "state", "reason", "result"}.
"""

import argparse
import json
import secrets
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from receiver.apply import command
from receiver.service import DATABASE
from receiver.values import Payload

SOCKET_LINE = 4  # of postmaster.pid: the directory of the socket; the port is the line before


def url_of(database: str) -> str:
    """The libpq URL of `database`: itself, or that of the embedded server of a data directory."""
    if not Path(database).is_dir():
        return database
    lines = (Path(database) / "data" / "postmaster.pid").read_text().splitlines()
    host, port = quote(lines[SOCKET_LINE], safe=""), lines[SOCKET_LINE - 1]
    return f"postgresql:///{DATABASE}?host={host}&port={port}&user=postgres"


def queue(
    database: str, node: str, kind: str, payload: Payload | None = None, key: str = "", start_within: float | None = None
) -> str:
    """Queues a command and commits; its id. Without a key it is one of its own."""
    not_after = None if start_within is None else datetime.now(UTC) + timedelta(seconds=start_within)
    with psycopg.connect(url_of(database)) as tx:
        return command.queue(tx, node, kind, payload or {}, key or secrets.token_hex(8), not_after, "test")


def ended(database: str, command_id: str, seconds: float) -> dict[str, Any]:
    """How a command ended. Raises TimeoutError when it has not within so many seconds."""
    end = time.monotonic() + seconds
    with psycopg.connect(url_of(database), autocommit=True) as connection:
        while True:
            query = "SELECT state, reason, result, finished_at IS NOT NULL FROM commands WHERE id = %s"
            row = connection.execute(query, [command_id]).fetchone()
            assert row is not None
            if row[3]:
                return {"id": command_id, "state": row[0], "reason": row[1], "result": row[2]}
            if time.monotonic() > end:
                raise TimeoutError(f"{command_id} is still {row[0]} after {seconds:g} s")
            time.sleep(0.02)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.queue_command")
    parser.add_argument("database")
    parser.add_argument("node")
    parser.add_argument("kind")
    parser.add_argument("payload", nargs="?", default="{}", type=json.loads)
    parser.add_argument("--key", default="")
    parser.add_argument("--start-within", type=float)
    parser.add_argument("--wait", type=float)
    given = parser.parse_args(arguments)
    command_id = queue(given.database, given.node, given.kind, given.payload, given.key, given.start_within)
    found = {"id": command_id} if given.wait is None else ended(given.database, command_id, given.wait)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
