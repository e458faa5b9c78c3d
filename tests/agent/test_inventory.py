"""The inventory's cache: content addressed, whole or not at all."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import SECTIONS, encode

from agent.host import Host
from agent.inventory import Inventory, Store, fingerprint, merge
from agent.known_gpus import Remembered
from agent.sections import Collected, Failed, Section
from agent.triggers import Fingerprint

PRINTS = Fingerprint("0.1.0", None, 4711)
KNOWN = {"00000000:18:00.0": Remembered("boot-1", pb.Gpu(uuid="GPU-1", bus_id="00000000:18:00.0"))}


def everything(hostname: str = "n1", failed: str = "") -> Collected:
    bodies = dict.fromkeys(SECTIONS, b"") | {"os": encode(pb.OsSection(hostname=hostname))}
    sections = tuple(Section(name, bodies[name]) for name in sorted(bodies) if name != failed)
    return Collected(sections, (Failed(failed, "Hang", "no answer"),) if failed else ())


def inventory(collected: Collected, before: Inventory | None = None, boot_id: str = "boot-1", at: float = 100.5) -> Inventory:
    return merge(before, collected, Inventory(boot_id, "first", at, PRINTS, (), (), {}))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "inventory")


def test_what_is_kept_is_what_is_loaded(store: Store) -> None:
    kept = inventory(everything(failed="gpus"))
    store.save(kept, KNOWN)
    assert store.load() == kept
    assert store.known_gpus() == KNOWN


def test_nothing_kept_is_nothing_and_no_complaint(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    assert store.load() is None
    assert store.known_gpus() == {}
    assert caplog.records == []


def test_sections_are_kept_once_by_hash_and_old_ones_go(store: Store, tmp_path: Path) -> None:
    first = inventory(everything("n1"))
    store.save(first, {})
    folder = tmp_path / "inventory" / "sections"
    assert {path.name for path in folder.iterdir()} == {section.hash for section in first.sections}
    (folder / ".half-written").write_bytes(b"x")
    second = inventory(everything("n2"))
    store.save(second, {})
    assert {path.name for path in folder.iterdir()} == {section.hash for section in second.sections}


def test_the_same_inventory_writes_nothing(store: Store, tmp_path: Path) -> None:
    store.save(inventory(everything()), KNOWN)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "inventory").rglob("*")}
    store.save(inventory(everything()), KNOWN)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "inventory").rglob("*")} == before


def _damage(index: dict[str, object], key: str, value: object) -> bytes:
    return json.dumps(index | {key: value}).encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: b"",
        lambda index: b"{" + b"x" * 1000,
        lambda index: b"[]",
        lambda index: b"\xff",
        lambda index: json.dumps({k: v for k, v in index.items() if k != "ages"}).encode(),
        lambda index: _damage(index, "format", 2),
        lambda index: _damage(index, "bootId", 7),
        lambda index: _damage(index, "ueventSeqnum", "many"),
        lambda index: _damage(index, "collectedAt", None),
        lambda index: _damage(index, "failed", [{"name": "cpu", "reason": "x", "message": "in both"}]),
        lambda index: _damage(index, "failed", "x"),
        lambda index: _damage(index, "sections", {}),
        lambda index: _damage(index, "sections", {"cpu": "../../etc/passwd"}),
        lambda index: _damage(index, "sections", ["cpu"]),
    ],
)
def test_a_damaged_index_is_logged_and_collected_anew(
    store: Store, tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    store.save(inventory(everything()), {})
    path = tmp_path / "inventory" / "index.json"
    path.write_bytes(damage(json.loads(path.read_text())))  # type: ignore[operator]
    assert store.load() is None
    assert "collected anew" in caplog.text


@pytest.mark.parametrize("content", [b"", b"other bytes", None])
def test_a_damaged_section_is_logged_and_collected_anew(
    store: Store, tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    kept = inventory(everything())
    store.save(kept, {})
    path = tmp_path / "inventory" / "sections" / next(s.hash for s in kept.sections if s.name == "os")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert store.load() is None
    assert "collected anew" in caplog.text
    store.save(kept, {})
    assert store.load() == kept, "what was damaged is written again"


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"gpus": {"a": 1}}', b'{"gpus": {"a": {"bootId": "b", "gpu": "CP8="}}}']
)
def test_damaged_memories_of_gpus_are_logged_and_learnt_anew(
    store: Store, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store.save(inventory(everything()), KNOWN)
    (tmp_path / "inventory" / "gpus.json").write_bytes(content)
    assert store.known_gpus() == {}
    assert "learnt anew" in caplog.text


def test_a_disk_that_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "inventory").write_text("a file where the directory should be")
    with caplog.at_level(logging.WARNING):
        Store(tmp_path / "inventory").save(inventory(everything()), {})
    assert "cannot keep the inventory" in caplog.text


def test_a_partial_collection_replaces_what_it_tells_and_keeps_the_rest() -> None:
    before = inventory(everything("n1"), at=100.0)
    part = Collected((Section("os", encode(pb.OsSection(hostname="n2"))),), (Failed("gpus", "Hang", "x"),))
    after = inventory(part, before, at=200.0)
    assert {s.name for s in after.sections} == set(SECTIONS) - {"gpus"}
    assert [f.name for f in after.failed] == ["gpus"]
    assert (after.ages["os"], after.ages["gpus"], after.ages["cpu"]) == (200.0, 200.0, 100.0)
    healed = inventory(Collected((Section("gpus", b""),)), after, at=300.0)
    assert healed.failed == ()
    assert healed.digest == inventory(everything("n2")).digest


def test_another_boot_takes_nothing_over() -> None:
    after = inventory(Collected((Section("cpu", b""),)), inventory(everything()), boot_id="boot-2")
    assert [s.name for s in after.sections] == ["cpu"]
    assert dict(after.ages) == {"cpu": 100.5}


def test_the_digest_is_of_the_sections_and_of_nothing_else() -> None:
    kept = inventory(everything())
    assert replace(kept, trigger="rescan", collected_at=7.0, boot_id="boot-2").digest == kept.digest
    assert inventory(everything(failed="gpus")).digest != kept.digest


def test_the_fingerprint_is_what_the_host_says(tmp_path: Path) -> None:
    assert fingerprint(Host(tmp_path), "0.1.0") == Fingerprint("0.1.0", None, None)
    for path, text in (("sys/module/nvidia/version", "550.90.07\n"), ("sys/kernel/uevent_seqnum", "4711\n")):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    assert fingerprint(Host(tmp_path), "0.1.0") == Fingerprint("0.1.0", "550.90.07", 4711)
