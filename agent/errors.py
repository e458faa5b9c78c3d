"""What goes wrong in the field. A FieldError is recorded, reported and carried on from; anything else is our bug."""

import errno
import os
from typing import Any


class FieldError(Exception):
    """Something on the host did not work as it should. `str()` says what was attempted, what happened, what to do."""


class Unreadable(FieldError):
    """A file of the host that is there and cannot be read, or is not there.

    `path` is the path on the host (never below a recorded host's root); `errno` as in errno.h.
    """

    def __init__(self, path: str, number: int) -> None:
        super().__init__(f"cannot read {path}: {os.strerror(number)}")
        self.path = path
        self.errno = number

    @property
    def absent(self) -> bool:
        """The file is not there, or the device has no such thing (EOPNOTSUPP of a sysfs attribute): an answer, not a fault.

        Collectors leave the field out and say nothing.
        """
        return self.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP)


class SectionFailed(FieldError):
    """A whole section could not be collected: it is left out of the report and named there with this text.

    `reason` is one PascalCase word that conditions and tests go by (`Hang`, `WorkerDied`, `Settling`, `IdentityUnstable`).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class UserError(FieldError):
    """A person asked for something that cannot be done. Shown as it is, with exit code 2; `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\n  {hint}" if hint else message)


class Ended(FieldError):
    """A command or a program that does not succeed: `reason` is one word, `payload` goes into the answer to a command."""

    status = "failed"

    def __init__(self, reason: str, message: str, **payload: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.payload = payload


class Failed(Ended):
    """It was tried, or cannot be tried here."""


class Refused(Ended):
    """It was not tried: it must not be now."""

    status = "refused"


class Expired(Ended):
    """The latest time to start is over."""

    status = "expired"
