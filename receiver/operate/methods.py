"""The methods that change something, a row each: what the caller must be allowed, what it is about, what it does, its answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from bettercompute.contract.tokens import JoinString, Token
from bettercompute.control.v1 import devices_pb2, join_tokens_pb2, pools_pb2, tokens_pb2
from google.protobuf.message import Message
from sqlalchemy import Engine
from sqlalchemy.engine import Connection

from receiver.apply.health import ClearOutcome
from receiver.operate import devices, join_tokens, nodes, orders, pools, tokens
from receiver.operate.call import Call, Joining, audit, check_reason
from receiver.read import queries
from receiver.read.answers import commands as command_answers
from receiver.read.answers import devices as device_answers
from receiver.read.answers import nodes as node_answers
from receiver.read.answers import pools as pool_answers
from receiver.read.answers import remediation as remediation_answers
from receiver.read.answers import tokens as token_answers
from receiver.read.api import Run, Who
from receiver.read.tokens import Scope
from receiver.store.database import Pool, transact
from receiver.values import ADMIN, PROVISION


@dataclass(frozen=True, slots=True)
class Write:
    """A method that changes something.

    `about`: the thing that it is about, by its kind and id, or None for a new one. `act`: changes it, in the transaction, given
    its id. `answer`: the response, from what `act` gave or else the id, read after the commit. `reason`: whether one is needed.
    `new`: the kind of a new one, and its id from what `act` gave.
    """

    about: Callable[[Call], tuple[str, str]] | None
    act: Callable[..., Any]
    answer: Callable[[Connection, Scope, Any], Message]
    permission: str = PROVISION
    reason: bool = True
    new: tuple[str, Callable[[Any], str]] = ("pool", str)


def _named(kind: str, key: str) -> Callable[[Call], tuple[str, str]]:
    return lambda call: (kind, call.required(key))


def _on_node(act: Callable[[Call, str], None], permission: str = PROVISION, reason: bool = True) -> Write:
    return Write(_named("node", "node_id"), act, _node, permission, reason)


def _node(db: Connection, scope: Scope, node_id: str) -> Message:
    return node_answers.messages(db, scope, [queries.node(db, scope, node_id)])[0]


def _device(db: Connection, scope: Scope, device_id: str) -> Message:
    return device_answers.message(db, scope, device_id)


def _pool(db: Connection, scope: Scope, pool_id: str) -> Message:
    return pool_answers.message(db, scope, pool_id)


def _gone(db: Connection, scope: Scope, pool_id: str) -> Message:
    return pools_pb2.PoolsServiceDeleteResponse(pool_id=pool_id)


def _cleared(db: Connection, scope: Scope, outcome: ClearOutcome) -> Message:
    return devices_pb2.DevicesServiceClearResponse(
        device_id=outcome.device_id,
        node_id=outcome.node_id,
        closed=outcome.closed,
        healthy=outcome.healthy,
        stands=outcome.stands,
    )


def _command(db: Connection, scope: Scope, command_id: str) -> Message:
    return command_answers.message(db, scope, command_id)


def _run(db: Connection, scope: Scope, run_id: str) -> Message:
    return remediation_answers.message(db, scope, run_id)


def _token_made(db: Connection, scope: Scope, made: Token) -> Message:
    return tokens_pb2.TokensServiceCreateResponse(token=made.text, facts=token_answers.message(db, scope, made.id))


def _join_token_made(db: Connection, scope: Scope, made: JoinString) -> Message:
    facts = token_answers.join_message(db, scope, made.token.id)
    return join_tokens_pb2.JoinTokensServiceCreateResponse(token=made.text, facts=facts)


def _token(db: Connection, scope: Scope, token_id: str) -> Message:
    return token_answers.message(db, scope, token_id)


def _join_token(db: Connection, scope: Scope, token_id: str) -> Message:
    return token_answers.join_message(db, scope, token_id)


WRITES: Mapping[str, Write] = {
    "nodes.adopt": _on_node(nodes.adopt),
    "nodes.maintenance": _on_node(nodes.maintenance),
    "nodes.retire": _on_node(nodes.retire),
    "nodes.delete": _on_node(nodes.delete),
    "nodes.move": _on_node(nodes.move),
    "nodes.label": _on_node(nodes.label),
    "nodes.resolveIdentity": _on_node(nodes.identity),
    "nodes.setTrust": _on_node(nodes.trust, ADMIN, reason=False),
    "devices.clear": Write(lambda call: ("node", devices.node_with(call)), devices.clear, _cleared),
    "devices.transfer": Write(_named("device", "device_id"), devices.transfer, _device),
    "devices.reset": Write(_named("device", "device_id"), orders.reset, _run),
    "nodes.reboot": Write(_named("node", "node_id"), orders.reboot, _run),
    "nodes.diag": Write(_named("node", "node_id"), orders.diag, _run),
    "remediation.cancel": Write(_named("run", "run_id"), orders.cancel_run, _run),
    "inventory.refresh": Write(_named("node", "node_id"), orders.refresh, _command),
    "commands.cancel": Write(_named("command", "command_id"), orders.cancel_command, _command),
    "pools.create": Write(None, pools.create, _pool, ADMIN, reason=False),
    "pools.set": Write(_named("pool", "pool_id"), pools.change, _pool, ADMIN, reason=False),
    "pools.delete": Write(_named("pool", "pool_id"), pools.delete, _gone, ADMIN, reason=False),
    "pools.confirmHygiene": Write(_named("pool", "pool_id"), pools.confirm, _pool, ADMIN),
    "pools.maintenance": Write(_named("pool", "pool_id"), pools.maintenance, _pool, ADMIN),
    "pools.resumeRemediation": Write(_named("pool", "pool_id"), pools.resume, _pool, ADMIN),
    "tokens.create": Write(None, tokens.create, _token_made, ADMIN, reason=False, new=("token", attrgetter("id"))),
    "tokens.revoke": Write(_named("token", "token_id"), tokens.revoke, _token, ADMIN),
    "joinTokens.create": Write(
        None, join_tokens.create, _join_token_made, ADMIN, reason=False, new=("join token", attrgetter("token.id"))
    ),
    "joinTokens.revoke": Write(_named("join token", "token_id"), join_tokens.revoke, _join_token, ADMIN),
}


def runners(pool: Pool, tenant: str, joining: Callable[[], Joining]) -> dict[str, Run]:
    """The methods as the API runs them, over this pool of connections.

    `tenant`: of new pools and nodes, where the caller has all. `joining`: where nodes join; raises Refused.
    """
    return {name: _runner(pool, tenant, joining, name, row) for name, row in WRITES.items()}


def _runner(pool: Pool, tenant: str, joining: Callable[[], Joining], name: str, row: Write) -> Run:
    def run(engine: Engine, who: Who, request: Any) -> Message:
        with engine.connect() as db:
            scope = who(db)
        scope.require(row.permission, name)
        check_reason(request.reason, row.reason)
        result = transact(pool, lambda tx: perform(Call(tx, scope, name, request, tenant, joining=joining), row))
        with engine.connect() as db:
            return row.answer(db, scope, result)

    return run


def perform(call: Call, row: Write) -> Any:
    """Does what a call asks for, and audits it, in the call's transaction. Answers what the method's `answer` is made of."""
    if row.about is None:
        made = row.act(call)
        kind, id_of = row.new
        audit(call, call.about(kind, id_of(made)))
        return made
    kind, key = row.about(call)
    subject = call.about(kind, key)
    result = row.act(call, key)
    audit(call, subject)
    return key if result is None else result
