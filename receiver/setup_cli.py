"""`bc-receiver init` and `bc-receiver token create`: the token alone goes to stdout, everything that is said of it to stderr.

So `TOKEN=$(bc-receiver init)` takes the token, and a person at a terminal reads both. `--json`: one object on stdout, nothing
on stderr.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from receiver.config import SETTINGS, Config
from receiver.values import ADMIN, ALL, PERMISSIONS, rfc3339

if TYPE_CHECKING:
    from receiver.setup import Ca, Made

LIFE = "24h"

INIT_HELP = """\
Migrates the database, makes the CA of receivers and the CA of nodes where they are not there (what is there is kept, never
written to), and makes a token with compute:admin over all tenants, which lives 24 hours. It may be run again: each run makes
another token.

The token alone goes to stdout, everything else to stderr:

  bc-receiver init                      at a terminal: what was made, the token, and what to do next
  bc-receiver init > token              the token, for better-compute --token-file token
  bc-receiver init --json               one object on stdout: token, tokenId, expiresAt, schema, cas; nothing on stderr

All receivers of one database need the same four files of CAs: run init once, then copy them.
"""
CREATE_HELP = """\
Makes a token of the API with nothing but the database; a receiver need not run. What was made stands in the audit (api.write).

The token alone goes to stdout, everything else to stderr:

  bc-receiver token create --permissions compute:nodes:read --expires-in 90d --name grafana > token
  bc-receiver token create --tenant acme --permissions compute:admin
  bc-receiver token create --json       one object on stdout: token, tokenId, tenantId, permissions, expiresAt
"""


@dataclass(frozen=True, slots=True)
class Option:
    """A flag of a command that is no setting."""

    flag: str
    default: Any
    help: str

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """As `arguments.own_<flag>`: a setting may have the same name."""
        name = "own_" + self.flag.strip("-").replace("-", "_")
        if self.default is False:
            parser.add_argument(self.flag, dest=name, action="store_true", help=self.help)
        else:
            shown = f"{self.help} (default: {self.default or 'none'})"
            parser.add_argument(self.flag, dest=name, default=self.default, metavar="VALUE", help=shown)


JSON = Option("--json", False, "one object on stdout, nothing on stderr")
CREATE_OPTIONS = (
    Option("--tenant", ALL, "whose nodes and pools it opens; * for all"),
    Option("--permissions", ADMIN, f"some of {','.join(PERMISSIONS)}"),
    Option("--expires-in", LIFE, "how long it lives, at most 366d"),
    Option("--name", "", "whose it is, or what for: stands in the audit"),
    JSON,
)
# Settings that `token create` needs.
CREATE_SETTINGS = tuple(one for one in SETTINGS if one.key in ("database.url", "data_dir", "log.format"))


def init(config: Config, arguments: argparse.Namespace) -> None:
    """`bc-receiver init`. Raises ReceiverError."""
    from receiver import setup
    from receiver.store import database

    with setup.at_database(config, make=True) as url:
        before = database.migrate(url)
        cas = setup.ensure_cas(config)
        made = setup.create_token(url, "bc-receiver init", _request(ALL, [ADMIN], LIFE, "init"))
    if arguments.own_json:
        listed = [{"of": one.of, "certificate": str(one.certificate), "key": str(one.key), "made": one.made} for one in cas]
        _print_json(made, {"schema": database.head(), "cas": listed})
        return
    was = "empty" if before is None else f"at {before:04d}"
    _say([f"database  schema {database.head():04d}" + ("" if before == database.head() else f"; it was {was}"), *_told(cas)])
    _print_token(made, f"of all tenants, with {ADMIN}")
    _say(["", "next:", *(f"  {line}" for line in _next(cas))])


def create(config: Config, arguments: argparse.Namespace) -> None:
    """`bc-receiver token create`. Raises ReceiverError."""
    from receiver import setup

    tenant, life, name = arguments.own_tenant, arguments.own_expires_in, arguments.own_name
    permissions = [word.strip() for word in arguments.own_permissions.split(",") if word.strip()]
    with setup.at_database(config, make=False) as url:
        made = setup.create_token(url, "bc-receiver token create", _request(tenant, permissions, life, name))
    if arguments.own_json:
        _print_json(made, {"tenantId": tenant, "permissions": permissions})
    else:
        _print_token(made, f"of {'all tenants' if tenant == ALL else f'tenant {tenant}'}, with {', '.join(permissions)}")


def _request(tenant: str, permissions: Sequence[str], life: str, name: str) -> Any:
    from bettercompute.control.v1.tokens_pb2 import TokensServiceCreateRequest

    return TokensServiceCreateRequest(permissions=permissions, expires_in=life, name=name, tenant_id=tenant)


def _told(cas: Iterable["Ca"]) -> Iterable[str]:
    for one in cas:
        yield f"{'made' if one.made else 'kept'}      CA of {one.of}: {one.certificate}, its key {one.key}"


def _next(cas: Iterable["Ca"]) -> Iterable[str]:
    ca = next(one.certificate for one in cas if one.of == "receivers")
    yield "1  keep both keys safe; give the same four files to every other receiver of this database"
    yield "2  bc-receiver serve    with the same settings as this init"
    yield f"3  export BETTER_COMPUTE_CA={ca} BETTER_COMPUTE_TOKEN=...    the token above"
    yield "   better-compute api nodes.list"
    yield "4  better-compute api joinTokens.create    the one string with which a node joins: bcd join"


def _print_token(made: "Made", words: str) -> None:
    _say([f"token     {words}, until {rfc3339(made.expires_at)}. It is shown only here:"])
    sys.stdout.write(f"{made.token.text}\n")
    sys.stdout.flush()


def _print_json(made: "Made", more: Mapping[str, Any]) -> None:
    shown = {"token": made.token.text, "tokenId": made.token.id, "expiresAt": rfc3339(made.expires_at), **more}
    sys.stdout.write(json.dumps(shown, indent=2) + "\n")


def _say(lines: Iterable[str]) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
