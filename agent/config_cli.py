"""`bcd config`: every setting, its value in force and where that came from. Its text is a configuration file itself."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bettercompute.contract.settings import Setting

from agent import command_line as line
from agent.command_line import Arguments, Command
from agent.config import SETTINGS, Effective

_HELP = """Prints every setting as the daemon would have it: the value, and where it came from (default, FILE:LINE, an environment
variable or a flag). Exit code 2: something is wrong; all of it is said, and the daemon would not start."""


def _config(arguments: Arguments) -> int:
    found, file = line.effective(arguments), line.config_file(arguments)
    if arguments.json:
        line.print_json(described(found, file))
    else:
        sys.stdout.write("".join(f"{text}\n" for text in lines(found, file)))
    return 0


def described(found: Effective, file: Path | None) -> dict[str, Any]:
    """As JSON: `settings` in the order of the help; `restart`: another value holds from the next start only."""
    rows = [
        {
            "key": setting.key,
            "value": _json(setting, getattr(found.config, setting.name)),
            "source": found.sources[setting.name],
            "restart": setting.restart,
        }
        for setting in SETTINGS
    ]
    return {"file": None if file is None else str(file), "settings": rows}


def lines(found: Effective, file: Path | None) -> Iterator[str]:
    """As text: TOML, with the origin behind each value."""
    yield f"# {file}" if file else "# no configuration file"
    rows = [(f"{s.key} = {s.as_toml(getattr(found.config, s.name))}", found.sources[s.name]) for s in SETTINGS]
    width = max(len(text) for text, _ in rows if len(text) <= 60)
    for text, source in rows:
        yield f"{text:<{width}}  # {source}"


def _json(setting: Setting, value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, bool) else setting.kind.text(value)


def _add(parser: Any) -> None:
    parser.description = _HELP
    line.add_json(parser)


COMMANDS = (Command("config", "every setting, its value in force and where that came from", _add, _config),)
