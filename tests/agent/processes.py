"""Processes of a recorded host: what /proc shows of them."""

import os
from pathlib import Path


def process(root: Path, pid: int, comm: str, *files: str, unit: str = "") -> None:
    """A process that has `files` open, in service `unit` or in a login session."""
    directory = root / f"proc/{pid}"
    (directory / "fd").mkdir(parents=True)
    (directory / "comm").write_text(f"{comm}\n")
    slice_ = f"system.slice/{unit}.service" if unit else "user.slice/user-1000.slice/session-2.scope"
    (directory / "cgroup").write_text(f"0::/{slice_}\n")
    (directory / "cmdline").write_bytes(b"python\0--password=hunter2\0")
    for number, file in enumerate(("/dev/null", *files)):
        os.symlink(file, directory / f"fd/{number}")


def driver(root: Path, slot: str, name: str) -> None:
    """PCI function `slot` is bound to driver `name`."""
    function = root / f"sys/bus/pci/devices/{slot}"
    function.mkdir(parents=True, exist_ok=True)
    (function / "driver").unlink(missing_ok=True)
    (function / "driver").symlink_to(f"../../drivers/{name}")
