"""Facts of recorded hosts, read as the daemon reads them."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.collectors import collect
from agent.conditions import external, reboot
from agent.conditions.facts import Fabric, Facts
from agent.conditions.module import Module
from agent.conditions.table import TABLE, Verdict
from agent.nvml import Nvml
from agent.recorded import RecordedNvml, open_host, open_nvml
from tests.hosts_catalog import HOSTS

LONG_AGO = 86_400.0


@cache
def _as_recorded(name: str) -> tuple[pb.GpusSection, pb.OsSection]:
    return _sections(HOSTS[name], open_nvml(HOSTS[name]))


def _sections(directory: Path, nvml: Nvml) -> tuple[pb.GpusSection, pb.OsSection]:
    section, system = (collect(name, open_host(directory), nvml) for name in ("gpus", "os"))
    assert isinstance(section, pb.GpusSection)
    assert isinstance(system, pb.OsSection)
    return section, system


def facts_of(directory: Path, change: Callable[[dict[str, Any]], None] | None = None, **changed: Any) -> Facts:
    """A settled host's, a day after boot. `change` changes each GPU's answers."""
    host = open_host(directory)
    if change:
        answers = json.loads((directory / "nvml.json").read_text())
        for device in answers["devices"]:
            change(device)
        section, system = _sections(directory, RecordedNvml(answers))
    elif directory in HOSTS.values():
        section, system = _as_recorded(directory.name)
    else:
        section, system = _sections(directory, open_nvml(directory))
    found: dict[str, Any] = {
        "uptime": LONG_AGO,
        "gpus": section,
        "manager": Fabric().manager(host, "boot-1", section, system.fabric_manager_version or None),
        "waiting": reboot.read(host, Module(), ()),
        "managed_by": external.managers(host, "/etc/site/managed"),
    }
    return Facts(**found | changed)


def verdicts(kind: str, facts: Facts) -> list[Verdict]:
    return list(TABLE[kind](facts))


def status(kind: str, facts: Facts) -> str | None:
    """The one verdict's status; None: it does not apply."""
    found = verdicts(kind, facts)
    assert len(found) <= 1
    return found[0].status if found else None
