"""Whatever happens to a fleet, at once: XIDs, disks that are replaced, connections that are lost, a receiver that is killed.

No speed is measured. At the end the database has to say what the nodes did, all of it, and nothing else.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench import Row
from tests.bench.fleet_world import World

SHARES = {"fail": 0.1, "change": 0.2, "lose": 0.3}
_QUARANTINED = "SELECT count(*) FROM devices WHERE NOT healthy"
_SNAPSHOTS = "SELECT count(*) FROM inventory_snapshots"


@dataclass(frozen=True, slots=True)
class Told:
    """What the nodes did, and what of it the database does not say (`lost`, `behind`) or nobody did (`invented`)."""

    failed: int
    changed: int
    lost: int
    invented: int
    behind: int
    quarantined: int
    snapshots: int


def play(world: World, nodes: int, seconds: float) -> Told:
    """A fleet that joins, and has all of it happen; its receiver is killed, and started again, in the middle."""
    receiver, target = world.receiver()
    players = world.play(target, nodes, interval=5.0)
    players.do("connect")
    players.do("offer")
    players.begin("mix", seconds=seconds, **SHARES)
    time.sleep(seconds / 2)
    receiver.kill()
    receiver.start()
    did = players.ended()
    players.do("live", seconds=6.0)  # a report each, of what was said to a receiver that was gone
    expected = players.do("expected")
    lost, invented = world.differ(expected["conditions"])
    quarantined, snapshots = (int(world.tx.execute(sql).fetchone()[0]) for sql in (_QUARANTINED, _SNAPSHOTS))  # type: ignore[index]
    return Told(did["fail"], did["change"], lost, invented, world.behind(expected["digests"]), quarantined, snapshots)


def rows(nodes: int = 1_000, seconds: float = 60.0) -> Iterator[Row]:
    """What the database says of it."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, World(Path(directory)) as world:
        told = play(world, nodes, seconds)
    note = f"{nodes:,} nodes, {told.failed} XIDs, {told.changed} disks, 30 % reconnect, the receiver is killed"
    yield Row("XIDs that became conditions", float(told.failed - told.lost), "", "reported", told.failed, 1.0, True, note)
    yield Row("GPUs quarantined", float(told.quarantined), "", "that failed", told.failed, 1.0, True)
    yield Row("conditions that nobody caused", float(told.invented), "", "", None, None)
    yield Row("inventories applied", float(nodes - told.behind), "", "nodes", nodes, 1.0, True)
    yield Row("snapshots", float(told.snapshots), "", "boots and changes", nodes + told.changed, 1.0, True)
