"""The node's inventory of now, and its cache in `data_dir/inventory/`, so that a restart reports without collecting (SPEC A2).

    sections/<sha256>   a section's bytes, content addressed
    index.json          which of them the last inventory is, when, why and by what it was collected
    gpus.json           the GPUs remembered by bus id (known_gpus.py)

Nothing here is needed: a damaged, half-written or unreadable cache is logged and collected anew; a full disk is logged.
"""

import base64
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import SECTIONS, decode, digest, section_hash
from google.protobuf.message import DecodeError

from agent.errors import Unreadable
from agent.host import Host, write_atomic
from agent.known_gpus import Known, Remembered
from agent.sections import Collected, Failed, Section, nvml_error
from agent.triggers import Fingerprint

FORMAT = 1
_log = logging.getLogger("bcd.inventory")


@dataclass(frozen=True, slots=True)
class Inventory:
    """All sections of one boot as last collected. A name is in `sections` or in `failed`; `ages`: when each was collected."""

    boot_id: str
    trigger: str
    collected_at: float  # Unix seconds, of the last collection
    fingerprint: Fingerprint
    sections: tuple[Section, ...]  # sorted by name
    failed: tuple[Failed, ...]  # sorted by name
    ages: Mapping[str, float]

    @property
    def digest(self) -> str:
        """The digest over the sections present."""
        return digest((s.name, s.hash) for s in self.sections)

    @property
    def lacking(self) -> list[str]:
        """The sections that are missing, and gpus where it counts as missing because NVML did not answer (A1)."""
        errored = [s.name for s in self.sections if s.name == "gpus" and nvml_error(pb.GpusSection.FromString(s.data))]
        return [f.name for f in self.failed] + errored


def merge(before: Inventory | None, collected: Collected, now: Inventory) -> Inventory:
    """The inventory after a collection: what was collected, and of the same boot's earlier one what was not.

    `now` brings the boot, trigger, time and fingerprint of this collection; its sections are not looked at.
    """
    told = {s.name for s in collected.sections} | {f.name for f in collected.failed}
    same_boot = before is not None and before.boot_id == now.boot_id
    old_sections = tuple(s for s in before.sections if s.name not in told) if before and same_boot else ()
    old_failed = tuple(f for f in before.failed if f.name not in told) if before and same_boot else ()
    ages = {name: at for name, at in before.ages.items() if name not in told} if before and same_boot else {}
    return Inventory(
        now.boot_id,
        now.trigger,
        now.collected_at,
        now.fingerprint,
        tuple(sorted((*old_sections, *collected.sections), key=lambda s: s.name)),
        tuple(sorted((*old_failed, *collected.failed), key=lambda f: f.name)),
        ages | dict.fromkeys(sorted(told), now.collected_at),
    )


def fingerprint(host: Host, bcd_version: str) -> Fingerprint:
    """The host's fingerprint: /sys/module/nvidia/version, `550.90.07`, and /sys/kernel/uevent_seqnum, `4711`."""
    seqnum = _value(host, "/sys/kernel/uevent_seqnum")
    number = int(seqnum) if seqnum and seqnum.isdigit() else None
    return Fingerprint(bcd_version, _value(host, "/sys/module/nvidia/version"), number)


def _value(host: Host, path: str) -> str | None:
    try:
        return host.read(path).decode(errors="replace").strip() or None
    except Unreadable:
        return None


class Store:
    """The cache on disk. `directory` is made when something is first kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self) -> Inventory | None:
        """The last inventory; None when there is none, or none that is whole."""
        try:
            index = json.loads((self._directory / "index.json").read_bytes())
            return _inventory(index, self._section)
        except FileNotFoundError as error:
            if error.filename != str(self._directory / "index.json"):
                _log.warning("the stored inventory lacks a section, it is collected anew: %s", error.filename)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("the stored inventory in %s is damaged, it is collected anew: %s", self._directory, _words(error))
        return None

    def known_gpus(self) -> dict[str, Remembered]:
        """The GPUs remembered by bus id; {} when there are none, or the file is damaged."""
        path = self._directory / "gpus.json"
        try:
            entries = json.loads(path.read_bytes())["gpus"]
            return {bus_id: _remembered(entry) for bus_id, entry in entries.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, DecodeError) as error:
            _log.warning("the remembered GPUs in %s are damaged and are learnt anew: %s", path, _words(error))
            return {}

    def save(self, inventory: Inventory, known: Known) -> None:
        """Keeps an inventory and the remembered GPUs, and drops the sections of earlier ones. Writes only what is new."""
        try:
            sections = self._directory / "sections"
            for directory in (self._directory, sections):
                directory.mkdir(mode=0o700, exist_ok=True)
            for section in inventory.sections:
                if not _holds(sections / section.hash, section):
                    write_atomic(sections / section.hash, section.data)
            _write_new(self._directory / "index.json", _index(inventory))
            _write_new(self._directory / "gpus.json", _gpus(known))
            wanted = {section.hash for section in inventory.sections}
            for path in sections.iterdir():
                if path.name not in wanted:
                    path.unlink()
        except OSError as error:
            _log.warning("cannot keep the inventory in %s: %s", self._directory, error)

    def _section(self, name: str, expected: str) -> Section:
        if len(expected) != 64 or not set(expected) <= set("0123456789abcdef"):
            raise ValueError(f"section {name}: {expected!r} is no hash")
        data = (self._directory / "sections" / expected).read_bytes()
        if section_hash(data) != expected:
            raise ValueError(f"section {name}: {len(data)} bytes that are not those of {expected[:12]}")
        decode(name, data)
        return Section(name, data)


def _holds(path: Path, section: Section) -> bool:
    try:
        return path.read_bytes() == section.data
    except OSError:
        return False


def _write_new(path: Path, data: bytes) -> None:
    try:
        if path.read_bytes() == data:
            return
    except OSError:
        pass
    write_atomic(path, data)


def _words(error: Exception) -> str:
    return f"{error.args[0]!r} is missing in it" if isinstance(error, KeyError) else str(error)


def _index(inventory: Inventory) -> bytes:
    index = {
        "format": FORMAT,
        "bootId": inventory.boot_id,
        "trigger": inventory.trigger,
        "collectedAt": inventory.collected_at,
        "bcdVersion": inventory.fingerprint.bcd_version,
        "driverVersion": inventory.fingerprint.driver_version,
        "ueventSeqnum": inventory.fingerprint.uevent_seqnum,
        "sections": {s.name: s.hash for s in inventory.sections},
        "failed": [asdict(f) for f in inventory.failed],
        "ages": dict(inventory.ages),
    }
    return json.dumps(index, indent=1).encode() + b"\n"


def _inventory(index: Any, read: Any) -> Inventory:
    """An index as an inventory; `read(name, hash)` gives the sections. Raises ValueError, KeyError, TypeError, OSError."""
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise ValueError(f"index.json is not an object of format {FORMAT}")
    sections = tuple(read(name, index["sections"][name]) for name in sorted(index["sections"]))
    failed = tuple(Failed(str(f["name"]), str(f["reason"]), str(f["message"])) for f in index["failed"])
    names = sorted([s.name for s in sections] + [f.name for f in failed])
    if names != sorted(SECTIONS):
        raise ValueError(f"index.json names the sections {', '.join(names)}")
    return Inventory(
        boot_id=_typed(index, "bootId", str),
        trigger=_typed(index, "trigger", str),
        collected_at=float(index["collectedAt"]),
        fingerprint=Fingerprint(
            _typed(index, "bcdVersion", str), _typed(index, "driverVersion", str, None), _typed(index, "ueventSeqnum", int, None)
        ),
        sections=sections,
        failed=failed,
        ages={name: float(index["ages"][name]) for name in names},
    )


def _typed(index: Mapping[str, Any], key: str, *types: type | None) -> Any:
    value = index[key]
    if value is None and None in types:
        return None
    if not isinstance(value, tuple(t for t in types if t is not None)):
        raise ValueError(f"index.json: {key} is {value!r}")
    return value


def _gpus(known: Known) -> bytes:
    entries = {
        bus_id: {"bootId": r.boot_id, "gpu": base64.b64encode(r.gpu.SerializeToString(deterministic=True)).decode()}
        for bus_id, r in sorted(known.items())
    }
    return json.dumps({"format": FORMAT, "gpus": entries}, indent=1).encode() + b"\n"


def _remembered(entry: Any) -> Remembered:
    return Remembered(str(entry["bootId"]), pb.Gpu.FromString(base64.b64decode(entry["gpu"], validate=True)))
