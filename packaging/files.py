"""Writes what is packaged and comes from the code: default configuration, manual pages, completion.

    python packaging/files.py DIRECTORY            etc/, share/man/, share/bash-completion/ below it
    python packaging/files.py --config DIRECTORY   the two configuration files only: packaging/config is kept so

Settings are rows (agent/config.py, receiver/config.py) and commands are argparse parsers: both are read here, and nothing that
they say is written a second time.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from agent import __version__
from agent import cli as agent_cli
from agent import config as agent_config
from receiver import cli as receiver_cli
from receiver import config as receiver_config
from receiver.client import cli as client
from receiver.client import methods as client_methods

# What an installed bcd has otherwise than by default: its directory is closed to others, its socket is for group bcd.
PACKAGED = {"socket": "/run/bcd/bcd.sock"}

PROGRAMS: Mapping[str, tuple[str, int, Callable[[], argparse.ArgumentParser]]] = {
    "bcd": ("bcd", 8, agent_cli._parser),
    "bc-receiver": ("bc-receiver", 8, receiver_cli._parser),
    "better-compute": ("bc-receiver", 1, client._parser),
}
"""Program -> the package that has it, its section of the manual, its parser."""

MORE_WORDS: Mapping[str, Callable[[], list[str]]] = {"better-compute": lambda: ["gpu-name", *client_methods.methods()]}
"""Program -> what may be completed beside what its parser knows."""


# ---- configuration


def bcd_toml() -> str:
    """The packaged /etc/bcd/bcd.toml: every key with its meaning and default, commented out but for PACKAGED."""
    text = agent_config.render()
    for key, value in PACKAGED.items():
        line = f"#{key} = {next(one.toml for one in agent_config.SETTINGS if one.key == key)}"
        if line not in text:
            raise SystemExit(f"bcd.toml has no line {line}")
        text = text.replace(line, f'{key} = "{value}"')
    return text


# ---- commands


def commands(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Every command below a parser as (words, help, parser), the parser itself first."""
    yield path, parser.description or "", parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from commands(sub, f"{path} {name}")


def options(parser: argparse.ArgumentParser) -> list[str]:
    """Every option's long and short names, in their order, those with hidden help too."""
    return [name for action in parser._actions for name in action.option_strings]


# ---- completion (bash)


def completion(program: str, parser: argparse.ArgumentParser) -> str:
    """A completion function: commands, options of the command that is there, choices and files."""
    function = "_" + program.replace("-", "_")
    cases = []
    for path, _, sub in commands(parser, ""):
        words = [*(name for action in sub._actions if isinstance(action, argparse._SubParsersAction) for name in action.choices)]
        words += [str(choice) for action in sub._actions if not action.option_strings and isinstance(action.choices, list)
                  for choice in action.choices]  # fmt: skip
        words += MORE_WORDS.get(program, list)()
        cases.append(f'    "{path.strip()}") words="{" ".join(sorted({*words, *options(sub)}))}" ;;')
    known = "|".join(sorted({word for path, _, _ in commands(parser, "") for word in path.split()})) or "-"
    return "\n".join([
        f"# bash completion of {program}; written by packaging/files.py from its parser",
        f"{function}() {{",
        "  local word command= words=",
        '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        f'    case "$word" in {known}) command="${{command:+$command }}$word" ;; esac',
        "  done",
        '  case "$command" in',
        *cases,
        "  esac",
        '  mapfile -t COMPREPLY < <(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}")',
        '  [ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")',
        "}",
        f"complete -o filenames -F {function} {program}",
        "",
    ])  # fmt: skip


# ---- manual pages


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.splitlines())


def _verbatim(text: str) -> list[str]:
    return [".nf", _roff(text.strip("\n")), ".fi"]


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = parser._get_formatter()
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
            continue
        yield from (".TP", f".B {_roff(formatter._format_action_invocation(action))}")
        yield _roff(formatter._expand_help(action) if action.help else "")


def manual(program: str, section: int, parser: argparse.ArgumentParser) -> str:
    """The manual page of a program, every command in it."""
    lines = [f'.TH "{program.upper()}" "{section}" "" "{program} {__version__}"', ".SH NAME"]
    lines += [_roff(f"{program} - {(parser.description or '').splitlines()[0]}"), ".SH SYNOPSIS"]
    every = list(commands(parser, program))
    for words, _, sub in every[1:] or every:
        lines += [".br", f".B {_roff(words)}", _roff(" ".join(_usage(sub, words)))]
    lines += [".SH OPTIONS", *_arguments(parser)]
    for words, text, sub in every[1:]:
        lines += [f".SH {_roff(words.upper())}", _roff(text), *_arguments(sub)]
    if parser.epilog:
        lines += [".SH NOTES", *_verbatim(parser.epilog)]
    return "\n".join(line for line in lines if line) + "\n"


def _usage(parser: argparse.ArgumentParser, words: str) -> Iterator[str]:
    if any(action.option_strings for action in parser._actions):
        yield "[OPTION]..."
    for action in parser._actions:
        if not action.option_strings and not isinstance(action, argparse._SubParsersAction):
            name = str(action.metavar or action.dest)
            yield {"*": f"[{name}]...", "?": f"[{name}]", "+": f"{name}..."}.get(str(action.nargs), name)


def manual_of_file(package: str, path: str, text: str) -> str:
    """The manual page of a configuration file: the file itself, every key with its meaning and default."""
    name = Path(path).name
    lines = [f'.TH "{name.upper()}" "5" "" "{package} {__version__}"', ".SH NAME", _roff(f"{name} - configuration of {package}")]
    lines += [".SH SYNOPSIS", _roff(path), ".SH KEYS", "As shipped: the defaults, commented out.", ".PP", *_verbatim(text)]
    return "\n".join(lines) + "\n"


# ---- where they go

CONFIGURATION: Mapping[str, tuple[str, Callable[[], str]]] = {
    "bcd": ("etc/bcd/bcd.toml", bcd_toml),
    "bc-receiver": ("etc/better-compute/receiver.toml", receiver_config.render),
}
"""Package -> its configuration file, and what writes it."""


def files(package: str) -> Iterator[tuple[str, str]]:
    """(path below /, text) of everything that a package has from here."""
    path, text = CONFIGURATION[package][0], CONFIGURATION[package][1]()
    yield path, text
    yield f"usr/share/man/man5/{Path(path).name}.5", manual_of_file(package, f"/{path}", text)
    for program, (owner, section, parser) in PROGRAMS.items():
        if owner == package:
            yield f"usr/share/man/man{section}/{program}.{section}", manual(program, section, parser())
            yield f"usr/share/bash-completion/completions/{program}", completion(program, parser())


def main() -> int:
    """Writes the files of a package below a directory, or both configuration files into one."""
    parser = argparse.ArgumentParser("files.py", description="Writes the packaged files that come from the code.")
    parser.add_argument("--config", action="store_true", help="only the two configuration files, side by side")
    parser.add_argument("--package", choices=list(CONFIGURATION), help="of this package")
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    if arguments.config:
        found = [(Path(path).name, text()) for path, text in CONFIGURATION.values()]
    else:
        found = list(files(arguments.package)) if arguments.package else [one for name in CONFIGURATION for one in files(name)]
    for path, text in found:
        place: Path = arguments.directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
