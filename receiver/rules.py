"""The rules as a library (SPEC B): each function takes an open transaction, locks the node, writes what follows. Tables as data.

For programs that hold a connection to the receiver's database: metal's workflows end a lease here, a test plays a report.
"""

from bettercompute.contract.gpu_models import GPU_MODELS, normalize_gpu_product

from receiver.apply.health import clear_device_health, record_xid
from receiver.apply.hygiene import run_hygiene
from receiver.apply.inventory import apply_inventory
from receiver.apply.telemetry import record_host_pressure
from receiver.apply.trust import end_advisory_inventory, set_trust
from receiver.planning.condition_types import DAEMON_NODE_CONDITIONS, NODE_CONDITION_TYPES

__all__ = [
    "DAEMON_NODE_CONDITIONS",
    "GPU_MODELS",
    "NODE_CONDITION_TYPES",
    "apply_inventory",
    "clear_device_health",
    "end_advisory_inventory",
    "normalize_gpu_product",
    "record_host_pressure",
    "record_xid",
    "run_hygiene",
    "set_trust",
]
