"""`make bench` prints one table: what, figure, floor, ratio, aim, met or missed."""

import argparse
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

from tests.bench import Row, applies, collection, history, idle, mixed, reading, repairs, sessions, soak, xid

BENCHES: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "collection": lambda options: collection.rows(),
    "idle": lambda options: idle.rows(options.minutes),
    "applies": lambda options: applies.rows(),
    "reading": lambda options: reading.rows(),
    "repairs": lambda options: repairs.rows(),
    "xid": lambda options: xid.rows(options.megabytes),
    "messages": lambda options: sessions.messages(),
    "first-contact": lambda options: sessions.first_contact(),
    "faults": lambda options: sessions.faults(),
    "mixed": lambda options: mixed.rows(),
    "full": lambda options: sessions.full(),
    "sessions": lambda options: sessions.rows(options.nodes, options.seconds),
    "history": lambda options: history.rows(),
    "soak": lambda options: soak.rows(options.minutes),
}
ASKED_FOR = ("soak",)  # not among all: hours, and it floods this machine's kernel log


def main() -> None:
    """Runs the named benchmarks (all of them by default) and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("bench", nargs="*", choices=[*BENCHES, []], help="default: all but soak")
    parser.add_argument(
        "--minutes", type=_above_zero(float), default=10.0, help="how long an idle daemon is watched (default 10)"
    )
    parser.add_argument(
        "--megabytes", type=_above_zero(int), default=256, help="size of the log that bcd xid reads (default 256; the aim: 1024)"
    )
    parser.add_argument(
        "--nodes", type=_above_zero(int), default=15_000, help="how many sessions a receiver is given (default 15000)"
    )
    parser.add_argument(
        "--seconds", type=_above_zero(float), default=60.0, help="how long their heartbeats are watched (default 60)"
    )
    arguments = parser.parse_args()
    table = Table("what", "figure", "floor", "ratio", "aim", "", title="benchmarks")
    try:
        for name in arguments.bench or [name for name in BENCHES if name not in ASKED_FOR]:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            for row in BENCHES[name](arguments):
                table.add_row(*_cells(row))
    finally:  # what was measured is shown, whatever stops the rest
        Console(width=None if sys.stdout.isatty() else 170).print(table)


def _above_zero(kind: Callable[[str], float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        if (value := kind(text)) <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return number


def _cells(row: Row) -> tuple[str, ...]:
    what = row.what + (f" ({row.note})" if row.note else "")
    floor = "-" if row.floor is None else f"{row.floor:.2f} {row.unit}: {row.floor_name}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    aim = "-" if row.aim is None else f"{'>=' if row.at_least else '<='} {row.aim:g}"
    return what, f"{row.figure:.2f} {row.unit}", floor, ratio, aim, row.verdict


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
