"""`atoms.list`, `images.list`: what placement asks."""

from bettercompute.control.v1 import atoms_pb2, images_pb2
from google.protobuf.message import Message
from sqlalchemy.engine import Connection

from receiver.read import placing, queries, queries_pools
from receiver.read.answers.common import PAGE, optional, required, selector, struct
from receiver.read.tokens import Scope


def atoms_list(db: Connection, scope: Scope, request: atoms_pb2.AtomsServiceListRequest) -> Message:
    """Atoms that can be booked now, in the order of node, id, generation."""
    limit = queries.page_size(request.limit, PAGE)
    after = placing.atom_place(request.cursor)
    wanted = placing.Wanted(optional(request, "pool_id"), optional(request, "node_id"), selector(request.selector))
    if wanted.pool_id is not None:
        queries_pools.pool(db, scope, wanted.pool_id)  # raises NotFound
    if wanted.node_id is not None:
        queries.node(db, scope, wanted.node_id)
    rows, following = placing.atom_page(db, scope, wanted, after, limit)
    atoms = [
        atoms_pb2.BookableAtom(
            id=row.id,
            generation=row.generation,
            device_id=row.device_id,
            node_id=row.node_id,
            pool_id=row.pool_id,
            profile=row.profile,
            attributes=struct(row.attributes),
            tenant_id=row.tenant_id,
        )
        for row in rows
    ]
    return atoms_pb2.AtomsServiceListResponse(atoms=atoms, next_cursor=following)


def images_list(db: Connection, scope: Scope, request: images_pb2.ImagesServiceListRequest) -> Message:
    """Nodes of a pool that hold an image."""
    limit = queries.page_size(request.limit, PAGE)
    pool = queries_pools.pool(db, scope, required(request, "pool_id"))
    rows, following = placing.image_page(db, scope, pool.id, optional(request, "digest"), request.cursor, limit)
    nodes = [
        images_pb2.NodeImages(
            node_id=node_id,
            images=[images_pb2.CachedImage(digest=row.digest, name=row.name or None, bytes=row.bytes) for row in images],
        )
        for node_id, images in rows
    ]
    return images_pb2.ImagesServiceListResponse(nodes=nodes, next_cursor=following)
