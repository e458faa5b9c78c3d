"""`pools.*` that change something: what a pool may be, checked key by key, and what does not go on in it."""

import difflib
import re
from collections.abc import Mapping

from bettercompute.contract.gpu_models import in_force
from google.protobuf import json_format

from receiver import values
from receiver.apply import hygiene, pool_stops, pools
from receiver.errors import Invalid
from receiver.operate.call import Call, plain
from receiver.planning.policy import PolicyError, parse
from receiver.values import ALL, Payload

_WORDS: Mapping[str, tuple[str, ...]] = {
    "kind": values.POOL_KINDS,
    "sharing": values.SHARINGS,
    "mode": values.POOL_MODES,
}
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def create(call: Call) -> str:
    """A new pool; its id."""
    call.required("name")
    tenant = call.tenant if call.scope.tenant == ALL else call.scope.tenant
    settings = {"name": _name(call.request.name), **_settings(call)}
    return pools.create(call.tx, tenant, settings, pools.merge({}, _policy(call)), mint=call.mint)


def change(call: Call, pool_id: str) -> None:
    """What is named of a pool is set."""
    settings = _settings(call)
    if (name := call.given("name")) is not None:
        settings["name"] = _name(name)
    if not settings and not call.request.HasField("policy"):
        raise Invalid("nothing to set: name, kind, gpuModel, sharing, mode or policy is needed")
    pools.change(call.tx, pool_id, settings, _policy(call))


def delete(call: Call, pool_id: str) -> None:
    """A pool that no node is in goes."""
    pools.delete(call.tx, pool_id)


def resume(call: Call, pool_id: str) -> None:
    """Repairs that the breaker has paused go on."""
    pool_stops.resume(call.tx, pool_id, call.by, mint=call.mint)


def confirm(call: Call, pool_id: str) -> None:
    """A condition that hygiene has found on too many nodes of the pool is raised nevertheless."""
    tenant_id = call.about("pool", pool_id).tenant_id
    hygiene.confirm(call.tx, tenant_id, pool_id, call.required("condition"), call.by)


def maintenance(call: Call, pool_id: str) -> None:
    """A person has the whole pool, perhaps until a time, or has it no more."""
    until = call.moment("until")
    if not call.request.end:
        pool_stops.begin_maintenance(call.tx, pool_id, call.by, call.reason, until)
    elif until is None:
        pool_stops.end_maintenance(call.tx, pool_id, call.by)
    else:
        raise Invalid("until and end: a maintenance either goes on until then, or ends now")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise Invalid(f"name {text[:64]!r} is none: 1 to 63 of A-Z a-z 0-9 . _ -, a letter or digit first and last")
    return text


def _settings(call: Call) -> dict[str, str | None]:
    """The words of the request that are given, and the GPU model."""
    found: dict[str, str | None] = {
        key: call.word(key, allowed) for key, allowed in _WORDS.items() if call.given(key) is not None
    }
    model = call.given("gpu_model")
    if model is not None:
        found["gpu_model"] = _model(model)
    return found


def _model(text: str) -> str | None:
    """A model of the table; empty: any."""
    if text and text not in in_force().families:
        near = difflib.get_close_matches(text.upper(), in_force().families, 3, 0.5)
        hint = f": did you mean {' or '.join(near)}?" if near else ""
        raise Invalid(f"gpuModel {text[:64]!r} is none of the models that GPUs are named by{hint}")
    return text or None


def _policy(call: Call) -> Payload:
    """The policy of the request, each key that is not null checked. Raises Invalid."""
    if not call.request.HasField("policy"):
        return {}
    try:
        given: Payload = plain(json_format.MessageToDict(call.request.policy))
    except (ValueError, json_format.SerializeToJsonError):
        raise Invalid("policy has a number that is none in JSON: NaN or infinite") from None
    try:
        parse({name: value for name, value in given.items() if value is not None}, strict=True)
    except PolicyError as error:
        raise Invalid(str(error)) from None
    return given
