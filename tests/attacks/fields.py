"""Every text that a message has room for, found in its descriptor, and the message with one of them replaced."""

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
Place = tuple[Any, ...]  # fields, from the outermost message to the text
DEEPEST = 4
KEY = "key"  # what the attacker's map entries are called where the value is the attack

SQL = (
    "'; DROP TABLE nodes CASCADE; --",
    "' OR '1'='1",
    "x' UNION SELECT id, hash FROM api_tokens --",
    "'); DELETE FROM events; --",
    "\\'; SELECT pg_sleep(9); --",
    '" OR ""="',
    "$$; UPDATE nodes SET status = 'deleted'; $$",
    "%s %(node)s :node {0} %",
    "1; COPY nodes TO PROGRAM 'id'",
    "%",
)


def places(descriptor: Any, depth: int = 0) -> Iterator[Place]:
    """Where texts are in a message and in those that it holds."""
    for field in descriptor.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield (field,)
        elif field.message_type is not None and depth < DEEPEST:
            yield from ((field, *rest) for rest in places(field.message_type, depth + 1))


def name_of(place: Place) -> str:
    """A place as a person writes it: `mig.instances.uuid`."""
    return ".".join(field.name for field in place)


def put(message: M, place: Place, text: str) -> M:
    """The same message with this text in that place; in lists and maps one more element has it."""
    inner: Any = message
    for step, field in enumerate(place):
        last = step == len(place) - 1
        if is_map(field):
            value, rest = getattr(inner, field.name), place[step + 1 :]
            _put_entry(value, rest, text)
            return message
        if last and field.is_repeated:
            getattr(inner, field.name).append(text)
        elif last:
            setattr(inner, field.name, text)
        else:
            inner = getattr(inner, field.name).add() if field.is_repeated else getattr(inner, field.name)
    return message


def is_map(field: Any) -> bool:
    """Whether a field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _put_entry(entries: Any, rest: Place, text: str) -> None:
    held = entries.GetEntryClass().DESCRIPTOR.fields_by_name["value"].message_type
    if rest[0].name == "key" and held:
        entries[text].SetInParent()
    elif rest[0].name == "key":
        entries[text] = "value"
    elif held:
        put(entries[KEY], rest[1:], text)
    else:
        entries[KEY] = text
