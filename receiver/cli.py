"""`bc-receiver`: arguments and exit codes. 0: ended as asked. 2: an error of use or of the world, said on stderr."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bettercompute.contract.settings import Setting

from receiver import log, setup_cli
from receiver.config import DEFAULT_FILE, FILE_VARIABLE, SETTINGS, Config, load
from receiver.errors import ReceiverError

EPILOG = """\
Every setting is also a key of the configuration file (--config, or ${file}) and an environment variable.

exit codes:
  0  ended as asked
  2  wrong use, or something outside is in the way: said on stderr, with what to do
"""

OWN = ("receiver", "bettercompute")  # everything else that is imported is a dependency of the extra `receiver`


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; answers the exit code."""
    arguments = _parser().parse_args(argv)
    flags = {
        setting.name: "true" if value is True else value
        for setting in SETTINGS
        if (value := getattr(arguments, setting.name, None)) is not None
    }
    try:
        config = load(arguments.config, os.environ, flags)
        log.setup(config.log_format, journal="JOURNAL_STREAM" in os.environ)
        COMMANDS[arguments.command].run(config, arguments)
    except ReceiverError as error:
        print(f"bc-receiver: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in OWN:  # our bug
            raise
        hint = "pip install 'better-compute-node[receiver]'"
        print(
            f"bc-receiver: {arguments.command}: the receiver's libraries are not installed: {error.name}\n  {hint}",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        return 2
    return 0


def _serve(config: Config, _: argparse.Namespace) -> None:
    from receiver.service import serve  # what is heavy is imported once it is clear that it is needed

    serve(config)


def _migrate(config: Config, _: argparse.Namespace) -> None:
    from receiver.service import migrate

    before, after = migrate(config)
    print(f"the schema is {after:04d}" + (", as it was" if before == after else f", it was {before or 0:04d}"))


@dataclass(frozen=True, slots=True)
class Command:
    """A command, of one word or two: what runs it, what its help says, and which flags it has."""

    run: Callable[[Config, argparse.Namespace], None]
    help: str
    more: str = ""
    settings: Sequence[Setting] = tuple(SETTINGS)
    options: Sequence[setup_cli.Option] = ()


COMMANDS: Mapping[str, Command] = {
    "init": Command(
        setup_cli.init, "make both CAs, the schema, and a first token", setup_cli.INIT_HELP, options=[setup_cli.JSON]
    ),
    "serve": Command(_serve, "take reports of nodes and answer the API, until SIGTERM"),
    "migrate": Command(_migrate, "bring the database's schema to this version"),
    "token create": Command(
        setup_cli.create,
        "make a token of the API, with nothing but the database",
        setup_cli.CREATE_HELP,
        setup_cli.CREATE_SETTINGS,
        setup_cli.CREATE_OPTIONS,
    ),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "bc-receiver",
        description="The receiver of better-compute: applies what nodes report to Postgres.",
        epilog=EPILOG.replace("${file}", f"${FILE_VARIABLE}"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups: dict[str, Any] = {"": parser.add_subparsers(dest="command", required=True, metavar="COMMAND")}
    for name, row in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        if group not in groups:
            within = groups[""].add_parser(group, help=f"{group} {word}: {row.help}")
            groups[group] = within.add_subparsers(dest="word", required=True, metavar="COMMAND")
        command = groups[group].add_parser(
            word,
            help=row.help,
            description=f"{row.help[0].upper()}{row.help[1:]}." + (f"\n\n{row.more}" if row.more else ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(command=name)
        _add_flags(command, row)
    return parser


def _add_flags(command: argparse.ArgumentParser, row: Command) -> None:
    for option in row.options:
        option.add_to(command)
    command.add_argument(
        "--config", type=Path, metavar="FILE", help=f"configuration (TOML; default: ${FILE_VARIABLE}, else {DEFAULT_FILE})"
    )
    for setting in row.settings:
        shown = f"{setting.help} [{setting.variable}; {setting.default or 'unset'}]".replace("%", "%%")
        if setting.kind.toml == (bool,):
            command.add_argument(setting.flag, dest=setting.name, action="store_true", default=None, help=shown)
        else:
            command.add_argument(setting.flag, dest=setting.name, metavar="VALUE", help=shown)


if __name__ == "__main__":
    raise SystemExit(main())
