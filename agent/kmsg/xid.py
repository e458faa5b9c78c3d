"""The NVIDIA driver's lines in the text of a kernel record: XIDs, NVSwitch SXids, and what comes beside them.

    NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=python, GPU has fallen off the bus.
    NVRM: Xid (PCI:0000:65:00 GPU-I:07 GPU-CI:00): 43, pid=21011, name=python, Ch 00000018
    nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
    NVRM: GPU at PCI:0000:18:00: GPU-5f3a8c21-7b94-1e0d-a6c2-93d41b7e2f08

A text counts only when it begins so: whatever quotes these words later on is a program's log. `name=` is chosen by the
process, up to 15 bytes of anything, so nothing behind the number is ever taken apart.
"""

import re
from dataclasses import dataclass

from bettercompute.contract.bus_id import bus_id

_SLOT = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:(?P<address>{_SLOT}(?:\.[0-7])?)"
    # Drivers before R450: no `PCI:`; the oldest have no domain either, and four digits for the bus.
    r"|(?P<old>[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})|00(?P<oldest>[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}))"
    r"(?: GPU-I:(?P<gi>[0-9]{1,4}))?(?: GPU-CI:(?P<ci>[0-9]{1,4}))?\): "
    r"(?P<message>(?P<code>[0-9]{1,10})(?:,.*)?)\Z",
    re.DOTALL,
)
_SXID = re.compile(
    rf"nvidia-nvswitch[0-9]+: SXid \(PCI:(?P<address>{_SLOT}\.[0-7])\): "
    r"(?P<message>(?P<code>[0-9]{5,10}), ?(?:(?P<detail>Severity [0-9]|Data \{|SOE HALT data\[)|(?P<word>[A-Z][a-z-]+),)?.*)\Z",
    re.DOTALL,
)
_NAMED = re.compile(rf"NVRM: GPU at (?:PCI:)?(?P<address>{_SLOT}(?:\.[0-7])?): (?P<uuid>GPU-[0-9A-Fa-f-]{{36}})\s*\Z")
_FALLEN = re.compile(r"NVRM: .*(?:fallen off the bus|NVIDIA GPU .*\bat\b.*\bfailed\b)", re.DOTALL)
_BLANKS = " \t\r\n"
_FATAL = {"Fatal": True, "Non-fatal": False, "Correctable": False}
_MAX_CODE = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Xid:
    """A GPU's fault. `bus_id` in NVML's form; `message` is the driver's text from the number on; `gi` and `ci` name the MIG
    instance. `legacy`: the address has a form that no driver since R450 prints."""

    code: int
    bus_id: str
    message: str
    gi: int | None = None
    ci: int | None = None
    legacy: bool = False


@dataclass(frozen=True, slots=True)
class Sxid:
    """An NVSwitch's fault. `fatal` as the line says, None when it has no such word. A `detail` is a further record of the
    event before it, not an event of its own."""

    code: int
    bus_id: str
    message: str
    fatal: bool | None = None
    detail: bool = False


@dataclass(frozen=True, slots=True)
class GpuNamed:
    """The driver names the GPU of a bus id before its first fault since the driver was loaded."""

    bus_id: str
    uuid: str


def parse(text: str, legacy: bool = False) -> Xid | Sxid | None:
    """The fault that a record's text is. Old drivers' addresses count only with `legacy`: in captured logs, never for the
    daemon. Never raises."""
    text = text.rstrip(_BLANKS)
    if match := _XID.match(text):
        return _xid(match, legacy)
    if match := _SXID.match(text):
        found = bus_id(match["address"])
        code = int(match["code"])
        if found and code <= _MAX_CODE:
            return Sxid(code, found, match["message"], _FATAL.get(match["word"] or ""), match["detail"] is not None)
    return None


def gpu_named(text: str) -> GpuNamed | None:
    """`NVRM: GPU at PCI:0000:18:00: GPU-<uuid>`, or None."""
    match = _NAMED.match(text)
    found = bus_id(match["address"]) if match else None
    return GpuNamed(found, match["uuid"]) if match and found else None


def fallen(text: str) -> bool:
    """Whether the driver says without an XID that a GPU is gone or failed: no fault, but a reason to look at the GPUs.

    `NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.`; `NVRM: The NVIDIA GPU 0000:b3:00.0\\nNVRM: ... fallen off the bus`.
    """
    return _FALLEN.match(text) is not None and parse(text, legacy=True) is None


def _xid(match: re.Match[str], legacy: bool) -> Xid | None:
    old = match["address"] is None
    found = bus_id(match["address"] or match["old"] or match["oldest"])
    code = int(match["code"])
    if found is None or code > _MAX_CODE or (old and not legacy):
        return None
    gi, ci = match["gi"], match["ci"]
    return Xid(code, found, match["message"], int(gi) if gi else None, int(ci) if ci else None, old)
