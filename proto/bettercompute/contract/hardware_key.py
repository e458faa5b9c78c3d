"""The machine's hardware key (SPEC B2): a hash over identities that the hardware itself tells. Both sides compute it with this.

    bc-hwkey-v1
    uuid:<lower case>
    serial:<trimmed, upper case>
    mac:<lower case>
    gpu:<as NVML>

It is the SHA-256 of these lines, each with its newline: those whose identity is there after firmware placeholders are dropped
(placeholders.py), MACs and GPUs as often as there are, sorted.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.placeholders import is_serial, is_uuid

VERSION = "bc-hwkey-v1"
KINDS = ("uuid", "serial", "mac", "gpu")
TRUSTED = 2  # of the four kinds: one alone may be shared or moved

_LOCAL, _GROUP = 0x02, 0x01  # bits of a MAC's first octet (IEEE 802): locally administered, multicast
# Drivers of network adapters on USB, a BMC's gadget among them: they stand at the PCI bus id of the USB controller.
_USB = frozenset(
    (
        "aqc111", "asix", "ax88179_178a", "catc", "cdc_eem", "cdc_ether", "cdc_mbim", "cdc_ncm", "cdc_subset", "ch9200", "dm9601",
        "huawei_cdc_ncm", "ipheth", "kaweth", "lan78xx", "mcs7830", "pegasus", "qmi_wwan", "r8152", "r8153_ecm", "rndis_host",
        "rtl8150", "smsc75xx", "smsc95xx", "sr9700", "sr9800",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Identifiers:
    """What of a machine's identities survives. MACs and GPU UUIDs are sorted and distinct."""

    uuid: str | None = None
    serial: str | None = None
    macs: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those of KINDS that are there."""
        there = (self.uuid, self.serial, self.macs, self.gpus)
        return tuple(kind for kind, value in zip(KINDS, there, strict=True) if value)

    @property
    def is_trusted(self) -> bool:
        """Whether the key may tell machines apart: at least two independent kinds."""
        return len(self.kinds) >= TRUSTED

    @property
    def key(self) -> str:
        """Lower-case hexadecimal SHA-256."""
        lines = [VERSION]
        lines += [f"uuid:{self.uuid}"] if self.uuid else []
        lines += [f"serial:{self.serial}"] if self.serial else []
        lines += [f"mac:{mac}" for mac in self.macs]
        lines += [f"gpu:{gpu}" for gpu in self.gpus]
        return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def identifiers(
    system: pb.SystemSection | None, nics: pb.NicsSection | None = None, gpus: pb.GpusSection | None = None
) -> Identifiers:
    """The identities of a machine from the sections that are there. None is a section that is not."""
    system, nics, gpus = system or pb.SystemSection(), nics or pb.NicsSection(), gpus or pb.GpusSection()
    uuid = system.product_uuid.strip().lower()
    serials = (text.strip().upper() for text in (system.serial, system.board.serial, system.chassis.serial))
    return Identifiers(
        uuid=uuid if is_uuid(uuid) else None,
        serial=next((serial for serial in serials if is_serial(serial)), None),
        macs=tuple(sorted({nic.permanent_mac.lower() for nic in nics.nics if _counts(nic)})),
        gpus=tuple(sorted({gpu.uuid for gpu in gpus.gpus if gpu.uuid})),
    )


def claimed(product_uuid: str, serial: str, macs: Iterable[str], gpu_uuids: Iterable[str]) -> Identifiers:
    """The identities that a machine claims when it joins. `macs`: permanent ones of its Ethernet ports on PCI.

    >>> claimed("4C4C4544-0051-3510-8043-B7C04F4D3532", "Default string", [], ["GPU-1"]).kinds
    ('uuid', 'gpu')
    """
    return identifiers(
        pb.SystemSection(product_uuid=product_uuid, serial=serial),
        pb.NicsSection(nics=[pb.Nic(kind="ethernet", bus_id="claimed", permanent_mac=mac) for mac in macs]),
        pb.GpusSection(gpus=[pb.Gpu(uuid=uuid) for uuid in gpu_uuids]),
    )


def provisional(system: pb.SystemSection | None, nics: pb.NicsSection | None, gpus: pb.GpusSection | None) -> str | None:
    """Why a key of these sections must not replace a stored one; None when it may.

    A GPU that is lost or assigned away may be told from memory, or by PCI alone: the same machine would get two keys.
    """
    for name, section in (("system", system), ("nics", nics), ("gpus", gpus)):
        if section is None:
            return f"section {name} is missing"
    if gpus is not None and gpus.HasField("error"):
        return f"NVML does not answer: {gpus.error.reason}"
    told = gpus.gpus if gpus else ()
    away = [gpu.uuid or gpu.bus_id for gpu in told if gpu.state == "lost" or gpu.assigned]
    here = {gpu.bus_id for gpu in told}
    away += [f.bus_id for f in (gpus.pci_functions if gpus else ()) if f.class_code.startswith("03") and f.bus_id not in here]
    return f"{', '.join(away)} lost or assigned" if away else None


def _counts(nic: pb.Nic) -> bool:
    """A permanent, globally administered address of an Ethernet port on PCI. SR-IOV functions and bonds are no ports (A1)."""
    if nic.kind != "ethernet" or not nic.bus_id or nic.driver in _USB:
        return False
    octets = nic.permanent_mac.split(":")
    try:
        values = [int(octet, 16) for octet in octets]
    except ValueError:
        return False
    return len(values) == 6 and not values[0] & (_LOCAL | _GROUP) and any(values[3:]) and len(set(values)) > 1
