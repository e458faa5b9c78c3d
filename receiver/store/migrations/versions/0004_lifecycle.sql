-- Acceptance, remediation and hygiene (SPEC B6 to B8).

-- The time that these rules read and write: the transaction's. A simulation puts its own function in this place.
CREATE FUNCTION bc_clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT now()';

ALTER TABLE nodes ALTER COLUMN status_since SET DEFAULT bc_clock();
ALTER TABLE conditions ALTER COLUMN since SET DEFAULT bc_clock();
ALTER TABLE device_health ALTER COLUMN since SET DEFAULT bc_clock();
ALTER TABLE disruptions ALTER COLUMN started_at SET DEFAULT bc_clock();
ALTER TABLE commands ALTER COLUMN created_at SET DEFAULT bc_clock();
ALTER TABLE sessions ALTER COLUMN started_at SET DEFAULT bc_clock();

-- A node that is being disrupted takes no bookings: `draining` is part of what is placeable.
DROP VIEW bookable_atoms;
ALTER TABLE nodes DROP COLUMN placeable;
ALTER TABLE nodes ADD COLUMN draining BOOLEAN DEFAULT false NOT NULL;
ALTER TABLE nodes ADD COLUMN unhealthy BOOLEAN DEFAULT false NOT NULL;
-- Nodes that are unhealthy do not turn so by this.
UPDATE nodes n SET unhealthy = true WHERE EXISTS (SELECT FROM device_health h WHERE h.node_id = n.id AND h.closed_at IS NULL)
  OR EXISTS (SELECT FROM conditions c WHERE c.node_id = n.id AND c.status = 'true' AND NOT c.advisory
    AND (c.type IN ('FabricManagerDown', 'NvmlUnavailable') OR starts_with(c.type, 'SXid')));
ALTER TABLE nodes ADD COLUMN certificate_from TIMESTAMP WITH TIME ZONE;
ALTER TABLE nodes ADD COLUMN certificate_until TIMESTAMP WITH TIME ZONE;
-- What tells a later collection from an earlier one, whatever the clocks say: proof of a repair.
ALTER TABLE nodes ADD COLUMN inventory_rev BIGINT DEFAULT '0'::bigint NOT NULL;
ALTER TABLE commands ADD COLUMN inventory_rev BIGINT;
ALTER TABLE nodes ADD COLUMN placeable BOOLEAN NOT NULL GENERATED ALWAYS AS
  (status = 'adopted' AND trust = 'platform' AND no_schedule_reasons = '[]'::jsonb AND NOT draining) STORED;
-- What budgets and breakers count.
CREATE INDEX ix_nodes_in_service ON nodes (pool_id, unhealthy) WHERE status = 'adopted';
CREATE INDEX ix_nodes_placeable ON nodes (id) WHERE placeable;
CREATE VIEW bookable_atoms AS
  SELECT f.node_id, f.atom_id AS id, f.generation, a.device_id, a.profile, a.tenant_id, n.pool_id
  FROM nodes n JOIN free_atoms f ON f.node_id = n.id JOIN atoms a ON a.id = f.atom_id AND a.generation = f.generation
  WHERE n.placeable AND a.bookable AND NOT EXISTS (
    SELECT FROM bookings b WHERE b.atom_id = a.id AND b.atom_generation = a.generation AND b.ended_at IS NULL);

CREATE TABLE leases (
  name TEXT NOT NULL,
  holder TEXT DEFAULT '' NOT NULL,
  token BIGINT DEFAULT '0'::bigint NOT NULL,
  expires_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_leases PRIMARY KEY (name)
);

CREATE TABLE serving (
  name TEXT NOT NULL,
  since TIMESTAMP WITH TIME ZONE DEFAULT bc_clock() NOT NULL,
  beat_at TIMESTAMP WITH TIME ZONE DEFAULT bc_clock() NOT NULL,
  CONSTRAINT pk_serving PRIMARY KEY (name)
);

CREATE TABLE remediation_runs (
  id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  pool_id TEXT,
  kind TEXT NOT NULL,
  devices JSONB DEFAULT '[]'::jsonb NOT NULL,
  causes JSONB DEFAULT '[]'::jsonb NOT NULL,
  payload JSONB DEFAULT '{}'::jsonb NOT NULL,
  "by" TEXT DEFAULT '' NOT NULL,
  force BOOLEAN DEFAULT false NOT NULL,
  state TEXT DEFAULT 'queued' NOT NULL,
  escalated BOOLEAN DEFAULT false NOT NULL,
  observed BOOLEAN DEFAULT false NOT NULL,
  reason TEXT DEFAULT '' NOT NULL,
  boot_id TEXT DEFAULT '' NOT NULL,
  command_id TEXT,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT bc_clock() NOT NULL,
  started_at TIMESTAMP WITH TIME ZONE,
  verifying_at TIMESTAMP WITH TIME ZONE,
  ended_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_remediation_runs PRIMARY KEY (id),
  CONSTRAINT fk_remediation_runs_node_id FOREIGN KEY(node_id) REFERENCES nodes (id),
  CONSTRAINT ck_remediation_runs_kind CHECK (kind IN ('node.reboot', 'gpu.reset', 'diag.nvml', 'diag.dcgm')),
  CONSTRAINT ck_remediation_runs_state
    CHECK (state IN ('queued', 'waiting', 'running', 'verifying', 'succeeded', 'failed', 'cancelled')),
  CONSTRAINT ck_remediation_runs_ended CHECK ((state IN ('succeeded', 'failed', 'cancelled')) = (ended_at IS NOT NULL))
);
CREATE INDEX ix_remediation_runs_open ON remediation_runs (node_id) WHERE ended_at IS NULL;
CREATE INDEX ix_remediation_runs_node_id_created_at ON remediation_runs (node_id, created_at);
CREATE INDEX ix_remediation_runs_node_id_id ON remediation_runs (node_id, id);
CREATE INDEX ix_remediation_runs_state_id ON remediation_runs (state, id);
CREATE INDEX ix_remediation_runs_escalated ON remediation_runs (id) WHERE escalated;
CREATE INDEX ix_remediation_runs_pool_id_id ON remediation_runs (pool_id, id);
CREATE INDEX ix_remediation_runs_tenant_id_id ON remediation_runs (tenant_id, id);

CREATE TABLE remediation_steps (
  seq BIGINT GENERATED ALWAYS AS IDENTITY,
  run_id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  at TIMESTAMP WITH TIME ZONE DEFAULT bc_clock() NOT NULL,
  state TEXT NOT NULL,
  reason TEXT DEFAULT '' NOT NULL,
  CONSTRAINT pk_remediation_steps PRIMARY KEY (seq),
  CONSTRAINT fk_remediation_steps_run_id FOREIGN KEY(run_id) REFERENCES remediation_runs (id),
  CONSTRAINT fk_remediation_steps_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_remediation_steps_run_id_seq ON remediation_steps (run_id, seq);

CREATE TABLE unhealthy_turns (
  seq BIGINT GENERATED ALWAYS AS IDENTITY,
  pool_id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  at TIMESTAMP WITH TIME ZONE DEFAULT bc_clock() NOT NULL,
  reason TEXT DEFAULT '' NOT NULL,
  CONSTRAINT pk_unhealthy_turns PRIMARY KEY (seq),
  CONSTRAINT fk_unhealthy_turns_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_unhealthy_turns_pool_id_at ON unhealthy_turns (pool_id, at);

CREATE TABLE pool_stops (
  seq BIGINT GENERATED ALWAYS AS IDENTITY,
  pool_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  since TIMESTAMP WITH TIME ZONE DEFAULT bc_clock() NOT NULL,
  detail JSONB DEFAULT '{}'::jsonb NOT NULL,
  confirmed_by TEXT,
  ended_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_pool_stops PRIMARY KEY (seq)
);
CREATE UNIQUE INDEX uq_pool_stops_open ON pool_stops (pool_id, tenant_id, kind) WHERE ended_at IS NULL;

CREATE TABLE acceptance_attempts (
  node_id TEXT NOT NULL,
  attempt BIGINT NOT NULL,
  tenant_id TEXT NOT NULL,
  state TEXT NOT NULL,
  reason TEXT DEFAULT '' NOT NULL,
  checks JSONB DEFAULT '[]'::jsonb NOT NULL,
  started_at TIMESTAMP WITH TIME ZONE DEFAULT bc_clock() NOT NULL,
  ended_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_acceptance_attempts PRIMARY KEY (node_id, attempt),
  CONSTRAINT fk_acceptance_attempts_node_id FOREIGN KEY(node_id) REFERENCES nodes (id),
  CONSTRAINT ck_acceptance_attempts_state CHECK (state IN ('running', 'passed', 'failed', 'cancelled'))
);
CREATE INDEX ix_acceptance_attempts_running ON acceptance_attempts (node_id) WHERE state = 'running';

-- What commands.list reads, and what is forgotten.
CREATE INDEX ix_commands_node_id_id ON commands (node_id, id);
CREATE INDEX ix_commands_tenant_id_id ON commands (tenant_id, id);
CREATE INDEX ix_commands_kind_id ON commands (kind, id);
CREATE INDEX ix_commands_kind_state_id ON commands (kind, state, id);
CREATE INDEX ix_commands_state_id ON commands (state, id);
CREATE INDEX ix_commands_ended ON commands (finished_at) WHERE finished_at IS NOT NULL;
