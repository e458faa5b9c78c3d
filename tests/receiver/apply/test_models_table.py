"""A GPU that the models table does not know, and a table that learns its name (SPEC B2, "GPU naming")."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bettercompute.contract import gpu_models

from receiver.apply import replan
from receiver.errors import ReceiverError
from receiver.service import use_models
from receiver.store.database import Connection
from tests.receiver.builders import apply, count, gpu, gpus, host, join, told

NEW = "NVIDIA R300 SXM7"


def text_with(name: str) -> str:
    """The next version of gpu_models.json, which knows this name."""
    data: dict[str, Any] = json.loads(gpu_models.FILE.read_text())
    row = {"product": "R300-SXM6-288GB", "model": "R300", "form": "SXM6", "memoryGb": 288, "architecture": "blackwell"}
    data["products"] = sorted(
        [*data["products"], {**row, "names": [name], "pciDeviceIds": []}], key=lambda one: str(one["product"])
    )
    data["families"]["R300"] = {"line": "flagship"}
    data["version"] += 1
    return json.dumps(data)


def table_with(name: str) -> gpu_models.Table:
    """The same as a table."""
    return gpu_models.load(text_with(name))


@pytest.fixture(autouse=True)
def as_shipped() -> Iterator[None]:
    """Whatever a test has the receiver use, the next one begins with the table of this version."""
    yield
    gpu_models.use(gpu_models.GPU_MODELS)


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


def test_a_table_that_learns_the_name_clears_the_condition_without_a_new_inventory(tx: Connection) -> None:
    join(tx)
    apply(tx, host(gpus=gpus(gpu(0, name=NEW), gpu(1, name=NEW))))
    assert state(tx) == (True, ["GpuModelUnknown"], ["other"], "other")
    snapshots, before = count(tx, "inventory_snapshots"), told(tx, "node.condition.changed")
    gpu_models.use(table_with(NEW))
    assert replan.queue_outdated(tx) == 1
    replan.drain(tx)
    assert state(tx) == (False, [], ["R300"], "R300")
    assert count(tx, "inventory_snapshots") == snapshots
    assert len(told(tx, "node.condition.changed")) > len(before)
    assert replan.queue_outdated(tx) == 0


def test_a_table_that_learns_another_name_changes_nothing(tx: Connection) -> None:
    join(tx)
    apply(tx, host(gpus=gpus(gpu(0, name=NEW))))
    before, events = state(tx), count(tx, "events")
    gpu_models.use(table_with("NVIDIA R200 SXM7"))
    assert replan.queue_outdated(tx) == 1
    replan.drain(tx)
    assert (state(tx), count(tx, "events")) == (before, events)


def test_receiver_takes_an_operators_table(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text(text_with(NEW))
    use_models(str(path))
    assert gpu_models.in_force().version == gpu_models.GPU_MODELS.version + 1
    found = gpu_models.normalize_gpu_product(NEW)
    assert found is not None
    assert found.product == "R300-SXM6-288GB"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 9}', "\0"])
def test_table_that_is_none_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "models.json"
    path.write_text(text)
    with pytest.raises(ReceiverError, match=r"models\.json"):
        use_models(str(path))
    assert gpu_models.in_force() is gpu_models.GPU_MODELS


def test_table_that_is_not_there_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ReceiverError, match=r"none\.json"):
        use_models(str(tmp_path / "none.json"))
