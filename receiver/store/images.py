"""The images that images sections list (table section_images), kept beside the bytes: written once, when the bytes come."""

from dataclasses import asdict
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import decode

from receiver.planning.images import cached
from receiver.store.database import Connection
from receiver.store.statement import Statement
from receiver.store.words import jsonb

_INSERT = """INSERT INTO section_images (hash, digest, name, bytes)
  SELECT hash, digest, name, bytes FROM {source} AS r ON CONFLICT DO NOTHING"""


def write(statement: Statement, hash: str, body: bytes) -> None:
    """Adds to a statement what the bytes of an images section list."""
    rows = _rows(hash, body)
    if rows:
        statement.add("images", _INSERT.format(source="doc, jsonb_populate_recordset(NULL::section_images, d -> 'images')"), rows)


def fill(tx: Connection) -> None:
    """The same for the images sections that are stored already: for the migration that made the table."""
    for (hash,) in tx.execute("SELECT DISTINCT hash FROM tenant_sections WHERE name = 'images'").fetchall():
        for (body,) in tx.execute("SELECT body FROM sections WHERE hash = %s", [hash]).fetchall():  # one at a time: they are big
            tx.execute(_INSERT.format(source="jsonb_populate_recordset(NULL::section_images, %s)"), [jsonb(_rows(hash, body))])


def _rows(hash: str, body: bytes) -> list[dict[str, Any]]:
    section = decode("images", body)
    return [{"hash": hash, **asdict(one)} for one in cached(section)] if isinstance(section, pb.ImagesSection) else []
