"""The declared tables. Migrations make them; tests/receiver/store/test_migrations.py proves that both say the same.

Conventions: words are those of the SPEC in snake_case; times are `timestamptz`, set by the database; every row that is read
carries the tenant it belonged to when it was written; constraints have names. What SQLAlchemy cannot declare stands in the
migration beside its table: append-only triggers, storage of `sections.body`, prune_snapshots().
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from receiver import values

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def _words(column: str, allowed: tuple[str, ...]) -> CheckConstraint:
    listed = ", ".join(f"'{word}'" for word in allowed)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def _text(name: str, default: str | None = None, nullable: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable, server_default=None if default is None else text(f"'{default}'"))


def _json(name: str, default: str | None = None) -> Column[values.Json]:
    return Column(name, JSONB, nullable=default is None, server_default=None if default is None else text(f"'{default}'::jsonb"))


def _time(name: str, now: bool = False) -> Column[values.Json]:
    return Column(name, DateTime(timezone=True), nullable=not now, server_default=text("now()") if now else None)


def _number(name: str, default: int | None = None) -> Column[int]:
    return Column(
        name, BigInteger, nullable=default is None, server_default=None if default is None else text(f"'{default}'::bigint")
    )


def _flag(name: str, default: bool = False) -> Column[bool]:
    return Column(name, Boolean, nullable=False, server_default=text("true" if default else "false"))


def _node(primary: bool = False, nullable: bool = False) -> Column[str]:
    return Column("node_id", Text, ForeignKey("nodes.id"), primary_key=primary, nullable=nullable)


def _key(name: str) -> Column[str]:
    return Column(name, Text, primary_key=True)


_LIVE = text("ended_at IS NULL")

pools = Table(
    "pools",
    metadata,
    _key("id"),
    _text("tenant_id"),
    _text("name"),
    _text("kind", "gpu"),
    _text("gpu_model", nullable=True),
    _text("sharing", "exclusive"),
    _text("mode", "enforce"),
    _json("policy", "{}"),
    _number("revision", 1),  # of the pool and its policy together: part of a node's plan key
    _time("created_at", now=True),
    UniqueConstraint("tenant_id", "name"),
    _words("kind", values.POOL_KINDS),
    _words("sharing", values.SHARINGS),
    _words("mode", values.POOL_MODES),
)

nodes = Table(
    "nodes",
    metadata,
    _key("id"),
    _text("tenant_id"),
    Column("pool_id", Text, ForeignKey("pools.id")),
    _text("kind", "host"),
    _text("status", "adopting"),
    _time("status_since", now=True),
    _text("trust", "platform"),
    _number("trust_epoch", 0),  # reports of a session begun below it are advisory for ever
    _text("lease_id", nullable=True),
    _time("created_at", now=True),
    # a person has it
    _text("maintenance_by", nullable=True),
    _text("maintenance_reason", nullable=True),
    _time("maintenance_since"),
    _time("maintenance_until"),
    # why not to place: [{"owner": "health", "type": "GpuLost"}, ...]; in a pool that observes, what would be there
    _json("no_schedule_reasons", "[]"),
    _json("would_no_schedule", "[]"),
    # the inventory. applied_digest: of the last offer applied or found unchanged, perhaps advisory:<digest>
    _text("applied_digest", nullable=True),
    _text("applied_snapshot_id", nullable=True),  # no foreign key: prune_snapshots() keeps it, nothing else deletes
    _text("latest_snapshot_id", nullable=True),
    # {name: [hash, snapshot id]}: the last good one of each section that was applied, and the first snapshot that had it
    _json("section_baselines", "{}"),
    _json("plan_key"),
    _number("plan_rev", 0),  # raised by every writer but the node's own reports: the gateway's cached verdicts end
    _number("ownership_rev", 0),
    # the session
    _number("epoch", 0),
    _number("session_trust_epoch", 0),
    _flag("connected"),
    _text("receiver_id", "", nullable=False),
    _text("boot_id", nullable=True),
    _text("instance_id", nullable=True),
    _text("daemon_version", nullable=True),
    _text("protocol_version", nullable=True),
    _json("drivers", "[]"),
    _json("capabilities", "[]"),
    _time("last_seen"),
    # what its status reports say
    _text("reported_digest", nullable=True),
    _time("collected_at"),
    _json("kernel_log"),
    _number("abandoned_workers", 0),
    _words("kind", values.NODE_KINDS),
    _words("status", values.NODE_STATUSES),
    _words("trust", values.TRUSTS),
    Index(None, "tenant_id", "id"),
    Index(None, "pool_id"),
)

# Bytes as they came, once. The same bytes can be two sections (no message: no bytes), so a name is not part of it.
sections = Table(
    "sections",
    metadata,
    _key("hash"),
    Column("body", LargeBinary, nullable=False),
    Column("size", Integer, nullable=False),
    _time("created_at", now=True),
    CheckConstraint("hash ~ '^[0-9a-f]{64}$'", name="hash"),
    CheckConstraint("size = octet_length(body)", name="size"),
)

# Which bytes a tenant's nodes have sent, and as which section they were parsed.
tenant_sections = Table(
    "tenant_sections",
    metadata,
    Column("hash", Text, ForeignKey("sections.hash"), primary_key=True),
    _key("tenant_id"),
    _key("name"),
    _time("created_at", now=True),
)

inventory_snapshots = Table(
    "inventory_snapshots",
    metadata,
    _key("id"),
    Column("seq", BigInteger, Identity(always=True), nullable=False),  # order of appending: times can tie
    _node(),
    _text("tenant_id"),
    _text("digest"),
    _json("sections", "{}"),  # name to hash
    _flag("advisory"),
    _text("boot_id", ""),
    _text("trigger", ""),
    _time("collected_at"),
    _time("created_at", now=True),
    Index(None, "node_id", "seq", unique=True),
)

# Sections that the last report left out ("report"), or that came with an error of their own ("section").
node_missing_sections = Table(
    "node_missing_sections",
    metadata,
    _node(primary=True),
    _key("name"),
    _text("error"),
    _text("source", "report"),
    _text("last_snapshot_id", nullable=True),  # where it was last present and without error
    _time("since", now=True),
    _words("source", ("report", "section")),
)

sessions = Table(
    "sessions",
    metadata,
    _node(primary=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    _text("tenant_id"),
    _number("previous_epoch"),
    _text("boot_id"),
    _text("instance_id"),
    _text("receiver_id", ""),
    _number("trust_epoch", 0),
    _flag("alternation"),
    _time("started_at", now=True),
    _time("ended_at"),
    _text("end_reason", nullable=True),
)

devices = Table(
    "devices",
    metadata,
    _key("id"),  # the GPU's UUID
    _node(),
    _text("tenant_id"),
    _text("serial", nullable=True),
    _flag("present", True),
    _flag("healthy", True),
    _flag("lost"),
    _flag("assigned"),
    _flag("partition_pending"),
    _flag("draining"),
    _json("attributes", "{}"),
    _time("created_at", now=True),
    _time("missing_since"),
    Index(None, "node_id"),
    Index(None, "serial"),
)

atoms = Table(
    "atoms",
    metadata,
    _key("id"),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("device_id", Text, ForeignKey("devices.id"), nullable=False),
    _node(),
    _text("tenant_id"),
    _text("profile", nullable=True),
    _json("placement"),
    _flag("bookable"),
    _flag("retiring"),
    _flag("healthy", True),
    _text("reason", nullable=True),  # why it is not bookable
    _time("created_at", now=True),
    Index(None, "device_id"),
    Index(None, "node_id"),
)

# No foreign key to devices: a device planned later is born unhealthy.
device_health = Table(
    "device_health",
    metadata,
    _key("device_id"),
    _key("source"),
    _key("code"),
    _key("boot_id"),
    _node(),
    _text("tenant_id"),
    _number("count", 0),
    _number("cleared_count", 0),
    _json("detail", "{}"),
    _time("since", now=True),
    _time("closed_at"),
    _text("closed_reason", nullable=True),
    _words("source", values.HEALTH_SOURCES),
    Index("ix_device_health_open", "node_id", "device_id", postgresql_where=text("closed_at IS NULL")),
)

device_history = Table(
    "device_history",
    metadata,
    Column("seq", BigInteger, Identity(always=True), primary_key=True),
    _text("device_id"),
    _text("serial", nullable=True),
    _node(nullable=True),
    _text("tenant_id"),
    _text("event"),
    _json("detail", "{}"),
    _time("at", now=True),
    Index(None, "device_id", "seq"),
    Index(None, "serial", "seq"),
)

conditions = Table(
    "conditions",
    metadata,
    _node(primary=True),
    _key("type"),
    _key("device_id"),  # a GPU's UUID, a switch's bus id, or empty
    _text("tenant_id"),
    _text("bus_id", ""),
    _text("status"),
    _text("reason", ""),
    _text("message", ""),
    _number("count", 0),
    _flag("no_schedule"),
    _flag("advisory"),
    _json("evidence", "{}"),
    _time("since", now=True),
    _words("status", values.CONDITION_STATUSES),
    Index("ix_conditions_type_true", "type", postgresql_where=text("status = 'true'")),
)

node_labels = Table(
    "node_labels",
    metadata,
    _node(primary=True),
    _key("key"),
    _text("tenant_id"),
    _text("value"),
    _text("source"),
    _words("source", values.LABEL_SOURCES),
)

hardware_keys = Table(
    "hardware_keys",
    metadata,
    _node(primary=True),
    _key("key"),
    _text("tenant_id"),
    _flag("trusted"),
    _flag("provisional"),
    _json("identifiers", "{}"),
    _time("created_at", now=True),
    _time("replaced_at"),  # null: the node's present one
    Index("uq_hardware_keys_key", "key", unique=True, postgresql_where=text("trusted AND replaced_at IS NULL")),
)

# Nodes to plan again from their applied snapshot; drained by a singleton.
replan = Table(
    "replan",
    metadata,
    _node(primary=True),
    _text("reason"),
    _time("queued_at", now=True),
    Index(None, "queued_at"),
)

# The outbox. A reader takes rows with `xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint` in the order of
# (xid, seq) and keeps the last pair as its cursor: all transactions below that horizon have ended, so nothing can appear
# behind the cursor. (`seq` alone is no cursor: a number is drawn before its transaction commits.)
events = Table(
    "events",
    metadata,
    Column("xid", BigInteger, primary_key=True, autoincrement=False, server_default=text("(pg_current_xact_id()::text)::bigint")),
    Column("seq", BigInteger, Identity(always=True), primary_key=True),
    _text("id"),
    _time("time", now=True),
    _text("tenant_id"),
    _text("pool_id", nullable=True),
    _text("node_id", nullable=True),  # no foreign key: what happened stays true
    _text("type"),
    _json("payload", "{}"),
    UniqueConstraint("id"),
    Index(None, "tenant_id", "xid", "seq"),
    Index(None, "node_id", "xid", "seq"),
)

# Written by placement, read here (SPEC B11).
bookings = Table(
    "bookings",
    metadata,
    _key("booking_id"),
    _text("tenant_id"),
    _node(),
    _text("device_id"),
    _text("atom_id"),
    Column("atom_generation", BigInteger, nullable=False),
    _time("created_at", now=True),
    _time("ended_at"),
    Index("uq_bookings_live_atom", "atom_id", "atom_generation", unique=True, postgresql_where=_LIVE),
    Index("ix_bookings_live_node", "node_id", postgresql_where=_LIVE),
    Index("ix_bookings_live_device", "device_id", postgresql_where=_LIVE),
)

disruptions = Table(
    "disruptions",
    metadata,
    _key("id"),
    Column("pool_id", Text, ForeignKey("pools.id"), nullable=True),
    _node(),
    _text("kind"),
    _text("owner"),
    _time("started_at", now=True),
    _time("ended_at"),
    _words("kind", values.DISRUPTION_KINDS),
    Index("ix_disruptions_open_pool", "pool_id", postgresql_where=_LIVE),
    Index("ix_disruptions_open_node", "node_id", postgresql_where=_LIVE),
)

commands = Table(
    "commands",
    metadata,
    _key("id"),
    _node(),
    _text("tenant_id"),
    _text("kind"),
    _json("payload", "{}"),
    _text("idempotency_key"),
    _text("state", "queued"),
    _text("reason", ""),
    _json("result"),
    _text("created_by", ""),
    _time("not_after"),
    _time("created_at", now=True),
    _time("sent_at"),
    _time("finished_at"),
    UniqueConstraint("node_id", "idempotency_key"),
    _words("state", values.COMMAND_STATES),
    Index("ix_commands_open", "node_id", postgresql_where=text("finished_at IS NULL")),
)
