"""What a stolen dump of the database gives, or the log: no token and no key (SPEC B1)."""

import asyncio
import base64
import json
import logging
import os
import re
import subprocess
from pathlib import Path

import psycopg
import pytest
from bettercompute.contract.tokens import parse, parse_join
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from psycopg import sql

from receiver.authority import key_pem
from receiver.store.embedded import find_binaries
from receiver.values import ADMIN, READ
from tests.receiver.builders import host
from tests.receiver.live import refused
from tests.receiver.test_cli import PROGRAM
from tests.receiver.tls import Node, Secure, secure

TOKEN = re.compile(r"tok_[0-9a-z]{26}\.[A-Za-z0-9_-]{20}|bcjoin1\.|PRIVATE KEY")


def rows_of_every_table(url: str) -> str:
    """COPY of each table of the database that is not Postgres' own, with bytes as they are and as hexadecimal."""
    parts = []
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
            " AND table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 2"
        ).fetchall()
        assert len(tables) > 20
        for schema, name in tables:
            statement = sql.SQL("COPY {}.{} TO STDOUT").format(sql.Identifier(schema), sql.Identifier(name))
            with connection.cursor().copy(statement) as copied:
                parts += [f"{name}\t{bytes(row).decode(errors='replace')}" for row in copied]
        sections = connection.execute("SELECT body FROM sections").fetchall()
    return "\n".join([*parts, *(body.decode("latin-1") for (body,) in sections)])


def dumped(url: str, server: Path) -> str:
    """What pg_dump writes, where the server's programs have it; else nothing."""
    program = find_binaries(server, os.environ.get("BC_TEST_POSTGRES", "")) / "pg_dump"
    if not program.exists():
        return ""
    done = subprocess.run([program, "--inserts", url], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def forms(secret: bytes) -> list[str]:
    """A secret as it may stand somewhere: as text, in hexadecimal, in base 64."""
    return [secret.decode("latin-1"), secret.hex(), base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode()]


def secrets_of_key(key: ec.EllipticCurvePrivateKey | bytes) -> list[str]:
    """The number that a private key is, and its encodings."""
    loaded = serialization.load_pem_private_key(key, None) if isinstance(key, bytes) else key
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    number = loaded.private_numbers().private_value
    pem = "".join(key_pem(loaded).decode().splitlines()[1:-1])
    return [pem[30:90], str(number), *forms(number.to_bytes(32, "big"))]


async def lived(served: Secure, cli: dict[str, str]) -> tuple[list[str], list[Node]]:
    """Tokens and nodes of every kind and age, of which some were refused too; all the secrets, and the nodes."""
    served.token = cli["token"]
    tokens = [cli["token"]]
    for keys in ({"permissions": ADMIN}, {"permissions": READ, "tenantId": "acme", "name": "ci", "reason": "watches"}):
        tokens.append((await served.api("tokens.create", **keys))["token"])
    await served.api("tokens.revoke", tokenId=parse(tokens[1]).id, reason="leaked")
    made = (await served.api("joinTokens.create", uses=2, reason="rack 12"))["token"]
    joined = [await served.join(parse_join(made).token.text)]
    await served.join(parse_join(made).token.text)
    await refused(served.join(parse_join(made).token.text))  # used up
    joined.append(await served.renew(joined[0]))
    daemon = await served.in_service(host(1), node_id=joined[1].node_id, credentials=joined[1].credentials)
    await daemon.close()
    back = (await served.api("joinTokens.create", nodeId=joined[0].node_id))["token"]
    joined.append(await served.join(parse_join(back).token.text))
    revoked = (await served.api("joinTokens.create"))["token"]
    await served.api("joinTokens.revoke", tokenId=parse_join(revoked).token.id, reason="leaked")
    served.token = parse(tokens[0]).text[:-1] + "_"
    await refused(served.api("nodes.list"))
    joins = [parse_join(one) for one in (made, back, revoked)]
    texts = [*(parse(one).secret for one in tokens), *(one.token.secret for one in joins), *(one.text[8:60] for one in joins)]
    return texts, joined


def test_neither_a_dump_nor_the_log_holds_a_token_or_a_key(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    argv: list[str | Path] = [PROGRAM, "init", "--database-url", database, "--tls-dir", tmp_path, "--json"]
    cli = json.loads(subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout)

    async def main() -> tuple[list[str], list[Node]]:
        async with secure(database, folder=tmp_path) as served:
            return await lived(served, cli)

    texts, nodes = asyncio.run(main())
    keys: list[ec.EllipticCurvePrivateKey | bytes] = [
        *(node.key for node in nodes),
        *((tmp_path / f"{name}-ca.key").read_bytes() for name in ("server", "node")),
    ]
    secrets = [
        *texts,
        *(form for text in texts[:6] for form in forms(text.encode())),
        *(s for key in keys for s in secrets_of_key(key)),
    ]
    for whole in (rows_of_every_table(database), dumped(database, tmp_path)):
        if not whole:
            continue
        assert parse(cli["token"]).hash in whole, "it is the dump of what was done"
        assert all(node.fingerprint in whole for node in nodes)
        assert [one for one in secrets if one in whole] == []
        assert TOKEN.findall(whole) == []
    logged = str([vars(record) for record in caplog.records])
    assert [one for one in secrets if one in logged] == []


def test_what_is_searched_for_would_be_found(database: str) -> None:
    token = "tok_01hf7yat000000000000000000." + "A" * 43
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO pools (id, tenant_id, name) VALUES ('pool_1', 'default', %s)", [f"x {token}"])
    found = rows_of_every_table(database)
    assert parse(token).secret in found
    assert TOKEN.findall(found)
