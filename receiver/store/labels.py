"""Rows of node_labels that no plan writes: those of source `system`."""

from collections.abc import Mapping

from receiver.store.database import Connection
from receiver.store.words import jsonb

# A row that is there as wanted is neither written nor locked.
_SYSTEM = """
WITH node AS (
    SELECT id, tenant_id FROM nodes
    WHERE id = %(node)s AND epoch = %(epoch)s AND trust = 'platform' AND session_trust_epoch >= trust_epoch),
  wanted AS (SELECT key, value FROM jsonb_each_text(%(labels)s)),
  gone AS (
    DELETE FROM node_labels l USING node
    WHERE l.node_id = node.id AND l.source = 'system' AND NOT EXISTS (SELECT FROM wanted w WHERE w.key = l.key))
INSERT INTO node_labels (node_id, tenant_id, key, value, source)
  SELECT node.id, node.tenant_id, w.key, w.value, 'system' FROM node, wanted w
  WHERE NOT EXISTS (
    SELECT FROM node_labels l WHERE l.node_id = node.id AND (l.key, l.value, l.source) = (w.key, w.value, 'system'))
  ON CONFLICT (node_id, key) DO UPDATE SET value = excluded.value, source = excluded.source
"""


def set_system_labels(tx: Connection, node_id: str, epoch: int, labels: Mapping[str, str]) -> None:
    """The node's labels of source `system` are exactly these, in one statement that writes only what differs.

    Nothing is written for a session that is not the node's present one, nor for one that a tenant has or had.
    """
    tx.execute(_SYSTEM, {"node": node_id, "epoch": epoch, "labels": jsonb(dict(labels))})
