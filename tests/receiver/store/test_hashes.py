"""Hashes of sections as they are stored: what is packed comes back, SQL reads the same, and a history of before keeps its own."""

import itertools
import json

import psycopg
import pytest

from receiver.store import database as db
from receiver.store.embedded import EmbeddedPostgres
from receiver.store.hashes import pack, unpack

_names = itertools.count()
EIGHT = {
    name: f"{place:02x}" * 32 for place, name in enumerate(("os", "cpu", "disks", "gpus", "images", "memory", "nics", "system"))
}
_BEFORE = """
INSERT INTO nodes (id, tenant_id, section_baselines) VALUES ('node_1', 'acme', %(baselines)s::jsonb);
INSERT INTO sections (hash, body, size) SELECT value, '\\x0801', 2 FROM jsonb_each_text(%(eight)s::jsonb);
INSERT INTO tenant_sections (hash, tenant_id, name) SELECT value, 'acme', key FROM jsonb_each_text(%(eight)s::jsonb);
INSERT INTO section_images (hash, digest) VALUES (%(images)s, 'sha256:1');
INSERT INTO inventory_snapshots (id, node_id, tenant_id, digest, sections) VALUES
  ('inv_1', 'node_1', 'acme', 'd1', %(eight)s::jsonb), ('inv_2', 'node_1', 'acme', 'd2', '{}')"""


@pytest.mark.parametrize("hashes", [{}, {"os": "0f" * 32}, EIGHT, {"a": "00" * 32, "a-b": "20" * 32, "a0": "ff" * 32}])
def test_sql_reads_what_is_packed(tx: db.Connection, hashes: dict[str, str]) -> None:
    packed = pack(hashes)
    assert unpack(packed) == hashes
    rows = tx.execute("SELECT name, encode(hash, 'hex') FROM section_hashes(%s::bytea)", [packed]).fetchall()
    assert dict(rows) == hashes
    for name in ("os", "cpu", "c", ""):
        row = tx.execute("SELECT encode(section_hash(%s::bytea, %s), 'hex')", [packed, name]).fetchone()
        assert row == (hashes.get(name),)


def test_a_history_of_before_is_kept(server: EmbeddedPostgres) -> None:
    name = f"before_packed_{next(_names)}"
    db.create_database(server.url(), name)
    url = server.url(name)
    db.upgrade(url, "0007")
    baselines = json.dumps({one: [value, "inv_1"] for one, value in EIGHT.items()})
    facts = {"baselines": baselines, "eight": json.dumps(EIGHT), "images": EIGHT["images"]}
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as tx:
        tx.execute(_BEFORE, facts)
    assert db.migrate(url) == 7
    with psycopg.connect(url) as tx:
        snapshots = tx.execute("SELECT id, digest, sections FROM inventory_snapshots ORDER BY id").fetchall()
        assert [(one, digest, unpack(packed)) for one, digest, packed in snapshots] == [
            ("inv_1", "d1", EIGHT),
            ("inv_2", "d2", {}),
        ]
        assert snapshots[0][2] == pack(EIGHT), "in the same order"
        sent = tx.execute("SELECT name, encode(hash, 'hex') FROM tenant_sections JOIN sections USING (hash)").fetchall()
        assert dict(sent) == EIGHT
        assert tx.execute("SELECT encode(hash, 'hex'), digest FROM section_images").fetchall() == [(EIGHT["images"], "sha256:1")]
        with pytest.raises(psycopg.errors.RestrictViolation):
            tx.execute("DELETE FROM inventory_snapshots")
