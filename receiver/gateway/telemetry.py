"""A session's telemetry in memory: its samples and its clock so far, and what of their conclusions is recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from receiver.planning import clock, pressure
from receiver.planning.clock import Clock
from receiver.planning.pressure import Levels, Watch
from receiver.planning.telemetry import Conclusion, Standing
from receiver.values import ConditionStatus, Pressure


@dataclass(slots=True)
class Telemetry:
    """`levels` None: status handler `pressure` is not in force, and pressure conditions stay as they are.

    `concluded`: what of the reports so far is to be recorded.
    """

    levels: Levels | None = None
    watch: Watch = field(default_factory=Watch)
    clock: Clock = field(default_factory=Clock)
    recorded: dict[str, ConditionStatus] = field(default_factory=dict)
    concluded: tuple[Conclusion, ...] = ()

    @classmethod
    def begin(cls, levels: Levels | None, standing: Mapping[str, Standing], boot_id: str) -> "Telemetry":
        """That of a session which begins with these stored conditions."""
        recorded = {kind: one.status for kind, one in standing.items()}
        return cls(levels, pressure.begin(standing, boot_id), clock.begin(standing), recorded)

    def follow(self, sample: Pressure | None, offset: float | None) -> None:
        """Takes in a report."""
        before = self.watch.tracks, self.clock
        if self.levels is not None:
            self.watch = pressure.follow(self.watch, sample, self.levels)
        self.clock = clock.follow(self.clock, offset)
        if self.concluded or before != (self.watch.tracks, self.clock):
            pressed = self.watch.concluded(self.levels) if self.levels else ()
            concluded = (*pressed, *self.clock.concluded())
            self.concluded = tuple(one for one in concluded if one.status != self.recorded.get(one.type, "false"))

    def record(self, concluded: tuple[Conclusion, ...]) -> None:
        """These are recorded."""
        self.recorded.update({one.type: one.status for one in concluded})
        self.concluded = ()
