-- What the receiver concludes from reports (SPEC B0 to B5).

ALTER TABLE nodes DROP COLUMN ownership_rev;
ALTER TABLE nodes ADD COLUMN inventory_boot TEXT;
ALTER TABLE nodes ADD COLUMN baseline JSONB;
ALTER TABLE nodes ADD COLUMN attempt BIGINT DEFAULT '1'::bigint NOT NULL;
ALTER TABLE nodes ADD COLUMN placeable BOOLEAN NOT NULL GENERATED ALWAYS AS
  (status = 'adopted' AND trust = 'platform' AND no_schedule_reasons = '[]'::jsonb) STORED;

ALTER TABLE node_faults ADD COLUMN bus_id TEXT DEFAULT '' NOT NULL;
ALTER TABLE node_faults ADD COLUMN message TEXT DEFAULT '' NOT NULL;
ALTER TABLE node_faults ADD COLUMN "foreign" BOOLEAN DEFAULT false NOT NULL;

ALTER TABLE hardware_keys ADD COLUMN "distinct" JSONB DEFAULT '[]'::jsonb NOT NULL;

CREATE TABLE mig_generations (
  atom_id TEXT NOT NULL,
  generation BIGINT NOT NULL,
  device_id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  profile TEXT,
  placement JSONB,
  boot_id TEXT DEFAULT '' NOT NULL,
  CONSTRAINT pk_mig_generations PRIMARY KEY (atom_id),
  CONSTRAINT fk_mig_generations_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_mig_generations_node_id ON mig_generations (node_id);
CREATE INDEX ix_mig_generations_device_id ON mig_generations (device_id);
CREATE INDEX ix_device_health_node_id ON device_health (node_id);

-- Reading at the size of a fleet (SPEC B9): every list has an index that leads from a cursor on.
ALTER TABLE node_labels ADD COLUMN number NUMERIC GENERATED ALWAYS AS
  (CASE WHEN value ~ '^-?[0-9]+([.][0-9]+)?$' THEN value::numeric END) STORED;
CREATE INDEX ix_node_labels_key_value_node_id ON node_labels (key, value, node_id);
CREATE INDEX ix_node_labels_number ON node_labels (key, number, node_id) WHERE number IS NOT NULL;
CREATE STATISTICS st_node_labels (dependencies, mcv) ON key, value, number FROM node_labels;  -- values are of their key

DROP INDEX ix_nodes_pool_id;
CREATE INDEX ix_nodes_pool_id_id ON nodes (pool_id, id);
CREATE INDEX ix_nodes_status_id ON nodes (status, id);
CREATE INDEX ix_nodes_placeable ON nodes (id) WHERE placeable;
DROP INDEX ix_atoms_node_id;
CREATE INDEX ix_atoms_node_id_id_generation ON atoms (node_id, id, generation);
DROP INDEX ix_conditions_type_true;
CREATE STATISTICS st_conditions (mcv) ON type, status FROM conditions;  -- some types are nearly always true, most hardly ever
CREATE INDEX ix_conditions_true ON conditions (type, node_id) WHERE status = 'true';
CREATE INDEX ix_events_type_xid_seq ON events (type, xid, seq);

-- The images that an images section lists, once for all nodes and snapshots with these bytes.
CREATE TABLE section_images (
  hash TEXT NOT NULL,
  digest TEXT NOT NULL,
  name TEXT,
  bytes BIGINT,
  CONSTRAINT pk_section_images PRIMARY KEY (hash, digest),
  CONSTRAINT fk_section_images_hash FOREIGN KEY(hash) REFERENCES sections (hash) ON DELETE CASCADE
);
CREATE INDEX ix_section_images_digest_hash ON section_images (digest, hash);

-- What is kept only for a booking goes when that ends (receiver/apply/replan.py): its node is planned again.
CREATE INDEX ix_devices_missing ON devices (node_id) WHERE NOT present;
CREATE INDEX ix_atoms_kept ON atoms (node_id) WHERE retiring OR reason = 'MigInstanceGone';
CREATE FUNCTION replan_ended_bookings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO replan (node_id, reason, queued_at)
  SELECT w.node_id, 'a booking ended', clock_timestamp()
  FROM was w LEFT JOIN bookings b ON b.booking_id = w.booking_id
  WHERE w.ended_at IS NULL AND (b.booking_id IS NULL OR b.ended_at IS NOT NULL) AND (
    EXISTS (SELECT FROM atoms a WHERE a.id = w.atom_id AND a.generation = w.atom_generation AND NOT a.bookable)
    OR EXISTS (SELECT FROM devices d WHERE d.id = w.device_id AND NOT d.present))
  GROUP BY w.node_id ORDER BY w.node_id
  ON CONFLICT (node_id) DO UPDATE SET reason = excluded.reason, queued_at = excluded.queued_at;
  RETURN NULL;
END $$;
CREATE TRIGGER bookings_ended AFTER UPDATE ON bookings REFERENCING OLD TABLE AS was
  FOR EACH STATEMENT EXECUTE FUNCTION replan_ended_bookings();
CREATE TRIGGER bookings_deleted AFTER DELETE ON bookings REFERENCING OLD TABLE AS was
  FOR EACH STATEMENT EXECUTE FUNCTION replan_ended_bookings();

-- A transaction over several nodes has its number before it has all their locks: what it tells of the last one has the number
-- of the newest transaction that has ended by then, so that the events of a node stand in the order in which it changed.
ALTER TABLE events ALTER COLUMN xid
  SET DEFAULT greatest((pg_current_xact_id()::text)::bigint, (pg_snapshot_xmax(pg_current_snapshot())::text)::bigint - 1);
ALTER TABLE events ALTER COLUMN time SET DEFAULT clock_timestamp();

-- Atoms that may be booked: bookable as their device's, and not booked. When nearly all are booked, or hardly one is bookable, the
-- few others are found here and not looked for among all. Kept by triggers, and never without a row that it should have; one too
-- many is possible, because two transactions do not see each other (an atom becomes bookable while its booking ends: each adds
-- the row). So whoever reads it looks at the atom and at its booking too.
CREATE TABLE free_atoms (
  node_id TEXT NOT NULL,
  atom_id TEXT NOT NULL,
  generation BIGINT NOT NULL,
  CONSTRAINT pk_free_atoms PRIMARY KEY (node_id, atom_id, generation)
);
INSERT INTO free_atoms SELECT node_id, id, generation FROM atoms WHERE bookable;
DELETE FROM free_atoms f USING bookings b WHERE (b.atom_id, b.atom_generation) = (f.atom_id, f.generation) AND b.ended_at IS NULL;

CREATE FUNCTION free_atoms_of_atoms() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO free_atoms SELECT node_id, id, generation FROM is_now WHERE bookable ORDER BY 1, 2, 3 ON CONFLICT DO NOTHING;
    RETURN NULL;
  END IF;
  DELETE FROM free_atoms f USING was w
  WHERE (f.node_id, f.atom_id, f.generation) = (w.node_id, w.id, w.generation) AND NOT EXISTS (
    SELECT FROM atoms a WHERE (a.id, a.generation, a.node_id) = (w.id, w.generation, w.node_id) AND a.bookable);
  IF TG_OP = 'UPDATE' THEN
    INSERT INTO free_atoms
    SELECT n.node_id, n.id, n.generation FROM is_now n LEFT JOIN was w
      ON (w.id, w.generation, w.node_id) = (n.id, n.generation, n.node_id) AND w.bookable
    WHERE n.bookable AND w.id IS NULL ORDER BY 1, 2, 3 ON CONFLICT DO NOTHING;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER atoms_inserted AFTER INSERT ON atoms REFERENCING NEW TABLE AS is_now
  FOR EACH STATEMENT EXECUTE FUNCTION free_atoms_of_atoms();
CREATE TRIGGER atoms_updated AFTER UPDATE ON atoms REFERENCING OLD TABLE AS was NEW TABLE AS is_now
  FOR EACH STATEMENT EXECUTE FUNCTION free_atoms_of_atoms();
CREATE TRIGGER atoms_deleted AFTER DELETE ON atoms REFERENCING OLD TABLE AS was
  FOR EACH STATEMENT EXECUTE FUNCTION free_atoms_of_atoms();

CREATE FUNCTION free_atoms_of_bookings() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'INSERT' THEN
    INSERT INTO free_atoms
    SELECT a.node_id, a.id, a.generation FROM was w JOIN atoms a ON (a.id, a.generation) = (w.atom_id, w.atom_generation)
    WHERE w.ended_at IS NULL AND a.bookable AND NOT EXISTS (
      SELECT FROM bookings b WHERE (b.atom_id, b.atom_generation) = (a.id, a.generation) AND b.ended_at IS NULL)
    ORDER BY 1, 2, 3 ON CONFLICT DO NOTHING;
  END IF;
  IF TG_OP <> 'DELETE' THEN
    DELETE FROM free_atoms f USING is_now n JOIN atoms a ON (a.id, a.generation) = (n.atom_id, n.atom_generation)
    WHERE n.ended_at IS NULL AND (f.node_id, f.atom_id, f.generation) = (a.node_id, a.id, a.generation);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER bookings_free_inserted AFTER INSERT ON bookings REFERENCING NEW TABLE AS is_now
  FOR EACH STATEMENT EXECUTE FUNCTION free_atoms_of_bookings();
CREATE TRIGGER bookings_free_updated AFTER UPDATE ON bookings REFERENCING OLD TABLE AS was NEW TABLE AS is_now
  FOR EACH STATEMENT EXECUTE FUNCTION free_atoms_of_bookings();
CREATE TRIGGER bookings_free_deleted AFTER DELETE ON bookings REFERENCING OLD TABLE AS was
  FOR EACH STATEMENT EXECUTE FUNCTION free_atoms_of_bookings();

-- What is bookable (SPEC B0): the node's part, the atom's with its device's, and no live booking. Placement reads this, and reads
-- it again under the locks of the node's and the atom's row.
CREATE VIEW bookable_atoms AS
  SELECT f.node_id, f.atom_id AS id, f.generation, a.device_id, a.profile, a.tenant_id, n.pool_id
  FROM nodes n JOIN free_atoms f ON f.node_id = n.id JOIN atoms a ON a.id = f.atom_id AND a.generation = f.generation
  WHERE n.placeable AND a.bookable AND NOT EXISTS (
    SELECT FROM bookings b WHERE b.atom_id = a.id AND b.atom_generation = a.generation AND b.ended_at IS NULL);
