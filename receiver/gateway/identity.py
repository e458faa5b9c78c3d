"""Who the peer of a stream is: the one place that says so.

Until nodes have certificates (issue Identity) it is the node id that bcd sends as metadata `bc-node-id`, taken as given.
"""

from collections.abc import Iterable

from bettercompute.contract.ids import is_id

NODE_ID = "bc-node-id"


class NoIdentity(Exception):
    """The peer does not say who it is. `str()` says what is wrong."""


def node_id(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The node id of a stream's peer. Raises NoIdentity.

    >>> node_id([("bc-node-id", "node_01hf7yat000000000000000000")])
    'node_01hf7yat000000000000000000'
    """
    found = [value for key, value in metadata if key == NODE_ID]
    if len(found) != 1 or not isinstance(found[0], str):
        raise NoIdentity(f"metadata {NODE_ID} must be there once, not {len(found)} times")
    if not is_id(found[0], "node"):
        raise NoIdentity(f"{found[0]!r} is no node id: node_ and a lower-case ULID")
    return found[0]
