"""An inventory and a status for a person: drawn with rich on a terminal, as plain aligned text in a pipe.

What is shown is decided once, as blocks (a title, pairs, a table); the two ways of drawing know nothing of sections.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# The columns of a section's lists. A list without a row here is shown as pairs; a column that no entry has is left out.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gpus.gpus": ("index", "name", "uuid", "busId", "vramBytes", "state", "assigned", "mig.current"),
    "gpus.pciFunctions": ("busId", "deviceId", "classCode", "driver", "numaNode"),
    "disks.disks": ("name", "model", "serial", "bytes", "transport", "firmware", "root"),
    "disks.mdArrays": ("name", "level", "uuid"),
    "nics.nics": ("name", "kind", "permanentMac", "driver", "firmware", "busId", "numaNode"),
    "nics.hcas": ("name", "type", "firmware", "boardId", "nodeGuid", "busId"),
    "images.images": ("name", "digest", "format", "bytes", "source"),
    "memory.dimms": ("locator", "bank", "bytes", "type", "speedMts", "manufacturer", "part", "serial"),
    "memory.swap": ("path", "type", "bytes"),
    "cpu.numaNodes": ("id", "cpus", "memoryBytes"),
    "cpu.caches": ("level", "type", "bytes", "count"),
    "os.kernelCommandLine": ("key", "value"),
    "os.containerRuntimes": ("name", "version"),
    "os.hugepages": ("pageBytes", "count"),
    "status.sections": ("name", "hash", "bytes", "age", "error"),
    "status.devices": ("deviceId", "busId", "state", "assigned", "offer"),
    "status.holds": ("id", "owner", "kind", "devices", "state", "reason"),
    "status.commands": ("id", "kind", "since"),
    "status.conditions": ("type", "status", "deviceId", "busId", "count", "since", "reason", "message"),
}
_LONG = 100  # characters of a list of words (CPU flags); the rest is in --json


@dataclass(frozen=True, slots=True)
class Block:
    """A title with pairs, or with a table (`columns` and `rows`)."""

    title: str
    pairs: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def section_blocks(name: str, message: Mapping[str, Any], note: str = "") -> Iterator[Block]:
    """A section, as its proto3 JSON mapping, as blocks: its plain fields, then its lists."""
    pairs = tuple((key, value) for key, value in _flat(message) if key not in ("unreadable",) and value)
    yield Block(f"{name}  {note}".rstrip(), pairs)
    for key, value in message.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield table(f"{name}.{key}", value)


def status_blocks(status: Mapping[str, Any], now: datetime) -> Iterator[Block]:
    """`bcd status`: the session, then the sections with their ages and errors."""
    applied = "yes" if status["applied"] else "no"
    answer = f" (last answer: {status['lastAnswer']})" if status["lastAnswer"] else ""
    since = f"{status['session']} {since_words(status['sessionSince'], now)}"
    shown = {
        "node": status["nodeId"] or "none",
        "joined": _joined(status),
        "boot": status["bootId"],
        "bcd": f"{status['version']}, process {status['pid']}",
        "receiver": status["server"],
        "session": since + (f", epoch {status['epoch']}" if status["epoch"] is not None else ""),
        "session error": status["sessionError"] if status["sessionError"] != status["identityError"] else "",
        "digest": status["digest"] or "nothing collected yet",
        "collected": f"{since_words(status['collectedAt'], now)} ({status['trigger']})" if status["collectedAt"] else "",
        "collecting": "now" if status["collecting"] else "",
        "receiver has it": applied + answer,
        "abandoned workers": str(status["abandonedWorkers"]) if status["abandonedWorkers"] else "",
        "kernel log": _kernel_log(status["kernelLog"]),
    }
    yield Block("bcd", tuple((key, value) for key, value in shown.items() if value))
    rows = [
        {
            "name": entry["name"],
            "hash": entry.get("hash", "-")[:12],
            "bytes": entry.get("bytes"),
            "age": since_words(entry["collectedAt"], now),
            "error": _error(entry),
        }
        for entry in sorted([*status["sections"], *status["missing"]], key=lambda e: str(e["name"]))
    ]
    if rows:
        yield table("status.sections", rows)
    if status["devices"]:
        yield table("status.devices", status["devices"])
    if status["holds"]:
        yield table("status.holds", status["holds"])
    if status["commands"]:
        yield table("status.commands", status["commands"])
    if found := [condition for condition in status["conditions"] if condition["status"] != "false"]:
        yield table("status.conditions", found)


def _joined(status: Mapping[str, Any]) -> str:
    """Whether the node has a certificate, until when, and what is wrong with it."""
    certificate = status["certificate"]
    if certificate is None:
        return (status["identityError"] or "no: --insecure, nothing is encrypted").replace("not joined", "no", 1)
    until = f"yes, certificate until {certificate['notAfter']} ({certificate['remaining']:.0%} of its life left)"
    wrong = (status["identityError"], certificate["renewalError"] and f"renewing it failed: {certificate['renewalError']}")
    return "; ".join((until, *(part for part in wrong if part)))


def _kernel_log(log: Mapping[str, Any]) -> str:
    """What is wrong with the watch over the kernel log; empty when nothing is."""
    said = [
        "" if log["available"] else f"cannot be read ({log['reason'] or 'not yet tried'})",
        f"{log['lostRecords']} records were lost" if log["lostRecords"] else "",
        f"{len(log['unattributed'])} XIDs of no known GPU" if log["unattributed"] else "",
        f"{log['overflow']} records of faults did not fit" if log["overflow"] else "",
        f"the faults cannot be kept on disk: {log['notSaved']}" if log["notSaved"] else "",
    ]
    return "; ".join(part for part in said if part)


def _error(entry: Mapping[str, Any]) -> str | None:
    """A missing section's error; with its detail where the error is one word (`settling`)."""
    error: str | None = entry.get("error")
    return f"{error}: {entry['detail']}" if error and ":" not in error else error


def table(key: str, entries: Sequence[Mapping[str, Any]]) -> Block:
    """A list of messages as a table with the columns of its row in COLUMNS; in the order of their index, if they have one."""
    flat = [dict(_flat(entry)) for entry in sorted(entries, key=lambda entry: int(entry.get("index", 1 << 30)))]
    wanted = COLUMNS.get(key) or tuple(dict.fromkeys(name for entry in flat for name in entry))
    columns = tuple(name for name in wanted if any(entry.get(name) for entry in flat))
    return Block(key, columns=columns, rows=tuple(tuple(entry.get(name, "") for name in columns) for entry in flat))


def since_words(moment: str, now: datetime) -> str:
    """How long ago an RFC 3339 time was: `12 s ago`, `3 h 5 min ago`."""
    seconds = max(0, int((now - datetime.fromisoformat(moment.replace("Z", "+00:00"))).total_seconds()))
    if seconds < 120:
        return f"{seconds} s ago"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if hours < 2:
        return f"{minutes} min ago"
    return f"{hours} h {minutes % 60} min ago" if days < 2 else f"{days} d {hours % 24} h ago"


def size_words(count: int) -> str:
    """Bytes in the largest binary unit with at most one decimal: `80 GiB`, `1.7 TiB`."""
    value, unit = float(count), 0
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    while value >= 1024 and unit < len(units) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f}".removesuffix(".0") + f" {units[unit]}"


def _flat(message: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Plain fields as text, nested ones with dotted names; lists of plain values joined; other lists left out."""
    for key, value in message.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flat(value, name + ".")
        elif isinstance(value, list):
            if value and not isinstance(value[0], dict):
                yield name, _cut(" ".join(str(entry) for entry in value))
        else:
            yield name, _words(key, value)


def _words(key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.lower().endswith("bytes") and str(value).isdigit():
        return size_words(int(value))
    return str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def draw(blocks: Iterable[Block], out: TextIO) -> None:
    """Draws blocks on `out`, as it is a terminal or not."""
    if out.isatty():
        _draw_rich(blocks, out)
    else:
        out.writelines(line + "\n" for line in plain(blocks))


def plain(blocks: Iterable[Block]) -> Iterator[str]:
    """Blocks as lines of text, aligned."""
    for index, block in enumerate(blocks):
        if index:
            yield ""
        yield block.title
        lines = block.pairs if block.pairs else (block.columns, *block.rows) if block.columns else ()
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
        for line in lines:
            yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))).rstrip()


def _draw_rich(blocks: Iterable[Block], out: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out)
    for index, block in enumerate(blocks):
        console.print(*([""] if index else []), Text(block.title, style="bold"), sep="\n")
        grid = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)) if block.columns else Table.grid(padding=(0, 2))
        for column in block.columns or (("", "") if block.pairs else ()):
            grid.add_column(column, overflow="fold")
        for row in block.rows or block.pairs:
            grid.add_row(*(Text(cell, style="dim" if cell == "" else "") for cell in row))
        if block.columns:  # a UUID in pieces cannot be copied: the terminal may break long lines, the table does not
            wide = Console(file=out, width=max(console.width, _width(console, grid)))
            wide.print(grid)
        elif block.pairs:
            console.print(grid)


def _width(console: "Console", grid: "Table") -> int:
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(max_width=10_000), grid).maximum


def now() -> datetime:
    """The time, for ages."""
    return datetime.now(UTC)
