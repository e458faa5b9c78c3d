"""The child process of one collection (`python -m agent.collectors.worker`); agent/collection.py is its parent.

It reads one request, JSON on standard input:

    {"parent": 812, "host": null, "sections": ["cpu", "gpus"], "options": {"image_dir": "...", "cri_socket": ""},
     "nvmlLibrary": "", "known": "<base64 of a GpusSection>", "arguments": {"times": 3}}

and writes frames to standard output: `{"began": true}`, then for each section, as soon as it is done, a line of JSON and the
section's bytes: `{"section": "cpu", "size": 1234}`, or instead `{"section": "gpus", "reason": "Bug", "message": "..."}`.
`sections` may name tasks (agent.collectors.TASKS) too, which `arguments` are for; their answers are framed alike.
Whatever else is printed here, by a library too, goes to standard error. The child dies with its parent.
"""

import base64
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import encode

from agent.collectors import COLLECTORS, Context, Files, Options, collect, open_doors, run
from agent.errors import FieldError, SectionFailed

_PR_SET_PDEATHSIG = 1
_LONGEST = 1000  # characters of an exception's text in a message; the whole of it is on standard error


def main() -> None:
    """Collects what standard input asks for."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    _die_with(request["parent"])
    try:
        host, nvml = open_doors(request["host"], request["nvmlLibrary"])
    except FieldError as error:  # a recording that is damaged, or gone meanwhile
        for name in request["sections"]:
            _write(out, *_failed(name, type(error).__name__, _text(error)))
        return
    known = tuple(pb.GpusSection.FromString(base64.b64decode(request["known"])).gpus)
    options = Options(**request["options"])
    _write(out, {"began": True})
    for name in request["sections"]:
        _write(out, *_outcome(name, Context(Files(host), nvml, known, options), request["arguments"]))
    sys.stderr.flush()
    os._exit(0)  # nothing is left to tidy up, and a driver's library may hang or crash in its own exit handlers


def _outcome(name: str, ctx: Context, arguments: Mapping[str, object]) -> tuple[dict[str, object], bytes]:
    """A section or task as a frame. The one runner: our bug in one collector costs that section, and goes loud as `Bug`."""
    try:
        if name in COLLECTORS:
            data = encode(collect(name, ctx.host, ctx.nvml, ctx.known, ctx.options))
        else:
            data = run(name, ctx, arguments)
        return {"section": name, "size": len(data)}, data
    except SectionFailed as error:
        return _failed(name, error.reason, _text(error))
    except FieldError as error:
        return _failed(name, type(error).__name__, _text(error))
    except Exception as error:  # noqa: BLE001 - the one runner
        sys.excepthook(type(error), error, error.__traceback__)
        return _failed(name, "Bug", f"{type(error).__name__}: {_text(error)} ({_where(error)})")


def _failed(name: str, reason: str, message: str) -> tuple[dict[str, object], bytes]:
    return {"section": name, "reason": reason, "message": message}, b""


def _text(error: Exception) -> str:
    return str(error)[:_LONGEST]


def _where(error: BaseException) -> str:
    """`gpus.py:61`: the innermost frame."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""


def _write(out: BinaryIO, head: dict[str, object], data: bytes = b"") -> None:
    out.write(json.dumps(head).encode() + b"\n" + data)
    out.flush()


def _die_with(parent: int) -> None:
    """SIGKILL for this process when its parent ends, however it ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


if __name__ == "__main__":
    main()
