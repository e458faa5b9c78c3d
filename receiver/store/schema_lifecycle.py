"""The declared tables of the loops: leases, remediation, the breaker's window, acceptance (SPEC B6 to B8).

Conventions: schema.py. Times are those of `bc_clock()`, but for a lease's, which is about processes and not about the fleet.
"""

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Identity, Index, Table, Text, text

from receiver import values
from receiver.planning.webhook import BATCH
from receiver.store import columns as c
from receiver.store.columns import metadata

OPEN = text("ended_at IS NULL")
_ENDED = ", ".join(f"'{state}'" for state in values.RUN_ENDED)

# Which receiver does a singleton's work. `token` rises with each holder: what an earlier one still writes is refused.
leases = Table(
    "leases",
    metadata,
    c.key("name"),
    c.text("holder", ""),
    c.number("token", 0),
    c.time("expires_at"),
)

# One row, "receivers": since when there was always one of them serving, and when that was last said.
serving = Table(
    "serving",
    metadata,
    c.key("name"),
    c.moment("since"),
    c.moment("beat_at"),
)

remediation_runs = Table(
    "remediation_runs",
    metadata,
    c.key("id"),
    c.node(),
    c.text("tenant_id"),
    c.text("pool_id", nullable=True),  # no foreign key: a run outlives its pool
    c.text("kind"),
    c.json("devices", "[]"),  # UUIDs in order: a reset's group; of a reboot the GPUs that it is for
    c.json("causes", "[]"),  # [{code, deviceId, bootId, source}]
    c.json("payload", "{}"),  # of a diagnosis' command
    c.text("by", ""),  # who ordered it; empty: nobody, a fault did
    c.flag("force"),
    c.text("state", "queued"),
    c.flag("escalated"),
    c.flag("observed"),  # what would be done: nothing acts on it
    c.text("reason", ""),
    c.text("boot_id", ""),  # the node's when it started
    c.text("command_id", nullable=True),
    c.moment("created_at"),
    c.time("started_at"),
    c.time("verifying_at"),
    c.time("ended_at"),
    c.words("kind", values.RUN_KINDS),
    c.words("state", values.RUN_STATES),
    CheckConstraint(f"(state IN ({_ENDED})) = (ended_at IS NOT NULL)", name="ended"),
    Index("ix_remediation_runs_open", "node_id", postgresql_where=OPEN),
    Index(None, "node_id", "created_at"),
    Index(None, "node_id", "id"),
    Index(None, "pool_id", "id"),
    Index(None, "state", "id"),
    Index("ix_remediation_runs_escalated", "id", postgresql_where=text("escalated")),
    Index(None, "tenant_id", "id"),
)

# The history of each run.
remediation_steps = Table(
    "remediation_steps",
    metadata,
    Column("seq", BigInteger, Identity(always=True), primary_key=True),
    Column("run_id", Text, ForeignKey("remediation_runs.id"), nullable=False),
    c.node(),
    c.text("tenant_id"),
    c.moment("at"),
    c.text("state"),
    c.text("reason", ""),
    Index(None, "run_id", "seq"),
)

# When a pool's nodes turned unhealthy: the breaker's window.
unhealthy_turns = Table(
    "unhealthy_turns",
    metadata,
    Column("seq", BigInteger, Identity(always=True), primary_key=True),
    c.text("pool_id"),
    c.node(),
    c.moment("at"),
    c.text("reason", ""),
    Index(None, "pool_id", "at"),
)

# What does not go on in a pool: `remediation`, or raising a condition of hygiene. Pool "": a tenant's nodes without one.
pool_stops = Table(
    "pool_stops",
    metadata,
    Column("seq", BigInteger, Identity(always=True), primary_key=True),
    c.text("pool_id"),
    c.text("tenant_id"),
    c.text("kind"),
    c.moment("since"),
    c.json("detail", "{}"),
    c.text("confirmed_by", nullable=True),  # by whom it goes on nevertheless
    c.time("ended_at"),
    Index("uq_pool_stops_open", "pool_id", "tenant_id", "kind", unique=True, postgresql_where=OPEN),
)

acceptance_attempts = Table(
    "acceptance_attempts",
    metadata,
    c.node(primary=True),
    Column("attempt", BigInteger, primary_key=True, autoincrement=False),
    c.text("tenant_id"),
    c.text("state"),
    c.text("reason", ""),
    c.json("checks", "[]"),  # [{kind, commandId, status, reason}]
    c.moment("started_at"),
    c.time("ended_at"),
    c.words("state", values.ATTEMPT_STATES),
    Index("ix_acceptance_attempts_running", "node_id", postgresql_where=text("state = 'running'")),
)

# How far the webhook has told events (their order: schema.py), and how it goes. `next_at` is the server's time, as a lease's.
webhooks = Table(
    "webhooks",
    metadata,
    c.key("name"),
    c.number("xid", 0),
    c.number("seq", 0),  # (xid, seq): the last event that is done with
    c.number("size", BATCH),  # events that are sent together the next time
    c.number("failures", 0),  # in a row
    c.number("refusals", 0),  # of an event that is sent alone
    c.time("next_at"),
    c.text("error", ""),  # of the last try; empty: it went well
    c.number("delivered", 0),
    c.number("skipped", 0),
)
