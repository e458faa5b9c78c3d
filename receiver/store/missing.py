"""Rows of `node_missing_sections`, and how they are written in the statements of others."""

from collections.abc import Iterable, Mapping
from typing import Any

from receiver.planning.missing import ClearMissing, MissingRow, SetMissing
from receiver.store.statement import Statement

# `since` stays when only the error or the source changes.
_SET = """INSERT INTO node_missing_sections (node_id, tenant_id, name, error, source, last_snapshot_id)
  SELECT %(node)s, doc.tenant_id, m.name, m.error, m.source, m.last
  FROM doc, jsonb_to_recordset(d -> 'missing') AS m(name text, error text, source text, last text)
  ON CONFLICT (node_id, name) DO UPDATE
    SET (tenant_id, error, source, last_snapshot_id)
      = (excluded.tenant_id, excluded.error, excluded.source, excluded.last_snapshot_id)"""
_CLEAR = "DELETE FROM node_missing_sections USING doc WHERE node_id = %(node)s AND d -> 'found' ? name"

# The column that a load selects, of the node `n`.
COLUMN = """(SELECT jsonb_object_agg(m.name, jsonb_build_array(m.error, m.source, m.last_snapshot_id))
   FROM node_missing_sections m WHERE m.node_id = n.id)"""


def as_rows(column: Mapping[str, Any] | None) -> dict[str, MissingRow]:
    """The rows that COLUMN selected, by section."""
    return {name: MissingRow(name, *row) for name, row in (column or {}).items()}


def write(statement: Statement, steps: Iterable[object]) -> None:
    """Adds the steps that concern missing sections to a statement."""
    listed = list(steps)
    rows = [step.row for step in listed if isinstance(step, SetMissing)]
    found = [step.name for step in listed if isinstance(step, ClearMissing)]
    if rows:
        values = [{"name": row.name, "error": row.error, "source": row.source, "last": row.last_snapshot_id} for row in rows]
        statement.add("missing", _SET, values)
    if found:
        statement.add("found", _CLEAR, found)
