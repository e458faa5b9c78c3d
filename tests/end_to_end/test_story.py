"""The story of `make demo`, in silence: every step raises where what must follow does not."""

import tempfile
from pathlib import Path

from tests.end_to_end.processes import fleet
from tests.story import Story, older_table
from tests.story_acceptance import a_node_proves_itself
from tests.story_repair import a_node_is_repaired


def test_the_story_of_what_a_fleet_s_reports_conclude() -> None:
    with tempfile.TemporaryDirectory(prefix="bc-") as directory:
        models = older_table(Path(directory) / "models.json")
        with fleet(Path(directory), "--models", str(models), secure=True) as run:
            Story(run).tell(models)


def test_the_story_of_a_node_that_proves_itself() -> None:
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, fleet(Path(directory)) as run:
        a_node_proves_itself(Story(run))


def test_the_story_of_a_node_that_is_repaired() -> None:
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, fleet(Path(directory)) as run:
        a_node_is_repaired(Story(run))
