"""`bcd doctor` and `bcd diag`: arguments and exit codes only."""

import argparse
import os
import sys
from pathlib import Path

from agent import command_line as line
from agent import config as settings
from agent.command_line import Arguments, Command
from agent.errors import UserError

_CODES = """exit codes:
  0  nothing to do
  1  warnings, or something that cannot be told (a failure with --strict)
  2  failures"""


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _CODES
    parser.add_argument("--strict", action="store_true", help="what cannot be told is a failure")
    line.add_json(parser)


def _doctor(arguments: Arguments) -> int:
    import asyncio

    from agent.doctor import command
    from agent.doctor.found import Place

    host_dir, wrong = line.host_dir(arguments), ""
    try:
        config = line.config(arguments)
    except UserError as error:  # a finding, not the end: the rest goes by the flags and the defaults
        config, wrong = settings.load(Path(os.devnull), {}, line.flags(arguments)), str(error)
    data_dir = line.data_dir(arguments, config)
    named = data_dir is not None or "server" in line.flags(arguments)
    place = Place(config, host_dir, data_dir, named, str(line.config_file(arguments) or ""), wrong)
    lines = asyncio.run(line.with_progress(command.examine(place, arguments.strict)))
    return command.show(lines, arguments.json, sys.stdout)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs")
    return int(text)


def _add_diag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=["nvml"], help="nvml: each GPU as NVML and the kernel log tell it, as `diag.nvml` does")
    parser.add_argument("--expect-gpus", type=_count, metavar="N", help="how many GPUs there must be")
    line.add_json(parser)


def _diag(arguments: Arguments) -> int:
    import asyncio

    from agent import doors
    from agent.doctor import command

    config, host_dir = line.config(arguments), line.host_dir(arguments)
    doors.check(config, host_dir)
    work = command.diagnose(config, host_dir, line.data_dir(arguments, config), arguments.expect_gpus)
    return command.show_diagnosis(asyncio.run(line.with_progress(work)), arguments.json, sys.stdout)


COMMANDS = (
    Command("doctor", "checks this node: what is wrong, and what to do", _add_doctor, _doctor),
    Command("diag", "diagnoses the GPUs now, as the receiver's command does; exit code 1: not passed", _add_diag, _diag),
)
