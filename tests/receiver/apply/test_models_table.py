"""A GPU that the models table does not know, and a table that learns its name (SPEC B2, "GPU naming")."""

import json
from pathlib import Path
from typing import Any

import pytest
from bettercompute.contract import gpu_models

from receiver.apply import replan
from receiver.planning import node as rules
from receiver.store.database import Connection
from tests.receiver.builders import apply, count, gpu, gpus, host, join, told

NEW = "NVIDIA R300 SXM7"


def table_with(name: str) -> gpu_models.Table:
    """The next version of the table, which knows this name."""
    data: dict[str, Any] = json.loads(Path(gpu_models.__file__).with_name("gpu_models.json").read_text())
    row = {"product": "R300-SXM6-288GB", "model": "R300", "form": "SXM6", "memoryGb": 288, "architecture": "blackwell"}
    data["products"] = sorted(
        [*data["products"], {**row, "names": [name], "pciDeviceIds": []}], key=lambda one: str(one["product"])
    )
    data["families"]["R300"] = {"line": "flagship"}
    data["version"] += 1
    return gpu_models.load(json.dumps(data))


def upgrade(monkeypatch: pytest.MonkeyPatch, table: gpu_models.Table) -> None:
    """From now on this is a receiver that has that table."""
    newer = {**rules.TABLES, "models": table.version}
    monkeypatch.setattr(gpu_models, "GPU_MODELS", table)
    monkeypatch.setattr(rules, "TABLES", newer)
    monkeypatch.setattr(replan, "TABLES", newer)


def state(tx: Connection) -> tuple[Any, ...]:
    """Whether the condition is true, the node's reasons, what the GPUs and the node are called."""
    raised = "SELECT count(*) FROM conditions WHERE type = 'GpuModelUnknown' AND status = 'true'"
    label = "SELECT value FROM node_labels WHERE key = 'gpu.model'"
    row = tx.execute(
        f"SELECT ({raised}) > 0, (SELECT jsonb_path_query_array(no_schedule_reasons, '$[*].type') FROM nodes), "
        f"(SELECT jsonb_agg(DISTINCT attributes ->> 'gpuModel') FROM devices), ({label})"
    ).fetchone()
    assert row is not None
    return tuple(row)


def test_a_table_that_learns_the_name_clears_the_condition_without_a_new_inventory(
    tx: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(tx)
    apply(tx, host(gpus=gpus(gpu(0, name=NEW), gpu(1, name=NEW))))
    assert state(tx) == (True, ["GpuModelUnknown"], ["other"], "other")
    snapshots, before = count(tx, "inventory_snapshots"), told(tx, "node.condition.changed")
    upgrade(monkeypatch, table_with(NEW))
    assert replan.queue_outdated(tx) == 1
    replan.drain(tx)
    assert state(tx) == (False, [], ["R300"], "R300")
    assert count(tx, "inventory_snapshots") == snapshots
    assert len(told(tx, "node.condition.changed")) > len(before)
    assert replan.queue_outdated(tx) == 0


def test_a_table_that_learns_another_name_changes_nothing(tx: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    join(tx)
    apply(tx, host(gpus=gpus(gpu(0, name=NEW))))
    before, events = state(tx), count(tx, "events")
    upgrade(monkeypatch, table_with("NVIDIA R200 SXM7"))
    assert replan.queue_outdated(tx) == 1
    replan.drain(tx)
    assert (state(tx), count(tx, "events")) == (before, events)
