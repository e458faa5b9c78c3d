"""One statement that writes a whole plan: arms over one jsonb document, and the columns of the node that change.

A round trip a row would be 3 to 10 times slower (measured). Only the arms that have something to write are in it, so that there
are few different texts and each is small.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from receiver.store.database import Connection
from receiver.store.words import jsonb
from receiver.values import Payload

NODE = "node"
NOTICES = "notices"
# Sends what the document has as notices, (channel, payload), when the transaction commits.
NOTIFY = f"""(SELECT count(pg_notify(one.channel, one.payload))
  FROM jsonb_to_recordset(d -> '{NOTICES}') AS one(channel text, payload text))"""


@dataclass(slots=True)
class Statement:
    """A statement under construction. Its arms read `doc(d, tenant_id)`, with the node's tenant, and `%(node)s`, the node.

    `guard`: SQL that is false when nothing may be written. `columns` of the node, and `expressions` for those that are not simply
    the document's value: `a` is the node's record in the document, `nodes` the row as it is.
    """

    node_id: str
    guard: str = ""
    arms: dict[str, str] = field(default_factory=dict)
    doc: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    expressions: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    notices: list[Payload] = field(default_factory=list)

    def add(self, name: str, sql: str, value: Any = None) -> None:
        """An arm, and what it reads of the document as `d -> '<name>'`."""
        self.arms[name] = sql
        if value is not None:
            self.doc[name] = value

    def set(self, column: str, value: Any = None, expression: str = "") -> None:
        """A column of the node: a value, or an SQL expression (which may read the value)."""
        self.columns[column] = value
        if expression:
            self.expressions[column] = expression

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.arms and not self.columns

    def run(self, tx: Connection) -> bool:
        """Writes and, at commit, notifies. False: the guard did not hold, or there is no such node, and nothing was written."""
        if self.empty and not self.notices:
            return True
        also = ((NODE, self.columns), (NOTICES, self.notices))
        document = {**self.doc, **{name: value for name, value in also if value}}
        arguments = {"node": self.node_id, **self.arguments, "doc": jsonb(document)}
        return tx.execute(self._text(), arguments, prepare=True).rowcount == 1

    def _text(self) -> str:
        guard = f" AND {self.guard}" if self.guard else ""
        given = "(SELECT %(doc)s::jsonb AS d) given, nodes n WHERE n.id = %(node)s"
        arms = {"doc": f"MATERIALIZED (SELECT d, n.tenant_id FROM {given}{guard})", **self._wrapped()}
        listed = ",\n".join(f"{name} AS {sql}" for name, sql in arms.items())
        return f"WITH {listed}\nSELECT {NOTIFY if self.notices else ''} FROM doc"

    def _wrapped(self) -> Mapping[str, str]:
        arms = {f"arm_{name}": f"({sql})" for name, sql in self.arms.items()}
        if self.columns:
            sets = ", ".join(f"{name} = {self.expressions.get(name, f'a.{name}')}" for name in sorted(self.columns))
            record = f"jsonb_populate_record(NULL::nodes, d -> '{NODE}') AS a"
            arms["arm_node"] = f"(UPDATE nodes SET {sets} FROM doc, {record} WHERE nodes.id = %(node)s)"
        return arms
