"""How long lists of the API take on a database of 100,000 nodes of eight GPUs (tests/receiver/read/large.py), beside the limit.

Filling it takes some minutes. Postgres as the receiver starts it, with its defaults; each figure is the best of three.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from receiver.store import database as db
from receiver.store.embedded import start
from tests.bench import Row
from tests.receiver.read import large
from tests.receiver.read.fleet import Fleet, made
from tests.receiver.read.large import QUIET, image, node_id, pool_id

PAGE, NOTHING = 50.0, 500.0  # ms
_LATE = {"cursor": f"{node_id(large.FULL - 8)}/GPU/0"}

# what, method, keys, ms allowed
ASKED: tuple[tuple[str, str, dict[str, str], float], ...] = (
    ("atoms.list: the first 100 rows", "atoms.list", {}, PAGE),
    ("atoms.list: the last page of a full walk", "atoms.list", _LATE, PAGE),
    ("atoms.list: the first 100 of a common label", "atoms.list", {"selector": "gpu.model=H100"}, PAGE),
    ("atoms.list: a rare label", "atoms.list", {"selector": "canary=yes"}, PAGE),
    ("atoms.list: no such value", "atoms.list", {"selector": "gpu.model=NOPE"}, NOTHING),
    ("atoms.list: every node has what none may have", "atoms.list", {"selector": "gpu.present!=true"}, NOTHING),
    (
        "atoms.list: two common labels that no node has both of",
        "atoms.list",
        {"selector": "gpu.model=H200,gpu.vramGiB=80"},
        NOTHING,
    ),
    ("atoms.list: a number that no node reaches", "atoms.list", {"selector": "gpu.count>100"}, NOTHING),
    ("nodes.list: the first 100", "nodes.list", {}, PAGE),
    ("nodes.list: a condition of five nodes", "nodes.list", {"condition": "FabricManagerDown"}, NOTHING),
    ("images.list: an image of one node in forty", "images.list", {"poolId": pool_id(3), "digest": image(40)}, PAGE),
    ("events.list: a quiet node in an outbox of 2 million", "events.list", {"nodeId": node_id(QUIET)}, PAGE),
    ("events.list: a family of rare types", "events.list", {"type": "pool.*"}, PAGE),
)


def rows() -> Iterator[Row]:
    """One row a question."""
    with tempfile.TemporaryDirectory() as directory, start(Path(directory)) as server:
        db.create_database(server.url(), "template_bc")
        db.migrate(server.url("template_bc"))
        with made(server, "fleet", nodes=large.FULL) as fleet:
            yield from (_row(fleet, *one) for one in ASKED)


def _row(fleet: Fleet, what: str, method: str, keys: dict[str, str], allowed: float) -> Row:
    return Row(what, 1000 * fleet.seconds(method, **keys), "ms", "the limit", allowed, 1.0)
