"""Selectors of nodes by their labels, as Kubernetes writes them: text in, requirements out; all of them must hold.

    gpu.model=H100, bc.dev/driver.nvidia, tier notin (spot, dev), gpu.count>4, !gpu.present, os.distro=*

`=` and `==` (any value: `=*`), `!=`, `in (...)`, `notin (...)`, a key alone (it is there), `!key` (it is not), `>` and `<` (the
label is a number, and greater or less). As there, `!=` and `notin` hold for a node that lacks the key; `>` and `<` do not.
The same in SQL: receiver/read/selecting.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NoReturn

Operator = Literal["in", "notin", "exists", "absent", "gt", "lt"]

NUMBER = "-?[0-9]+([.][0-9]+)?"  # of a label's value; SQL reads it the same way (column node_labels.number)
LONGEST = 4096  # characters of a selector
MOST = 32  # requirements of a selector
MOST_VALUES = 256  # values of one of them
_KEY_LENGTH, _VALUE_LENGTH = 317, 63  # Kubernetes: a name of 63 behind a prefix of 253 and a slash; SPEC B11

_TOKEN = re.compile(r"==|!=|[=!<>(),]|[^\s=!<>(),]+")
_KEY = re.compile(r"[A-Za-z0-9_./-]+")
_NUMBER = re.compile(NUMBER, re.ASCII)
_SIGNS = ("==", "!=", "=", "!", "<", ">", "(", ")", ",")


class SelectorError(ValueError):
    """A selector that cannot be read. `str()` says what was expected, and at which position (the first character is 1)."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that a node's labels must be. `values`: of `in` and `notin` all, of `gt` and `lt` the one number."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is meant."""
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value in self.values
            case "notin":
                return value not in self.values
            case "exists":
                return value is not None
            case "absent":
                return value is None
        if value is None or not _NUMBER.fullmatch(value):
            return False
        bound = Decimal(self.values[0])
        return Decimal(value) > bound if self.operator == "gt" else Decimal(value) < bound


Selector = tuple[Requirement, ...]


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether all requirements hold; the empty selector means every node."""
    return all(one.holds(labels) for one in selector)


def parse(text: str) -> Selector:
    """The requirements of a selector, in its order. Raises SelectorError, naming the position.

    >>> parse("gpu.model in (H100,H200), gpu.count>4")[1]
    Requirement(key='gpu.count', operator='gt', values=('4',))
    """
    if len(text) > LONGEST:
        raise SelectorError(f"a selector has at most {LONGEST:,} characters; this one has {len(text):,}")
    tokens = _Tokens([(match[0], match.start() + 1) for match in _TOKEN.finditer(text)], len(text) + 1)
    found: list[Requirement] = []
    while tokens.peek() or found:
        if found and not tokens.take(","):
            if tokens.peek():
                tokens.refuse("a comma")
            break
        found.append(_requirement(tokens))
        if len(found) > MOST:
            raise SelectorError(f"a selector has at most {MOST} requirements")
    return tuple(found)


class _Tokens:
    """What is left to read, each with its position."""

    def __init__(self, found: list[tuple[str, int]], end: int) -> None:
        self.left = list(reversed([*found, ("", end)]))

    def peek(self) -> str:
        """The next token; empty at the end."""
        return self.left[-1][0]

    def take(self, *wanted: str) -> str:
        """The next token if it is one of these, and goes on; else empty."""
        return self.left.pop()[0] if self.peek() and self.peek() in wanted else ""

    def word(self) -> str:
        """The next token if it is a word, and goes on; else empty."""
        return self.left.pop()[0] if self.peek() and self.peek() not in _SIGNS else ""

    def refuse(self, expected: str) -> NoReturn:
        """Raises SelectorError at the next token."""
        token, position = self.left[-1]
        shown = repr(token[:64]) if token else "the end"
        raise SelectorError(f"position {position}: expected {expected}, found {shown}")


def _requirement(tokens: _Tokens) -> Requirement:
    absent = bool(tokens.take("!"))
    if not _KEY.fullmatch(tokens.peek()) or len(tokens.peek()) > _KEY_LENGTH:
        tokens.refuse(f"a label's key (at most {_KEY_LENGTH} of A-Z a-z 0-9 . _ - /)")
    key = tokens.word()
    if absent:
        return Requirement(key, "absent")
    sign = tokens.take("=", "==", "!=", ">", "<", "in", "notin")
    match sign:
        case "":
            if tokens.peek() not in (",", ""):
                tokens.refuse("one of = == != > < in notin, a comma or the end")
            return Requirement(key, "exists")
        case "=" | "==":
            return Requirement(key, "exists") if tokens.take("*") else Requirement(key, "in", (_value(tokens),))
        case "!=":
            return Requirement(key, "notin", (_value(tokens),))
        case "in":
            return Requirement(key, "in", _values(tokens))
        case "notin":
            return Requirement(key, "notin", _values(tokens))
    if not _NUMBER.fullmatch(tokens.peek()) or len(tokens.peek()) > _VALUE_LENGTH:
        tokens.refuse(f"a number after {sign}")
    return Requirement(key, "gt" if sign == ">" else "lt", (tokens.word(),))


def _value(tokens: _Tokens) -> str:
    """A value, perhaps the empty one."""
    if tokens.peek() == "*":
        tokens.refuse("a value (any value is KEY=*, none is !KEY)")
    if len(tokens.peek()) > _VALUE_LENGTH:
        tokens.refuse(f"a value of at most {_VALUE_LENGTH} characters")
    return tokens.word()


def _values(tokens: _Tokens) -> tuple[str, ...]:
    """`(a, b)`; an empty place between commas is the empty value. Each value once, in order."""
    if not tokens.take("("):
        tokens.refuse("(")
    if tokens.peek() == ")":
        tokens.refuse("a value")
    found = [_value(tokens)]
    while tokens.take(","):
        found.append(_value(tokens))
        if len(found) > MOST_VALUES:
            tokens.refuse(f"at most {MOST_VALUES} values")
    if not tokens.take(")"):
        tokens.refuse("a comma or )")
    return tuple(dict.fromkeys(found))
