"""`bc-receiver`: arguments and exit codes. 0: ended as asked. 2: an error of use or of the world, said on stderr."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from receiver import log
from receiver.config import FILE_VARIABLE, SETTINGS, Config, load
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
        COMMANDS[arguments.command][0](config)
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


def _serve(config: Config) -> None:
    from receiver.service import serve  # what is heavy is imported once it is clear that it is needed

    serve(config)


def _migrate(config: Config) -> None:
    from receiver.service import migrate

    before, after = migrate(config)
    print(f"the schema is {after:04d}" + (", as it was" if before == after else f", it was {before or 0:04d}"))


COMMANDS: Mapping[str, tuple[Callable[[Config], None], str]] = {
    "serve": (_serve, "take reports of nodes and answer the API, until SIGTERM"),
    "migrate": (_migrate, "bring the database's schema to this version"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "bc-receiver",
        description="The receiver of better-compute: applies what nodes report to Postgres.",
        epilog=EPILOG.replace("${file}", f"${FILE_VARIABLE}"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        command.add_argument("--config", type=Path, metavar="FILE", help=f"configuration (TOML; default: ${FILE_VARIABLE})")
        for setting in SETTINGS:
            shown = f"{setting.help} [{setting.variable}; {setting.default or 'unset'}]".replace("%", "%%")
            if setting.kind.toml == (bool,):
                command.add_argument(setting.flag, dest=setting.name, action="store_true", default=None, help=shown)
            else:
                command.add_argument(setting.flag, dest=setting.name, metavar="VALUE", help=shown)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
