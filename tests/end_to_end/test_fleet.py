"""A played fleet over real TLS: whatever happens at once, the database says what the nodes did, and nothing else.

`python -m tests.bench mixed` has the same with 1,000 nodes.
"""

from pathlib import Path

from tests.bench.fleet_world import World
from tests.bench.mixed import Told, play


def test_what_happens_to_a_fleet_is_what_the_database_says(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        told = play(world, 60, 8.0)
    assert told == Told(failed=6, changed=12, lost=0, invented=0, behind=0, quarantined=6, snapshots=72)
