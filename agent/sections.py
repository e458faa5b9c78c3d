"""What a collection gives, as values: sections as bytes, and an error for each that is not there."""

from dataclasses import dataclass

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
