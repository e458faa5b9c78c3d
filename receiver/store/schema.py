"""The declared tables. Migrations make them; tests/receiver/store/test_migrations.py proves that both say the same.

Conventions: words are those of the SPEC in snake_case; times are `timestamptz`, set by the database; every row that is read
carries the tenant it belonged to when it was written; constraints have names. What SQLAlchemy cannot declare stands in the
migration beside its table: append-only triggers, storage of `sections.body`, prune_snapshots(). Those of GPUs stand in
schema_devices.py, of the loops in schema_lifecycle.py, who is who in schema_identity.py; who imports this module has them all.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from receiver import values
from receiver.planning.selector import NUMBER
from receiver.store import columns as c
from receiver.store.columns import metadata
from receiver.store.hashes import Hash, Packed
from receiver.store.schema_devices import (
    LIVE,
    atoms,
    bookings,
    device_health,
    device_history,
    devices,
    free_atoms,
    mig_generations,
)
from receiver.store.schema_identity import api_tokens, certificates, join_tokens
from receiver.store.schema_lifecycle import (
    acceptance_attempts,
    leases,
    pool_stops,
    remediation_runs,
    remediation_steps,
    serving,
    unhealthy_turns,
    webhooks,
)

__all__ = [
    "acceptance_attempts",
    "api_tokens",
    "atoms",
    "bookings",
    "certificates",
    "device_health",
    "device_history",
    "devices",
    "free_atoms",
    "join_tokens",
    "leases",
    "metadata",
    "mig_generations",
    "pool_stops",
    "remediation_runs",
    "remediation_steps",
    "serving",
    "unhealthy_turns",
    "webhooks",
]

_PLACEABLE = "status = 'adopted' AND trust = 'platform' AND no_schedule_reasons = '[]'::jsonb AND NOT draining"

pools = Table(
    "pools",
    metadata,
    c.key("id"),
    c.text("tenant_id"),
    c.text("name"),
    c.text("kind", "gpu"),
    c.text("gpu_model", nullable=True),
    c.text("sharing", "exclusive"),
    c.text("mode", "enforce"),
    c.json("policy", "{}"),
    c.number("revision", 1),  # of the pool and its policy together: part of a node's plan key
    c.time("created_at", now=True),
    UniqueConstraint("tenant_id", "name"),
    c.words("kind", values.POOL_KINDS),
    c.words("sharing", values.SHARINGS),
    c.words("mode", values.POOL_MODES),
)

nodes = Table(
    "nodes",
    metadata,
    c.key("id"),
    c.text("tenant_id"),
    Column("pool_id", Text, ForeignKey("pools.id")),
    c.text("kind", "host"),
    c.text("status", "adopting"),
    c.moment("status_since"),
    c.text("trust", "platform"),
    c.number("trust_epoch", 0),  # reports of a session begun below it are advisory for ever
    c.text("lease_id", nullable=True),
    c.time("created_at", now=True),
    # a person has it
    c.text("maintenance_by", nullable=True),
    c.text("maintenance_reason", nullable=True),
    c.time("maintenance_since"),
    c.time("maintenance_until"),
    # why not to place: [{"owner": "health", "type": "GpuLost"}, ...]; in a pool that observes, what would be there
    c.json("no_schedule_reasons", "[]"),
    c.json("would_no_schedule", "[]"),
    # the inventory. applied_digest: of the last offer applied or found unchanged, perhaps advisory:<digest>
    c.text("applied_digest", nullable=True),
    c.text("applied_snapshot_id", nullable=True),  # no foreign key: prune_snapshots() keeps it, nothing else deletes
    c.text("latest_snapshot_id", nullable=True),
    # {name: [hash, snapshot id, GPUs not listed in it]}: the last good one of each section that was applied, and the first
    # snapshot that had it; `gpus` with those that it does not list although nothing says that they are gone
    c.json("section_baselines", "{}"),
    c.json("plan_key"),
    c.number("plan_rev", 0),  # raised by every writer but the node's own reports: the gateway's cached verdicts end
    # the session
    c.number("epoch", 0),
    c.number("session_trust_epoch", 0),
    c.flag("connected"),
    c.text("receiver_id", "", nullable=False),
    c.text("boot_id", nullable=True),
    c.text("instance_id", nullable=True),
    c.text("daemon_version", nullable=True),
    c.text("protocol_version", nullable=True),
    c.json("drivers", "[]"),
    c.json("capabilities", "[]"),
    c.time("last_seen"),
    # what its status reports say
    c.text("reported_digest", nullable=True),
    c.time("collected_at"),
    c.json("kernel_log"),
    c.number("abandoned_workers", 0),
    c.text("inventory_boot", nullable=True),  # in which the applied inventory was last collected or confirmed
    c.json("baseline"),  # of the last passed acceptance
    c.number("attempt", 1),  # of acceptance
    c.flag("draining"),  # it is being disrupted
    c.flag("unhealthy"),  # something is broken: planning/breaker.py
    c.time("certificate_from"),  # of its client certificate's life
    c.time("certificate_until"),
    c.number("inventory_rev", 0),  # raised by every collection that is applied, or confirmed as what was applied
    # The node's part of what is bookable (SPEC B0).
    Column(
        "placeable",
        Boolean,
        Computed(_PLACEABLE, persisted=True),
        nullable=False,
    ),
    c.words("kind", values.NODE_KINDS),
    c.words("status", values.NODE_STATUSES),
    c.words("trust", values.TRUSTS),
    Index(None, "tenant_id", "id"),
    Index(None, "pool_id", "id"),
    Index(None, "status", "id"),
    Index("ix_nodes_in_service", "pool_id", "unhealthy", postgresql_where=text("status = 'adopted'")),
    Index("ix_nodes_placeable", "id", postgresql_where=text("placeable")),
)

# Bytes as they came, once. The same bytes can be two sections (no message: no bytes), so a name is not part of it.
sections = Table(
    "sections",
    metadata,
    Column("hash", Hash, primary_key=True),  # SHA-256
    Column("body", LargeBinary, nullable=False),
    Column("size", Integer, nullable=False),
    c.time("created_at", now=True),
    CheckConstraint("octet_length(hash) = 32", name="hash"),
    CheckConstraint("size = octet_length(body)", name="size"),
)

# Which bytes a tenant's nodes have sent, and as which section they were parsed.
tenant_sections = Table(
    "tenant_sections",
    metadata,
    Column("hash", Hash, ForeignKey("sections.hash"), primary_key=True),
    c.key("tenant_id"),
    c.key("name"),
    c.time("created_at", now=True),
)

# The images that an images section lists, once for all nodes and snapshots with these bytes.
section_images = Table(
    "section_images",
    metadata,
    Column("hash", Hash, ForeignKey("sections.hash", ondelete="CASCADE"), primary_key=True),
    c.key("digest"),
    c.text("name", nullable=True),
    c.number("bytes"),
    Index(None, "digest", "hash"),
)

inventory_snapshots = Table(
    "inventory_snapshots",
    metadata,
    c.key("id"),
    Column("seq", BigInteger, Identity(always=True), nullable=False),  # order of appending: times can tie
    c.node(),
    c.text("tenant_id"),
    c.text("digest"),
    Column("sections", Packed, nullable=False, server_default=text(r"'\x00'::bytea")),  # name to hash
    c.flag("advisory"),
    c.text("boot_id", ""),
    c.text("trigger", ""),
    c.time("collected_at"),
    c.time("created_at", now=True),
    Index(None, "node_id", "seq", unique=True),
)

# Sections that the last report left out ("report"), or that came with an error of their own ("section").
node_missing_sections = Table(
    "node_missing_sections",
    metadata,
    c.node(primary=True),
    c.key("name"),
    c.text("tenant_id"),
    c.text("error"),
    c.text("source", "report"),
    c.text("last_snapshot_id", nullable=True),  # where it was last present and without error
    c.time("since", now=True),
    c.words("source", ("report", "section")),
)

sessions = Table(
    "sessions",
    metadata,
    c.node(primary=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    c.text("tenant_id"),
    c.number("previous_epoch"),
    c.text("boot_id"),
    c.text("instance_id"),
    c.text("receiver_id", ""),
    c.number("trust_epoch", 0),
    c.flag("alternation"),
    c.moment("started_at"),
    c.time("ended_at"),
    c.text("end_reason", nullable=True),
    c.text("certificate", nullable=True),  # the fingerprint of the one that it began with
    Index("ix_sessions_alternations", "node_id", "started_at", postgresql_where=text("alternation")),
)

conditions = Table(
    "conditions",
    metadata,
    c.node(primary=True),
    c.key("type"),
    c.key("device_id"),  # a GPU's UUID, a switch's bus id, or empty
    c.text("tenant_id"),
    c.text("bus_id", ""),
    c.text("status"),
    c.text("reason", ""),
    c.text("message", ""),
    c.number("count", 0),
    c.flag("no_schedule"),
    c.flag("advisory"),
    c.json("evidence", "{}"),
    c.moment("since"),
    c.words("status", values.CONDITION_STATUSES),
    Index("ix_conditions_true", "type", "node_id", postgresql_where=text("status = 'true'")),
)

# XIDs and SXids that reports of the node's present boot name: a report repeats them all, and the counts tell what is new.
node_faults = Table(
    "node_faults",
    metadata,
    c.node(primary=True),
    c.key("boot_id"),
    c.key("device_id"),  # a GPU's UUID, or a switch's bus id
    c.key("code"),
    c.text("tenant_id"),
    Column("count", BigInteger, nullable=False),
    Column("told", BigInteger, nullable=False),  # the count of the last event
    c.time("since", now=True),
    c.text("bus_id", ""),
    c.text("message", ""),
    c.flag("foreign"),  # the GPU is another node's
)

node_labels = Table(
    "node_labels",
    metadata,
    c.node(primary=True),
    c.key("key"),
    c.text("tenant_id"),
    c.text("value"),
    c.text("source"),
    # The value where it is a number: as planning/selector.py reads it.
    Column("number", Numeric, Computed(f"CASE WHEN value ~ '^{NUMBER}$' THEN value::numeric END", persisted=True)),
    c.words("source", values.LABEL_SOURCES),
    Index(None, "key", "value", "node_id"),
    Index("ix_node_labels_number", "key", "number", "node_id", postgresql_where=text("number IS NOT NULL")),
)

hardware_keys = Table(
    "hardware_keys",
    metadata,
    c.node(primary=True),
    c.key("key"),
    c.text("tenant_id"),
    c.flag("trusted"),
    c.flag("provisional"),
    c.json("identifiers", "{}"),
    c.time("created_at", now=True),
    c.time("replaced_at"),  # null: the node's present one
    c.json("distinct", "[]"),  # nodes that an operator told apart from this one
    Index("uq_hardware_keys_key", "key", unique=True, postgresql_where=text("trusted AND replaced_at IS NULL")),
)

# Nodes to plan again from their applied snapshot; drained by a singleton.
replan = Table(
    "replan",
    metadata,
    c.node(primary=True),
    c.text("reason"),
    c.time("queued_at", now=True),
    Index(None, "queued_at"),
)

# The outbox. A reader takes rows with `xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint` in the order of
# (xid, seq) and keeps the last pair as its cursor: all transactions below that horizon have ended, so nothing can appear
# behind the cursor. (`seq` alone is no cursor: a number is drawn before its transaction commits.) A row's `xid` is that of its
# transaction, or of a newer one that had ended before the row was written: so the events of a node, each written under the
# lock of its row, stand in the order in which they were written, also those of a transaction over several nodes. Numbers of
# transactions are of one cluster: after pg_upgrade they go on, but rows that a dump brings into another cluster may carry
# numbers that it has not reached, and stay behind the horizon until it has. Move a database by pg_upgrade or replication.
_ENDED = "greatest((pg_current_xact_id()::text)::bigint, (pg_snapshot_xmax(pg_current_snapshot())::text)::bigint - 1)"
events = Table(
    "events",
    metadata,
    Column("xid", BigInteger, primary_key=True, autoincrement=False, server_default=text(_ENDED)),
    Column("seq", BigInteger, Identity(always=True), primary_key=True),
    c.text("id"),
    Column("time", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),  # in the same order
    c.text("tenant_id"),
    c.text("pool_id", nullable=True),
    c.text("node_id", nullable=True),  # no foreign key: what happened stays true
    c.text("type"),
    c.json("payload", "{}"),
    UniqueConstraint("id"),
    Index(None, "tenant_id", "xid", "seq"),
    Index(None, "node_id", "xid", "seq"),
    Index(None, "type", "xid", "seq"),
)

disruptions = Table(
    "disruptions",
    metadata,
    c.key("id"),
    Column("pool_id", Text, ForeignKey("pools.id"), nullable=True),
    c.node(),
    c.text("kind"),
    c.text("owner"),
    c.moment("started_at"),
    c.time("ended_at"),
    c.words("kind", values.DISRUPTION_KINDS),
    Index("ix_disruptions_open_pool", "pool_id", postgresql_where=LIVE),
    Index("ix_disruptions_open_node", "node_id", postgresql_where=LIVE),
)

commands = Table(
    "commands",
    metadata,
    c.key("id"),
    c.node(),
    c.text("tenant_id"),
    c.text("kind"),
    c.json("payload", "{}"),
    c.text("idempotency_key"),
    c.text("state", "queued"),
    c.text("reason", ""),
    c.json("result"),
    c.text("created_by", ""),
    c.time("not_after"),
    c.moment("created_at"),
    c.time("sent_at"),
    c.time("finished_at"),
    Column("inventory_rev", BigInteger),  # the node's when it was queued: a higher one is a later collection
    UniqueConstraint("node_id", "idempotency_key"),
    c.words("state", values.COMMAND_STATES),
    Index(None, "node_id", "id"),
    Index(None, "tenant_id", "id"),
    Index(None, "kind", "id"),
    Index(None, "kind", "state", "id"),
    Index(None, "state", "id"),
    Index("ix_commands_ended", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
    Index("ix_commands_open", "node_id", postgresql_where=text("finished_at IS NULL")),
)
