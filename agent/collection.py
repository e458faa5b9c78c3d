"""One collection, as the daemon and the command line see it: a child process that ends, with a time limit (A1).

What comes out is the sections' bytes, in the order in which the child finished them, and an error for each that did not.
"""

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
    """A section that could not be collected. `reason` as in SectionFailed: `Hang`, `WorkerDied`, `Settling`, ..."""

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
