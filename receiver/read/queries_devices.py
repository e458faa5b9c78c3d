"""What is read of GPUs, as SQL, in the ways of queries.py: of the nodes of a page, of one device, and its life."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, select, true
from sqlalchemy.engine import Connection

from receiver.errors import NotFound
from receiver.read.queries import of_nodes, visible
from receiver.read.tokens import Scope
from receiver.store.schema import (
    atoms,
    bookings,
    device_health,
    device_history,
    devices,
    hardware_keys,
    node_faults,
    nodes,
    pools,
)

Rows = dict[str, list[Row[Any]]]


def devices_of(db: Connection, scope: Scope, node_ids: Iterable[str]) -> Rows:
    """Devices by node."""
    return of_nodes(db, scope, devices, node_ids, "id")


def device(db: Connection, scope: Scope, device_id: str) -> Row[Any]:
    """One device. Raises NotFound."""
    found = db.execute(visible(select(devices), devices, scope).where(devices.c.id == device_id)).first()
    if found is None:
        raise NotFound(f"no device {device_id}")
    return found


def atoms_of(db: Connection, scope: Scope, column: ColumnElement[str], ids: Iterable[str]) -> Sequence[Row[Any]]:
    """Atoms, each with its live booking (`booking_id`, `booking_tenant`) and whether its node is `placeable`.

    `column`: atoms.node_id or atoms.device_id, which is one of `ids`. In the order of device, id, generation.
    """
    of_atom = (bookings.c.atom_id == atoms.c.id, bookings.c.atom_generation == atoms.c.generation)
    held = (bookings.c.booking_id, bookings.c.tenant_id.label("booking_tenant"), bookings.c.created_at.label("booked_at"))
    # There is one at most; with the limit it is looked up atom by atom, and never are all bookings of the fleet read.
    live = select(*held).where(*of_atom, bookings.c.ended_at.is_(None)).limit(1).correlate(atoms).lateral("live")
    of_node = (nodes.c.placeable, nodes.c.status, nodes.c.trust, nodes.c.draining.label("node_draining"))
    query = (
        visible(select(atoms, *live.c, *of_node), atoms, scope)
        .join_from(atoms, nodes, nodes.c.id == atoms.c.node_id)
        .outerjoin(live, true())
        .where(column.in_(list(ids)))
        .order_by(atoms.c.device_id, atoms.c.id, atoms.c.generation)
    )
    return db.execute(query).all()


def open_health(db: Connection, scope: Scope, device_ids: Iterable[str]) -> Rows:
    """Open faults and findings by device."""
    query = visible(select(device_health), device_health, scope).where(
        device_health.c.device_id.in_(list(device_ids)), device_health.c.closed_at.is_(None)
    )
    return _by(db, query.order_by(device_health.c.code, device_health.c.boot_id), "device_id")


def faults_of(db: Connection, scope: Scope, node_ids: Iterable[str]) -> Rows:
    """XIDs and SXids of each node's present boot, by node."""
    query = (
        visible(select(node_faults), node_faults, scope)
        .join_from(node_faults, nodes, and_(nodes.c.id == node_faults.c.node_id, nodes.c.boot_id == node_faults.c.boot_id))
        .where(node_faults.c.node_id.in_(list(node_ids)))
    )
    return _by(db, query.order_by(node_faults.c.code, node_faults.c.device_id), "node_id")


def hardware_of(db: Connection, scope: Scope, node_ids: Iterable[str]) -> dict[str, Row[Any]]:
    """Each node's present hardware key."""
    query = visible(select(hardware_keys), hardware_keys, scope).where(
        hardware_keys.c.node_id.in_(list(node_ids)), hardware_keys.c.replaced_at.is_(None)
    )
    return {row.node_id: row for row in db.execute(query)}


def policies_of(db: Connection, pool_ids: Iterable[str]) -> dict[str, Any]:
    """The policies of pools, as they are stored: whoever may see a node may see what follows from its pool."""
    query = select(pools.c.id, pools.c.policy).where(pools.c.id.in_(list(pool_ids)))
    return {row.id: row.policy for row in db.execute(query)}


def history(
    db: Connection, scope: Scope, wanted: dict[str, str], before: int | None, limit: int
) -> tuple[Sequence[Row[Any]], int | None]:
    """Lines of devices' lives, newest first, and the cursor of the next page. `wanted`: columns and what they are to be."""
    query = visible(select(device_history), device_history, scope).order_by(device_history.c.seq.desc()).limit(limit + 1)
    for name, text in wanted.items():
        query = query.where(device_history.c[name] == text)
    if before is not None:
        query = query.where(device_history.c.seq < before)
    rows = db.execute(query).all()
    return rows[:limit], rows[limit - 1].seq if len(rows) > limit else None


def _by(db: Connection, query: Select[Any], name: str) -> Rows:
    found: Rows = {}
    for row in db.execute(query).all():
        found.setdefault(getattr(row, name), []).append(row)
    return found
