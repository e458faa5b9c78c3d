"""A call that changes something: who calls, in which transaction, what of the fleet it is about, and its audit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from receiver import ids
from receiver.errors import Invalid, NotFound, OverLimit, Refused
from receiver.events import event
from receiver.read.tokens import Scope
from receiver.store.database import Connection
from receiver.store.words import jsonb
from receiver.values import ALL, REASON_BYTES, Json, Payload


@dataclass(frozen=True, slots=True)
class Subject:
    """What a call is about, as events name it."""

    tenant_id: str
    pool_id: str | None = None
    node_id: str | None = None


# How a thing is found: its tenant, pool and node.
_FIND: Mapping[str, str] = {
    "node": "SELECT tenant_id, pool_id, id FROM nodes WHERE id = %s",
    "device": "SELECT n.tenant_id, n.pool_id, n.id FROM devices d JOIN nodes n ON n.id = d.node_id WHERE d.id = %s",
    "command": "SELECT c.tenant_id, n.pool_id, n.id FROM commands c JOIN nodes n ON n.id = c.node_id WHERE c.id = %s",
    "run": "SELECT r.tenant_id, r.pool_id, r.node_id FROM remediation_runs r WHERE r.id = %s",
    "pool": "SELECT tenant_id, id, NULL FROM pools WHERE id = %s",
    "token": "SELECT tenant_id, NULL, NULL FROM api_tokens WHERE id = %s",
    "join token": "SELECT tenant_id, pool_id, node_id FROM join_tokens WHERE id = %s",
}


@dataclass(frozen=True, slots=True)
class Joining:
    """What a node has to know to join: the address ("host:port"), and the CAs of receivers' certificates in DER."""

    address: str
    server_ca: tuple[bytes, ...]


def _nowhere() -> Joining:
    raise Refused("this receiver takes no nodes in")


@dataclass(frozen=True, slots=True)
class Call:
    """`tx`: the transaction, which is committed when the method returns. `tenant`: of new things, where the caller has all.

    `joining` says where nodes join; it raises Refused where they cannot.
    """

    tx: Connection
    scope: Scope
    method: str
    request: Any
    tenant: str = "default"
    mint: ids.Mint = ids.mint
    joining: Callable[[], Joining] = _nowhere

    @property
    def reason(self) -> str:
        """Why, in the caller's words; empty where it may be left out and was."""
        return str(self.request.reason)

    @property
    def by(self) -> str:
        """Who calls."""
        return self.scope.by

    def required(self, key: str) -> str:
        """A text of the request that must be there. Raises Invalid that names it as the command line does."""
        text = str(getattr(self.request, key))
        if not text:
            raise Invalid(f"{self.request.DESCRIPTOR.fields_by_name[key].json_name} is needed")
        return text

    def given(self, key: str) -> str | None:
        """A text that may be left out, then None."""
        return str(getattr(self.request, key)) if self.request.HasField(key) else None

    def moment(self, key: str) -> datetime | None:
        """A time that may be left out, then None."""
        return getattr(self.request, key).ToDatetime(UTC) if self.request.HasField(key) else None

    def about(self, kind: str, name: str) -> Subject:
        """A thing by its id. Raises NotFound, also for one of another tenant."""
        row = self.tx.execute(_FIND[kind].encode(), [name]).fetchone()
        if row is None or self.scope.tenant not in (ALL, row[0]):
            raise NotFound(f"no {kind} {name}")
        return Subject(*row)

    def word(self, key: str, allowed: tuple[str, ...]) -> str:
        """A word of the request that must be one of these. Raises Invalid that lists them."""
        text = self.required(key)
        if text not in allowed:
            raise Invalid(f"{key} {text[:64]!r} is none of {', '.join(allowed)}")
        return text


def check_reason(reason: str, needed: bool) -> None:
    """Raises Invalid for a reason that is missing though needed, or too long."""
    if needed and not reason.strip():
        raise Invalid("reason is needed: it is kept for whoever asks later")
    if len(reason.encode()) > REASON_BYTES:
        raise OverLimit("bytes a reason", f"reason has {len(reason.encode()):,} bytes; it may have {REASON_BYTES:,}")


def audit(call: Call, subject: Subject) -> None:
    """Publishes `api.write` (SPEC B9), in the transaction of what it tells."""
    told: dict[str, Json] = {"method": call.method, "by": call.by, "request": asked(call.request)}
    if call.reason:
        told["reason"] = call.reason
    one = event("api.write", told)
    call.tx.execute(
        "INSERT INTO events (id, tenant_id, pool_id, node_id, type, payload) VALUES (%s, %s, %s, %s, %s, %s)",
        [call.mint("evt"), subject.tenant_id, subject.pool_id, subject.node_id, one.type, jsonb(dict(one.payload))],
    )


def asked(request: Message) -> Payload:
    """What a request says, as JSON, without its reason, which the audit has beside it."""
    said: dict[str, Json] = plain(json_format.MessageToDict(request))
    said.pop("reason", None)
    return said


def plain(value: Json) -> Json:
    """JSON as people write it: numbers of a Struct are doubles, the whole ones are meant as such.

    >>> plain({"gpuCount": 8.0, "share": [0.5]})
    {'gpuCount': 8, 'share': [0.5]}
    """
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
