"""One line of doctor."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

PASS, NOT_APPLICABLE, WARNING, UNKNOWN, FAIL = "pass", "not-applicable", "warning", "unknown", "fail"
SHOWN = {PASS: "ok", NOT_APPLICABLE: "-", WARNING: "warn", UNKNOWN: "warn", FAIL: "fail"}


@dataclass(frozen=True, slots=True)
class Line:
    """`subject` is what it is about, `text` how it is, in one sentence, `todo` what to do about it (empty: nothing).

    `facts` are the values behind the text, for `--json`, lowerCamelCase; absent ones are left out.
    """

    subject: str
    verdict: str
    text: str
    todo: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_failure(self) -> "Line":
        """The same line as a failure."""
        return replace(self, verdict=FAIL)

    def told(self) -> dict[str, Any]:
        """As JSON."""
        told = {"subject": self.subject, "result": self.verdict, "shown": SHOWN[self.verdict], "text": self.text}
        return told | {key: value for key, value in (("todo", self.todo), ("facts", dict(self.facts))) if value}
