"""Whether a tenant has root on a node (SPEC B2, "Trust").

While one has, what the node says changes nothing: `Facts.advisory`, which every writer asks. A lease's end raises the node's
`trust_epoch`: a session begun before it is advisory for ever, and ends (apply/session.py, `disbelieve`). The tenant may have
read the node's key: its certificates are revoked, and the machine comes back by a join with a token bound to it.
"""

from dataclasses import replace

from receiver import ids
from receiver.apply.act import act
from receiver.apply.repairs import settle
from receiver.apply.session import disbelieve
from receiver.errors import Invalid, Refused
from receiver.planning import acceptance, lifecycle
from receiver.planning.view import Draft, Facts
from receiver.store.database import Connection
from receiver.values import TRUSTS


def set_trust(
    tx: Connection,
    node_id: str,
    trust: str,
    lease_id: str | None = None,
    by: str = "",
    reason: str = "",
    mint: ids.Mint = ids.mint,
    keep_certificate: bool = False,
) -> Draft:
    """Says whose the node is from now on: the platform's, or "tenant-controlled" under a lease.

    Saying it again changes nothing. `keep_certificate`: as of end_advisory_inventory. Raises LookupError for a node that does
    not exist, Invalid for another word or a missing lease, Refused while another lease has the node.
    """
    if trust == "platform":
        return end_advisory_inventory(tx, node_id, lease_id, by, reason, mint, keep_certificate)
    if trust not in TRUSTS:
        raise Invalid(f"trust {trust!r} is not one of {', '.join(TRUSTS)}")
    if keep_certificate:
        raise Invalid("keepCertificate is said at the end of a lease, with trust=platform")
    if not lease_id:
        raise Invalid("leaseId is needed: a node is tenant-controlled for the time of a lease")

    def begin(facts: Facts, draft: Draft) -> None:
        lifecycle.refuse_out(draft, trust)
        _refuse_other_lease(draft, lease_id)
        draft.node = replace(draft.node, trust=trust, lease_id=lease_id)
        acceptance.interrupt(draft)

    draft = act(tx, node_id, begin, mint=mint)
    return settle(tx, node_id, mint) if draft.runs else draft


def end_advisory_inventory(
    tx: Connection,
    node_id: str,
    lease_id: str | None = None,
    by: str = "",
    reason: str = "",
    mint: ids.Mint = ids.mint,
    keep_certificate: bool = False,
) -> Draft:
    """The node is the platform's again: its advisory digest goes, so that its next inventory is applied for real even if it is
    the applied one, its certificates are revoked, and its session ends. What the tenant said stays advisory.

    `keep_certificate`: the key never left a TPM, so nobody else has it: the node begins another session with it.
    `lease_id`: only if it is this one that has the node, so that a late end of one lease does not end the next (Refused). Of a
    node that is the platform's it changes nothing. Raises LookupError for a node that does not exist.
    """
    ended = False

    def end(facts: Facts, draft: Draft) -> None:
        nonlocal ended
        ended = draft.node.trust != "platform"
        if ended:
            _refuse_other_lease(draft, lease_id)
            draft.node = replace(draft.node, trust="platform", lease_id=None)
            lifecycle.disbelieve(draft)

    draft = act(tx, node_id, end, mint=mint)
    if ended:
        disbelieve(tx, node_id, revoke=None if keep_certificate else "lease-ended")
    return draft


def _refuse_other_lease(draft: Draft, lease_id: str | None) -> None:
    node = draft.node
    if node.trust != "platform" and lease_id and node.lease_id not in (None, lease_id):
        raise Refused(f"lease {node.lease_id} has the node, not {lease_id}")
