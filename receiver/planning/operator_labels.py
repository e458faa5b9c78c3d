"""Labels that operators write (SPEC B2, "Labels"; B9, nodes.label): source `operator`, and no key that others have. Pure."""

import re
from collections.abc import Callable, Collection, Mapping

from receiver.errors import Invalid, OverLimit, Refused
from receiver.planning.view import Draft, Facts, Label
from receiver.values import LABEL_CHARACTERS, LABELS

RESERVED = "bc.dev/"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}")
_VALUE = re.compile(rf"(?:{_NAME})?")

Rule = Callable[[Facts, Draft], None]


def write(labels: Mapping[str, str], remove: Collection[str], reserved: Collection[str] = ()) -> Rule:
    """A rule that writes and removes labels. `reserved`: keys of the inventory, which it may write at any time.

    Raises Invalid for what is no label (as Kubernetes has them), OverLimit for more or longer ones, Refused for a key that source
    `inventory` or `system` holds, or one below `bc.dev/`; each names the key.
    """
    if both := sorted(labels.keys() & set(remove)):
        raise Invalid(f"label {both[0]} is to be written and to be removed")
    for key, value in labels.items():
        _check(key, value)

    def rule(facts: Facts, draft: Draft) -> None:
        for key in sorted({*labels, *remove}):
            _refuse_held(key, draft, reserved)
        for key in remove:
            draft.labels.pop(key, None)
        for key, value in labels.items():
            draft.put("labels", Label(key, value, "operator"))
        mine = sum(one.source == "operator" for one in draft.labels.values())
        if labels and mine > LABELS:
            raise OverLimit("operator's labels a node", f"operator's labels of a node: {mine}, at most {LABELS}")

    return rule


def _check(key: str, value: str) -> None:
    if not _KEY.fullmatch(key):
        raise Invalid(f"{key!r} is no label's key: NAME or DNS.PREFIX/NAME, the name up to 63 letters, digits, '.', '_', '-'")
    if len(value) > LABEL_CHARACTERS:
        says = f"label {key}: a value of {len(value)} characters, at most {LABEL_CHARACTERS}"
        raise OverLimit("characters a label's value", says)
    if not _VALUE.fullmatch(value):
        raise Invalid(
            f"label {key}: {value!r} has to be letters, digits, '.', '_', '-', a letter or digit at both ends, or nothing"
        )


def _refuse_held(key: str, draft: Draft, reserved: Collection[str]) -> None:
    held = draft.labels.get(key)
    if key.startswith(RESERVED):
        raise Refused(f"label {key}: keys below {RESERVED} are the system's")
    if held is not None and held.source != "operator":
        raise Refused(f"label {key} is held by source {held.source}: {held.value!r}")
    if key in reserved:
        raise Refused(f"label {key} is the inventory's")
