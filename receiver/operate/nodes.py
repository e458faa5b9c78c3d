"""`nodes.*` that change something. Each function gets the call and the node's id, which the caller may see."""

from receiver.apply import nodes
from receiver.apply.identity import ACTIONS, resolve_identity
from receiver.apply.trust import set_trust
from receiver.errors import Invalid, NotFound, Refused
from receiver.operate.call import Call
from receiver.values import TRUSTS

_OTHERS = """SELECT DISTINCT evidence ->> 'otherNode' FROM conditions
WHERE node_id = %s AND type = 'DuplicateIdentity' AND status = 'true' AND evidence ? 'otherNode'"""


def adopt(call: Call, node_id: str) -> None:
    """Back to adopting: it must pass again."""
    nodes.adopt(call.tx, node_id, by=call.by, reason=call.reason, mint=call.mint)


def maintenance(call: Call, node_id: str) -> None:
    """A person has it, perhaps until a time."""
    nodes.maintenance(call.tx, node_id, call.moment("until"), by=call.by, reason=call.reason, mint=call.mint)


def retire(call: Call, node_id: str) -> None:
    """Out for good."""
    nodes.retire(call.tx, node_id, by=call.by, reason=call.reason, mint=call.mint)


def delete(call: Call, node_id: str) -> None:
    """Only a tombstone is left."""
    nodes.delete(call.tx, node_id, by=call.by, reason=call.reason, mint=call.mint)


def move(call: Call, node_id: str) -> None:
    """Into another pool, or with an empty `poolId` out of any: one that is forgotten moves nothing."""
    pool_id = call.given("pool_id")
    if pool_id is None:
        raise Invalid("poolId is needed; poolId= with nothing moves the node out of its pool")
    if pool_id:
        call.about("pool", pool_id)
    nodes.move(call.tx, node_id, pool_id or None, by=call.by, reason=call.reason, mint=call.mint)


def label(call: Call, node_id: str) -> None:
    """Labels of source operator, written and removed."""
    labels, remove = dict(call.request.labels), tuple(call.request.remove)
    if not labels and not remove:
        raise Invalid("labels or remove is needed: labels=rack=r12,row=b remove=zone")
    nodes.label(call.tx, node_id, labels, remove, by=call.by, reason=call.reason, mint=call.mint)


def trust(call: Call, node_id: str) -> None:
    """Whose the node is from now on."""
    word, keep = call.word("trust", TRUSTS), call.request.keep_certificate
    set_trust(call.tx, node_id, word, call.given("lease_id"), call.by, call.reason, call.mint, keep)


def identity(call: Call, node_id: str) -> None:
    """Ends a DuplicateIdentity; what it does to the other node, too, the caller must be allowed to see."""
    action = call.word("action", tuple(ACTIONS))
    if action != "reject":
        for (other,) in call.tx.execute(_OTHERS, [node_id]).fetchall():
            try:
                call.about("node", other)
            except NotFound:
                raise Refused(f"{action} would change node {other}, which is of another tenant: ask the platform") from None
    resolve_identity(call.tx, node_id, action, by=call.by, reason=call.reason, mint=call.mint)
