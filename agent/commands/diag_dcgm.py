"""`diag.dcgm`: DCGM's own diagnosis, `dcgmi diag -r LEVEL -j`. Payload: `{"level": 1}`; 1 by default, 2 and 3 load the GPUs.

It succeeds with `passed` true or false; it fails when DCGM is not installed or does not say anything that parses.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agent import program
from agent.commands import busy
from agent.commands.order import Node, Order, Payload, bad
from agent.errors import Failed

LIMITS = {1: 5 * 60.0, 2: 15 * 60.0, 3: 60 * 60.0}  # seconds a level
_LONGEST = 300  # characters of one warning
_MOST = 200  # results in an answer: those that did not pass first


def limit(payload: Payload) -> float:
    """Seconds that the payload's level may take. Raises Failed (BadPayload)."""
    return LIMITS[_level(payload)]


async def run(order: Order, node: Node) -> Payload:
    """Answers `passed`, `level`, DCGM's version and each result."""
    level = _level(order.payload)
    if level >= 2:
        uuids = {gpu.uuid for gpu in node.gpus()}
        found = await busy.users(node, node.gpus(), node.config.reset_pause)
        busy.refuse("gpu-busy", [user for user in found if user.uses(uuids)])
    ran = await program.run([node.program("dcgmi"), "diag", "-r", str(level), "-j"], LIMITS[level])
    diagnosis = parse(ran.out)
    if diagnosis is None:
        raise Failed("DcgmFailed", f"dcgmi ended with {ran.code} and no diagnosis: {ran.said or 'it said nothing'}")
    return {"level": level, **diagnosis}


def _level(payload: Payload) -> int:
    level = payload.get("level", 1)
    if isinstance(level, bool) or level not in LIMITS:
        raise bad("level", level, "1, 2 or 3")
    return int(level)


def parse(out: bytes) -> dict[str, Any] | None:
    """dcgmi's output as `{"passed", "version"?, "results": [{"category", "test", "status", "gpu"?, "warnings"?}]}`, or None.

    DCGM 3 says, after lines that are not JSON perhaps:

        {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [
            {"name": "GPU Memory", "results": [{"gpu_ids": "0", "status": "Fail", "warnings": "Unable to allocate ..."}]}]}]},
         "version": "3.1.8"}

    and DCGM 4: `"DCGM Diagnostic"`, `"metadata": {"DCGM Version": "4.1.1"}`, results with `"entity_id": 0` and
    `"warnings": [{"error_id": 1, "warning": "..."}]`. `passed`: something passed and nothing failed; skipped tests prove nothing.
    """
    try:
        value = json.loads(out[max(out.find(b"{"), 0) :])
    except (ValueError, RecursionError):
        return None
    categories = next(_found(value, "test_categories"), None)
    if not isinstance(categories, list):
        return None
    results = [result for category in categories for result in _results(category)]
    words = [str(result["status"]).lower() for result in results]
    answer: dict[str, Any] = {
        "passed": "pass" in words and not any(word.startswith("fail") for word in words),
        "results": sorted(results, key=lambda result: str(result["status"]).lower() == "pass")[:_MOST],
    }
    version = next(_found(value, "DCGM Version"), None) or next(_found(value, "version"), None)
    return answer | ({"version": version} if isinstance(version, str) else {})


def _found(value: object, key: str) -> Iterator[object]:
    """The values of a key, wherever it stands in nested objects."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for inner in value.values():
            yield from _found(inner, key)


def _results(category: object) -> Iterator[dict[str, Any]]:
    for test in _objects(category, "tests"):
        for result in _objects(test, "results"):
            row = {
                "category": category.get("category") if isinstance(category, dict) else None,
                "test": test.get("name"),
                "status": result.get("status", "unknown"),
                "gpu": next((str(result[key]) for key in ("entity_id", "gpu_id", "gpu_ids") if key in result), None),
                "warnings": list(_warnings(result.get("warnings"))),
            }
            yield {key: value for key, value in row.items() if value not in (None, [])}


def _objects(value: object, key: str) -> Iterator[Mapping[str, Any]]:
    inner = value.get(key) if isinstance(value, dict) else None
    yield from (item for item in (inner if isinstance(inner, list) else []) if isinstance(item, dict))


def _warnings(value: object) -> Iterator[str]:
    for item in value if isinstance(value, list) else [value]:
        text = item.get("warning") if isinstance(item, dict) else item
        if isinstance(text, str) and text:
            yield text[:_LONGEST]
