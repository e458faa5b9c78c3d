"""`bcd doctor`: what a person should know of this node, line by line (SPEC A8).

A row of LINES is a subject and a function from what was found to its lines; each line says how it is, in one sentence, and what
to do. The functions' docstrings say both in general: docs/operations.md is made from them. found.py looks, checks.py and gpus.py
judge (with agent.checks, as `diag.nvml` does, and agent.conditions, as the daemon does), render.py shows. One more check costs a
function and a row.
"""

from collections.abc import Callable, Iterable, Mapping

from agent.doctor import checks, gpus
from agent.doctor.found import Found
from agent.doctor.line import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARNING, Line

__all__ = ["FAIL", "LINES", "NOT_APPLICABLE", "PASS", "UNKNOWN", "WARNING", "Found", "Line", "examine", "exit_code", "strict"]

LINES: Mapping[str, Callable[[Found], Iterable[Line]]] = {
    "kernel": checks.kernel,
    "configuration": checks.configuration,
    "data_dir": checks.data_dir,
    "daemon": checks.daemon,
    "kernel log": checks.kernel_log,
    "xid": checks.xid,
    "psi": checks.psi,
    "dmi": checks.dmi,
    "hardware key": checks.hardware_key,
    "driver": gpus.driver,
    "gpu": gpus.each,
    "fabric manager": checks.fabric_manager,
    "reboot": checks.reboot,
    "disks": checks.disks,
    "nics": checks.nics,
    "receiver": checks.receiver,
    "clock": checks.clock,
    "certificate": checks.certificate,
}


def examine(found: Found) -> tuple[Line, ...]:
    """Every line, in the order of LINES."""
    return tuple(line for row in LINES.values() for line in row(found))


def strict(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines where what cannot be told is a failure."""
    return tuple(line.as_failure() if line.verdict == UNKNOWN else line for line in lines)


def exit_code(lines: Iterable[Line]) -> int:
    """0: nothing to do; 1: warnings, or something cannot be told; 2: failures."""
    verdicts = {line.verdict for line in lines}
    return 2 if FAIL in verdicts else 1 if verdicts & {WARNING, UNKNOWN} else 0
