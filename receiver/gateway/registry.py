"""The streams of this receiver: one a node (and one that is being replaced), with what is remembered of each in memory.

A report that says what the last one said, judged under the same `plan_rev` of the node, touches no row: the node is only noted
as seen, and all that were seen are written together, once a second at most (decision 8). Everything here runs in the event loop.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from receiver.apply.session import BACK, EXPIRED, REVOKED
from receiver.gateway import limits
from receiver.gateway import messages as m
from receiver.gateway.limits import Bucket, Counts, Limit, NodeLimits, OverLimit
from receiver.gateway.telemetry import Telemetry
from receiver.gateway.work import Leave, Queued
from receiver.values import Event, Status

LOG = logging.getLogger("receiver.gateway")
BARRED_SECONDS = 60.0  # that it is remembered of a certificate that it is good no more
MOST_BARRED = 1 << 16
MOST_SILENT = 16  # streams of a node, with several certificates, that have no epoch yet


@dataclass(slots=True, eq=False)
class Stream:
    """One open stream. `leave` is set once, with what ends it from outside; `queued` when commands may be due to it; `wake` is
    called with either.

    `certificate`: the fingerprint of the one that it came with; None on an insecure receiver.
    """

    node_id: str
    certificate: str | None = None
    leave: Leave | None = None
    queued: bool = False
    wake: Callable[[], None] = lambda: None
    sent: set[str] = field(default_factory=set)  # commands that have no result yet
    epoch: int = 0
    plan_rev: int = 0
    judged: tuple[Status, int] | None = None  # the last report that was recorded, and the plan_rev it was judged under
    telemetry: Telemetry = field(default_factory=Telemetry)
    bad: tuple[str, ...] = ()  # conditions of the last report that were dropped

    def tell(self, end: m.End) -> None:
        """Has the stream end with this message, unless something else ends it already."""
        if self.leave is None:
            self.leave = Leave(end)
            self.wake()

    def look(self) -> None:
        """Has the stream look for commands."""
        if not self.queued:
            self.queued = True
            self.wake()

    def outside(self) -> Leave | Queued | None:
        """What has come from outside, each once."""
        if self.leave is not None:
            return self.leave
        if self.queued:
            self.queued = False
            return Queued()
        return None

    def is_news(self, status: Status) -> bool:
        """Whether of a report, or of telemetry as it is with it, something has to be looked at in the database."""
        return bool(self.telemetry.concluded) or self.judged != (status, self.plan_rev)


@dataclass(slots=True)
class Registry:
    """All streams, the rates of their nodes, and how often each limit was met. `now`: seconds of one monotonic clock."""

    now: Callable[[], float]
    jitter: Callable[[], float]  # in [0, 1)
    current: dict[str, Stream] = field(default_factory=dict)  # by node: the stream that has the newest epoch here
    streams: dict[str, set[Stream]] = field(default_factory=dict)  # by node: all of them
    greeting: set[Stream] = field(default_factory=set)  # without an epoch yet
    rates: dict[str, NodeLimits] = field(default_factory=dict)
    starts: Bucket = field(default_factory=lambda: Bucket(limits.SESSIONS))
    seen: dict[str, int] = field(default_factory=dict)  # node and epoch: reported, not yet written
    gone: list[tuple[str, int, str]] = field(default_factory=list)  # node, epoch, reason: ended, not yet written
    met: Counts = field(default_factory=Counts)
    ended: Counter[str] = field(default_factory=Counter)  # sessions, by reason
    results: Counter[str] = field(default_factory=Counter)  # offers, by status
    joins: Counter[tuple[str, str]] = field(default_factory=Counter)  # and renewals, by what and gRPC status
    dropped: Counter[str] = field(default_factory=Counter)  # what reports may not say, by reason
    draining: bool = False
    places: Limit = limits.PLACES
    barred: dict[str, tuple[float, str]] = field(default_factory=dict)  # certificates that are good no more: until when, and why

    def admit(self, node_id: str, certificate: str | None = None) -> Stream:
        """A new stream of a node. Raises OverLimit; one that is over a rate may come again.

        Streams are counted by certificate: who has an old key of a node takes no place of who has its new one. Who has many of
        them does not take all handshakes either: of those of one node that have said nothing one has to go.
        """
        same = [one for one in self.streams.get(node_id, ()) if one.certificate == certificate]
        self.refuse(limits.STREAMS, len(same) + 1)
        silent = [one for one in self.greeting.intersection(self.streams.get(node_id, ())) if one.leave is None]
        if len(silent) >= MOST_SILENT:
            self.met[limits.STREAMS.name] += 1
            silent[0].tell(m.End("overloaded", 1 + 9 * self.jitter(), "too many streams of this node without a Hello"))
        self.refuse(limits.HANDSHAKES, len(self.greeting) + 1)
        self.refuse(self.places, len(self.current) + len(self.greeting) + 1)
        stream = Stream(node_id, certificate)
        self.streams.setdefault(node_id, set()).add(stream)
        self.greeting.add(stream)
        self.rates.setdefault(node_id, NodeLimits())
        return stream

    def bar(self, stream: Stream, why: str) -> m.End:
        """The stream's certificate is good no more, which no later word changes: what to say, now and for a while."""
        if stream.certificate is not None and len(self.barred) < MOST_BARRED:
            self.barred[stream.certificate] = self.now() + BARRED_SECONDS, why
        return revoked(why)

    def bars(self, stream: Stream) -> m.End | None:
        """What to say to who was told so a moment ago: it costs no look into the database, for which others wait."""
        until, why = self.barred.get(stream.certificate or "", (0.0, ""))
        return revoked(why) if self.now() < until else None

    def refuse(self, limit: Limit, found: int) -> None:
        """Counts and raises OverLimit when `found` is over the limit."""
        if found > limit.most:
            self.met[limit.name] += 1
            raise OverLimit(limit, found)

    def overload(self, node_id: str) -> m.End | None:
        """Whether one more session of a node may start now; if not, what to say."""
        for bucket in (self.rates[node_id].sessions, self.starts):
            if wait := bucket.take(self.now()):
                self.met[bucket.limit.name] += 1
                return m.End("overloaded", 1 + wait + 9 * self.jitter(), bucket.limit.text())
        return None

    def begun(self, stream: Stream, epoch: int, plan_rev: int) -> None:
        """A stream has its epoch: an older one of the node, here, is superseded."""
        self.greeting.discard(stream)
        stream.epoch, stream.plan_rev = epoch, plan_rev
        older = self.current.get(stream.node_id)
        if older is not None and older.epoch > epoch:
            stream.tell(superseded(older.epoch))
            return
        self.current[stream.node_id] = stream
        if older is not None:
            older.tell(superseded(epoch))

    def taken(self, node_id: str, epoch: int) -> None:
        """A session with this epoch began on some receiver."""
        stream = self.current.get(node_id)
        if stream is not None and stream.epoch < epoch:
            stream.tell(superseded(epoch))

    def disbelieved(self, node_id: str, epoch: int, reason: str) -> None:
        """What this node's sessions up to this epoch say is not believed any more. `reason`: one of apply/session.py's."""
        stream = self.current.get(node_id)
        if stream is not None and stream.epoch <= epoch:
            stream.tell(disbelieved(self.jitter(), reason))

    def left(self, stream: Stream, reason: str) -> None:
        """A stream is over."""
        self.greeting.discard(stream)
        self.ended[reason] += 1
        of_node = self.streams[stream.node_id]
        of_node.discard(stream)
        if not of_node:
            del self.streams[stream.node_id]
        if self.current.get(stream.node_id) is stream:
            del self.current[stream.node_id]
        if stream.epoch:
            self.gone.append((stream.node_id, stream.epoch, reason))

    def bad_conditions(self, stream: Stream, types: tuple[str, ...]) -> None:
        """A report had conditions that reports may not set; logged when they are others than before."""
        self.dropped["bad-condition"] += len(types)
        if types != stream.bad:
            stream.bad = types
            shown = ", ".join(sorted({kind[:64] for kind in types})[:8])
            LOG.warning("bad-condition", extra={"node": stream.node_id, "count": len(types), "types": shown})

    def told(self, stream: Stream, events: Iterable[Event]) -> None:
        """What a report had told of: XIDs of a GPU that another node has, from which nothing follows, are counted."""
        foreign = [one.payload for one in events if one.payload.get("foreign")]
        self.dropped["foreign-xid"] += len(foreign)
        for one in foreign:
            LOG.warning("foreign-xid", extra={"node": stream.node_id, "device": one["deviceId"], "xid": one["xid"]})

    def queued(self, node_id: str) -> None:
        """A command was queued for this node, by whoever. A stream whose epoch is being taken may have looked before."""
        for stream in self.streams.get(node_id, ()):
            stream.look()

    def outstanding(self, commands: Iterable[tuple[str, str]]) -> None:
        """All commands without a result, by node and id: whoever was not sent one of its own looks for it."""
        for node_id, command_id in commands:
            if node_id in self.current and command_id not in self.current[node_id].sent:
                self.queued(node_id)

    def touched(self, plan_revs: Mapping[str, int]) -> None:
        """What `touch` answered: a node that another writer changed has its next report judged again."""
        for node_id, plan_rev in plan_revs.items():
            if node_id in self.current:
                self.current[node_id].plan_rev = plan_rev

    def forget(self) -> None:
        """Drops the rates of nodes that have no stream and owe nothing, and what is barred no more."""
        now = self.now()
        self.barred = {certificate: one for certificate, one in self.barred.items() if now < one[0]}
        for node_id in [name for name in self.rates if name not in self.streams]:
            if self.rates[node_id].full(now):
                del self.rates[node_id]

    def drain(self) -> None:
        """Ends every stream, each with its own time to come back, so that they do not all come at once."""
        self.draining = True
        for of_node in self.streams.values():
            for stream in of_node:
                stream.tell(draining(self.jitter()))


def superseded(epoch: int | None) -> m.End:
    """Another stream of the node has this epoch."""
    return m.End("superseded", None, f"session {epoch or 'with a newer epoch'} of this node began")


def revoked(why: str) -> m.End:
    """The node may have no session with this certificate."""
    return m.End("revoked", None, why)


def disbelieved(jitter: float, reason: str) -> m.End:
    """The node's certificate is good no more; else it may come back at once: nobody has the session."""
    if reason in BARRED:
        return revoked(BARRED[reason])
    return m.End("draining", 0.5 + 0.5 * jitter, "what this session says is not believed any more: begin another")


BARRED = {
    REVOKED: f"the node's certificate is revoked: {BACK}",
    EXPIRED: f"the node's certificate has expired: {BACK}",
}


def draining(jitter: float) -> m.End:
    """This receiver is about to stop."""
    return m.End("draining", 0.5 + 4.5 * jitter, "this receiver stops")
