"""The declared tables of GPUs: what they are, what can be booked of them, what is wrong with them, and who has booked them.

Conventions: schema.py.
"""

from sqlalchemy import BigInteger, Column, ForeignKey, Identity, Index, Table, Text, text

from receiver import values
from receiver.store import columns as c
from receiver.store.columns import metadata

LIVE = text("ended_at IS NULL")

devices = Table(
    "devices",
    metadata,
    c.key("id"),  # the GPU's UUID
    c.node(),
    c.text("tenant_id"),
    c.text("serial", nullable=True),
    c.flag("present", True),
    c.flag("healthy", True),
    c.flag("lost"),
    c.flag("assigned"),
    c.flag("partition_pending"),
    c.flag("draining"),
    c.json("attributes", "{}"),
    c.time("created_at", now=True),
    c.time("missing_since"),
    Index(None, "node_id"),
    Index(None, "serial"),
    Index("ix_devices_missing", "node_id", postgresql_where=text("NOT present")),
)

atoms = Table(
    "atoms",
    metadata,
    c.key("id"),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("device_id", Text, ForeignKey("devices.id"), nullable=False),
    c.node(),
    c.text("tenant_id"),
    c.text("profile", nullable=True),
    c.json("placement"),
    c.flag("bookable"),
    c.flag("retiring"),
    c.flag("healthy", True),
    c.text("reason", nullable=True),  # why it is not bookable
    c.time("created_at", now=True),
    Index(None, "device_id"),
    Index(None, "node_id", "id", "generation"),
    Index("ix_atoms_kept", "node_id", postgresql_where=text("retiring OR reason = 'MigInstanceGone'")),
)

# The last generation of each MIG instance's UUID, and what it was: kept when its atom goes.
mig_generations = Table(
    "mig_generations",
    metadata,
    c.key("atom_id"),
    Column("generation", BigInteger, nullable=False),
    c.text("device_id"),
    c.node(),
    c.text("tenant_id"),
    c.text("profile", nullable=True),
    c.json("placement"),
    c.text("boot_id", ""),
    Index(None, "node_id"),
    Index(None, "device_id"),
)

# No foreign key to devices: a device planned later is born unhealthy.
device_health = Table(
    "device_health",
    metadata,
    c.key("device_id"),
    c.key("source"),
    c.key("code"),
    c.key("boot_id"),
    c.node(),
    c.text("tenant_id"),
    c.number("count", 0),
    c.number("cleared_count", 0),
    c.json("detail", "{}"),
    c.moment("since"),
    c.time("closed_at"),
    c.text("closed_reason", nullable=True),
    c.words("source", values.HEALTH_SOURCES),
    Index(None, "node_id"),
    Index("ix_device_health_open", "node_id", "device_id", postgresql_where=text("closed_at IS NULL")),
)

device_history = Table(
    "device_history",
    metadata,
    Column("seq", BigInteger, Identity(always=True), primary_key=True),
    c.text("device_id"),
    c.text("serial", nullable=True),
    c.node(nullable=True),
    c.text("tenant_id"),
    c.text("event"),
    c.json("detail", "{}"),
    c.time("at", now=True),
    Index(None, "device_id", "seq"),
    Index(None, "serial", "seq"),
)

# Written by placement, read here (SPEC B11).
bookings = Table(
    "bookings",
    metadata,
    c.key("booking_id"),
    c.text("tenant_id"),
    c.node(),
    c.text("device_id"),
    c.text("atom_id"),
    Column("atom_generation", BigInteger, nullable=False),
    c.time("created_at", now=True),
    c.time("ended_at"),
    Index("uq_bookings_live_atom", "atom_id", "atom_generation", unique=True, postgresql_where=LIVE),
    Index("ix_bookings_live_node", "node_id", postgresql_where=LIVE),
    Index("ix_bookings_live_device", "device_id", postgresql_where=LIVE),
)

# Atoms that may be booked, kept by triggers (0003_conclude.sql): bookable, and without a live booking; perhaps a few too many.
free_atoms = Table(
    "free_atoms",
    metadata,
    c.key("node_id"),
    c.key("atom_id"),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
)
