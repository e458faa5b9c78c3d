"""The images that images sections list (table section_images), kept beside the bytes: written once, when the bytes come."""

from dataclasses import asdict
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import decode

from receiver.planning.images import cached
from receiver.store.database import Connection
from receiver.store.hashes import binary
from receiver.store.statement import Statement
from receiver.store.words import jsonb

_INSERT = """INSERT INTO section_images (hash, digest, name, bytes)
  SELECT {hash}::bytea, r.digest, r.name, r.bytes FROM {source} AS r ON CONFLICT DO NOTHING"""
_OF_DOC = _INSERT.format(hash="%(images)b", source="doc, jsonb_populate_recordset(NULL::section_images, d -> 'images')")
_OF_ROWS = _INSERT.format(hash="%b", source="jsonb_populate_recordset(NULL::section_images, %s)")
_NOT_LISTED = """SELECT DISTINCT t.hash FROM tenant_sections t
  WHERE t.name = 'images' AND NOT EXISTS (SELECT FROM section_images i WHERE i.hash = t.hash)"""


def write(statement: Statement, hash: str, body: bytes) -> None:
    """Adds to a statement what the bytes of an images section list."""
    rows = _rows(body)
    if rows:
        statement.add("images", _OF_DOC, rows)
        statement.arguments["images"] = binary(hash)


def fill(tx: Connection) -> None:
    """The same for the images sections that were stored before the table was: for a migration."""
    for (hash,) in tx.execute(_NOT_LISTED).fetchall():
        for (body,) in tx.execute("SELECT body FROM sections WHERE hash = %s", [hash]).fetchall():  # one at a time: they are big
            tx.execute(_OF_ROWS, [hash, jsonb(_rows(body))])


def _rows(body: bytes) -> list[dict[str, Any]]:
    section = decode("images", body)
    return [asdict(one) for one in cached(section)] if isinstance(section, pb.ImagesSection) else []
