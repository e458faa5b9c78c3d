"""What an XID or SXid number means for a node: xids.json, loaded once and checked (its own `fields` say what the words mean).

One more XID rule costs a row there.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("xids.json")
_AUTOMATIC = ("reboot-node", "reset-gpu")
_CLASSES = ("switch", "link", "notice")
# SXid: which severity words a line of a number may say, by `prints`. None: no word. A line that says another word is another
# error: numbers have moved between driver versions, so the text goes before the number.
_SAYS: Mapping[str, tuple[bool | None, ...]] = {
    "fatal": (True, None),
    "non-fatal": (False, None),
    "either": (True, False, None),
    "none": (None,),
}
_SXID_WORD = re.compile(r"[0-9]+,\s*(Fatal|Non-fatal|Correctable),")
_SEVERITY_WORD = re.compile(r"\b(?:Fatal|Nonfatal)\b")
# From "action" on: a process may choose its name (15 bytes), which stands before it and can hold all the rest.
_NEW_ACTION = re.compile(r"action changed from (?:0x[0-9a-fA-F]+|[0-9]+)\b.*?\bto (?:0x([0-9a-fA-F]{1,8})|([0-9]{1,8}))\b")


@dataclass(frozen=True, slots=True)
class XidPolicy:
    """The meaning of one fault. `scope`, `severity` and `action` are words of xids.json's `fields`; `policy` is `node`
    (NoSchedule), `device` (the GPU is quarantined) or None (an event only). `name` is None when the table does not know it."""

    code: int
    name: str | None
    scope: str
    severity: str
    action: str
    policy: str | None
    known: bool


@dataclass(frozen=True, slots=True)
class RecoveryAction:
    """One value of NVML's recovery action, as Xid 154 prints it too: the driver's name and this project's action."""

    name: str
    action: str


@dataclass(frozen=True, slots=True)
class Table:
    """xids.json as values. `by_word`: overrides of a code by the severity word in its message; `prints`: an SXid's words."""

    version: int
    severities: tuple[str, ...]
    xids: Mapping[int, XidPolicy]
    by_word: Mapping[int, Mapping[str, XidPolicy]]
    recovery: Mapping[int, RecoveryAction]
    recovery_code: int | None
    sxids: Mapping[int, XidPolicy]
    prints: Mapping[int, str]
    unknown: XidPolicy
    unknown_sxid: Mapping[bool, XidPolicy]

    def policy(self, code: int, message: str = "") -> XidPolicy:
        """The meaning of an XID whose text (from the number on) is `message`."""
        row = self.xids.get(code)
        if row is None:
            return replace(self.unknown, code=code)
        if code == self.recovery_code and (changed := _NEW_ACTION.search(message)):
            asked = self.recovery.get(int(changed[1], 16) if changed[1] else int(changed[2]))
            return replace(row, action=asked.action if asked else self.unknown.action)
        # The last such word: a process may choose its name, and the driver's word comes behind it.
        words = _SEVERITY_WORD.findall(message) if code in self.by_word else []
        return self.by_word[code].get(words[-1], row) if words else row

    def sxid_policy(self, code: int, message: str = "") -> XidPolicy:
        """The meaning of an SXid whose text (from the number on) is `message`."""
        word = _SXID_WORD.match(message)
        fatal = word[1] == "Fatal" if word else None
        row = self.sxids.get(code)
        if row is None or fatal not in _SAYS[self.prints[code]]:
            return replace(self.unknown_sxid[bool(fatal)], code=code)
        if fatal is False and row.policy is not None:
            return replace(self.unknown_sxid[False], code=code, name=row.name, known=True)
        return row


def policy(code: int, message: str = "") -> XidPolicy:
    """The meaning of an XID, by the severity word or recovery action in its message where the table says so."""
    return table().policy(code, message)


def sxid_policy(code: int, message: str = "") -> XidPolicy:
    """The meaning of an SXid, by the severity word in its message (`20034, Fatal, Link 48 LTSSM Fault Up`)."""
    return table().sxid_policy(code, message)


def recovery_action(value: int) -> RecoveryAction | None:
    """What a value of the GPU recovery action asks for; None for a value that the table does not know."""
    return table().recovery.get(value)


@functools.cache
def table() -> Table:
    """The table that comes with this version."""
    return load(_FILE.read_text())


def load(text: str) -> Table:
    """xids.json's text as a Table. Raises ValueError that names the entry: a word that `fields` does not define, a number
    given twice, a verdict against the file's invariants."""
    data = json.loads(text)
    words = {name: set(data["fields"][name]) for name in ("scope", "severity", "action", "policy")}
    unknown_sxid = data["unknownSxid"]

    def row(kind: str, entry: Mapping[str, Any], known: bool = True) -> XidPolicy:
        return _row(f"{kind} {entry.get(kind, 'unknown')}", int(entry.get(kind, 0)), entry, known, words)

    recovering = [entry for entry in data["xids"] if "byRecoveryAction" in entry]
    return Table(
        version=data["version"],
        severities=tuple(data["fields"]["severity"]),
        xids=_unique("xid", (row("xid", entry) for entry in data["xids"])),
        by_word={
            entry["xid"]: {word: row("xid", entry | verdict) for word, verdict in entry["bySeverity"].items()}
            for entry in data["xids"]
            if "bySeverity" in entry
        },
        recovery={
            int(value): RecoveryAction(says["name"], _word(f"recovery action {value}", "action", says["action"], words))
            for entry in recovering
            for value, says in entry["byRecoveryAction"].items()
        },
        recovery_code=recovering[0]["xid"] if recovering else None,
        sxids=_unique("sxid", (row("sxid", entry) for entry in data["sxids"])),
        prints={entry["sxid"]: _known(entry, "prints", _SAYS) for entry in data["sxids"] if _known(entry, "class", _CLASSES)},
        unknown=row("xid", data["unknown"], False),
        unknown_sxid={True: row("sxid", unknown_sxid["Fatal"], False), False: row("sxid", unknown_sxid["otherwise"], False)},
    )


def _unique(kind: str, rows: Iterable[XidPolicy]) -> Mapping[int, XidPolicy]:
    found: dict[int, XidPolicy] = {}
    for row in rows:
        if found.setdefault(row.code, row) is not row:
            raise ValueError(f"xids.json: {kind} {row.code} is there twice")
    return found


def _row(where: str, code: int, entry: Mapping[str, Any], known: bool, words: Mapping[str, set[str]]) -> XidPolicy:
    scope, severity, action = (_word(where, name, entry[name], words) for name in ("scope", "severity", "action"))
    verdict: str | None = entry["policy"]
    _word(where, "policy", "null" if verdict is None else verdict, words)
    broken = (
        (verdict == "node") != (scope == "node")
        or (verdict == "device" and scope not in ("device", "fabric"))
        or (action in _AUTOMATIC and verdict is None)
    )
    if broken:
        raise ValueError(f"xids.json: {where}: scope {scope}, policy {verdict} and action {action} do not go together")
    return XidPolicy(code, entry.get("name"), scope, severity, action, verdict, known)


def _word(where: str, field: str, word: str, words: Mapping[str, set[str]]) -> str:
    if word not in words[field]:
        raise ValueError(f"xids.json: {where}: {field} {word!r} is none of {', '.join(sorted(words[field]))}")
    return word


def _known(entry: Mapping[str, Any], field: str, words: Iterable[str]) -> str:
    word: str = entry[field]
    if word not in words:
        raise ValueError(f"xids.json: sxid {entry['sxid']}: {field} {word!r} is none of {', '.join(words)}")
    return word
