"""The fault ledger (SPEC A4): what the kernel log of this boot said of the GPUs and switches, one entry per (device, code). Pure.

    NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=python, GPU has fallen off the bus.

is `Xid79` of the GPU at 00000000:18:00.0: its first record raises the condition, every further one its count. Nothing is cleared
by age: another boot, a verified reset or an operator does that. An XID whose bus id no GPU is known for stays in the ledger
without a device until an inventory, or the driver, names the GPU there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from bettercompute.contract import xids

from agent.session.messages import Condition

PAIRS = 256  # (device, code) pairs that are kept; records of further ones are counted
WAIT = 300.0  # seconds, and
WAIT_RECORDS = 1000  # records of XIDs that may wait for a boot's first inventory
_NAMES = 256  # GPUs that the driver's own lines name
_TEXT = 2048  # bytes of a message (B11)
_MOST = (1 << 64) - 1  # that a count may be on the wire

# The worse one last.
_POLICIES = (None, "device", "node")
_SEVERITIES = ("info", "warning", "critical", "fatal")
_ACTIONS = ("none", "restart-app", "inspect", "drain-and-reset", "reset-gpu", "reboot-node")

Key = tuple[str, str]  # (GPU UUID, or the bus id of what has none; condition type)


@dataclass(frozen=True, slots=True)
class Places:
    """Which GPU is at which bus id, by this boot's inventories and by those of earlier boots (bus id -> UUID).

    `inventory`: this boot's inventories have shown its GPUs; XIDs no longer wait for the first one.
    """

    shown: Mapping[str, str] = field(default_factory=dict)
    earlier: Mapping[str, str] = field(default_factory=dict)
    inventory: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One record of an XID or SXid. `kind` is `Xid` or `SXid`, `at` Unix seconds, `gi` and `ci` the MIG instance of an XID."""

    kind: str
    code: int
    bus_id: str
    message: str
    seq: int
    at: float
    gi: int | None = None
    ci: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """All records of one code on one device. `message`, `gi`, `ci`: of its worst record, the first of equals.

    `device_id` is empty for an SXid, and for an XID whose GPU is not known. `remembered`: an earlier boot's map named the GPU.
    """

    kind: str
    code: int
    bus_id: str
    message: str
    count: int
    first_seq: int
    last_seq: int
    first_at: float
    last_at: float
    device_id: str = ""
    gi: int | None = None
    ci: int | None = None
    remembered: bool = False

    @property
    def type(self) -> str:
        """The condition's type: `Xid79`, `SXid20034`."""
        return f"{self.kind}{self.code}"

    @property
    def key(self) -> Key:
        """Its place in the ledger."""
        return (self.device_id or self.bus_id, self.type)

    @property
    def attributed(self) -> bool:
        """It is known what it is of: a GPU, or (an SXid) the switch at its bus id."""
        return bool(self.device_id) or self.kind == "SXid"

    @property
    def policy(self) -> xids.XidPolicy:
        """What it means for the node."""
        return _policy(self.kind, self.code, self.message)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The faults of one boot, and how far its kernel log was read: `cursor` is the last record's sequence number.

    `from_start`: the boot's first record was among those read. `named`: GPUs by bus id as the driver's lines name them, until an
    inventory does. `overflow` and `lost` count records.
    """

    boot_id: str
    cursor: int | None = None
    from_start: bool = False
    lost: int = 0
    overflow: int = 0
    faults: Mapping[Key, Fault] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Nothing of this boot's kernel log was missed."""
        return self.from_start and self.lost == 0

    @property
    def unattributed(self) -> tuple[Fault, ...]:
        """The XIDs whose GPU is not known, by bus id and code."""
        return tuple(fault for _, fault in sorted(self.faults.items()) if not fault.attributed)

    def of(self, device_id: str) -> tuple[Fault, ...]:
        """The faults of a GPU, by type."""
        return tuple(fault for (device, _), fault in sorted(self.faults.items()) if device == device_id)

    # -- what the kernel log says

    def read(self, seq: int) -> "Ledger":
        """A record was read, whatever it said: the cursor moves on; a jump in the numbers is records that were lost."""
        if self.cursor is None:
            return replace(self, cursor=seq, from_start=seq == 0)
        return replace(self, cursor=seq, lost=min(_MOST, self.lost + seq - self.cursor - 1))

    def add(self, seen: Seen, places: Places) -> "Ledger":
        """A record of an XID or SXid."""
        device_id, remembered = self._gpu_at(seen.bus_id, places) if seen.kind == "Xid" else ("", False)
        message = _text(seen.message)
        new = Fault(
            seen.kind, seen.code, seen.bus_id, message, 1, seen.seq, seen.seq, seen.at, seen.at,
            device_id, seen.gi, seen.ci, remembered,
        )  # fmt: skip
        old = self.faults.get(new.key)
        if old is None and len(self.faults) >= PAIRS:
            return replace(self, overflow=self.overflow + 1)
        return replace(self, faults={**self.faults, new.key: _joined(old, new) if old else new})

    def name(self, bus_id: str, uuid: str, places: Places) -> "Ledger":
        """The driver's line `GPU at PCI:0000:18:00: GPU-<uuid>`."""
        if bus_id not in self.named and len(self.named) >= _NAMES:
            return self
        return replace(self, named={**self.named, bus_id: uuid}).attributed(places)

    # -- what else happens

    def learn(self, places: Places) -> "Ledger":
        """A collection has ended: what it shows replaces what the driver's lines said before."""
        named = {bus_id: uuid for bus_id, uuid in self.named.items() if bus_id not in places.shown}
        return replace(self, named=named).attributed(places)

    def without(self, device_ids: Iterable[str]) -> "Ledger":
        """The faults of these GPUs are over: a reset that was verified (A7)."""
        over = set(device_ids)
        return replace(self, faults={key: fault for key, fault in self.faults.items() if fault.device_id not in over})

    def _gpu_at(self, bus_id: str, places: Places, remembered: str = "") -> tuple[str, bool]:
        """The GPU at a bus id, and whether it is only remembered; empty when none is known there.

        `remembered`: the one that a fault there was given before; that the map is gone is no evidence against it.
        """
        if uuid := self.named.get(bus_id) or places.shown.get(bus_id):
            return uuid, False
        uuid = places.earlier.get(bus_id, remembered)
        moved = uuid in places.shown.values() or uuid in self.named.values()
        return ("", False) if moved or not uuid else (uuid, True)

    def attributed(self, places: Places) -> "Ledger":
        """XIDs that were nobody's, or whose GPU was only remembered, go to the GPU that is known at their bus id now."""
        faults: dict[Key, Fault] = {}
        for fault in self.faults.values():
            if fault.kind == "Xid" and (fault.remembered or not fault.device_id):
                device_id, remembered = self._gpu_at(fault.bus_id, places, fault.device_id)
                fault = replace(fault, device_id=device_id, remembered=remembered)
            old = faults.get(fault.key)
            faults[fault.key] = _joined(old, fault) if old else fault
        return replace(self, faults=faults)


def conditions(ledger: Ledger) -> tuple[Condition, ...]:
    """The conditions that the faults raise, the worst first; XIDs that are nobody's raise none."""
    told = sorted((fault for fault in ledger.faults.values() if fault.attributed), key=lambda f: (_rank(f), f.key), reverse=True)
    return tuple(
        Condition(
            type=fault.type,
            status="true",
            since=fault.first_at,
            message=fault.message,
            device_id=fault.device_id,
            bus_id=fault.bus_id,
            count=fault.count,
        )
        for fault in told
    )


@dataclass(frozen=True, slots=True)
class Recent:
    """What `xid.recent` says (A7): `pass`, `fail` or `unknown`, why, and the faults that it rests on.

    `warnings` are XIDs that no table knows; `noted` are application and informational ones.
    """

    verdict: str
    reason: str
    failing: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    noted: tuple[Fault, ...] = ()


def xid_recent(ledger: Ledger, device_id: str | None = None) -> Recent:
    """The check over one GPU's faults, or (None) over all, those of switches and of nobody included."""
    found = ledger.of(device_id) if device_id is not None else tuple(fault for _, fault in sorted(ledger.faults.items()))
    failing = tuple(fault for fault in found if fault.policy.policy is not None)
    warnings = tuple(fault for fault in found if not fault.policy.known and fault not in failing)
    noted = tuple(fault for fault in found if fault not in failing and fault not in warnings)
    if failing:
        return Recent("fail", ", ".join(_words(fault) for fault in failing), failing, warnings, noted)
    if not ledger.complete or ledger.overflow:
        return Recent("unknown", _incomplete(ledger), failing, warnings, noted)
    return Recent("pass", "", failing, warnings, noted)


def _incomplete(ledger: Ledger) -> str:
    if ledger.cursor is None:
        return "nothing of this boot's kernel log was read"
    if ledger.lost:
        return f"{ledger.lost} records of this boot's kernel log were lost"
    if ledger.overflow:
        return f"{ledger.overflow} records of XIDs did not fit into the ledger of {PAIRS}"
    return "the beginning of this boot's kernel log was gone when bcd first read it"


def _words(fault: Fault) -> str:
    name = fault.policy.name or "not in the table"
    return f"{fault.type} ({name}), {fault.count} {'times' if fault.count > 1 else 'time'}"


def _joined(old: Fault, new: Fault) -> Fault:
    """Two entries of one key as one, with the worse one's message: a later `Fatal` must not hide behind a `Nonfatal`."""
    first, last = (old, new) if old.first_seq <= new.first_seq else (new, old)
    worst = last if last.message != first.message and _rank(last) > _rank(first) else first
    return replace(
        worst,
        bus_id=last.bus_id,
        count=old.count + new.count,
        first_seq=first.first_seq,
        first_at=first.first_at,
        last_seq=max(old.last_seq, new.last_seq),
        last_at=max(old.last_at, new.last_at),
        remembered=old.remembered and new.remembered,
    )


def _rank(fault: Fault) -> tuple[int, int, int]:
    """How bad it is, for comparison."""
    p = fault.policy
    return _POLICIES.index(p.policy), _SEVERITIES.index(p.severity), _ACTIONS.index(p.action)


def _policy(kind: str, code: int, message: str) -> xids.XidPolicy:
    return (xids.policy if kind == "Xid" else xids.sxid_policy)(code, message)


def _text(message: str) -> str:
    """A message as it may be reported and stored: at most 2 KiB of UTF-8, no NUL (Postgres keeps none)."""
    return message.replace("\0", "\ufffd").encode(errors="replace")[:_TEXT].decode(errors="ignore")
