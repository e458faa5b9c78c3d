"""Acceptance with real processes: bcd on recorded hosts proves itself by `diag.nvml` to a real receiver (SPEC B7). One that has a
GPU too few: tests/story_acceptance.py."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import hosts_catalog as hosts
from tests.end_to_end.processes import Fleet, fleet, wait_for

HOST, GPUS = "h100-sxm-8", 8
SETTLED = {"BCD_SETTLE": "0s"}


@pytest.fixture(scope="module")
def run() -> Iterator[Fleet]:
    """One receiver for the tests of this file."""
    with tempfile.TemporaryDirectory(prefix="bc-") as directory, fleet(Path(directory)) as started:
        yield started


def started(run: Fleet, name: str, directory: Path, env: dict[str, str] | None = None) -> str:
    """bcd on a recorded host; its node's id once its inventory is applied."""
    run.daemon(name, directory, {**SETTLED, **(env or {})})
    node: str = run.applied(name)["nodeId"]
    return node


def proving(run: Fleet, node: str, name: str, **policy: Any) -> None:
    """The node is in a pool with checks, and is ordered to prove itself."""
    said = json.dumps({"acceptance": [{"kind": "diag.nvml"}], **policy})
    pool = run.api("pools.create", name=name, policy=said, reason="test")["id"]
    run.api("nodes.move", nodeId=node, poolId=pool, reason="test")
    run.api("nodes.adopt", nodeId=node, reason="test")


def ended(run: Fleet, node: str) -> Any:
    """acceptance.get, once the attempt has ended."""

    def probe() -> Any:
        found = run.api("acceptance.get", nodeId=node)
        return found if found["state"] in ("passed", "failed") else None

    return wait_for("the attempt to end", probe, 90.0)


def test_a_healthy_host_passes_and_is_in_service(run: Fleet, tmp_path: Path) -> None:
    node = started(run, "healthy", hosts.copy(HOST, tmp_path))
    wait_for("its service without checks", lambda: run.api("nodes.get", nodeId=node)["status"] == "adopted")
    proving(run, node, "good")
    attempt = ended(run, node)
    assert (attempt["state"], attempt["reason"], attempt["attempt"]) == ("passed", "Passed", 2), attempt
    (check,) = attempt["checks"]
    count = next(one for one in check["result"]["checks"] if one["check"] == "gpu.count")
    assert (count["result"], count["reason"]) == ("pass", f"{GPUS} GPUs, {GPUS} expected"), "as many as the inventory found"
    assert run.api("nodes.get", nodeId=node)["status"] == "adopted"
    assert len(run.api("atoms.list", nodeId=node)["atoms"]) == GPUS


def test_a_host_that_takes_no_such_command_fails(run: Fleet, tmp_path: Path) -> None:
    directory = hosts.copy("l4-cloud-vm", tmp_path)
    node = started(run, "cautious", directory, {"BCD_COMMANDS_ALLOW": "inventory.refresh"})
    proving(run, node, "cautious")
    attempt = ended(run, node)
    assert (attempt["reason"], attempt["checks"][0]["status"], attempt["checks"][0]["reason"]) == (
        "diag.nvml:failed",
        "refused",
        "NotAllowed",
    )
