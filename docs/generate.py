"""Writes the tables in docs/*.md from the tables in the code: `python docs/generate.py [--check]` (`make docs`).

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. tests/docs/test_tables.py fails when one is not the code's.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from bettercompute.contract import xids

import agent.config
import receiver.config
from agent import doctor
from receiver.client.methods import methods
from receiver.events import EVENTS
from receiver.gateway.limits import LIMITS
from receiver.operate.methods import WRITES
from receiver.planning import policy, why_ends
from receiver.planning.condition_types import NODE_CONDITION_TYPES
from receiver.planning.findings import FINDINGS, RECOVERY, REPLACE
from receiver.read.api import READS
from receiver.values import READ

DOCS = Path(__file__).resolve().parent
_TABLE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# What to type for the placeholders of why_ends.CONDITIONS.
_ORDERS = {
    "adopt": "`nodes.adopt`",
    "reboot": "`nodes.reboot`",
    "move": "`nodes.move`",
    "resolve": "`nodes.resolveIdentity`",
    "other": "the other node",
}
_STREAM = "As events.list, and goes on with each event as it comes."
_XID = "what is done about its number (next table; of an SXid: its message), or `devices.clear`"
_REMEDIES = {
    "none": "nothing",
    "restart-app": "the program that caused it is started again; nothing on the node",
    "inspect": "a person looks at `bcd doctor` and the kernel log on the node; nothing starts by itself",
    "drain-and-reset": "a person drains the node, then resets its GPUs: `devices.reset`",
    "reset-gpu": "a GPU reset, by itself once nothing is booked on it",
    "reboot-node": "a reboot, by itself once nothing is booked on the node",
    REPLACE: "a person replaces the GPU",
}

Rows = Iterator[tuple[str, ...]]


def _conditions() -> Rows:
    yield "condition", "set by", "keeps the node out", "means", "what ends it"
    for row in NODE_CONDITION_TYPES.values():
        ends = why_ends.CONDITIONS.get(row.type, _XID).format(**_ORDERS)
        yield f"`{row.type}`", row.writer, row.no_schedule, row.meaning, ends


def _findings() -> Rows:
    yield "finding", "means", "what is done"
    for row in FINDINGS.values():
        by_value = dict.fromkeys(_REMEDIES[row.remedy({"recoveryAction": word})] for word in RECOVERY[1:])
        yield f"`{row.code}`", row.meaning, "; or ".join(by_value)


def _xids() -> Rows:
    yield "XID", "means", "takes out", "what is done"
    for row in xids.table().xids.values():
        yield str(row.code), row.name or "", row.policy or "nothing", _REMEDIES[row.action]


def _events() -> Rows:
    yield "event", "tells", "what to do", "payload"
    for row in EVENTS.values():
        yield f"`{row.name}`", row.tells, row.todo, ", ".join(f"`{name}`" for name in row.fields)


def _doctor() -> Rows:
    yield "line", "says", "when it is not ok"
    for subject, line in doctor.LINES.items():
        says, _, todo = " ".join((line.__doc__ or "").split()).partition(" To do: ")
        yield subject, says, todo


def _methods() -> Rows:
    yield "method", "does", "needs", "keys"
    for name, method in methods().items():
        read, write = READS.get(name), WRITES.get(name)
        keys = ", ".join(f"`{key}`" for key in method.keys if key != "tenantId")
        if row := read or write:
            does = (read.answer if read else write.act if write else None).__doc__ or ""
            yield f"`{name}`", does.partition("\n")[0], f"`{row.permission}`", keys
        else:
            yield f"`{name}`", _STREAM, f"`{READ}`", keys


def _limits() -> Rows:
    yield "limit", "at most", "answer"
    for row in LIMITS:
        burst = f", {row.burst:,} together" if row.per and row.burst != row.most else ""
        yield row.name, f"{row.most:,}{burst}", row.code


def _policy() -> Rows:
    yield "key of `policy`", "may be"
    for key in policy.KEYS.values():
        yield f"`{key.path}`", key.takes


def _settings_of_bcd() -> Rows:
    yield "key", "default", "meaning"
    for row in agent.config.SETTINGS:
        yield f"`{row.key}`", f"`{row.toml}`", row.help


def _settings_of_receiver() -> Rows:
    yield "key", "default", "meaning"
    for row in receiver.config.SETTINGS:
        yield f"`{row.key}`", f"`{row.toml}`", row.help


TABLES: Mapping[str, Callable[[], Rows]] = {
    "conditions": _conditions,
    "findings": _findings,
    "xids": _xids,
    "events": _events,
    "doctor": _doctor,
    "methods": _methods,
    "limits": _limits,
    "policy": _policy,
    "settings-bcd": _settings_of_bcd,
    "settings-receiver": _settings_of_receiver,
}


def table(name: str) -> str:
    """A table as Markdown. Raises KeyError for one that there is not."""
    head, *rows = TABLES[name]()
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def generated(text: str) -> str:
    """A page with its tables as the code has them."""
    return _TABLE.sub(lambda match: f"{match[1]}{table(match[2])}{match[3]}", text)


def pages() -> Iterable[Path]:
    """All pages."""
    return sorted(DOCS.glob("*.md"))


def main() -> int:
    """Writes the pages that differ; with --check only says which ones do, and is 1 then."""
    differ = [page for page in pages() if generated(page.read_text()) != page.read_text()]
    for page in differ:
        sys.stdout.write(f"{page.name}: its tables are not what the code says\n")
        if "--check" not in sys.argv:
            page.write_text(generated(page.read_text()))
    return 1 if differ and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
