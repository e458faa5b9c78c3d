"""What only root may do: done by bcd itself, or asked of bcd-helper where setting `helper` names its socket (agent/helper.py)."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Any

from agent import open_files, program
from agent.commands.order import Node
from agent.errors import Failed
from agent.program import MAX_OUTPUT, Ran
from agent.usage import Opened

GRACE = 10.0  # seconds for the helper to start and to answer, beside what it does
LOOKING = 30.0  # seconds for it to look at all processes


def check(node: Node, tool: str) -> None:
    """Raises Failed (NotInstalled) when a program is missing here. The helper looks for its own."""
    if not node.config.helper:
        node.program(tool)


async def reset(node: Node, uuids: Sequence[str], limit: float) -> Ran:
    """Resets these GPUs in one go."""
    if node.config.helper:
        return await _ask(node, {"verb": "reset", "gpus": list(uuids)}, limit)
    return await program.run([node.program("nvidia_smi"), "--gpu-reset", "-i", ",".join(uuids)], limit)


async def reboot(node: Node, limit: float) -> Ran:
    """Asks systemd for a reboot."""
    if node.config.helper:
        return await _ask(node, {"verb": "reboot"}, limit)
    return await program.run([node.program("systemctl"), "reboot"], limit)


async def systemctl(node: Node, verb: str, service: str, limit: float) -> Ran:
    """`is-active`, `stop` or `start` of a service of `reset.pause`."""
    if node.config.helper:
        return await _ask(node, {"verb": verb, "service": service}, limit)
    return await program.run([node.program("systemctl"), verb, f"{service}.service"], limit)


async def opened(node: Node) -> Opened:
    """What a process has open: a question of its own each time, or the helper's answer of now."""
    if not node.config.helper:
        return open_files.of_process
    files = json.loads((await _ask(node, {"verb": "open-files"}, LOOKING)).out)
    return lambda host, pid: files.get(pid, ())


async def _ask(node: Node, request: dict[str, Any], limit: float) -> Ran:
    """The helper's answer. Raises Failed (HelperUnavailable, NotAllowed, TimedOut)."""
    path, verb = node.config.helper, request["verb"]
    try:
        async with asyncio.timeout(limit + GRACE):
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_OUTPUT)
            with contextlib.closing(writer):
                writer.write(json.dumps(request | {"limit": limit}).encode() + b"\n")
                await writer.drain()
                answer = json.loads(await reader.readline())
    except TimeoutError:
        raise Failed("TimedOut", f"bcd-helper did not do {verb} within {limit:g} s") from None
    except (OSError, ValueError) as error:
        raise Failed(
            "HelperUnavailable", f"asking bcd-helper on {path} for {verb}: {error}; is bcd-helper.socket started?"
        ) from error
    if "refused" in answer:
        raise Failed("NotAllowed", f"bcd-helper refuses {verb}: {answer['refused']}")
    return Ran(answer["code"], answer["out"].encode(), answer["err"].encode())
