"""bcd's command line: arguments and exit codes only. What a command needs is imported when it runs."""

import argparse
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bettercompute.contract.settings import duration

from agent import __version__, config_cli, doctor_cli, join_cli
from agent import command_line as line
from agent import config as settings
from agent.command_line import Arguments, Command
from agent.errors import FieldError, UserError

if TYPE_CHECKING:
    from agent.sections import Collected

EXIT_CODES = """exit codes:
  0  done
  1  done with warnings, or the answer is no (a section is missing; the receiver does not have it)
  2  the command cannot be carried out; standard error says what to do"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code. Also the script's entry point."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except FieldError as error:
        print(f"bcd: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `bcd inventory | head`: whoever reads has enough
        _drop_output()
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO) or error.filename:
            raise
        _drop_output()
        print(f"bcd: writing to standard output: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _drop_output() -> None:
    """What is still buffered goes nowhere, instead of failing once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- run


def _run(arguments: Arguments) -> int:
    from agent import service

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it would print is in the session's error
    service.run(line.config(arguments), line.host_dir(arguments), lambda: line.config(arguments))
    return 0


# ---- inventory


def _add_inventory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="only these: system os cpu memory gpus disks nics images")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one object keyed by section name (proto3 JSON mapping)")
    form.add_argument("--hashes", action="store_true", help="`name sha256` lines")


def _inventory(arguments: Arguments) -> int:
    from bettercompute.agent.v1 import inventory_pb2 as pb
    from bettercompute.contract.sections import SECTIONS, decode

    from agent.sections import nvml_error

    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        raise UserError(f"inventory: no section is named {', '.join(unknown)}", f"the sections are {', '.join(SECTIONS)}")
    names = [name for name in SECTIONS if name in arguments.sections or not arguments.sections]
    collected = _collect(arguments, names)
    sections = {name: section for name in SECTIONS for section in collected.sections if section.name == name}
    if arguments.hashes:
        print("".join(f"{name} {section.hash}\n" for name, section in sections.items()), end="")
    else:
        _show({name: (decode(name, section.data), section.hash) for name, section in sections.items()}, arguments.json)
    errors = [(failed.name, f"{failed.reason}: {failed.message}") for failed in collected.failed]
    if "gpus" in sections and (error := nvml_error(pb.GpusSection.FromString(sections["gpus"].data))):
        errors.append(("gpus", error))
    for name, error in errors:
        print(f"bcd: collecting section {name}: {error}", file=sys.stderr)
    return 1 if errors else 0


def _show(messages: Mapping[str, Any], as_json: bool) -> None:
    from google.protobuf.json_format import MessageToDict

    mapped = {name: MessageToDict(message, always_print_fields_with_no_presence=True) for name, (message, _) in messages.items()}
    if as_json:
        line.print_json(mapped)
        return
    from agent import render

    blocks = (block for name, value in mapped.items() for block in render.section_blocks(name, value, messages[name][1][:12]))
    render.draw(blocks, sys.stdout)


def _collect(arguments: Arguments, names: Sequence[str]) -> "Collected":
    import asyncio

    from agent import doors, known_gpus
    from agent.inventory import Store

    config = line.config(arguments)
    host_dir = line.host_dir(arguments)
    doors.check(config, host_dir)  # said here, once
    data_dir = line.data_dir(arguments, config)  # where the daemon remembers this host's GPUs
    known = known_gpus.gpus(Store(data_dir / "inventory").known_gpus()) if data_dir else ()
    return asyncio.run(line.with_progress(doors.collector(config, host_dir).collect(names, known)))


# ---- capture


def _add_capture(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="where the recorded host is written; must be empty or not exist yet"
    )
    parser.add_argument("--redact", action="store_true", help="replace serials, UUIDs, MACs and names, consistently")


def _capture(arguments: Arguments) -> int:
    from agent import doors, recorder

    config = line.config(arguments)
    if not arguments.redact:
        print(
            "bcd: capture: the recording holds serials, addresses and names as they are; --redact replaces them", file=sys.stderr
        )
    done = recorder.capture(
        arguments.directory,
        redact=arguments.redact,
        host_dir=line.host_dir(arguments),
        options=doors.options(config),
        nvml_library=config.nvml_library,
    )
    replaced = "" if done.replaced is None else f", {done.replaced} names replaced"
    print(f"recorded {done.files} files in {done.directory}{replaced}")
    if done.unreadable:
        first, count = done.unreadable[0], len(done.unreadable)
        print(f"bcd: capture: {count} files could not be read, {first} the first; root reads them all", file=sys.stderr)
    for name, reason in sorted(done.failed.items()):
        print(f"bcd: capture: section {name}: {reason}", file=sys.stderr)
    return 1 if done.failed else 0


# ---- status, refresh


def _status(arguments: Arguments) -> int:
    from agent import local, render

    answer = local.call(line.config(arguments).socket_path, "status", 10.0)
    if arguments.json:
        line.print_json(answer)
    else:
        render.draw(render.status_blocks(answer, render.now()), sys.stdout)
    return 0


def _add_refresh(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", default="2m", metavar="TIME", help="how long to wait for the receiver (default %(default)s)")
    line.add_json(parser)


def _refresh(arguments: Arguments) -> int:
    from agent import local

    try:
        seconds = duration(arguments.timeout)
    except ValueError as error:
        raise UserError(f"refresh: --timeout {arguments.timeout!r}: {error}") from error
    answer = local.call(line.config(arguments).socket_path, "refresh", seconds + 10, timeout=seconds)
    if arguments.json:
        line.print_json(answer)
    elif answer["applied"]:
        print(f"the receiver has the inventory {str(answer['digest'])[:12]}, collected {answer['collectedAt']}")
    missing = [section for section in (*answer["sections"], *answer["missing"]) if "error" in section]
    for section in missing:
        print(f"bcd: section {section['name']} is missing: {section['error']}", file=sys.stderr)
    if not answer["applied"]:
        print(f"bcd: refresh: the receiver does not have the inventory: {answer['reason']}", file=sys.stderr)
    return 0 if answer["applied"] and not missing else 1


# ---- xid

_XID_HELP = """Reads what dmesg, journalctl, syslog and talosctl print, bug reports (gzip too) and copies of /dev/kmsg,
each line by its own form. Exit code 0: all was read, whatever it holds; 1: some files could not be read; 2: none could."""


def _add_xid(parser: argparse.ArgumentParser) -> None:
    parser.description = _XID_HELP
    parser.add_argument("files", nargs="*", metavar="FILE", help="captured logs; none, or `-`: standard input (--host: its kmsg)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", dest="form", action="store_const", const="json", help="the rows as a JSON list")
    form.add_argument("--each", dest="form", action="store_const", const="each", help="one JSON object a fault, with its line")
    parser.add_argument("--trust-userspace", action="store_true", help="count lines that a process wrote, not the kernel, too")
    parser.set_defaults(form="table")


def _xid(arguments: Arguments) -> int:
    from agent import xid_report

    host_dir = line.host_dir(arguments)
    files = arguments.files or [str(host_dir / "kmsg") if host_dir else xid_report.STDIN]
    return xid_report.run(files, arguments.form, arguments.trust_userspace)


# ---- the parser

COMMANDS = (
    Command("run", "the daemon: collect, report, stay", lambda parser: None, _run),
    Command("inventory", "collect now and print; nothing is sent", _add_inventory, _inventory),
    Command("capture", "record this host as a directory, for bug reports and tests", _add_capture, _capture),
    Command("refresh", "make the running daemon collect and offer now; ends when the receiver has it", _add_refresh, _refresh),
    *join_cli.COMMANDS,
    *doctor_cli.COMMANDS,
    *config_cli.COMMANDS,
    Command("xid", "the XIDs in captured kernel logs, with what each of them means", _add_xid, _xid),
    Command("status", "what the running daemon has, and what the receiver has of it", line.add_json, _status),
)
_SHOWN = ("data_dir",)  # in every command's help; the other settings in that of `run`


def _parser() -> argparse.ArgumentParser:
    form: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "epilog": EXIT_CODES, "allow_abbrev": False}
    parser = argparse.ArgumentParser("bcd", description="The node agent of a GPU cloud. Settings: bcd run --help.", **form)
    parser.add_argument("--version", action="version", version=f"bcd {__version__}", help="show bcd's version and end")
    line.add_global(parser, _SHOWN)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=command.help, **form)
        line.add_global(sub, [s.name for s in settings.SETTINGS] if command.name == "run" else _SHOWN)
        command.add(sub)
        sub.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
