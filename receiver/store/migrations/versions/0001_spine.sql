-- The tables of the spine, and the shape of what B0 and B11 say (bookable, bookings, disruptions).

CREATE TABLE events (
  xid BIGINT DEFAULT (pg_current_xact_id()::text)::bigint NOT NULL,
  seq BIGINT GENERATED ALWAYS AS IDENTITY,
  id TEXT NOT NULL,
  time TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  tenant_id TEXT NOT NULL,
  pool_id TEXT,
  node_id TEXT,
  type TEXT NOT NULL,
  payload JSONB DEFAULT '{}'::jsonb NOT NULL,
  CONSTRAINT pk_events PRIMARY KEY (xid, seq),
  CONSTRAINT uq_events_id UNIQUE (id)
);
CREATE INDEX ix_events_node_id_xid_seq ON events (node_id, xid, seq);
CREATE INDEX ix_events_tenant_id_xid_seq ON events (tenant_id, xid, seq);

CREATE TABLE pools (
  id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  name TEXT NOT NULL,
  kind TEXT DEFAULT 'gpu' NOT NULL,
  gpu_model TEXT,
  sharing TEXT DEFAULT 'exclusive' NOT NULL,
  mode TEXT DEFAULT 'enforce' NOT NULL,
  policy JSONB DEFAULT '{}'::jsonb NOT NULL,
  revision BIGINT DEFAULT '1'::bigint NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  CONSTRAINT pk_pools PRIMARY KEY (id),
  CONSTRAINT uq_pools_tenant_id_name UNIQUE (tenant_id, name),
  CONSTRAINT ck_pools_kind CHECK (kind IN ('gpu', 'vps-host', 'sandbox')),
  CONSTRAINT ck_pools_sharing CHECK (sharing IN ('exclusive', 'mig', 'timeslice', 'mps')),
  CONSTRAINT ck_pools_mode CHECK (mode IN ('enforce', 'observe'))
);

CREATE TABLE sections (
  hash TEXT NOT NULL,
  body BYTEA NOT NULL,
  size INTEGER NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  CONSTRAINT pk_sections PRIMARY KEY (hash),
  CONSTRAINT ck_sections_hash CHECK (hash ~ '^[0-9a-f]{64}$'),
  CONSTRAINT ck_sections_size CHECK (size = octet_length(body))
);

CREATE TABLE nodes (
  id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  pool_id TEXT,
  kind TEXT DEFAULT 'host' NOT NULL,
  status TEXT DEFAULT 'adopting' NOT NULL,
  status_since TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  trust TEXT DEFAULT 'platform' NOT NULL,
  trust_epoch BIGINT DEFAULT '0'::bigint NOT NULL,
  lease_id TEXT,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  maintenance_by TEXT,
  maintenance_reason TEXT,
  maintenance_since TIMESTAMP WITH TIME ZONE,
  maintenance_until TIMESTAMP WITH TIME ZONE,
  no_schedule_reasons JSONB DEFAULT '[]'::jsonb NOT NULL,
  would_no_schedule JSONB DEFAULT '[]'::jsonb NOT NULL,
  applied_digest TEXT,
  applied_snapshot_id TEXT,
  latest_snapshot_id TEXT,
  section_baselines JSONB DEFAULT '{}'::jsonb NOT NULL,
  plan_key JSONB,
  plan_rev BIGINT DEFAULT '0'::bigint NOT NULL,
  ownership_rev BIGINT DEFAULT '0'::bigint NOT NULL,
  epoch BIGINT DEFAULT '0'::bigint NOT NULL,
  session_trust_epoch BIGINT DEFAULT '0'::bigint NOT NULL,
  connected BOOLEAN DEFAULT false NOT NULL,
  receiver_id TEXT DEFAULT '' NOT NULL,
  boot_id TEXT,
  instance_id TEXT,
  daemon_version TEXT,
  protocol_version TEXT,
  drivers JSONB DEFAULT '[]'::jsonb NOT NULL,
  capabilities JSONB DEFAULT '[]'::jsonb NOT NULL,
  last_seen TIMESTAMP WITH TIME ZONE,
  reported_digest TEXT,
  collected_at TIMESTAMP WITH TIME ZONE,
  kernel_log JSONB,
  abandoned_workers BIGINT DEFAULT '0'::bigint NOT NULL,
  CONSTRAINT pk_nodes PRIMARY KEY (id),
  CONSTRAINT ck_nodes_kind CHECK (kind IN ('host', 'site-agent')),
  CONSTRAINT ck_nodes_status CHECK (status IN ('adopting', 'adopted', 'maintenance', 'retired', 'deleted')),
  CONSTRAINT ck_nodes_trust CHECK (trust IN ('platform', 'tenant-controlled')),
  CONSTRAINT fk_nodes_pool_id FOREIGN KEY(pool_id) REFERENCES pools (id)
);
CREATE INDEX ix_nodes_pool_id ON nodes (pool_id);
CREATE INDEX ix_nodes_tenant_id_id ON nodes (tenant_id, id);

CREATE TABLE tenant_sections (
  hash TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  name TEXT NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  CONSTRAINT pk_tenant_sections PRIMARY KEY (hash, tenant_id, name),
  CONSTRAINT fk_tenant_sections_hash FOREIGN KEY(hash) REFERENCES sections (hash)
);

CREATE TABLE bookings (
  booking_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  device_id TEXT NOT NULL,
  atom_id TEXT NOT NULL,
  atom_generation BIGINT NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  ended_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_bookings PRIMARY KEY (booking_id),
  CONSTRAINT fk_bookings_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_bookings_live_device ON bookings (device_id) WHERE ended_at IS NULL;
CREATE INDEX ix_bookings_live_node ON bookings (node_id) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX uq_bookings_live_atom ON bookings (atom_id, atom_generation) WHERE ended_at IS NULL;

CREATE TABLE commands (
  id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  payload JSONB DEFAULT '{}'::jsonb NOT NULL,
  idempotency_key TEXT NOT NULL,
  state TEXT DEFAULT 'queued' NOT NULL,
  reason TEXT DEFAULT '' NOT NULL,
  result JSONB,
  created_by TEXT DEFAULT '' NOT NULL,
  not_after TIMESTAMP WITH TIME ZONE,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  sent_at TIMESTAMP WITH TIME ZONE,
  finished_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_commands PRIMARY KEY (id),
  CONSTRAINT uq_commands_node_id_idempotency_key UNIQUE (node_id, idempotency_key),
  CONSTRAINT ck_commands_state CHECK (state IN ('queued', 'sent', 'succeeded', 'failed', 'refused', 'expired', 'cancelled')),
  CONSTRAINT fk_commands_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_commands_open ON commands (node_id) WHERE finished_at IS NULL;

CREATE TABLE conditions (
  node_id TEXT NOT NULL,
  type TEXT NOT NULL,
  device_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  bus_id TEXT DEFAULT '' NOT NULL,
  status TEXT NOT NULL,
  reason TEXT DEFAULT '' NOT NULL,
  message TEXT DEFAULT '' NOT NULL,
  count BIGINT DEFAULT '0'::bigint NOT NULL,
  no_schedule BOOLEAN DEFAULT false NOT NULL,
  advisory BOOLEAN DEFAULT false NOT NULL,
  evidence JSONB DEFAULT '{}'::jsonb NOT NULL,
  since TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  CONSTRAINT pk_conditions PRIMARY KEY (node_id, type, device_id),
  CONSTRAINT ck_conditions_status CHECK (status IN ('true', 'false', 'unknown')),
  CONSTRAINT fk_conditions_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_conditions_type_true ON conditions (type) WHERE status = 'true';

CREATE TABLE device_health (
  device_id TEXT NOT NULL,
  source TEXT NOT NULL,
  code TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  count BIGINT DEFAULT '0'::bigint NOT NULL,
  cleared_count BIGINT DEFAULT '0'::bigint NOT NULL,
  detail JSONB DEFAULT '{}'::jsonb NOT NULL,
  since TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  closed_at TIMESTAMP WITH TIME ZONE,
  closed_reason TEXT,
  CONSTRAINT pk_device_health PRIMARY KEY (device_id, source, code, boot_id),
  CONSTRAINT ck_device_health_source CHECK (source IN ('xid', 'inventory')),
  CONSTRAINT fk_device_health_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_device_health_open ON device_health (node_id, device_id) WHERE closed_at IS NULL;

CREATE TABLE device_history (
  seq BIGINT GENERATED ALWAYS AS IDENTITY,
  device_id TEXT NOT NULL,
  serial TEXT,
  node_id TEXT,
  tenant_id TEXT NOT NULL,
  event TEXT NOT NULL,
  detail JSONB DEFAULT '{}'::jsonb NOT NULL,
  at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  CONSTRAINT pk_device_history PRIMARY KEY (seq),
  CONSTRAINT fk_device_history_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_device_history_device_id_seq ON device_history (device_id, seq);
CREATE INDEX ix_device_history_serial_seq ON device_history (serial, seq);

CREATE TABLE devices (
  id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  serial TEXT,
  present BOOLEAN DEFAULT true NOT NULL,
  healthy BOOLEAN DEFAULT true NOT NULL,
  lost BOOLEAN DEFAULT false NOT NULL,
  assigned BOOLEAN DEFAULT false NOT NULL,
  partition_pending BOOLEAN DEFAULT false NOT NULL,
  draining BOOLEAN DEFAULT false NOT NULL,
  attributes JSONB DEFAULT '{}'::jsonb NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  missing_since TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_devices PRIMARY KEY (id),
  CONSTRAINT fk_devices_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_devices_node_id ON devices (node_id);
CREATE INDEX ix_devices_serial ON devices (serial);

CREATE TABLE disruptions (
  id TEXT NOT NULL,
  pool_id TEXT,
  node_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  owner TEXT NOT NULL,
  started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  ended_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_disruptions PRIMARY KEY (id),
  CONSTRAINT ck_disruptions_kind CHECK (kind IN ('remediation', 'workflow', 'rollout', 'maintenance')),
  CONSTRAINT fk_disruptions_pool_id FOREIGN KEY(pool_id) REFERENCES pools (id),
  CONSTRAINT fk_disruptions_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_disruptions_open_node ON disruptions (node_id) WHERE ended_at IS NULL;
CREATE INDEX ix_disruptions_open_pool ON disruptions (pool_id) WHERE ended_at IS NULL;

CREATE TABLE hardware_keys (
  node_id TEXT NOT NULL,
  key TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  trusted BOOLEAN DEFAULT false NOT NULL,
  provisional BOOLEAN DEFAULT false NOT NULL,
  identifiers JSONB DEFAULT '{}'::jsonb NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  replaced_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_hardware_keys PRIMARY KEY (node_id, key),
  CONSTRAINT fk_hardware_keys_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE UNIQUE INDEX uq_hardware_keys_key ON hardware_keys (key) WHERE trusted AND replaced_at IS NULL;

CREATE TABLE inventory_snapshots (
  id TEXT NOT NULL,
  seq BIGINT GENERATED ALWAYS AS IDENTITY,
  node_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  digest TEXT NOT NULL,
  sections JSONB DEFAULT '{}'::jsonb NOT NULL,
  advisory BOOLEAN DEFAULT false NOT NULL,
  boot_id TEXT DEFAULT '' NOT NULL,
  trigger TEXT DEFAULT '' NOT NULL,
  collected_at TIMESTAMP WITH TIME ZONE,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  CONSTRAINT pk_inventory_snapshots PRIMARY KEY (id),
  CONSTRAINT fk_inventory_snapshots_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE UNIQUE INDEX ix_inventory_snapshots_node_id_seq ON inventory_snapshots (node_id, seq);

CREATE TABLE node_labels (
  node_id TEXT NOT NULL,
  key TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  value TEXT NOT NULL,
  source TEXT NOT NULL,
  CONSTRAINT pk_node_labels PRIMARY KEY (node_id, key),
  CONSTRAINT ck_node_labels_source CHECK (source IN ('inventory', 'system', 'operator')),
  CONSTRAINT fk_node_labels_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);

CREATE TABLE node_missing_sections (
  node_id TEXT NOT NULL,
  name TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  error TEXT NOT NULL,
  source TEXT DEFAULT 'report' NOT NULL,
  last_snapshot_id TEXT,
  since TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  CONSTRAINT pk_node_missing_sections PRIMARY KEY (node_id, name),
  CONSTRAINT ck_node_missing_sections_source CHECK (source IN ('report', 'section')),
  CONSTRAINT fk_node_missing_sections_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);

CREATE TABLE replan (
  node_id TEXT NOT NULL,
  reason TEXT NOT NULL,
  queued_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  CONSTRAINT pk_replan PRIMARY KEY (node_id),
  CONSTRAINT fk_replan_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_replan_queued_at ON replan (queued_at);

CREATE TABLE sessions (
  node_id TEXT NOT NULL,
  epoch BIGINT NOT NULL,
  tenant_id TEXT NOT NULL,
  previous_epoch BIGINT,
  boot_id TEXT NOT NULL,
  instance_id TEXT NOT NULL,
  receiver_id TEXT DEFAULT '' NOT NULL,
  trust_epoch BIGINT DEFAULT '0'::bigint NOT NULL,
  alternation BOOLEAN DEFAULT false NOT NULL,
  started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  ended_at TIMESTAMP WITH TIME ZONE,
  end_reason TEXT,
  CONSTRAINT pk_sessions PRIMARY KEY (node_id, epoch),
  CONSTRAINT fk_sessions_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);

CREATE TABLE atoms (
  id TEXT NOT NULL,
  generation BIGINT NOT NULL,
  device_id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  profile TEXT,
  placement JSONB,
  bookable BOOLEAN DEFAULT false NOT NULL,
  retiring BOOLEAN DEFAULT false NOT NULL,
  healthy BOOLEAN DEFAULT true NOT NULL,
  reason TEXT,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  CONSTRAINT pk_atoms PRIMARY KEY (id, generation),
  CONSTRAINT fk_atoms_device_id FOREIGN KEY(device_id) REFERENCES devices (id),
  CONSTRAINT fk_atoms_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_atoms_device_id ON atoms (device_id);
CREATE INDEX ix_atoms_node_id ON atoms (node_id);


-- Sections are hashed, stored once and rarely read: compressing them would cost more time than they save in space.
ALTER TABLE sections ALTER COLUMN body SET STORAGE EXTERNAL;
-- Room for updates in place: last_seen moves all the time, and is in no index.
ALTER TABLE nodes SET (fillfactor = 70);

-- Snapshots and events are append-only in the database itself, for superusers and in replica mode too. The only way past
-- it is prune_snapshots(), which the trigger recognises by the call stack, so no setting can pretend to be it.
CREATE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  stack text;
BEGIN
  GET DIAGNOSTICS stack = PG_CONTEXT;
  IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'inventory_snapshots' AND stack ~ 'function prune_snapshots\(' THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP
    USING ERRCODE = 'restrict_violation', HINT = 'snapshots are deleted by prune_snapshots(before) only, events never';
END $$;

CREATE TRIGGER inventory_snapshots_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON inventory_snapshots
  FOR EACH STATEMENT EXECUTE FUNCTION append_only();
ALTER TABLE inventory_snapshots ENABLE ALWAYS TRIGGER inventory_snapshots_append_only;
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events
  FOR EACH STATEMENT EXECUTE FUNCTION append_only();
ALTER TABLE events ENABLE ALWAYS TRIGGER events_append_only;

-- Readers of the outbox sleep on this channel; what they read is their cursor's business.
CREATE FUNCTION wake_event_readers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('bc_events', '');
  RETURN NULL;
END $$;
CREATE TRIGGER events_wake_readers AFTER INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION wake_event_readers();

-- Deletes snapshots older than `before`, but each node's applied and newest one, and then the bytes that no snapshot and
-- no baseline names. Answers how many snapshots went. The table lock keeps an apply from naming, meanwhile, a section that
-- is about to go: its write waits, sees the deletion, and asks the node for the bytes again.
CREATE FUNCTION prune_snapshots(before timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  gone bigint;
BEGIN
  LOCK TABLE inventory_snapshots IN SHARE ROW EXCLUSIVE MODE;
  DELETE FROM inventory_snapshots s
  WHERE s.created_at < before
    AND NOT EXISTS (SELECT FROM nodes n WHERE n.id = s.node_id AND n.applied_snapshot_id = s.id)
    AND EXISTS (SELECT FROM inventory_snapshots newer WHERE newer.node_id = s.node_id AND newer.seq > s.seq);
  GET DIAGNOSTICS gone = ROW_COUNT;
  DELETE FROM tenant_sections t
  WHERE t.created_at < before AND (t.tenant_id, t.name, t.hash) NOT IN (
    SELECT s.tenant_id, e.key, e.value FROM inventory_snapshots s, jsonb_each_text(s.sections) e
    UNION SELECT n.tenant_id, e.key, e.value ->> 0 FROM nodes n, jsonb_each(n.section_baselines) e);
  DELETE FROM sections s WHERE NOT EXISTS (SELECT FROM tenant_sections t WHERE t.hash = s.hash);
  RETURN gone;
END $$;
