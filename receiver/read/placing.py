"""What placement reads: bookable atoms, and the nodes that hold an image. The same ways as in queries.py.

Both walk nodes in the order of their ids: an index leads from any cursor, and all of one node's rows come together.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bettercompute.contract.ids import is_id
from sqlalchemy import ColumnElement, LargeBinary, Row, Select, and_, func, or_, select, tuple_
from sqlalchemy.engine import Connection

from receiver.errors import Invalid
from receiver.planning.devices import OUT
from receiver.planning.selector import Selector
from receiver.read.queries import visible
from receiver.read.selecting import selected
from receiver.read.tokens import Scope
from receiver.store.schema import atoms, bookings, devices, free_atoms, nodes, section_images

_ATOM = re.compile(r"(node_[0-9a-z]{26})/([^/]{1,128})/([0-9]{1,18})")

_PLACE = (free_atoms.c.node_id, free_atoms.c.atom_id.label("id"), free_atoms.c.generation)
AtomPlace = tuple[str, str, int]  # node, atom, generation


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which atoms are asked for; None and the empty selector: any."""

    pool_id: str | None = None
    node_id: str | None = None
    selector: Selector = ()


def atom_place(cursor: str) -> AtomPlace | None:
    """A cursor of atoms; None at the beginning. Raises Invalid."""
    if not cursor:
        return None
    match = _ATOM.fullmatch(cursor)
    if match is None or not is_id(match[1], "node"):
        raise Invalid(f"cursor {cursor[:64]!r} is none of this method")
    return match[1], match[2], int(match[3])


def atom_page(
    db: Connection, scope: Scope, wanted: Wanted, after: AtomPlace | None, limit: int
) -> tuple[Sequence[Row[Any]], str | None]:
    """Atoms that can be booked now (SPEC B0), in the order of node, id, generation, and the cursor of the next page.

    Rows: node_id, id, generation, device_id, profile, tenant_id, pool_id, attributes (of the device). It is the view
    `bookable_atoms`, which placement reads, with what a page needs; tests hold the two to the same answer.
    """
    first = after[0] if after else ""
    some = visible(select(nodes.c.id, nodes.c.pool_id, nodes.c.tenant_id), nodes, scope).where(
        nodes.c.placeable, nodes.c.id >= first, *selected(wanted.selector, first)
    )
    if wanted.pool_id is not None:
        some = some.where(nodes.c.pool_id == wanted.pool_id)
    if wanted.node_id is not None:
        some = some.where(nodes.c.id == wanted.node_id)
    node = some.subquery("node")
    query: Select[Any] = (
        select(*_PLACE, atoms.c.device_id, atoms.c.profile, node.c.tenant_id, node.c.pool_id, devices.c.attributes)
        .where(free_atoms.c.node_id == node.c.id, free_atoms.c.node_id >= first, ~_booked())
        .where(atoms.c.id == free_atoms.c.atom_id, atoms.c.generation == free_atoms.c.generation, atoms.c.bookable)
        .where(devices.c.id == atoms.c.device_id)
        .order_by(*_PLACE)
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(or_(free_atoms.c.node_id > first, tuple_(*_PLACE[1:]) > tuple_(*after[1:])))
    rows = db.execute(query).all()
    last = rows[limit - 1] if len(rows) > limit else None
    return rows[:limit], f"{last.node_id}/{last.id}/{last.generation}" if last else None


def _booked() -> ColumnElement[bool]:
    """Whether an atom has a live booking."""
    of_atom = (bookings.c.atom_id == atoms.c.id, bookings.c.atom_generation == atoms.c.generation)
    return select(bookings.c.atom_id).where(*of_atom, bookings.c.ended_at.is_(None)).correlate(atoms).exists()


def image_page(
    db: Connection, scope: Scope, pool_id: str, digest: str | None, after: str, limit: int
) -> tuple[list[tuple[str, list[Row[Any]]]], str | None]:
    """Nodes of a pool that hold images (with `digest`: that one), each with the rows (digest, name, bytes) sorted by digest, and
    the cursor of the next page.

    What a node holds is what its last good images section said; a section's images are stored once with its bytes. Left out:
    nodes that a tenant controls, whose word does not count, and those that are retired or deleted.
    """
    if after and not is_id(after, "node"):
        raise Invalid(f"cursor {after[:64]!r} is none of this method")
    held = nodes.c.section_baselines["images"][0].astext
    of_section = section_images.c.hash == func.decode(held, "hex", type_=LargeBinary)
    if digest is not None:
        of_section = and_(of_section, section_images.c.digest == digest)
    query = (
        visible(select(nodes.c.id, held.label("hash")), nodes, scope)
        .where(nodes.c.pool_id == pool_id, nodes.c.id > after, nodes.c.trust == "platform")
        .where(nodes.c.status.not_in(sorted(OUT)), select(section_images.c.hash).where(of_section).exists())
        .order_by(nodes.c.id)
        .limit(limit + 1)
    )
    found = db.execute(query).all()
    listed = _images(db, {row.hash for row in found[:limit]}, digest)
    page = [(row.id, listed[row.hash]) for row in found[:limit]]
    return page, found[limit - 1].id if len(found) > limit else None


def _images(db: Connection, hashes: set[str], digest: str | None) -> dict[str, list[Row[Any]]]:
    """Images by the hash of the section that lists them."""
    query = select(section_images).where(section_images.c.hash.in_(hashes)).order_by(section_images.c.digest)
    if digest is not None:
        query = query.where(section_images.c.digest == digest)
    found: dict[str, list[Row[Any]]] = {}
    for row in db.execute(query):
        found.setdefault(row.hash, []).append(row)
    return found
