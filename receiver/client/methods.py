"""The API's methods as the command line names them, read from the descriptors of `bettercompute.control.v1`.

`InventoryService.Get` is `inventory.get`; the fields of its request are its keys. One more method costs its .proto entry and its
handler: nothing here.
"""

import difflib
import importlib
import json
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from bettercompute.control import v1
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

# Descriptors of the C and of the Python implementation: the type stubs do not unite the two.
Field: TypeAlias = Any
Descriptor: TypeAlias = Any

OWN = "bettercompute.control.v1."
TIMESTAMP = "google.protobuf.Timestamp"
MESSAGES = {TIMESTAMP: "a time such as 2026-11-29T16:20:01Z", "google.protobuf.Struct": "a JSON object"}
INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}


class UsageError(Exception):
    """What a person typed cannot be sent. `str()` says why; `hint` what to type instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Method:
    """One method: its name, its gRPC path, its messages, and whether it answers with a stream."""

    name: str
    path: str
    request: type[Message]
    response: type[Message]
    streaming: bool

    @property
    def keys(self) -> Mapping[str, Field]:
        """Its request's fields by JSON name."""
        return {field.json_name: field for field in self.request.DESCRIPTOR.fields}


def name_of(method: Descriptor) -> str:
    """What a method is called: `InventoryService.Get` is `inventory.get`."""
    words = (method.containing_service.name.removesuffix("Service"), method.name)
    return ".".join(word[:1].lower() + word[1:] for word in words)


def methods() -> dict[str, Method]:
    """Every method of every service in bettercompute/control/v1, by name, sorted."""
    found = {}
    for module in pkgutil.iter_modules(v1.__path__):
        if not module.name.endswith("_pb2"):
            continue
        file = importlib.import_module(f"{v1.__name__}.{module.name}").DESCRIPTOR
        for service in file.services_by_name.values():
            for method in service.methods:
                name = name_of(method)
                found[name] = Method(
                    name,
                    f"/{service.full_name}/{method.name}",
                    message_factory.GetMessageClass(method.input_type),
                    message_factory.GetMessageClass(method.output_type),
                    method.server_streaming,
                )
    return dict(sorted(found.items()))


def find(name: str) -> Method:
    """The method called `name`. Raises UsageError that lists the methods, the near ones first."""
    known = methods()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"unknown method {name!r}", f"{hint}methods: {', '.join(known)}")


def parse(method: Method, pairs: Sequence[str]) -> Message:
    """`key=value` words as the method's request. Raises UsageError that names the key, its type, or the valid keys."""
    request = method.request()
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"{pair!r} is not key=value", f"keys of {method.name}: {_keys(method)}")
        field = method.keys.get(key) or method.request.DESCRIPTOR.fields_by_name.get(key)
        if field is None:
            near = difflib.get_close_matches(key, method.keys, 2, 0.5)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise UsageError(f"{method.name} has no key {key!r}", f"{hint}keys of {method.name}: {_keys(method)}")
        try:
            json_format.ParseDict({field.json_name: value_of(field, text)}, request)
        except (ValueError, json_format.ParseError) as error:
            raise UsageError(f"{field.json_name}={text!r} is not {type_name(field)}", f"keys: {_keys(method)}") from error
    return request


def _keys(method: Method) -> str:
    return ", ".join(f"{name} ({type_name(field)})" for name, field in method.keys.items()) or "none"


def type_name(field: Field) -> str:
    """The type of a key as a person calls it.

    >>> type_name(methods()["inventory.history"].keys["limit"])
    'a whole number, not negative'
    """
    if _is_map(field):
        return "key=value,key=value,... or a JSON object"
    one = _scalar_type(field)
    return f"a list: {one}, {one}, ..." if field.is_repeated else one


def _is_map(field: Field) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _scalar_type(field: Field) -> str:
    kind = field.cpp_type
    if kind in INTEGERS:
        unsigned = kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
        return "a whole number, not negative" if unsigned else "a whole number"
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return " or ".join(value.name for value in field.enum_type.values)
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return MESSAGES.get(field.message_type.full_name, "JSON")
    return {FieldDescriptor.CPPTYPE_BOOL: "true or false", FieldDescriptor.CPPTYPE_STRING: "text"}.get(kind, "a number")


def value_of(field: Field, text: str) -> Any:
    """`text` as the JSON value that `field` takes; a list is split at commas, and so are pairs. Raises ValueError."""
    if _is_map(field) and not text.lstrip().startswith("{"):
        return _pairs(text)
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE and field.message_type.full_name != TIMESTAMP:
        return json.loads(text)
    if field.is_repeated:
        return [_scalar(field, part.strip()) for part in text.split(",") if part.strip()]
    return _scalar(field, text)


def _pairs(text: str) -> dict[str, str]:
    """
    >>> _pairs("rack=r12,cost=a=b")
    {'rack': 'r12', 'cost': 'a=b'}
    """
    split = [part.partition("=") for part in text.split(",")]
    if not all(name.strip() and equals for name, equals, _ in split):
        raise ValueError("say key=value,key=value")
    return {name.strip(): value.strip() for name, _, value in split}


def _scalar(field: Field, text: str) -> Any:
    if field.cpp_type in INTEGERS:
        return int(text)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if text not in ("true", "false"):
            raise ValueError("say true or false")
        return text == "true"
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return float(text)
    return text


def answer(message: Message) -> dict[str, Any]:
    """An answer as JSON values: the proto3 JSON mapping with defaults shown, in the order of the .proto.

    In the API's own messages an absent `optional` or time is null (SPEC B9); in a section it is left out (SPEC A1).
    """
    plain = json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    return _arrange(message.DESCRIPTOR, plain)


def _arrange(descriptor: Descriptor, value: Mapping[str, Any]) -> dict[str, Any]:
    own = descriptor.full_name.startswith(OWN)
    out: dict[str, Any] = {}
    for field in descriptor.fields:
        if field.json_name in value:
            out[field.json_name] = _nested(field, value[field.json_name])
        elif own and (field.message_type is None or field.message_type.full_name.startswith("google.protobuf.")):
            out[field.json_name] = None
    return out


def _nested(field: Field, value: Any) -> Any:
    inner = field.message_type
    if inner is None:
        return value
    if inner.full_name.startswith("google.protobuf."):
        return _whole(value)
    if inner.GetOptions().map_entry:
        return dict(sorted(value.items()))
    if field.is_repeated:
        return [_arrange(inner, one) for one in value]
    return _arrange(inner, value)


def _whole(value: Any) -> Any:
    """A Struct as a person reads it: its numbers are doubles, the whole ones shown as such; its keys have no order, so sorted."""
    if isinstance(value, dict):
        return {key: _whole(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
