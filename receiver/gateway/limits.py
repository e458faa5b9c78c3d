"""What a node may send (SPEC B11): one row a limit. Whoever is over it is told its name and its measure, and is counted."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from receiver import values

Code = Literal["INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"]

MIB = 1 << 20
HOUR = 3_600.0
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Limit:
    """`most` things at once; with `per` (seconds) that many in this time, at most `burst` of them together."""

    name: str
    most: int
    code: Code
    per: float = 0.0
    burst: int = 0

    def text(self, found: int | None = None) -> str:
        """What the node is told.

        >>> CONDITIONS.text(300)
        'INVALID_ARGUMENT: conditions a report: 300, at most 256'
        """
        return f"{self.code}: {self.name}: " + (f"at most {self.most}" if found is None else f"{found}, at most {self.most}")


MESSAGE_BYTES = Limit("bytes a message", 4 * MIB, "RESOURCE_EXHAUSTED")
CHUNK_BYTES = Limit("bytes a chunk", 1 * MIB, "INVALID_ARGUMENT")
SECTION_BYTES = Limit("bytes a section", 8 * MIB, "RESOURCE_EXHAUSTED")
SECTIONS = Limit("sections an offer", 16, "INVALID_ARGUMENT")
OFFERS = Limit("offers an hour", 12, "RESOURCE_EXHAUSTED", HOUR, 6)
TENANT_OFFERS = Limit("offers an hour of a tenant-controlled node", 4, "RESOURCE_EXHAUSTED", HOUR, 2)
DAILY_BYTES = Limit("section bytes a node and day", 64 * MIB, "RESOURCE_EXHAUSTED", DAY, 64 * MIB)
REPORTS = Limit("status reports a second", 2, "RESOURCE_EXHAUSTED", 1.0, 10)
CONDITIONS = Limit("conditions a report", 256, "INVALID_ARGUMENT")
MESSAGE_TEXT = Limit("bytes a condition's message", 2 << 10, "INVALID_ARGUMENT")
DRIVERS = Limit("drivers a Hello", 64, "INVALID_ARGUMENT")
KINDS = Limit("kinds a driver", 32, "INVALID_ARGUMENT")
CAPABILITIES = Limit("capabilities a Hello", 64, "INVALID_ARGUMENT")
MISSING = Limit("missing sections a message", 16, "INVALID_ARGUMENT")
WORD = Limit("bytes a name, version or id", 256, "INVALID_ARGUMENT")
STREAMS = Limit("streams a node", 2, "RESOURCE_EXHAUSTED")  # one, and one that is being replaced
HANDSHAKES = Limit("handshakes in progress", 256, "RESOURCE_EXHAUSTED")
PLACES = Limit("sessions of this receiver", 1 << 20, "RESOURCE_EXHAUSTED")  # less where it may open fewer files: Registry.places
SESSIONS = Limit("sessions started a second", 200, "RESOURCE_EXHAUSTED", 1.0, 200)
NODE_SESSIONS = Limit("sessions started a minute and node", 120, "RESOURCE_EXHAUSTED", 60.0, 1_200)  # a hundredth of those
JOINS = Limit("joins a minute and address", 10, "RESOURCE_EXHAUSTED", 60.0, 10)
JOINING = Limit("joins in progress", 256, "RESOURCE_EXHAUSTED")
JOIN_BYTES = Limit("bytes a join or renewal", 64 << 10, "RESOURCE_EXHAUSTED")
CLAIMS = Limit("MAC addresses, or GPUs, of a claim", 256, "INVALID_ARGUMENT")
RENEWALS = Limit("renewals an hour and node", 6, "RESOURCE_EXHAUSTED", HOUR, 6)
RENEWING = Limit("renewals with a certificate in progress", 1, "RESOURCE_EXHAUSTED")
PAGE = Limit("rows an API page", values.PAGE_ROWS, "INVALID_ARGUMENT")
REASON = Limit("bytes a reason", values.REASON_BYTES, "INVALID_ARGUMENT")
TOKEN_DAYS = Limit("days a token", values.TOKEN_DAYS, "INVALID_ARGUMENT")
TOKEN_USES = Limit("uses a join token", values.TOKEN_USES, "INVALID_ARGUMENT")
LABEL_VALUE = Limit("characters a label's value", values.LABEL_CHARACTERS, "INVALID_ARGUMENT")
LABELS = Limit("operator's labels a node", values.LABELS, "INVALID_ARGUMENT")

LIMITS = (
    MESSAGE_BYTES,
    CHUNK_BYTES,
    SECTION_BYTES,
    SECTIONS,
    OFFERS,
    TENANT_OFFERS,
    DAILY_BYTES,
    REPORTS,
    CONDITIONS,
    MESSAGE_TEXT,
    DRIVERS,
    KINDS,
    CAPABILITIES,
    MISSING,
    WORD,
    STREAMS,
    HANDSHAKES,
    PLACES,
    SESSIONS,
    NODE_SESSIONS,
    JOINS,
    JOINING,
    JOIN_BYTES,
    CLAIMS,
    RENEWALS,
    RENEWING,
    PAGE,
    REASON,
    TOKEN_DAYS,
    TOKEN_USES,
    LABEL_VALUE,
    LABELS,
)


class OverLimit(Exception):
    """A message is over a limit. `str()` is what the node is told."""

    def __init__(self, limit: Limit, found: int | None = None) -> None:
        super().__init__(limit.text(found))
        self.limit = limit


def check(limit: Limit, found: int) -> None:
    """Raises OverLimit when `found` is more than the limit allows."""
    if found > limit.most:
        raise OverLimit(limit, found)


@dataclass(slots=True)
class Bucket:
    """Tokens of one rate: `burst` at first, refilled evenly. Times are seconds of one monotonic clock."""

    limit: Limit
    level: float = field(init=False)
    at: float = field(init=False, default=0.0)
    forgiven: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.level = float(self.limit.burst)

    def take(self, now: float, amount: int = 1) -> float:
        """Takes `amount` and answers 0.0; or takes nothing and answers after how many seconds it would be there."""
        if now > self.at:
            limit = self.limit
            self.level = min(limit.burst, self.level + (now - self.at) * limit.most / limit.per)
            self.at = now
        if amount <= self.level:
            self.level -= amount
            return 0.0
        if amount <= self.forgiven:
            self.forgiven -= amount
            return 0.0
        if amount > self.limit.burst:  # never: not before the period is over, and then it is told the same
            return self.limit.per
        return (amount - self.level) * self.limit.per / self.limit.most

    def give_back(self, amount: int = 1) -> None:
        """What was taken was of no use, by no fault of the taker."""
        self.level = min(self.limit.burst, self.level + amount)

    def forgive(self, seconds: float) -> None:
        """Nothing was read for so long: what may have queued up meanwhile at the rate is not held against the sender."""
        self.forgiven = max(self.forgiven, seconds * self.limit.most / self.limit.per)

    def full(self, now: float) -> bool:
        """Whether nothing is owed."""
        self.take(now, 0)
        return self.level >= self.limit.burst


@dataclass(slots=True)
class NodeLimits:
    """The rates of one node, over all its streams. `advisory`: a tenant has it, as the answer to its last offer told."""

    own_offers: Bucket = field(default_factory=lambda: Bucket(OFFERS))
    tenant_offers: Bucket = field(default_factory=lambda: Bucket(TENANT_OFFERS))
    section_bytes: Bucket = field(default_factory=lambda: Bucket(DAILY_BYTES))
    reports: Bucket = field(default_factory=lambda: Bucket(REPORTS))
    sessions: Bucket = field(default_factory=lambda: Bucket(NODE_SESSIONS))
    advisory: bool = False

    @property
    def offers(self) -> Bucket:
        """The rate of offers that holds now."""
        return self.tenant_offers if self.advisory else self.own_offers

    def full(self, now: float) -> bool:
        """Whether nothing is owed."""
        return all(
            one.full(now) for one in (self.own_offers, self.tenant_offers, self.section_bytes, self.reports, self.sessions)
        )


Counts = Counter[str]  # how often each limit was met, by name
