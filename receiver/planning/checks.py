"""The checks of acceptance (SPEC B7): what a node is told to do for each, and what its answer comes to. Pure.

One more kind of check is a row of CHECKS. A node may have said anything in a result: what is not as it should be does not pass.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bettercompute.agent.v1 import inventory_pb2 as pb

from receiver.planning.view import CommandState, Facts
from receiver.values import Json, Payload

RUNNING, EXPIRED = "running", "Expired"
OPEN = ("queued", "sent")  # states of commands that have not ended
TOLERATED = ("pcie.link",)  # an unknown of it fails no diagnosis (SPEC A7)
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")  # of a check, which the node says
_TOLD = 500  # characters of why it failed


@dataclass(frozen=True, slots=True)
class Check:
    """A kind of command that proves something: seconds that it may take once it has begun, what the node is given, and whether
    its result has to say that it `passed`."""

    limit: float
    payload: Callable[[Facts], Payload] = lambda facts: {}
    has_verdict: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check came to: its status and reason as they are kept, and, unless it is good, why the attempt fails, in words."""

    status: str
    reason: str = ""
    fails: str = ""
    message: str = ""


def _expected(facts: Facts) -> Payload:
    """How many GPUs there are to be: what the pool says, else what the inventory found."""
    said = facts.pool.policy.expect_gpu_count if facts.pool is not None else None
    section = (facts.sections or {}).get("gpus")
    found = len(section.gpus) if isinstance(section, pb.GpusSection) else 0
    return {"expect": {"gpuCount": found if said is None else said}}


CHECKS: Mapping[str, Check] = {
    "diag.nvml": Check(120.0, _expected),
    "diag.dcgm": Check(300.0),  # of level 1, its default
    "inventory.refresh": Check(120.0, has_verdict=False),
}


def verdict(kind: str, command_id: Json, commands: Mapping[str, CommandState]) -> Verdict:
    """By its command; of one that nobody has any more nothing can be told."""
    if not command_id:
        return Verdict(RUNNING)
    command = commands.get(str(command_id), CommandState("cancelled", "Gone"))
    if command.state in OPEN:
        if _in_time(kind, command):
            return Verdict(RUNNING)
        late = "did not end in time" if command.state == "sent" else "was not sent in time"
        return Verdict("expired", "NotEnded" if command.state == "sent" else "NotSent", EXPIRED, f"{kind} {late}")
    why = f": {command.reason}" if command.reason else ""
    if command.state == "expired":
        return Verdict("expired", command.reason, EXPIRED, f"{kind} did not begin in time{why}")
    if command.state != "succeeded":
        return Verdict(command.state, command.reason, f"{kind}:failed", f"{kind} was {command.state}{why}")
    return _found(kind, command.result)


def _in_time(kind: str, command: CommandState) -> bool:
    """Who was not sent must not begin any more; who was may have begun at the last moment."""
    limit = CHECKS[kind].limit if kind in CHECKS and command.state == "sent" else 0.0
    return command.late < limit


def _found(kind: str, result: Json) -> Verdict:
    """By the result of a command that succeeded, in which the node may have said anything."""
    said = result if isinstance(result, dict) else {}
    if kind in CHECKS and (not CHECKS[kind].has_verdict or said.get("passed") is True):
        return Verdict("succeeded")
    for name, told in _failing(said.get("checks")):
        return Verdict("failed", name, f"{kind}:{name}", f"{kind}: {name}: {told}")
    why = _words(said.get("results")) or "it says not why"
    return Verdict("failed", "NotPassed", f"{kind}:failed", f"{kind} did not pass: {why}")


def _failing(listed: Json) -> Iterator[tuple[str, str]]:
    """The checks that did not pass, name and words: those that failed first, then those that are unknown."""
    rows = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    for result, passes in (("fail", ()), ("unknown", TOLERATED)):
        for one in rows:
            name = one.get("check")
            if one.get("result") == result and isinstance(name, str) and _NAME.fullmatch(name) and name not in passes:
                place = f" of {one['deviceId']}" if one.get("deviceId") else ""
                yield name, f"{result}{place}: {one.get('reason')}"[:_TOLD]


def _words(results: Json) -> str:
    """DCGM's tests that failed: `GPU Memory of GPU 3`."""
    rows = [one for one in results if isinstance(one, dict)] if isinstance(results, list) else []
    failed = [one for one in rows if str(one.get("status", "")).lower().startswith("fail")]
    return "; ".join(f"{one.get('test')} of GPU {one.get('gpu')}" for one in failed)[:_TOLD]
