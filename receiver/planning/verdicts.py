"""What an XID or SXid comes to (SPEC B4, "XIDs", 4): the pool's word, else that of the contract's table (xids.json)."""

import re
from dataclasses import dataclass
from typing import Literal

from bettercompute.contract import xids

from receiver.planning.condition_types import XID_TYPE
from receiver.planning.policy import Policy
from receiver.values import Payload

# pool: `policy.xid` names the number. table: its own row. severity: the row, by the word in the message. unknown: no row has it.
Source = Literal["pool", "table", "severity", "unknown"]
# Remedies, as xids.json words them, the one that raises what happens last.
ACTIONS = ("none", "restart-app", "inspect", "drain-and-reset", "reset-gpu", "reboot-node")
# Xid 45: `45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149`. At the end, where no process's name can stand:
# that has 15 bytes, and comes before.
_CAUSE = re.compile(r"caused by previous Xid ([0-9]{1,10})\s*\Z")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`policy`: `node` (nothing is placed on it), `device` (the GPU is quarantined) or None (told as an event only).

    `action`: the remedy, a word of xids.json. `name`: in words, None where no table knows it. `cause`: the XID that the message
    names as its cause. `linked`: it is the consequence of another one, or the driver's word on it (154), and opens nothing.
    """

    policy: str | None
    source: Source
    action: str
    name: str | None = None
    cause: int | None = None
    linked: bool = False

    def as_json(self) -> Payload:
        """As it is kept beside what it is a verdict on."""
        return {"policy": self.policy, "source": self.source, "action": self.action}


def is_switch(code: str) -> bool:
    """Whether a code, or a condition's type, is a fault of an NVSwitch.

    >>> is_switch("SXid12028"), is_switch("Xid79"), is_switch("SharingMismatch")
    (True, False, False)
    """
    return code.startswith("SXid")


def _of_table(code: str, message: str) -> tuple[xids.XidPolicy, Source]:
    match, table = XID_TYPE.fullmatch(code), xids.table()
    assert match is not None  # conditions.sort_out() lets nothing else in
    number = int(match[2])
    found = table.sxid_policy(number, message) if match[1] else table.policy(number, message)
    if not found.known:
        return found, "unknown"
    by_word = found is not (table.sxids if match[1] else table.xids)[number] and number != table.recovery_code
    return found, "severity" if by_word else "table"


def verdict(code: str, message: str, policy: Policy) -> Verdict:
    """What the fault `code` (`Xid48`, `SXid12028`) with this message comes to in a pool with this policy.

    >>> verdict("Xid79", "79, GPU has fallen off the bus.", Policy()).policy
    'node'
    >>> verdict("Xid109", "109, ...", Policy(xid={109: None})).source
    'pool'
    """
    found, source = _of_table(code, message)
    says, action = found.policy, found.action
    if found.code in policy.xid:
        says, source = policy.xid[found.code], "pool"
        action = action if says is not None else "none"
    named = None if is_switch(code) else _CAUSE.search(message)
    linked = named is not None or code == f"Xid{xids.table().recovery_code}"
    return Verdict(None if linked else says, source, action, found.name, int(named[1]) if named else None, linked)
