"""The plot of docs/scale.md is drawn from its table."""

from tests.bench.plot import DOCS, drawn, table


def test_plot_is_that_of_the_table() -> None:
    assert (DOCS / "scale.svg").read_text() == drawn(*table((DOCS / "scale.md").read_text())), "run python -m tests.bench.plot"


def test_plot_has_a_point_for_each_figure() -> None:
    svg = drawn(["sessions", "a<b", "c"], [[1000.0, 2.0, 0.0], [5000.0, 4.0, 0.0]])
    assert svg.count("<circle") == 4
    assert "a&lt;b" in svg
