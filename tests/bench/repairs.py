"""From the report of an Xid 79 on an idle node to `node.reboot` in its session: with notifications, and with polling alone.

Postgres as the receiver starts it (fsync on), a real receiver, fake daemons.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from receiver.store import database as db
from receiver.store.embedded import start
from tests.bench import Row
from tests.handing_over import measure, p99, without_notify

NODES, POLLED = 200, 100
SPREAD = 10.0  # seconds in which those begin that are polled: they meet every moment of a round


def rows() -> Iterator[Row]:
    """Two rows: the 99th percentile of each."""
    with tempfile.TemporaryDirectory(prefix="bc-bench-") as directory, start(Path(directory)) as server:
        db.create_database(server.url(), "bench")
        url = server.url("bench")
        db.migrate(url)
        notified = p99(asyncio.run(measure(url, NODES)))
        with without_notify():
            polled = p99(asyncio.run(measure(url, POLLED, SPREAD)))
    what = "Xid 79 to node.reboot in the session, p99"
    yield Row(what, notified * 1e3, "ms", "the limit", 250.0, 1.0, note=f"{NODES} idle nodes")
    yield Row(f"{what}, NOTIFY off", polled * 1e3, "ms", "the limit", 6000.0, 1.0, note=f"{POLLED} nodes in {SPREAD:g} s")
