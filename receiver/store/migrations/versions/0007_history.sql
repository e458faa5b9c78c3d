-- prune_snapshots() as 0001 has it, but for how it finds what is named no more: what is named is put together once and joined.
-- (NOT IN looked through all of it for each row as soon as it was larger than work_mem: hours, of a million snapshots.)
CREATE OR REPLACE FUNCTION prune_snapshots(before timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  gone bigint;
BEGIN
  LOCK TABLE inventory_snapshots IN SHARE ROW EXCLUSIVE MODE;
  DELETE FROM inventory_snapshots s
  WHERE s.created_at < before
    AND NOT EXISTS (SELECT FROM nodes n WHERE n.id = s.node_id AND n.applied_snapshot_id = s.id)
    AND EXISTS (SELECT FROM inventory_snapshots newer WHERE newer.node_id = s.node_id AND newer.seq > s.seq);
  GET DIAGNOSTICS gone = ROW_COUNT;
  WITH named AS MATERIALIZED (
    SELECT s.tenant_id, e.key AS name, e.value AS hash FROM inventory_snapshots s, jsonb_each_text(s.sections) e
    UNION SELECT n.tenant_id, e.key, e.value ->> 0 FROM nodes n, jsonb_each(n.section_baselines) e)
  DELETE FROM tenant_sections t
  WHERE t.created_at < before AND NOT EXISTS (
    SELECT FROM named WHERE (named.tenant_id, named.name, named.hash) = (t.tenant_id, t.name, t.hash));
  DELETE FROM sections s WHERE NOT EXISTS (SELECT FROM tenant_sections t WHERE t.hash = s.hash);
  RETURN gone;
END $$;
