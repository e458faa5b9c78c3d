"""Selectors in SQL: what receiver/planning/selector.py says of one node's labels, as conditions on a row of `nodes`.

One EXISTS a requirement, and not one join: so the database may begin at the rarest label or probe node by node, as its statistics
say, and a requirement that no node meets ends the query at once.
"""

from decimal import Decimal

from sqlalchemy import ColumnElement, not_, select

from receiver.planning.selector import Requirement, Selector
from receiver.store.schema import node_labels, nodes


def selected(selector: Selector, after: str = "") -> list[ColumnElement[bool]]:
    """What must hold of a row of `nodes`; nothing for the empty selector.

    `after`: the nodes asked for have no lower id than this. (The database does not conclude it for their labels.)
    """
    return [_holds(one, after) for one in selector]


def _holds(one: Requirement, after: str) -> ColumnElement[bool]:
    label, first = node_labels.c, one.values[0] if one.values else ""
    match one.operator:
        case "in":
            return _labelled(one.key, after, label.value.in_(one.values))
        case "notin":
            return not_(_labelled(one.key, after, label.value.in_(one.values)))
        case "exists":
            return _labelled(one.key, after)
        case "absent":
            return not_(_labelled(one.key, after))
        case "gt":
            return _labelled(one.key, after, label.number > Decimal(first))
        case "lt":
            return _labelled(one.key, after, label.number < Decimal(first))


def _labelled(key: str, after: str, *also: ColumnElement[bool]) -> ColumnElement[bool]:
    label = node_labels.c
    one = select(label.key).where(label.node_id == nodes.c.id, label.key == key, *also)
    return (one.where(label.node_id >= after) if after else one).correlate(nodes).exists()
