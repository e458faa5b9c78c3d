"""How the rows of a table of a node's draft are loaded and written: one description a table, from which its SQL is made.

A field of a row is a column of that name. The descriptions: receiver/store/view.py, TABLES.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from receiver.store.statement import Statement
from receiver.store.words import differ


@dataclass(frozen=True, slots=True)
class Table:
    """How rows of one table of the draft are kept.

    `loaded`: which rows, as a condition on the table's row `t` and the node `n`. `changed`: further columns and what they are
    set to, where `t` is the row as it was (NULL for a new one) and `r` as it is to be. `follows`: rows follow their device: they
    are the node's that has it, or, while none does, that wrote them last.
    """

    name: str
    table: str
    row: type
    keys: tuple[str, ...]
    loaded: str = "t.node_id = n.id"
    changed: Mapping[str, str] = field(default_factory=dict)
    follows: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, as the row's fields are called."""
        return _names(self.row)

    def select(self) -> str:
        """An expression that gives all rows of node `n`, as arrays of their fields."""
        if not self.follows:
            return self.select_where(self.loaded)
        of_devices = f"SELECT f.* FROM devices d JOIN {self.table} f ON f.device_id = d.id WHERE d.node_id = n.id"
        nobodys = "NOT EXISTS (SELECT FROM devices d WHERE d.id = f.device_id)"
        return self._select(f"({of_devices} UNION ALL SELECT f.* FROM {self.table} f WHERE f.node_id = n.id AND {nobodys}) t")

    def select_where(self, condition: str) -> str:
        """The same of the rows `t` for which this holds."""
        return self._select(f"{self.table} t WHERE {condition}")

    def _select(self, source: str) -> str:
        listed = ", ".join(f't."{name}"' for name in self.columns)
        return f"(SELECT jsonb_agg(jsonb_build_array({listed})) FROM {source})"

    def rows(self, column: Iterable[Sequence[Any]] | None) -> dict[Any, Any]:
        """What `select` gave, by key."""
        made = (self.row(*values) for values in column or ())
        return {row.key: row for row in made}

    def write(self, statement: Statement, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> None:
        """Adds what differs to a statement. A row that somebody else has inserted meanwhile raises UniqueViolation: try again."""
        new = [after[key] for key in after.keys() - before.keys()]
        other = [after[key] for key in after.keys() & before.keys() if self._differ(after[key], before[key])]
        gone = [before[key] for key in before.keys() - after.keys()]
        for arm, rows, sql in (("new", new, self._insert), ("other", other, self._update), ("gone", gone, self._delete)):
            if rows:
                name = f"{self.name}_{arm}"
                statement.add(
                    name, sql().format(source=self._source(name)), [self._json(row) for row in sorted(rows, key=_by_key)]
                )

    def _differ(self, one: Any, other: Any) -> bool:
        return bool(one != other) and differ(self._json(one), self._json(other))

    def _json(self, row: Any) -> dict[str, Any]:
        return {name: getattr(row, name) for name in self.columns}

    def _source(self, name: str) -> str:
        return f"jsonb_populate_recordset(NULL::{self.table}, d -> '{name}') AS r"

    def _insert(self) -> str:
        """A row that follows a device may be there, as another node's that had the device."""
        names = [f'"{name}"' for name in (*self.columns, *self.changed)]
        taken = (*(f'r."{name}"' for name in self.columns), *self.changed.values())
        sets = ", ".join(f"{name} = excluded.{name}" for name in ("node_id", "tenant_id", *names))
        conflict = f" ON CONFLICT ({', '.join(self.keys)}) DO UPDATE SET {sets}" if self.follows else ""
        was = f" LEFT JOIN {self.table} t ON {self._same() if self.follows else 'false'}" if self.changed else ""
        return (
            f"INSERT INTO {self.table} (node_id, tenant_id, {', '.join(names)}) "
            f"SELECT %(node)s, doc.tenant_id, {', '.join(taken)} FROM doc, {{source}}{was}{conflict}"
        )

    def _update(self) -> str:
        sets = ", ".join(f'"{name}" = r."{name}"' for name in self.columns if name not in self.keys)
        also = "".join(f", {name} = {value}" for name, value in self.changed.items())
        owner = "node_id = %(node)s, tenant_id = doc.tenant_id"
        return f"UPDATE {self.table} t SET {owner}, {sets}{also} FROM doc, {{source}} WHERE {self._same()}"

    def _delete(self) -> str:
        return f"DELETE FROM {self.table} t USING doc, {{source}} WHERE {self._same()}"

    def _same(self) -> str:
        mine = () if self.follows else ("t.node_id = %(node)s",)
        return " AND ".join((*(f"t.{name} = r.{name}" for name in self.keys), *mine))


@cache
def _names(row: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(row))


def _by_key(row: Any) -> Any:
    return row.key
