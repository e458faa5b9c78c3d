"""What goes wrong in the field, on the receiver's side. Anything else that is raised is our bug and goes loud."""


class ReceiverError(Exception):
    """Something that a person has to know of: what was attempted, what happened, and what to do about it.

    The CLI shows it as `<program>: <attempted>: <happened>` and the hint, indented, on the next line.
    """

    def __init__(self, attempted: str, happened: str, hint: str = "") -> None:
        super().__init__(f"{attempted}: {happened}" + (f"\n  {hint}" if hint else ""))
        self.attempted = attempted
        self.happened = happened
        self.hint = hint


class DatabaseError(ReceiverError):
    """The database cannot be used: out of reach, too old, not migrated, or migrated by a newer receiver."""


class EmbeddedError(DatabaseError):
    """The embedded Postgres cannot be started: no binaries, another receiver has the directory, initdb failed."""


class Refusal(Exception):
    """What a caller of the API asked for and does not get. `str()` is for a person: it names the key, the thing, or the state."""


class NotFound(Refusal):
    """There is no such thing, or not in the caller's tenant."""


class Invalid(Refusal):
    """A request that cannot be answered as it stands."""


class OverLimit(Invalid):
    """More than a limit allows. `limit`: its name, one of those that are counted (receiver/gateway/limits.py)."""

    def __init__(self, limit: str, says: str) -> None:
        super().__init__(says)
        self.limit = limit


class Refused(Refusal):
    """The present state does not allow the act: a live booking, a finding that still stands, another status."""
