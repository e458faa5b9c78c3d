"""Pressure (SPEC B5): from a session's samples to conditions, in memory.

At or above its level a condition is raised, below half of it cleared; between the two it keeps its status, so that a host at a
threshold does not flap. A level has to hold for some samples in a row, both ways.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter, lt
from types import MappingProxyType
from typing import NamedTuple

from receiver.planning.telemetry import Conclusion, Standing
from receiver.values import ConditionStatus, Pressure


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a sample. `name`: as samples and the setting pressure.raise have it; `raise_at`: percent, by default."""

    type: str
    name: str
    raise_at: float
    of: str


MEASURES = (
    Measure("CpuPressure", "cpu", 60.0, "cpu some avg10"),
    Measure("MemoryPressure", "memory", 20.0, "memory some avg10"),
    Measure("IoPressure", "io", 50.0, "io some avg10"),
    Measure("CpuSteal", "steal", 10.0, "steal"),
)
RAISE: Mapping[str, float] = {one.name: one.raise_at for one in MEASURES}
_shares = attrgetter(*RAISE)  # of a sample, in the order of MEASURES


@dataclass(frozen=True)
class Levels:
    """The settings pressure.raise (percent, by name) and pressure.samples."""

    raise_at: Mapping[str, float] = field(default_factory=lambda: RAISE)
    samples: int = 2

    @cached_property
    def clear_below(self) -> Mapping[str, float]:
        """By measure, in the order of MEASURES."""
        return {one.name: self.raise_at[one.name] / 2 for one in MEASURES}

    def of(self, name: str, share: float) -> ConditionStatus | None:
        """The status that a share is the level of; None between the two.

        >>> [Levels().of("cpu", share) for share in (60.0, 59.9, 30.0, 29.9)]
        ['true', None, None, 'false']
        """
        if share >= self.raise_at[name]:
            return "true"
        return "false" if share < self.clear_below[name] else None

    def are_calm(self, sample: Pressure) -> bool:
        """Whether every share of a sample is of the level false."""
        return all(map(lt, _shares(sample), self.clear_below.values()))


@dataclass(frozen=True, slots=True)
class Track:
    """One measure so far: the condition as concluded (and in which boot), and for how many samples the last level has held."""

    status: ConditionStatus = "false"
    boot_id: str = ""
    level: ConditionStatus | None = None
    held: int = 0
    share: float = 0.0


CALM = Track()


class Watch(NamedTuple):
    """The samples of one session so far. `number`: of the last one; None: the session has sent none."""

    boot_id: str = ""
    tracks: Mapping[str, Track] = MappingProxyType({})  # by type; those that are not there are CALM
    number: int | None = None

    def concluded(self, levels: Levels) -> Iterator[Conclusion]:
        """Every condition as it is now."""
        for one in MEASURES:
            track = self.tracks.get(one.type, CALM)
            yield Conclusion(one.type, track.status, *_told(one, track, levels))


def begin(standing: Mapping[str, Standing], boot_id: str) -> Watch:
    """A session's watch before its first sample. `standing`: the stored conditions by type."""
    return Watch(boot_id, {one.type: Track(was.status, was.boot_id) for one in MEASURES if (was := standing.get(one.type))})


def follow(watch: Watch, sample: Pressure | None, levels: Levels) -> Watch:
    """The watch after a report. A sample that is sent again with another report is no other sample.

    None, from a session that sent some before or in another boot: what is raised is unknown from now on.
    """
    if sample is None:
        return watch._replace(tracks={kind: _unmeasured(watch, track) for kind, track in watch.tracks.items()})
    if sample.number and sample.number == watch.number:
        return watch
    if not watch.tracks and levels.are_calm(sample):  # as with nearly every sample
        return Watch(watch.boot_id, watch.tracks, sample.number)
    followed = {
        one.type: measured(watch, watch.tracks.get(one.type, CALM), one, getattr(sample, one.name), levels) for one in MEASURES
    }
    return Watch(watch.boot_id, {kind: track for kind, track in followed.items() if track != CALM}, sample.number)


def measured(watch: Watch, track: Track, measure: Measure, share: float, levels: Levels) -> Track:
    level = levels.of(measure.name, share)
    if level == "false" == track.status:
        return CALM
    held = track.held + 1 if level == track.level else 1
    if level is None or held < levels.samples or level == track.status:
        return replace(track, level=level, held=held, share=share)
    return Track(level, watch.boot_id, level, held, share)


def _unmeasured(watch: Watch, track: Track) -> Track:
    gone = watch.number is not None or track.boot_id != watch.boot_id
    return Track("unknown" if track.status == "true" and gone else track.status, track.boot_id)


def _told(measure: Measure, track: Track, levels: Levels) -> tuple[str, str]:
    """Reason and message."""
    if track.status == "unknown":
        return "NotReported", f"{measure.of} is not reported any more"
    if track.status == "false":
        return "", ""
    level = levels.raise_at[measure.name]
    return "High", f"{measure.of} is {track.share:.1f} %: raised from {level:g} %, cleared below {level / 2:g} %"
