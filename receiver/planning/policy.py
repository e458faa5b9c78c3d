"""A pool's policy (SPEC B0): what operators may set, as values with defaults. How it is written in JSON: `parse`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from receiver.values import Json


@dataclass(frozen=True, slots=True)
class Policy:
    """`policy` of a pool. What is not set has the SPEC's default."""

    acceptance: tuple[Mapping[str, Json], ...] = ()  # [{"kind": "diag.nvml"}]
    expect_gpu_count: int | None = None  # expect.gpuCount
    replicas: int | None = None  # sharing.replicas, 1 to 48; None: 4 for timeslice, 10 for mps
    mig_layout: tuple[str, ...] = ()  # mig.layout: the profiles that each GPU is to have, sorted; empty: any
    row_remap_pending: bool = True  # quarantine.rowRemapPending
    xid: Mapping[int, str | None] = field(default_factory=dict)  # {"109": {"policy": null}}: verdict `node`, `device` or None
    links: str = "no"  # whether NvLinkDegraded and IbLinkDown are NoSchedule: "no", "node"
    on_gpu_missing: str | None = None  # onGpuMissing: "node", "no"; None: `node` where the node's GPUs have NVLink peers
