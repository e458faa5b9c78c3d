"""What selectors and scorers read of a GPU (SPEC B2, "Attributes"), from the `gpus` section. What is not told is left out."""

from collections.abc import Callable, Mapping
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.gpu_models import Product, normalize_gpu_product
from google.protobuf.message import Message

from receiver.values import Json, Payload

_GIB = 1 << 30
_SHARED = "SOC"  # the form of a GPU that shares the host's memory


def attributes(gpu: pb.Gpu, section: pb.GpusSection, memory: pb.MemorySection | None = None) -> Payload:
    """A GPU's attributes, in lowerCamelCase. `section`: the one it stands in; `memory`: the host's, for a GPU that shares it."""
    product = product_of(gpu, memory)
    found = {name: tells(gpu, section, product) for name, tells in ATTRIBUTES.items()}
    return {name: value for name, value in found.items() if value not in (None, "", [])}


def product_of(gpu: pb.Gpu, memory: pb.MemorySection | None = None) -> Product | None:
    """The GPU's normalized names; None while it has no name."""
    product = normalize_gpu_product(gpu.name, gpu.vram_bytes / (1 << 20))
    if product is None or product.form != _SHARED or gpu.vram_bytes or memory is None:
        return product
    return normalize_gpu_product(gpu.name, memory.total_bytes / (1 << 20))


def gib(count: int) -> int | None:
    """Bytes as the nearest whole GiB, half up; None for none.

    >>> gib(81559 << 20), gib(1 << 29), gib(0)
    (80, 1, None)
    """
    return (count + _GIB // 2) // _GIB if count > 0 else None


def driver_version(section: pb.GpusSection) -> str | None:
    """The NVIDIA driver's: the kernel module's, else the library's."""
    return section.driver.module_version or section.driver.library_version or None


def fabric(gpu: pb.Gpu) -> tuple[str, int] | None:
    """NVLink cluster and clique, once the GPU's fabric is up: its state is completed, with success, and the cluster has an id."""
    found = gpu.fabric
    up = found.state == "completed" and found.status == "success" and found.HasField("clique_id")
    return (found.cluster_uuid, found.clique_id) if up and found.cluster_uuid.strip("0-") else None


def _told(message: Message, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _numa_node(gpu: pb.Gpu) -> int | None:
    return gpu.numa_node if gpu.HasField("numa_node") and gpu.numa_node >= 0 else None


def _mig_capable(gpu: pb.Gpu, product: Product | None) -> bool | None:
    """NVML's word, else the table's."""
    if gpu.HasField("mig"):
        return gpu.mig.capable
    return product.mig_capable if product else None


def _peers(gpu: pb.Gpu) -> list[str]:
    """Bus ids of what its NVLinks reach, other GPUs or switches, sorted; what has no bus id by its type."""
    return sorted({peer for link in gpu.nvlinks if (peer := link.peer_bus_id or link.peer_type)})


# One more attribute costs a row: its name, and how a GPU in its section, with its product, tells it.
ATTRIBUTES: Mapping[str, Callable[[pb.Gpu, pb.GpusSection, Product | None], Json]] = {
    "gpuProduct": lambda gpu, section, product: product and product.product,
    "gpuModel": lambda gpu, section, product: product and product.model,
    "vramGiB": lambda gpu, section, product: gib(gpu.vram_bytes),
    "index": lambda gpu, section, product: _told(gpu, "index"),
    "pciBusId": lambda gpu, section, product: gpu.bus_id,
    "numaNode": lambda gpu, section, product: _numa_node(gpu),
    "architecture": lambda gpu, section, product: gpu.architecture or (product and product.architecture),
    "computeCapability": lambda gpu, section, product: gpu.compute_capability,
    "driverVersion": lambda gpu, section, product: driver_version(section),
    "migCapable": lambda gpu, section, product: _mig_capable(gpu, product),
    "nvlinkPeers": lambda gpu, section, product: _peers(gpu),
    "fabricCluster": lambda gpu, section, product: (found := fabric(gpu)) and found[0],
    "fabricClique": lambda gpu, section, product: (found := fabric(gpu)) and found[1],
}
