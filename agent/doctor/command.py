"""`bcd doctor` and `bcd diag nvml` as commands: look, judge, show, exit code."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from agent import checks, diagnosis, doctor, doors, kernel_log
from agent.config import Config
from agent.doctor import found, render
from agent.doctor.found import Place
from agent.doctor.line import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARNING, Line

_VERDICTS = {checks.PASS: PASS, checks.FAIL: FAIL, checks.NOT_APPLICABLE: NOT_APPLICABLE, checks.UNKNOWN: UNKNOWN}


async def examine(place: Place, strict: bool) -> tuple[Line, ...]:
    """`bcd doctor`: the lines."""
    lines = doctor.examine(await found.look(place))
    return doctor.strict(lines) if strict else lines


def show(lines: tuple[Line, ...], as_json: bool, out: TextIO) -> int:
    """Writes them; the exit code."""
    code = doctor.exit_code(lines)
    if as_json:
        out.write(json.dumps(render.json_of(lines, code), indent=2, ensure_ascii=False) + "\n")
    else:
        _write(lines, out)
    return code


async def diagnose(config: Config, host_dir: Path | None, data_dir: Path | None, expected: int | None) -> checks.Diagnosis:
    """`bcd diag nvml`: the diagnosis that the command `diag.nvml` makes. `data_dir`: the daemon's, None where none is named.

    Raises DiagnosisFailed.
    """
    boot_id = found.boot_id_of(doors.host(host_dir))
    directory = found.data_dir(data_dir, boot_id)
    stored = found.stored(directory, boot_id)
    log = await kernel_log.look(kernel_log.path_of(host_dir), stored, trust_userspace=config.kmsg_trust_userspace)
    known = found.remembered(directory)
    return await diagnosis.diagnose(doors.collector(config, host_dir), log, known=known, expected=expected)


def show_diagnosis(diagnosis: checks.Diagnosis, as_json: bool, out: TextIO) -> int:
    """Writes it; 0: passed, 1: not."""
    if as_json:
        out.write(json.dumps(diagnosis.told(), indent=2, ensure_ascii=False) + "\n")
    else:
        _write(tuple(_lines(diagnosis)), out)
        out.write("passed\n" if diagnosis.passed else "not passed\n")
    return 0 if diagnosis.passed else 1


def _lines(diagnosis: checks.Diagnosis) -> Iterator[Line]:
    for result in diagnosis.results:
        verdict = WARNING if result.outcome.warning else _VERDICTS[result.verdict]
        place = f"{result.bus_id}: " if result.bus_id else ""
        yield Line(result.check, verdict, place + result.outcome.reason)


def _write(lines: tuple[Line, ...], out: TextIO) -> None:
    is_terminal = out.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    out.writelines(f"{line}\n" for line in render.text(lines, width=width, colour=is_terminal))
