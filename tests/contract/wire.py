"""bcd's half of a session and the gateway's, wired together by their codecs. No network, no database, no clock of its own."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from bettercompute.agent.v1 import session_pb2 as pb
from bettercompute.contract.sections import digest, section_hash

from agent.sections import Section
from agent.session import codec as agent_codec
from agent.session import machine as agent
from agent.session import messages as said
from receiver.gateway import codec as gateway_codec
from receiver.gateway import messages as gm
from receiver.gateway import work
from receiver.gateway.limits import Limit, NodeLimits
from receiver.gateway.machine import Machine
from receiver.values import Command, CommandResult, InventoryOutcome, SessionStart


def inventory(**sections: bytes) -> said.InventoryOffer:
    """An inventory with these sections' bytes, collected in boot `boot`."""
    parts = tuple(Section(name, data) for name, data in sorted(sections.items()))
    return said.InventoryOffer(digest((s.name, s.hash) for s in parts), parts, (), 1.0, "boot", "boot")


@dataclass
class Store:
    """What the receiver keeps, as far as a conversation needs it: bytes by hash, the applied digest, the epochs."""

    tenant: dict[str, bytes] = field(default_factory=dict)
    applied: str | None = None
    epoch: int = 0
    judged: list[Any] = field(default_factory=list)
    refuse: str = ""  # the section to refuse
    applies: int = 0
    commands: list[Command] = field(default_factory=list)  # without a result
    results: list[CommandResult] = field(default_factory=list)
    broken: bool = False  # results cannot be stored

    def do(self, job: work.Job) -> object | None:
        """A job's event, as receiver/gateway/jobs.py gives it."""
        match job:
            case work.Begin():
                self.epoch += 1
                start = SessionStart("node_x", "default", self.epoch, self.applied, 0, self.epoch == 1)
                return work.Begun(start, tuple(self.commands))
            case work.Judge(judged):
                self.judged.append(judged)
            case work.FindWanted(offer):
                return work.Wanted(offer, tuple(s.name for s in offer.sections if s.hash not in self.tenant))
            case work.Apply(offer, bodies):
                if self.refuse:
                    return work.Ended(InventoryOutcome("refused", offer.digest, section=self.refuse, reason="told to"))
                assert all(section_hash(data) == offer.hashes[name] for name, data in bodies.items())
                self.tenant |= {section_hash(data): bytes(data) for data in bodies.values()}
                status = "unchanged" if self.applied == offer.digest else "applied"
                self.applied, self.applies = offer.digest, self.applies + 1
                return work.Ended(InventoryOutcome(status, offer.digest, "inv_x"))  # type: ignore[arg-type]
            case work.FindCommands():
                return work.Due(tuple(self.commands))
            case work.Store(result):
                if self.broken:
                    return work.Failed(job, "the database does not answer", ours=True)
                self.results.append(result)
                self.commands = [one for one in self.commands if one.id != result.id]
                return work.Stored(result.id)
        return None


@dataclass
class Wire:
    """One node and its stream. `log` is what was said, in words; `notes` what bcd's machine told the daemon."""

    store: Store = field(default_factory=Store)
    now: float = 1000.0
    state: agent.State = field(default_factory=agent.State)
    log: list[str] = field(default_factory=list)
    notes: list[object] = field(default_factory=list)
    met: list[Limit] = field(default_factory=list)
    body_bytes: int = 0
    rates: NodeLimits = field(default_factory=NodeLimits)
    gate: Machine = field(init=False)
    up: deque[bytes] = field(default_factory=deque)
    down: deque[bytes] = field(default_factory=deque)

    def connect(self, **hello: Any) -> None:
        """A new stream; says what follows until both are quiet."""
        self.gate = Machine("node_x", self.rates, 30.0, self.met.append)
        self.up.clear()
        self.down.clear()
        if self.state.phase is not agent.Phase.CLOSED:
            self.agent(agent.Lost())
        self.agent(agent.Opened(said.Hello("0.1.0", "boot", "instance", **hello)))
        self.run()

    def collected(self, offer: said.InventoryOffer) -> None:
        """A collection ended: the daemon tells its inventory and its status."""
        self.agent(agent.InventoryChanged(offer))
        status = replace(self.state.status, digest=offer.digest, collected_at=offer.collected_at)
        self.agent(agent.StatusChanged(status))
        self.run()

    def queued(self, command: Command) -> None:
        """A command is queued at the receiver."""
        self.store.commands.append(command)
        self._follow(self.gate.on(work.Queued(), self.now))
        self.run()

    def done(self, result: said.CommandResult) -> None:
        """bcd has done a command."""
        self.agent(agent.CommandDone(result))
        self.run()

    def later(self, seconds: float) -> None:
        """Time passes, and bcd's timer with it."""
        self.now += seconds
        self.agent(agent.Tick())
        self.run()

    def agent(self, event: object) -> None:
        """One event for bcd's machine; its messages go on the wire."""
        self.state, out = agent.step(self.state, event, self.now)
        for one in out:
            if isinstance(one, said.ToGateway):
                self.up.extend(message.SerializeToString() for message in agent_codec.encode(one, self.now))
            else:
                self.notes.append(one)

    def run(self) -> None:
        """Carries messages until both are quiet. Raises AssertionError when they never are."""
        for _ in range(1000):
            if self.up:
                self._upward(self.up.popleft())
            elif self.down:
                data = self.down.popleft()
                self.agent(agent_codec.decode(pb.SessionResponse.FromString(data)))
            else:
                return
        raise AssertionError(f"never quiet: {self.log[-20:]}")

    def _upward(self, data: bytes) -> None:
        message = gateway_codec.decode(data)
        self.log.append(type(message).__name__)
        if isinstance(message, gm.Chunk):
            self.body_bytes += len(message.data)
        self._follow(self.gate.on(message, self.now))

    def _follow(self, actions: Iterable[work.Action]) -> None:
        due = deque(actions)
        while due:
            action = due.popleft()
            if isinstance(action, gm.ToNode):
                self.log.append(f"-> {type(action).__name__}{' ' + action.status if isinstance(action, gm.Result) else ''}")
                self.down.append(gateway_codec.encode(action, gateway_codec.EPOCH).SerializeToString())
            elif (event := self.store.do(action)) is not None:
                due.extendleft(reversed(self.gate.on(event, self.now)))
