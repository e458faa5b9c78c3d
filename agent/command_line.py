"""What every command of bcd shares: its row, the global options and the settings they give, progress on a terminal, JSON."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agent import config as settings
from agent.config import Config, Effective

Arguments = argparse.Namespace
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its name, help, own arguments and action, which answers the exit code."""

    name: str
    help: str
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Arguments], int]


def add_global(parser: argparse.ArgumentParser, shown: Sequence[str]) -> None:
    """The options that every command takes, before its name or behind it: the host, and a flag for each setting."""
    quiet = argparse.SUPPRESS
    parser.add_argument("--host", type=Path, metavar="DIR", default=quiet, help="a recorded host instead of this one")
    help_ = f"configuration file (TOML; default {settings.DEFAULT_FILE}, {settings.FILE_VARIABLE})"
    parser.add_argument("--config", type=Path, metavar="FILE", default=quiet, help=help_)
    group = parser.add_argument_group("settings")
    for setting in settings.SETTINGS:
        text = f"{setting.help} Default: {setting.toml}. {setting.variable}".replace("%", "%%")
        value: dict[str, Any] = {"metavar": "VALUE"}
        if setting.kind is settings.FLAG:
            value = {"action": "store_const", "const": "true"}
        group.add_argument(
            setting.flag,
            dest=f"setting_{setting.name}",
            default=quiet,
            help=text if setting.name in shown else quiet,
            **value,
        )


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def flags(arguments: Arguments) -> dict[str, str]:
    """The settings that were given as flags, as text."""
    return {name.removeprefix("setting_"): value for name, value in vars(arguments).items() if name.startswith("setting_")}


def effective(arguments: Arguments) -> Effective:
    """The settings in force, and where each came from. Raises UserError that names all that is wrong."""
    return settings.effective(getattr(arguments, "config", None), os.environ, flags(arguments))


def config(arguments: Arguments) -> Config:
    """The settings in force. Raises UserError."""
    return effective(arguments).config


def config_file(arguments: Arguments) -> Path | None:
    """The configuration file, or None when there is none."""
    file = Path(getattr(arguments, "config", None) or os.environ.get(settings.FILE_VARIABLE) or settings.DEFAULT_FILE)
    return file if file.exists() else None


def host_dir(arguments: Arguments) -> Path | None:
    """The recorded host that `--host` names."""
    host: Path | None = getattr(arguments, "host", None)
    return host


def data_dir(arguments: Arguments, settings_in_force: Config) -> Path | None:
    """The daemon's directory; None for a recorded host, unless a flag or the environment names it: what is in this machine's own
    is another host's."""
    variable = next(one.variable for one in settings.SETTINGS if one.name == "data_dir")
    in_environment = Path(os.environ.get(variable) or "/").absolute() == settings_in_force.data_dir
    named = in_environment or "data_dir" in flags(arguments)
    return settings_in_force.data_dir if named or host_dir(arguments) is None else None


def print_json(value: object) -> None:
    """For `--json`."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


async def with_progress(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work`; on a terminal, after a second, with a word that it takes long."""
    import asyncio
    import contextlib

    progress = asyncio.create_task(_progress())
    try:
        return await work
    finally:
        progress.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await progress


async def _progress() -> None:
    import asyncio

    if not sys.stderr.isatty():
        return
    seconds = 0
    try:
        while True:
            await asyncio.sleep(1)
            seconds += 1
            sys.stderr.write(f"\rcollecting, {seconds} s ")
            sys.stderr.flush()
    finally:
        if seconds:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
