"""What a record of the kernel log does to the fault ledger (SPEC A4), for the daemon and for whoever looks once. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.faults import Ledger, Places, Seen
from agent.kmsg import xid
from agent.kmsg.record import KERNEL, Record

_PREFIXES = ("NVRM:", "nvidia-nvswitch")


@dataclass(frozen=True, slots=True)
class Taken:
    """The ledger behind a record. `xid`: it was an XID. `fallen`: the text that says without one that a GPU is gone or failed."""

    ledger: Ledger
    xid: bool = False
    fallen: str = ""


def take(ledger: Ledger, record: Record, places: Places, moment: Callable[[Record], float], trusted: bool = False) -> Taken:
    """One record, read once and in its order. `moment`: when it was written, Unix seconds; `trusted`: user space counts too."""
    ledger = ledger.read(record.seq)
    text = record.text
    if not text.startswith(_PREFIXES) or (record.facility != KERNEL and not trusted):
        return Taken(ledger)
    found = xid.parse(text)
    if isinstance(found, xid.Xid):
        seen = Seen("Xid", found.code, found.bus_id, found.message, record.seq, moment(record), found.gi, found.ci)
        return Taken(ledger.add(seen, places), xid=True)
    if isinstance(found, xid.Sxid):
        seen = Seen("SXid", found.code, found.bus_id, found.message, record.seq, moment(record))
        return Taken(ledger if found.detail else ledger.add(seen, places))
    if named := xid.gpu_named(text):
        return Taken(ledger.name(named.bus_id, named.uuid, places))
    return Taken(ledger, fallen=text if xid.fallen(text) else "")
