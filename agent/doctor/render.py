"""Doctor's lines for a person: aligned, folded to the terminal, in colour only there; or as JSON."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent.doctor.line import FAIL, NOT_APPLICABLE, PASS, SHOWN, UNKNOWN, WARNING, Line

_COLOURS: Mapping[str, str] = {PASS: "32", NOT_APPLICABLE: "2", WARNING: "33", UNKNOWN: "33", FAIL: "1;31"}
_RESET = "\x1b[0m"
_NARROWEST = 40


def text(lines: Iterable[Line], *, width: int | None = None, colour: bool = False) -> Iterator[str]:
    """Lines of text. `width`: columns to fold to, None: not folded."""
    lines = list(lines)
    subjects = max((len(line.subject) for line in lines), default=0)
    indent = " " * (subjects + 8)
    for line in lines:
        word = SHOWN[line.verdict].ljust(4)
        shown = f"\x1b[{_COLOURS[line.verdict]}m{word}{_RESET}" if colour else word
        first, *more = _folded(line.text, width, len(indent))
        yield f"{shown}  {line.subject.ljust(subjects)}  {first}"
        for part in (*more, *_todo(line.todo, width, len(indent))):
            yield indent + part
    yield summary(lines)


def summary(lines: Iterable[Line]) -> str:
    """`2 failures, 1 warning, 12 ok`."""
    shown = [SHOWN[line.verdict] for line in lines]
    words = {"fail": ("failure", "failures"), "warn": ("warning", "warnings"), "ok": ("ok", "ok"), "-": ("not applicable",) * 2}
    counted = ((shown.count(word), names) for word, names in words.items())
    return ", ".join(f"{count} {names[count != 1]}" for count, names in counted if count)


def json_of(lines: Iterable[Line], exit_code: int) -> dict[str, Any]:
    """All of it as one object."""
    return {"exitCode": exit_code, "lines": [line.told() for line in lines]}


def _todo(todo: str, width: int | None, used: int) -> list[str]:
    return (
        [("-> " if number == 0 else "   ") + part for number, part in enumerate(_folded(todo, width, used + 3))] if todo else []
    )


def _folded(words: str, width: int | None, used: int) -> list[str]:
    """On lines that fit; names and ids are never cut."""
    if width is None:
        return [words]
    room = max(width - used, _NARROWEST)
    return textwrap.wrap(words, room, break_long_words=False, break_on_hyphens=False) or [""]
