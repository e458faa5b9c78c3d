"""`joinTokens.create`, `joinTokens.revoke` (SPEC B1)."""

from bettercompute.contract.tokens import JoinString

from receiver.errors import Invalid, OverLimit, Refused
from receiver.operate import tokens
from receiver.operate.call import Call
from receiver.store import tokens as rows
from receiver.values import ALL, NODE_KINDS, TOKEN_USES

LIFE = "1h"  # where the call does not say


def create(call: Call) -> JoinString:
    """A new token, with its secret, and with what a node has to know to join."""
    joining = call.joining()
    node_id = call.given("node_id")
    uses = _uses(call)
    tenant_id, kind = _bound(call, node_id) if node_id is not None else _unbound(call)
    made = tokens.new(call.mint)
    rows.add_join(
        call.tx,
        made,
        tenant_id,
        pool_id=call.given("pool_id") or None,
        kind=kind,
        node_id=node_id,
        uses=uses,
        by=call.by,
        life=tokens.life(call.request.expires_in, LIFE),
    )
    return JoinString(made, joining.address, joining.server_ca)


def revoke(call: Call, token_id: str) -> None:
    """Nobody joins with it any more. Nodes that have stay."""
    rows.revoke_join(call.tx, token_id)


def _uses(call: Call) -> int:
    uses = call.request.uses or 1
    if uses > TOKEN_USES:
        raise OverLimit("uses a join token", f"uses is {uses:,}; a join token has at most {TOKEN_USES:,}")
    return int(uses)


def _unbound(call: Call) -> tuple[str, str]:
    """For new nodes: their tenant, and their kind."""
    kind = call.word("kind", NODE_KINDS) if call.given("kind") is not None else NODE_KINDS[0]
    if pool_id := call.given("pool_id"):
        return call.about("pool", pool_id).tenant_id, kind
    return (call.tenant if call.scope.tenant == ALL else call.scope.tenant), kind


def _bound(call: Call, node_id: str) -> tuple[str, str]:
    """For one node that comes back as what it was: its tenant, and its kind."""
    tenant_id = call.about("node", node_id).tenant_id
    for key in ("pool_id", "kind"):
        if call.given(key) is not None:
            name = call.request.DESCRIPTOR.fields_by_name[key].json_name
            raise Invalid(f"{name} and nodeId: a node that comes back keeps what it is; leave one out")
    if call.request.uses > 1:
        raise Invalid(f"uses is {call.request.uses}; a token that is bound to a node is used once")
    kind, status = call.tx.execute("SELECT kind, status FROM nodes WHERE id = %s", [node_id]).fetchall()[0]
    if status == "deleted":
        raise Refused(f"node {node_id} is deleted: join it as a new one, with a token that names no node")
    return tenant_id, str(kind)
