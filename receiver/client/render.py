"""An answer as text: json and yaml for programs, a table for people (wide and plain in a pipe, fitted on a terminal)."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import IO, Any

from receiver.client.views import ANSWERS, LINES, SORTED, TEXTS, VIEWS, WRAPPED

TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
HASH = re.compile(r"^(advisory:)?[0-9a-f]{64}$")
AGES = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (120, 60, "m"), (0, 1, "s"))
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
PIPE_WIDTH = 100_000
INLINE = 4  # objects of a list that are shown in a cell; of more, their number
WORDS = 12  # words of a list that are shown; of more, their number and these
NARROW, ROOMY = 15, 48  # columns that a text which may wrap has at least, alone and before others
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")  # what a node says moves no cursor


def render(value: Mapping[str, Any], form: str, out: IO[str], now: datetime, method: str = "") -> None:
    """Writes the answer of a method to `out` as `form`: "json", "yaml" or "table"."""
    if form == "json":
        json.dump(value, out, indent=2, ensure_ascii=False)
        out.write("\n")
    elif form == "yaml":
        import yaml

        yaml.safe_dump(dict(value), out, sort_keys=False, allow_unicode=True)
    else:
        _table(value, out, now, method)


def render_line(value: Mapping[str, Any], form: str, out: IO[str], now: datetime) -> None:
    """Writes one answer of a stream: a line of JSON, a YAML document, or a line of text."""
    if form == "json":
        out.write(json.dumps(value, ensure_ascii=False) + "\n")
    elif form == "yaml":
        out.write("---\n")
        render(value, form, out, now)
    else:
        for name, part in value.items():
            if isinstance(part, Mapping):  # an `event` is a line as it is in the list of `events`
                shown = view(part) if (view := VIEWS.get(f"{name}s")) else part
                out.write("  ".join(cell(one, now) for one in shown.values() if one is not None) + "\n")
    out.flush()


def age(seconds: float) -> str:
    """How long ago, in one unit.

    >>> age(200), age(3), age(90_000), age(-5)
    ('3m ago', '3s ago', '25h ago', 'in 5s')
    """
    size, word = next((size, word) for least, size, word in AGES if abs(seconds) >= least)
    return f"in {int(-seconds // size)}{word}" if seconds < 0 else f"{int(seconds // size)}{word} ago"


def size(count: int) -> str:
    """Bytes in the largest binary unit that keeps the number at 1 or more.

    >>> size(85899345920), size(512), size(1610612736)
    ('80 GiB', '512 B', '1.5 GiB')
    """
    power = min((max(count, 1).bit_length() - 1) // 10, len(UNITS) - 1)
    return f"{count / (1 << 10 * power):.1f}".removesuffix(".0") + f" {UNITS[power]}"


def cell(value: Any, now: datetime, key: str = "") -> str:
    """A value in one line: times with their age, hashes cut to 12 digits, sizes in units, absent as `-`."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        named = {name: cell(one, now, name) for name, one in value.items() if one not in (None, "", [], {})}
        bare = [
            f"{name}=({text})" if isinstance(value[name], Mapping | list) else f"{name}={text}" for name, text in named.items()
        ]
        return " ".join(bare) or "-"
    if isinstance(value, list):
        nested = any(isinstance(one, Mapping) for one in value)
        if nested and len(value) > INLINE:
            return f"{len(value)} entries"
        if len(value) > WORDS + 2:
            return f"{len(value)}: {', '.join(cell(one, now) for one in value[:WORDS])}, ..."
        return (" | " if nested else ", ").join(cell(one, now) for one in value) or "-"
    text = CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(value))
    if TIME.match(text):
        moment = datetime.fromisoformat(text)
        return f"{text[:19]}Z ({age((now - moment).total_seconds())})"
    if HASH.match(text):
        return text[: text.rfind(":") + 13]
    if key.lower().endswith("bytes") and text.isdigit():
        return size(int(text))
    return text


def _table(value: Mapping[str, Any], out: IO[str], now: datetime, method: str) -> None:
    """Draws an answer with rich; in a pipe without colour, frames or line breaks within a row."""
    from rich.console import Console

    terminal = out.isatty()
    console = Console(file=out, width=None if terminal else PIPE_WIDTH, highlight=False, soft_wrap=not terminal)
    with console.capture() as capture:
        _Drawing(console, terminal, now, method).answer(value)
    text = capture.get()
    out.write(text if terminal else "\n".join(line.rstrip() for line in text.splitlines()) + "\n")


class _Drawing:
    """Draws nested JSON values: scalars as a list of names and values, lists of objects as tables, the rest below headings."""

    def __init__(self, console: Any, terminal: bool, now: datetime, method: str) -> None:
        self.console = console
        self.terminal = terminal
        self.now = now
        self.method = method

    def answer(self, value: Mapping[str, Any]) -> None:
        """A whole answer. One that is a page of a list is drawn as that list, with its cursor below."""
        if self.method in TEXTS:
            for line in TEXTS[self.method](value, lambda one: cell(one, self.now)):
                self.line(line)
        if self.method in ANSWERS:
            value = ANSWERS[self.method](value)
        lists = [key for key, one in value.items() if isinstance(one, list)]
        if len(lists) == 1 and set(value) <= {*lists, "nextCursor"}:
            self.rows(value[lists[0]], lists[0])
            if value.get("nextCursor"):
                self.line(f"go on with cursor={value['nextCursor']}", "dim")
        else:
            self.fields(value, "")

    def fields(self, value: Mapping[str, Any], path: str) -> None:
        """An object: what fits a line first, then what is nested, each below its dotted path (there without what is empty)."""
        value = {key: one for key, one in value.items() if not path or one not in (None, "", [], {})}
        if not value:
            self.line("nothing", "dim")
        paths = {key: f"{path}.{key}" if path else key for key in value}
        value = {key: LINES[paths[key]](one) if paths[key] in LINES else one for key, one in value.items()}
        nested = {key: one for key, one in value.items() if _is_nested(one)}
        flat = {key: cell(one, self.now, key) for key, one in value.items() if key not in nested}
        self.pairs(flat)
        for key, one in nested.items():
            name = paths[key]
            if name == "sections":  # their names are headings enough
                for section, fields in one.items():
                    self.below(section, fields)
            else:
                self.below(name, one)

    def below(self, name: str, value: Any) -> None:
        """A list or an object below its heading."""
        self.line(f"\n{name}", "bold")
        if isinstance(value, list):
            self.rows(value, name)
        else:
            self.fields(value, name)

    def rows(self, rows: Sequence[Mapping[str, Any]], path: str) -> None:
        """A list of objects as a table: the columns that a person needs, on a terminal as many as fit, the others named below."""
        if not rows:
            self.line(f"no {path.rpartition('.')[2] or 'rows'}", "dim")
            return
        view = VIEWS.get(f"{self.method}:{path}") or VIEWS.get(path)
        shown = [view(row) for row in sorted(rows, key=SORTED.get(path, lambda _: 0))] if view else rows
        table = [{key: cell(row.get(key), self.now, key) for key in _columns(shown)} for row in shown]
        keys: list[str] = []
        left_out: list[str] = []
        for key in table[0]:
            fits = not self.terminal or not keys or _width(table, [*keys, key]) <= self.console.width
            (keys if fits else left_out).append(key)
        self.console.print(self.grid(table, keys))
        if left_out:
            self.line(f"not shown for want of width: {', '.join(left_out)}", "dim")

    def grid(self, rows: Sequence[Mapping[str, str]], keys: Sequence[str]) -> Any:
        """The table of `rows` with a column for each of `keys`; on a terminal a text goes on below itself."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for key in keys:
            wraps = self.terminal and key in WRAPPED
            table.add_column(key, overflow="fold", no_wrap=not wraps, min_width=None if wraps else _longest(rows, key))
        for row in rows:
            table.add_row(*(Text(row[key]) for key in keys))
        return table

    def pairs(self, named: Mapping[str, str]) -> None:
        """Names and values in two columns; on a terminal a long value goes on below itself."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in named.items():
            table.add_row(Text(name), Text(text))
        if named:
            self.console.print(table)

    def line(self, text: str, style: str = "") -> None:
        """One line, taken literally (square brackets are no markup); one that is too long is the terminal's to wrap."""
        self.console.print(text, style=style or None, markup=False, soft_wrap=True)


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys that have a value in some row, in their order; all when none has."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return [key for key in keys if any(row.get(key) not in (None, "", [], {}) for row in rows)] or keys


def _longest(rows: Sequence[Mapping[str, str]], key: str) -> int:
    return max(len(key), *(len(row[key]) for row in rows))


def _width(rows: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    """How wide a table of these columns must be at least; a text leaves room to others only where it has enough itself."""
    least = NARROW if keys[-1] in WRAPPED else ROOMY
    return sum(min(_longest(rows, key), least) if key in WRAPPED else _longest(rows, key) for key in keys) + 2 * (len(keys) - 1)


def _is_nested(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and (len(value) > 4 or any(isinstance(one, Mapping | list) for one in value.values()))
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)
