"""Who is who (SPEC B1, B9): certificates of nodes, and tokens. No secret is in here: of tokens a hash, of certificates what
identifies them. The statements are in migrations/versions/0005_identity.sql.
"""

from sqlalchemy import Index, Table, text

from receiver import values
from receiver.store import columns as c
from receiver.store.columns import metadata

# Every certificate that was issued to a node. One that is not here, or revoked, begins no session.
certificates = Table(
    "certificates",
    metadata,
    c.key("fingerprint"),  # lower-case hexadecimal SHA-256 of its DER
    c.node(),
    c.text("tenant_id"),
    c.text("issued_by"),  # "renew", or the join token
    c.time("issued_at", now=True),
    c.moment("not_before"),
    c.moment("not_after"),
    c.time("revoked_at"),
    c.text("revoked_reason", nullable=True),
    Index("ix_certificates_good", "node_id", postgresql_where=text("revoked_at IS NULL")),
)

# A secret that opens something until it expires, is used up, or revoked. `hash`: lower-case hexadecimal SHA-256 of the secret.
api_tokens = Table(
    "api_tokens",
    metadata,
    c.key("id"),
    c.text("tenant_id"),  # "*": all
    c.text("hash"),
    c.json("permissions", "[]"),
    c.text("name", ""),
    c.text("created_by", ""),
    c.time("created_at", now=True),
    c.moment("expires_at"),
    c.time("revoked_at"),
    Index(None, "tenant_id", "id"),
)

join_tokens = Table(
    "join_tokens",
    metadata,
    c.key("id"),
    c.text("tenant_id"),
    c.text("hash"),
    c.text("pool_id", nullable=True),  # no foreign key: a pool may be deleted, and then nobody joins with this any more
    c.text("kind", "host"),
    c.node(nullable=True),  # bound: this node comes back with it
    c.number("uses", 1),
    c.number("used", 0),
    c.text("created_by", ""),
    c.time("created_at", now=True),
    c.moment("expires_at"),
    c.time("revoked_at"),
    c.words("kind", values.NODE_KINDS),
    Index(None, "tenant_id", "id"),
)
