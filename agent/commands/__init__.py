"""The commands that a receiver may give this node (SPEC A7): the table of their kinds, one file each.

A command is `run(order, node)`: it returns the answer's payload, or raises Failed or Refused (order.py). runner.py runs them:
each id once, recorded before the effect (store.py), within the kind's time. One more kind costs a file, a row here, a word in
config.COMMAND_KINDS and its test.
"""

from collections.abc import Callable, Mapping

from agent.commands import diag_dcgm, diag_nvml, gpu_reset, inventory_refresh, node_reboot
from agent.commands.order import AfterCrash, Kind, Payload


def _minutes(limit: float) -> Callable[[Payload], float]:
    return lambda payload: limit * 60


COMMANDS: Mapping[str, Kind] = {
    "inventory.refresh": Kind(_minutes(2), inventory_refresh.run, AfterCrash.AGAIN),
    "diag.nvml": Kind(_minutes(2), diag_nvml.run, AfterCrash.AGAIN),
    "diag.dcgm": Kind(diag_dcgm.limit, diag_dcgm.run, AfterCrash.AGAIN, alone=True),
    "gpu.reset": Kind(_minutes(10), gpu_reset.run, AfterCrash.INTERRUPTED, alone=True, tidy=gpu_reset.tidy),
    "node.reboot": Kind(_minutes(5), node_reboot.run, AfterCrash.BY_BOOT, alone=True),
}
