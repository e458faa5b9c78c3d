"""The fleet's time under a test's control: `bc_clock()` of a test's database answers what the test has set it to.

Between two settings it creeps, a thousandth as fast as this machine's time: whatever happens later is later, and however slow the
machine is, nothing comes too late. Leases (receiver/store/leases.py) are about processes and go on in real time.
"""

from datetime import UTC, datetime, timedelta

from receiver.store import database as db

CREEP = 1000
_INSTALL = f"""
CREATE TABLE simulated_time (at timestamptz NOT NULL, since timestamptz NOT NULL);
INSERT INTO simulated_time VALUES (now(), now());
CREATE OR REPLACE FUNCTION bc_clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS
  'SELECT at + greatest(now() - since, interval ''0'') / {CREEP} FROM simulated_time';
"""
_ADVANCE = "UPDATE simulated_time SET at = bc_clock() + %s, since = clock_timestamp() RETURNING at"


class Clock:
    """The time of one database. `now` is the last one set."""

    def __init__(self, connection: db.Connection) -> None:
        """Puts it into the database's place of the real one. The connection is in autocommit mode, and this object's alone."""
        self.connection = connection
        connection.execute(_INSTALL)
        self.now: datetime = self.advance(0)
        self.began = self.now

    def advance(self, seconds: float) -> datetime:
        """It is so many seconds later; the time that it is then."""
        row = self.connection.execute(_ADVANCE, [timedelta(seconds=seconds)]).fetchone()
        assert row is not None
        self.now = row[0].astimezone(UTC)
        return self.now

    @property
    def passed(self) -> float:
        """Seconds since the simulation began."""
        return (self.now - self.began).total_seconds()
