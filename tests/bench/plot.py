"""Draws the table of docs/scale.md as docs/scale.svg, a panel a column: `python -m tests.bench.plot`."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
WIDE, HIGH, GAP, HEAD = 190, 110, 46, 34  # pixels of a panel, around it, and above it
ACROSS = 3  # panels in a row


def table(page: str) -> tuple[list[str], list[list[float]]]:
    """The first table of a page: its head, and its rows as numbers (`1,000` is one).

    >>> table("words\\n\\n| sessions | s |\\n|--:|--:|\\n| 1,000 | 5.8 |\\n| 5,000 | 26 |\\n\\nmore")
    (['sessions', 's'], [[1000.0, 5.8], [5000.0, 26.0]])
    """
    lines = page.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[0], [[float(cell.replace(",", "")) for cell in row] for row in rows[2:]]


def drawn(head: Sequence[str], rows: Sequence[Sequence[float]]) -> str:
    """An SVG with a panel for each column but the first, which is what they are drawn over. All begin at zero."""
    panels = [_panel(place, head, rows) for place in range(1, len(head))]
    wide = ACROSS * (WIDE + GAP) + GAP
    high = -(-len(panels) // ACROSS) * (HIGH + GAP + HEAD) + 8
    style = "text{font:11px sans-serif;fill:#333}.t{font-weight:bold}.a{stroke:#999}.l{fill:none;stroke:#1565c0;stroke-width:2}"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">',
            f'<style>{style}circle{{fill:#1565c0}}</style><rect width="100%" height="100%" fill="#fff"/>',
            *panels,
            "</svg>\n",
        )
    )


def _panel(place: int, head: Sequence[str], rows: Sequence[Sequence[float]]) -> str:
    left = GAP + (place - 1) % ACROSS * (WIDE + GAP)
    bottom = (place - 1) // ACROSS * (HIGH + GAP + HEAD) + HEAD + HIGH
    across, up = max(row[0] for row in rows), max(row[place] for row in rows) or 1.0
    points = [(left + WIDE * row[0] / across, bottom - HIGH * row[place] / up / 1.15) for row in rows]
    marks = [
        f'<text class="t" x="{left}" y="{bottom - HIGH - 12}">{escape(head[place])}</text>',
        f'<path class="a" fill="none" d="M{left} {bottom - HIGH}V{bottom}H{left + WIDE}"/>',
        f'<polyline class="l" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>',
    ]
    for row, (x, y) in zip(rows, points, strict=True):
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        marks.append(f'<text x="{x:.1f}" y="{y - 7:.1f}" text-anchor="middle">{row[place]:g}</text>')
        marks.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{row[0]:,.0f}</text>')
    return "\n".join(marks)


if __name__ == "__main__":
    (DOCS / "scale.svg").write_text(drawn(*table((DOCS / "scale.md").read_text())))
