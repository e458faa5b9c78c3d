"""Composes the recorded hosts that cannot be captured here, from the documented formats of the real files.

    python -m tests.hosts.compose [NAME...]      rewrites tests/hosts/<name>/ (all of them without a name)

A subsystem is a module of helpers (cpu, smbios, pci, block, net, gpu, software, kmsg), a host one short file in machines/ with
`compose() -> Machine`. Shapes are those of real hosts; serials, UUIDs, MACs and GUIDs are invented: digests of the host's name.
One more host costs a file in machines/ and a row in MACHINES.
"""

from importlib import import_module

from tests.hosts.compose.tree import Machine

MACHINES = (
    "h100-sxm-8",
    "a100-mig-8",
    "hgx-b200-8",
    "gb200-tray",
    "l4-cloud-vm",
    "vfio-vmhost",
    "geforce-workstation",
    "driver-not-loaded",
    "lost-gpu",
    "bare-proc-sys",
)


def compose(name: str) -> Machine:
    """The host as a value; nothing is written. Raises ModuleNotFoundError for an unknown name."""
    machine: Machine = import_module(f"tests.hosts.compose.machines.{name.replace('-', '_')}").compose()
    return machine
