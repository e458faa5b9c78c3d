"""The tables in docs/ are those in the code."""

from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import load

DOCS = Path(__file__).resolve().parents[2] / "docs"


def generator() -> ModuleType:
    """docs/generate.py, which is in no package."""
    return load("docs/generate.py")


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_tables_are_what_the_code_says(page: str) -> None:
    text = (DOCS / page).read_text()
    assert generator().generated(text) == text, "run `make docs`"


def test_every_table_of_the_code_is_in_some_page() -> None:
    pages = "".join(path.read_text() for path in DOCS.glob("*.md"))
    assert [name for name in generator().TABLES if f"<!-- table: {name} -->" not in pages] == []


@pytest.mark.parametrize("name", ["conditions", "findings", "xids", "events", "doctor"])
def test_every_row_says_what_it_means_and_what_to_do(name: str) -> None:
    head, *rows = generator().TABLES[name]()
    assert len(rows) > 5
    assert [row for row in rows if len(row) != len(head) or not all(row[:-1] if name == "events" else row)] == []


def test_a_table_that_differs_is_seen() -> None:
    assert (
        generator().generated("<!-- table: findings -->\n| old |\n<!-- end -->")
        != "<!-- table: findings -->\n| old |\n<!-- end -->"
    )
