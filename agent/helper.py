"""bcd-helper: does for bcd, which is no root, what only root may do. One process a request, started by systemd
(bcd-helper.socket) with the connection as standard input; one JSON object a line asked, one answered.

    {"verb": "reset", "gpus": ["GPU-..."], "limit": 300}    nvidia-smi --gpu-reset -i UUID,...      needs gpu.reset
    {"verb": "is-active" | "stop" | "start", "service": "nvidia-dcgm"}    systemctl, of reset.pause only    needs gpu.reset
    {"verb": "reboot"}                                      systemctl reboot                        needs node.reboot
    {"verb": "open-files"}                                  which process has a GPU open, or is a VM

    -> {"code": 0, "out": "...", "err": "..."}    how the program ended; -1: it did not end in time and was killed
    -> {"refused": "..."}                         nothing was done

"needs": in `commands.allow` of /etc/bcd/bcd.toml, which is root's. So bcd, taken over by somebody, can do with the node no more
than the file says, and as it is shipped that is nothing. Environment variables and flags of bcd do not count here.
The other end must be the user named, or root (SO_PEERCRED): group bcd may connect, and is not served.
"""

import argparse
import asyncio
import json
import os
import pwd
import re
import shutil
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agent import config as settings
from agent import open_files, program
from agent.config import Config
from agent.errors import Failed, FieldError
from agent.host import Host

PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LINE_LIMIT = 64 << 10  # bytes of a request
OUTPUT_LIMIT = 1 << 20  # characters of a program's output that are answered
PATIENCE = 5.0  # seconds for the request to come
LONGEST = 300.0  # seconds that a program may take
MAX_GPUS = 64
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SERVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:-]{0,199}")

Request = Mapping[str, Any]
Answer = Mapping[str, Any]


class Refused(Exception):
    """What is asked is not done; says why."""


def main() -> int:
    """Serves one request on standard input. Exit code 0: answered, also with a refusal."""
    parser = argparse.ArgumentParser("bcd-helper", description="Does for bcd what only root may do. Started by systemd.")
    parser.add_argument("--user", required=True, help="the user that is served, beside root")
    parser.add_argument("--config", type=Path, help=f"configuration (default {settings.DEFAULT_FILE})")
    arguments = parser.parse_args()
    with socket.socket(fileno=os.dup(0)) as connection:
        serve(connection, {0, pwd.getpwnam(arguments.user).pw_uid}, lambda: settings.load(arguments.config, {}, {}))
    return 0


def serve(connection: socket.socket, users: set[int], load: Callable[[], Config]) -> None:
    """Answers the one request of a connection. `users`: the ids of those who are served."""
    connection.settimeout(PATIENCE)
    peer = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    shown: Any = None
    try:
        if peer not in users:
            raise Refused(f"user {peer} is not served")
        request = _request(connection)
        shown = {key: request[key] for key in ("verb", "gpus", "service") if key in request}
        answer = perform(request, load())
    except (Refused, FieldError) as error:
        answer = {"refused": str(error)}
    ended = answer.get("refused") or f"ended with {answer['code']}"
    sys.stderr.write(f"user {peer}: {shown}: {ended}\n")  # the journal's
    sys.stderr.flush()
    connection.sendall(json.dumps(answer).encode() + b"\n")


def _request(connection: socket.socket) -> Request:
    data = b""
    while not data.endswith(b"\n"):
        try:
            chunk = connection.recv(4096)
        except TimeoutError:
            raise Refused(f"no request within {PATIENCE:g} s") from None
        data += chunk
        if not chunk or len(data) > LINE_LIMIT:
            raise Refused("the request is no line, or longer than 64 KiB")
    try:
        request = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused("the request is not JSON") from error
    if not isinstance(request, dict):
        raise Refused("the request is no JSON object")
    return request


def perform(request: Request, config: Config) -> Answer:
    """Does one of the verbs. Raises Refused, and FieldError when the processes cannot be looked at."""
    verb = request.get("verb")
    if not isinstance(verb, str) or verb not in VERBS:
        raise Refused(f"there is no verb {verb!r}, there are {', '.join(VERBS)}")
    needs, act = VERBS[verb]
    if needs and needs not in config.commands_allow:
        raise Refused(f"{needs} is not in commands.allow of {settings.DEFAULT_FILE}")
    limit = request.get("limit", LONGEST)
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= LONGEST:
        raise Refused(f"limit is {limit!r}; expected seconds up to {LONGEST:g}")
    return act(request, config, limit)


def _reset(request: Request, config: Config, limit: float) -> Answer:
    gpus = request.get("gpus")
    if not isinstance(gpus, list) or not 0 < len(gpus) <= MAX_GPUS:
        raise Refused(f"gpus is no list of 1 to {MAX_GPUS} UUIDs")
    if wrong := [gpu for gpu in gpus if not isinstance(gpu, str) or not _UUID.fullmatch(gpu)]:
        raise Refused(f"{wrong[0]!r} is no GPU's UUID")
    return _run([_find(config.tools_nvidia_smi), "--gpu-reset", "-i", ",".join(gpus)], limit)


def _service(request: Request, config: Config, limit: float) -> Answer:
    service = request.get("service")
    if not isinstance(service, str) or service not in config.reset_pause or not _SERVICE.fullmatch(service):
        raise Refused(f"{service!r} is not in reset.pause of {settings.DEFAULT_FILE}")
    return _run([_find(config.tools_systemctl), request["verb"], f"{service}.service"], limit)


def _reboot(request: Request, config: Config, limit: float) -> Answer:
    return _run([_find(config.tools_systemctl), "reboot"], limit)


def _open_files(request: Request, config: Config, limit: float) -> Answer:
    return {"code": 0, "out": json.dumps(open_files.that_matter(Host())), "err": ""}


VERBS: Mapping[str, tuple[str, Callable[[Request, Config, float], Answer]]] = {
    "reset": ("gpu.reset", _reset),
    "is-active": ("gpu.reset", _service),
    "stop": ("gpu.reset", _service),
    "start": ("gpu.reset", _service),
    "reboot": ("node.reboot", _reboot),
    "open-files": ("", _open_files),
}
"""Verb -> the command that must be allowed on this node, and what it does."""


def _find(tool: str) -> str:
    path = shutil.which(tool, path=PLACES) if os.path.isabs(tool) or "/" not in tool else None
    if path is None:
        raise Refused(f"{tool} is not installed (looked in {PLACES}), or may not be executed")
    return path


def _run(argv: list[str], limit: float) -> Answer:
    """How a program ended. One that takes too long is killed; what it started dies with this unit."""
    try:
        ran = asyncio.run(program.run(argv, limit, {"PATH": PLACES, "LC_ALL": "C"}))
    except Failed as error:
        if error.reason == "TimedOut":
            return {"code": -1, "out": "", "err": str(error)}
        raise Refused(str(error)) from error
    out, err = (data.decode(errors="replace")[-OUTPUT_LIMIT:] for data in (ran.out, ran.err))
    return {"code": ran.code, "out": out, "err": err}


if __name__ == "__main__":
    sys.exit(main())
