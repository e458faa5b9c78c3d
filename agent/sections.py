"""What a collection gives, as values: sections as bytes, and an error for each that is not there."""

from dataclasses import dataclass

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import digest, section_hash


@dataclass(frozen=True, slots=True)
class Section:
    """One collected section: its bytes are never re-encoded."""

    name: str
    data: bytes

    @property
    def hash(self) -> str:
        """Lower-case hexadecimal SHA-256 of the bytes."""
        return section_hash(self.data)


def nvml_error(gpus: pb.GpusSection) -> str:
    """Why a gpus section that is there counts as a missing one all the same (A1); empty when NVML answered or was not needed."""
    return f"NVML does not answer: {gpus.error.reason}: {gpus.error.message}" if gpus.HasField("error") else ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A section that could not be collected. `reason` as in SectionFailed; of a collection also `Hang`, `WorkerDied`, `Bug`."""

    name: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Collected:
    """The outcome of one collection: every section asked for is in one of the two, sorted by name."""

    sections: tuple[Section, ...]
    failed: tuple[Failed, ...] = ()

    @property
    def digest(self) -> str:
        """The digest over the sections present."""
        return digest((s.name, s.hash) for s in self.sections)
