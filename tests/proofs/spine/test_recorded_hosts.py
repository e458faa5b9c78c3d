"""Two collections of an idle host give the same eight hashes: 20 times on this host and on every recorded one (issue Spine)."""

from pathlib import Path

import pytest
from bettercompute.contract.sections import SECTIONS, encode, section_hash

from agent.collectors import collect
from agent.host import Host
from agent.nvml import PynvmlNvml
from tests import hosts_catalog
from tests.agent.test_hosts import hashes
from tests.hosts_catalog import HOSTS

TIMES = 20


@pytest.mark.proof
@pytest.mark.parametrize("name", HOSTS)
def test_recorded_host_keeps_its_hashes_while_telemetry_moves(name: str, tmp_path: Path) -> None:
    directory = hosts_catalog.copy(name, tmp_path)
    before = hashes(directory)
    for seed in range(TIMES):
        hosts_catalog.move_telemetry(directory, seed)
        assert hashes(directory) == before, f"seed {seed}"


@pytest.mark.proof
def test_this_host_keeps_its_hashes() -> None:
    def once() -> dict[str, str]:
        return {name: section_hash(encode(collect(name, Host(), PynvmlNvml("")))) for name in SECTIONS}

    before = once()
    for _ in range(TIMES):
        assert once() == before
