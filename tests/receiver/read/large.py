"""A big fleet by SQL alone: nodes of eight GPUs, with labels, devices, atoms, bookings, conditions, images, snapshots and events.

Every number is derived from the node's number, so two databases of one size are the same. What a fleet has of everything:
mostly adopted nodes, a few of each other status, one in fifty with a fault, nine atoms in ten booked, a rare label (`canary=yes`
on three nodes) and common ones (`gpu.present=true`), a quiet node (QUIET: three events) and a busy one (BUSY: as many events as
there are nodes). `python -m tests.receiver.read.large URL [NODES]` fills a fresh, migrated database.
"""

import sys
from collections.abc import Collection
from hashlib import md5

import psycopg

from receiver.store.database import Connection

GPUS = 8
POOLS = 20
FULL = 100_000
QUIET, BUSY = 7, 8  # numbers of nodes


def node_id(number: int) -> str:
    """The id of node `number`, from 1."""
    return f"node_01{number:024d}"


def pool_id(number: int) -> str:
    """The id of pool `number`, from 0 to POOLS - 1; each has a twentieth of the nodes. Pool POOLS has node 1 alone."""
    return f"pool_01{number:024d}"


def snapshot_id(number: int) -> str:
    """The id of the applied snapshot of node `number`."""
    return f"inv_01{number:024d}"


def run_id(number: int) -> str:
    """The id of the repair of node `number`: one in fifty has one, and of these one in a hundred has not ended."""
    return f"run_01{number:024d}"


def command_id(number: int, nth: int) -> str:
    """The id of a command of node `number`, from 0 to 2: a diagnosis, a refresh, and of nodes with a repair its reboot."""
    return f"cmd_0{nth}{number:024d}"


def token_id(number: int) -> str:
    """One of the tokens of the API, and one of those to join with."""
    return f"tok_01{number:024d}"


def device_id(number: int, gpu: int) -> str:
    """The UUID of a GPU, from 0, of node `number`."""
    return f"GPU-{md5(f'{number}:{gpu}'.encode()).hexdigest()[:8]}-0000-4000-8000-{number * GPUS + gpu:012d}"


def image(number: int) -> str:
    """An image's digest: 1 is on every node, 2 to 40 on fewer and fewer, 40 on one in forty, 41 on none."""
    return f"sha256:{number:064d}"


def _padded(expression: str, width: int) -> str:
    return f"lpad(({expression})::text, {width}, '0')"


_NODE = f"'node_01' || {_padded('n', 24)}"
_POOL = f"CASE WHEN n = 1 THEN 'pool_01' || {_padded(str(POOLS), 24)} ELSE 'pool_01' || {_padded(f'n % {POOLS}', 24)} END"
_EACH = "generate_series(1, :nodes) AS n"
_GPU = f"{_EACH}, generate_series(0, {GPUS - 1}) AS g"
_UUID = f"'GPU-' || left(md5(n || ':' || g), 8) || '-0000-4000-8000-' || {_padded(f'n * {GPUS} + g', 12)}"
_SERIAL = f"'16500' || n * {GPUS} + g"
_FAULTY = f"(n * {GPUS} + g) % 70 = 0"
_BOOKED = f"(n * {GPUS} + g) % 10 <> 0 AND NOT {_FAULTY}"
_IMAGES = _padded(f"n / {POOLS} % 40", 64)  # the hash of a node's images section: one of forty
_APPLIED = f"'inv_01' || {_padded('n', 24)}"

# (table, columns, rows, from). Each row is of tenant `default`; where `node_id` is a column, it is the node n.
_TABLES = (
    ("pools", "id, name", f"'pool_01' || {_padded('p', 24)}, 'pool-' || p", f"generate_series(0, {POOLS}) AS p"),
    (
        "nodes",
        "id, pool_id, status, trust, no_schedule_reasons, connected, last_seen, boot_id, epoch, applied_digest,"
        " applied_snapshot_id, latest_snapshot_id, section_baselines",
        f"""{_NODE}, {_POOL}, CASE WHEN n % 97 = 0 THEN 'maintenance' WHEN n % 89 = 0 THEN 'adopting'
          WHEN n % 997 = 0 THEN 'retired' ELSE 'adopted' END, CASE WHEN n % 101 = 0 THEN 'tenant-controlled' ELSE 'platform' END,
        CASE WHEN n % 50 = 0 THEN '[{{"owner": "health", "type": "Xid79"}}]'::jsonb ELSE '[]' END, true, now(), 'boot-' || n, 1,
        md5(n::text), {_APPLIED}, {_APPLIED}, jsonb_build_object('images', jsonb_build_array({_IMAGES}, {_APPLIED}))""",
        _EACH,
    ),
    (
        "node_labels",
        "node_id, key, value, source",
        f"{_NODE}, key, value, 'inventory'",
        _EACH
        + """, LATERAL (VALUES ('gpu.present', 'true'), ('gpu.count', CASE WHEN n % 200 = 3 THEN '4' ELSE '8' END),
          ('gpu.model', (ARRAY['H100', 'H100', 'H200', 'B200', 'A100'])[n % 5 + 1]),
          ('gpu.product', (ARRAY['H100-SXM5-80GB', 'H100-PCIE-80GB', 'H200-SXM5-141GB', 'B200', 'A100-SXM4-80GB'])[n % 5 + 1]),
          ('gpu.vramGiB', (ARRAY['80', '80', '141', '180', '80'])[n % 5 + 1]), ('cuda.driver.major', '12'),
          ('nvidia.driver.version', '550.54.' || n % 9), ('mig.capable', 'true'), ('fabric.domain', md5((n / 9)::text) || '.1'),
          ('cpu.arch', 'x86_64'), ('cpu.vendor', 'AuthenticAMD'), ('cpu.model', 'AMD-EPYC-9654-96-Core-Processor'),
          ('cpu.sockets', '2'), ('cpu.cores', '192'), ('cpu.threads', '384'),
          ('memory.GiB', (ARRAY['1024', '2048'])[n % 2 + 1]), ('numa.nodes', '2'), ('os.distro', 'ubuntu-22.04'),
          ('os.kernel', '5.15.0-' || n % 30), ('kvm.available', 'true')) AS l(key, value)""",
    ),
    (
        "node_labels",
        "node_id, key, value, source",
        f"{_NODE}, key, value, 'operator'",
        _EACH
        + """, LATERAL (VALUES ('rack', 'r' || n / 32), ('tier', CASE WHEN n % 10 = 0 THEN 'spot' ELSE 'standard' END),
          ('canary', CASE WHEN n IN (2, :nodes / 2 + 1, :nodes - 1) THEN 'yes' END)) AS l(key, value) WHERE value IS NOT NULL""",
    ),
    (
        "devices",
        "node_id, id, serial, healthy, attributes",
        f"""{_NODE}, {_UUID}, {_SERIAL}, NOT {_FAULTY}, jsonb_build_object('gpuModel', 'H100', 'gpuProduct', 'H100-SXM5-80GB',
          'vramGiB', 80, 'index', g, 'pciBusId', '00000000:' || lpad(to_hex(24 + g), 2, '0') || ':00.0', 'numaNode', g / 4,
          'architecture', 'hopper', 'driverVersion', '550.54.15', 'migCapable', true)""",
        _GPU,
    ),
    (
        "atoms",
        "node_id, id, generation, device_id, bookable, healthy, reason",
        f"{_NODE}, {_UUID}, 1, {_UUID}, NOT {_FAULTY}, NOT {_FAULTY}, CASE WHEN {_FAULTY} THEN 'Xid48' END",
        _GPU,
    ),
    (
        "bookings",
        "node_id, booking_id, device_id, atom_id, atom_generation, ended_at",
        f"{_NODE}, 'live-' || n || '-' || g, {_UUID}, {_UUID}, 1, NULL::timestamptz",
        f"{_GPU} WHERE {_BOOKED}",
    ),
    (
        "bookings",
        "node_id, booking_id, device_id, atom_id, atom_generation, ended_at",
        f"{_NODE}, 'ended-' || n || '-' || g, {_UUID}, {_UUID}, 1, now()",
        _GPU,
    ),
    (
        "conditions",
        "node_id, type, device_id, status, no_schedule",
        f"{_NODE}, type, '', CASE WHEN n % often = 0 THEN 'true' ELSE 'false' END, n % often = 0",
        _EACH
        + """, (VALUES ('Xid79', 50), ('RebootRequired', 3), ('FabricManagerDown', :nodes / 5), ('IoPressure', 400))
          AS c(type, often)""",
    ),
    (
        "device_health",
        "node_id, device_id, source, code, boot_id, count",
        f"{_NODE}, {_UUID}, 'xid', 'Xid48', 'boot-' || n, 1",
        f"{_GPU} WHERE {_FAULTY}",
    ),
    (
        "device_history",
        "node_id, device_id, serial, event",
        f"{_NODE}, {_UUID}, {_SERIAL}, e",
        f"{_GPU}, unnest(ARRAY['added', 'quarantined', 'cleared']) AS e",
    ),
    (
        "node_faults",
        "node_id, boot_id, device_id, code, count, told",
        f"{_NODE}, 'boot-' || n, '', 'Xid79', 1, 1",
        f"{_EACH} WHERE n % 50 = 0",
    ),
    (
        "tenant_sections",
        "hash, name",
        f"decode({_padded('n', 64)}, 'hex'), 'images'",
        "generate_series(0, 39) AS n",
    ),
    (
        "inventory_snapshots",
        "node_id, id, digest, sections",
        f"{_NODE}, 'inv_0' || s || {_padded('n', 24)}, md5(n || ':' || s), 'images\\000'::bytea || decode({_IMAGES}, 'hex')",
        f"{_EACH}, generate_series(0, 1) AS s",
    ),
    ("hardware_keys", "node_id, key, trusted", f"{_NODE}, md5('key' || n), true", _EACH),
    ("sessions", "node_id, epoch, boot_id, instance_id", f"{_NODE}, 1, 'boot-' || n, ''", _EACH),
    # Twenty of each node but the quiet one, in the order of (xid, seq); every xid is of a transaction that has ended.
    (
        "events",
        "xid, id, pool_id, node_id, type",
        f"""round, 'evt_' || round || '-' || n, {_POOL}, {_NODE}, CASE WHEN n = 11 THEN 'pool.remediation.paused'
          WHEN round = 1 THEN 'node.joined' WHEN (n + round) % 9 = 0 THEN 'node.xid'
          WHEN (n + round) % 1000 = 1 THEN 'node.gpu.missing' ELSE 'node.condition.changed' END""",
        f"generate_series(1, 20) AS round, {_EACH} WHERE n <> {QUIET} OR round <= 3 ORDER BY round, n",
    ),
    (
        "events",
        "xid, id, node_id, type",
        f"21, 'evt_busy-' || n, 'node_01' || lpad('{BUSY}', 24, '0'), 'node.condition.changed'",
        _EACH,
    ),
)
_TOKENS = (
    ("api_tokens", "id, hash", "'tok_01' || " + _padded("n", 24) + ", md5(n::text)", _EACH),
    ("join_tokens", "id, node_id, hash", f"'tok_01' || {_padded('n', 24)}, {_NODE}, md5(n::text)", _EACH),
)
_LIFECYCLE = (
    (
        "acceptance_attempts",
        "node_id, attempt, state, checks, ended_at",
        f"""{_NODE}, 1, 'passed', jsonb_build_array(jsonb_build_object('kind', 'diag.nvml', 'status', 'succeeded',
          'commandId', 'cmd_00' || {_padded("n", 24)})), now()""",
        _EACH,
    ),
    (
        "commands",
        "node_id, id, kind, idempotency_key, state, result, finished_at",
        f"""{_NODE}, 'cmd_0' || nth || {_padded("n", 24)}, CASE WHEN nth = 0 THEN 'diag.nvml' ELSE 'inventory.refresh' END,
          'key-' || nth, CASE WHEN n % 1000 = 5 AND nth = 1 THEN 'failed' ELSE 'succeeded' END,
          '{{"passed": true}}'::jsonb, now()""",
        f"{_EACH}, generate_series(0, 1) AS nth",
    ),
    (
        "commands",
        "node_id, id, kind, idempotency_key, state, finished_at",
        f"""{_NODE}, 'cmd_02' || {_padded("n", 24)}, 'node.reboot', 'key-2',
          CASE WHEN n % 5000 = 0 THEN 'sent' ELSE 'succeeded' END, CASE WHEN n % 5000 <> 0 THEN now() END""",
        f"{_EACH} WHERE n % 50 = 0",
    ),
    (
        "remediation_runs",
        "node_id, id, pool_id, kind, causes, state, escalated, command_id, ended_at",
        f"""{_NODE}, 'run_01' || {_padded("n", 24)}, {_POOL}, 'node.reboot', '[{{"code": "Xid79", "source": "xid"}}]'::jsonb,
          CASE WHEN n % 5000 = 0 THEN 'running' WHEN n % 1000 = 0 THEN 'failed' ELSE 'succeeded' END, n % 1000 = 0,
          'cmd_02' || {_padded("n", 24)}, CASE WHEN n % 5000 <> 0 THEN now() END""",
        f"{_EACH} WHERE n % 50 = 0",
    ),
    (
        "remediation_steps",
        "node_id, run_id, state",
        f"{_NODE}, 'run_01' || {_padded('n', 24)}, s",
        f"{_EACH}, unnest(ARRAY['queued', 'waiting', 'running', 'verifying', 'succeeded']) AS s WHERE n % 50 = 0",
    ),
    (
        "pool_stops",
        "pool_id, kind, ended_at",
        f"'pool_01' || {_padded('p', 24)}, 'remediation', CASE WHEN nth > 0 THEN now() END",
        f"generate_series(0, {POOLS}) AS p, generate_series(0, 99) AS nth",
    ),
)
_WITHOUT_TENANT = (
    f"INSERT INTO sections (hash, body, size) SELECT decode({_padded('n', 64)}, 'hex'), '\\x'::bytea, 0"
    " FROM generate_series(0, 39) AS n",
    f"INSERT INTO section_images (hash, digest, name, bytes) SELECT decode({_padded('n', 64)}, 'hex'),"
    f" 'sha256:' || {_padded('i', 64)},"
    " 'image-' || i, 1000000 * i FROM generate_series(0, 39) AS n, generate_series(1, 40) AS i WHERE i <= 40 - n",
    f"INSERT INTO free_atoms SELECT {_NODE}, {_UUID}, 1 FROM {_GPU} WHERE NOT ({_BOOKED}) AND NOT {_FAULTY}",
)


def fill(database: str, nodes: int, only: Collection[str] = ()) -> None:
    """Fills a fresh, migrated database, as a superuser: neither foreign keys nor triggers run row by row.

    `only`: some of its tables, as far as they stand for themselves.
    """
    rows = [
        f"INSERT INTO {table} (tenant_id, {into}) SELECT 'default', {row} FROM {of}"
        for table, into, row, of in (*_TABLES, *_TOKENS, *_LIFECYCLE)
        if not only or table in only
    ]
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("SET session_replication_role = replica; SET work_mem = '256MB'; SET synchronous_commit = off")
        for statement in (*rows, *(() if only else _WITHOUT_TENANT)):
            db.execute(statement.replace(":nodes", str(nodes)).encode())
        settle(db)


def settle(db: Connection) -> None:
    """What autovacuum does in time: statistics, and a visibility map for what an index alone can answer."""
    db.execute("VACUUM ANALYZE")


# What may become of a fleet, each as what is done to it.
HOSTILE = {
    "nearly everything is booked": """
        INSERT INTO bookings (booking_id, tenant_id, node_id, device_id, atom_id, atom_generation)
        SELECT 'more-' || id, tenant_id, node_id, device_id, id, generation FROM bookable_atoms
        WHERE id <> (SELECT id FROM bookable_atoms ORDER BY node_id DESC, id DESC LIMIT 1)""",
    "nearly no node is placeable": f"""
        UPDATE nodes SET no_schedule_reasons = '[{{"owner": "health", "type": "NotReporting"}}]'
        WHERE id <> (SELECT node_id FROM bookable_atoms ORDER BY node_id DESC LIMIT 1) AND id <> '{node_id(2)}'""",
    "nearly no atom is bookable": """
        UPDATE atoms SET bookable = false, reason = 'partitionPending'
        WHERE id <> (SELECT id FROM bookable_atoms ORDER BY node_id DESC, id DESC LIMIT 1)""",
    "nothing was ever analyzed": "DELETE FROM pg_statistic",
}


if __name__ == "__main__":
    fill(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else FULL)
