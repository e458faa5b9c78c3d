"""`bcd join` and `bcd renew`: arguments and exit codes only."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from agent import command_line as line
from agent.command_line import Arguments, Command
from agent.errors import UserError

if TYPE_CHECKING:
    from agent.identity import Certificate

TOKEN_VARIABLE = "BCD_TOKEN"

_HELP = f"""Joins this machine to a fleet with a join token, the one string that `better-compute api joinTokens.create` prints.
The key is made here and never leaves the machine; the running daemon takes the new identity up by itself.

The token is taken from --token-file (- is standard input), --token or {TOKEN_VARIABLE}; what is given with --token, other users
of this machine can see. --server joins at another address than the token names.

A machine that has joined already is left as it is, unless its certificate has expired or --force is given. A token that is bound
to a node id (joinTokens.create nodeId=...) makes this machine that node again: its older certificates are revoked, its history
and devices stay. Any other token makes it a new node. When joining fails, the old identity stays as it was."""


def _add_join(parser: argparse.ArgumentParser) -> None:
    parser.description = _HELP
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--token-file", metavar="FILE", help="the file with the join token; - is standard input")
    source.add_argument("--token", metavar="TOKEN", help=f"the join token itself; also {TOKEN_VARIABLE}")
    parser.add_argument("--force", action="store_true", help="join again although this machine has joined")
    line.add_json(parser)


def _join(arguments: Arguments) -> int:
    from bettercompute.contract.tokens import BadToken, parse_join

    config, host_dir = line.config(arguments), line.host_dir(arguments)
    if line.data_dir(arguments, config) is None:
        raise UserError("join: a recorded host has no data directory of its own", "name one with --data-dir or BCD_DATA_DIR")
    if config.insecure:
        raise UserError("join: with --insecure there is nothing to join", "leave --insecure out, here and for the daemon")
    try:
        token = parse_join(_token(arguments))
    except BadToken as error:
        raise UserError(f"join: the token cannot be used: {error}", "copy it again, all of it; it is one string") from error
    _quiet()
    from agent import join

    servers = config.servers if "server" in line.flags(arguments) else ()
    joined = join.join(config, host_dir, token, servers[0] if servers else token.address, force=arguments.force)
    return _show(joined.identity.node_id, joined.before, joined.certificate, arguments.json, config.data_dir)


def _show(node_id: str, before: str | None, certificate: "Certificate", as_json: bool, data_dir: Path) -> int:
    import time

    from agent.identity import moment

    if as_json:
        line.print_json(
            {
                "nodeId": node_id,
                "previousNodeId": before,
                "server": certificate.server,
                "notBefore": moment(certificate.not_before),
                "notAfter": moment(certificate.not_after),
                "dataDir": str(data_dir),
            }
        )
    else:
        same = " again" if before == node_id else f" (a new node; it was {before})" if before else ""
        sys.stdout.write(f"joined as {node_id}{same}\n")
        sys.stdout.write(
            f"sessions with {certificate.server}; certificate until {moment(certificate.not_after)}, bcd renews it in time\n"
        )
        sys.stdout.write(
            "a running bcd takes it up within seconds; else start it: systemctl enable --now bcd. Then: bcd status\n"
        )
    now = time.time()
    if now < certificate.not_before:
        behind = f"{moment(now)}, before the certificate's beginning, {moment(certificate.not_before)}"
        sys.stderr.write(f"bcd: join: this machine's clock says {behind}\n  set it (NTP): it is wrong\n")
        return 1
    if now >= certificate.not_after:
        sys.stderr.write(f"bcd: join: by this machine's clock, {moment(now)}, the certificate is expired\n  set it (NTP)\n")
        return 1
    return 0


def _token(arguments: Arguments) -> str:
    """The text of the token, from the first place that has it. Raises UserError."""
    from bettercompute.contract.tokens import LONGEST

    if arguments.token is not None:
        return str(arguments.token)
    if arguments.token_file is None:
        if text := os.environ.get(TOKEN_VARIABLE):
            return text
        raise UserError("join: no token is given", f"--token-file FILE (- is standard input), --token or {TOKEN_VARIABLE}")
    try:
        if arguments.token_file == "-":
            if sys.stdin.isatty():
                sys.stderr.write("paste the join token, then press Enter\n")
                return sys.stdin.readline(LONGEST + 2)
            return sys.stdin.buffer.read(LONGEST + 2).decode()
        with Path(arguments.token_file).open("rb") as file:
            return file.read(LONGEST + 2).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"join: {arguments.token_file} holds no token: it is not text") from error
    except OSError as error:
        raise UserError(f"join: cannot read the token file {arguments.token_file}: {error.strerror}") from error


def _add_renew(parser: argparse.ArgumentParser) -> None:
    parser.description = "Renews this node's certificate now. The daemon does so by itself at two thirds of its life."
    line.add_json(parser)


def _renew(arguments: Arguments) -> int:
    _quiet()
    from agent import join
    from agent.identity import moment

    new = join.renew(line.config(arguments))
    assert new.joined is not None
    if arguments.json:
        line.print_json({"nodeId": new.node_id, "notAfter": moment(new.joined.not_after)})
    else:
        sys.stdout.write(f"{new.node_id}: certificate until {moment(new.joined.not_after)}\n")
    return 0


def _quiet() -> None:
    """What gRPC would print is in our errors."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


COMMANDS = (
    Command("join", "make this machine a node of a fleet, with a join token", _add_join, _join),
    Command("renew", "renew this node's certificate now; the daemon does it by itself", _add_renew, _renew),
)
