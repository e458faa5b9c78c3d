"""What answers have in common: times, keys of requests, JSON values, and what only the platform's operators see."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from receiver.errors import Invalid
from receiver.planning.selector import Selector, SelectorError
from receiver.planning.selector import parse as parse_selector
from receiver.read.tokens import Scope
from receiver.values import Json, Payload

PAGE = 100  # rows, where the request does not say
_NUMBER = re.compile(r"\s*[0-9]+")


def stamp(moment: datetime | None) -> Timestamp | None:
    """A time as a message; None stays so."""
    if moment is None:
        return None
    made = Timestamp()
    made.FromDatetime(moment)
    return made


def optional(request: Message, name: str) -> Any:
    """A key that may be absent, then None."""
    return getattr(request, name) if request.HasField(name) else None


def required(request: Message, name: str) -> str:
    """A key that must be there. Raises Invalid that names it as the command line does."""
    value: str = getattr(request, name)
    if not value:
        raise Invalid(f"{request.DESCRIPTOR.fields_by_name[name].json_name} is needed")
    return value


def one_of(request: Message, name: str, allowed: Sequence[str]) -> str | None:
    """A word of the request that must be one of these, or None where it is left out. Raises Invalid that lists them."""
    word: str | None = optional(request, name)
    if word is not None and word not in allowed:
        raise Invalid(f"{request.DESCRIPTOR.fields_by_name[name].json_name} {word[:64]!r} is none of {', '.join(allowed)}")
    return word


def small(count: int) -> int:
    """A count that a node tells, as 32 bits hold it: JSON has those as numbers, and no honest one is as large."""
    return min(count, (1 << 32) - 1)


def selector(text: str) -> Selector:
    """A selector of nodes by their labels. Raises Invalid that names the position."""
    try:
        return parse_selector(text)
    except SelectorError as error:
        raise Invalid(f"selector: {error}") from None


def value(json: Json) -> Value:
    """JSON as a message."""
    return json_format.ParseDict(json, Value())


def struct(json: Payload | None) -> Struct:
    """A JSON object as a message, without what is absent."""
    made = Struct()
    made.update({name: one for name, one in (json or {}).items() if one is not None})
    return made


def xid_message(scope: Scope, message: str) -> str:
    """An XID's message, which names processes: cut after the number for who is not of the platform (SPEC B9)."""
    if scope.platform:
        return message
    number = _NUMBER.match(message)
    return number[0].strip() if number else ""


def without_names(scope: Scope, value: Json) -> Json:
    """JSON as who is not of the platform sees it: XIDs' messages cut; who uses a GPU left out, with the words that name them."""
    if scope.platform:
        return value
    if isinstance(value, list):
        return [without_names(scope, one) for one in value]
    if not isinstance(value, dict):
        return value
    hidden = ("users", "message") if "users" in value else ()
    shown = {key: without_names(scope, one) for key, one in value.items() if key not in hidden}
    return xid_detail(scope, shown) if "xid" in shown or shown.get("source") == "xid" else shown


def xid_detail(scope: Scope, detail: Mapping[str, Json]) -> Payload:
    """The same for an object that has a `message`."""
    return {**detail, "message": xid_message(scope, str(detail["message"]))} if "message" in detail else detail
