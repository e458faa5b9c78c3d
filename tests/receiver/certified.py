"""Certificates for tests of sessions: rows alone, as if they had been issued, and real ones with their keys."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from receiver.apply.session import hello
from receiver.store import certificates
from receiver.store.database import Connection
from receiver.values import HelloFacts, SessionStart
from tests.receiver.builders import FACTS, NODE

LIFE = timedelta(days=30)


@dataclass(frozen=True)
class Row:
    """What is stored of a certificate."""

    fingerprint: str
    not_before: datetime
    not_after: datetime


def issue(
    tx: Connection, fingerprint: str, node: str = NODE, ends: timedelta = LIFE, begins: timedelta = -timedelta(hours=1)
) -> str:
    """A certificate of a node, made if it is not there; `begins` and `ends` from now. Its fingerprint."""
    now = datetime.now(UTC)
    tx.execute("INSERT INTO nodes (id, tenant_id) VALUES (%s, 'default') ON CONFLICT (id) DO NOTHING", [node])
    certificates.add(tx, node, "default", Row(fingerprint, now + begins, now + ends), "tok_test")
    return fingerprint


@dataclass
class Machine:
    """A bcd with its data_dir: says Hello as one does, and keeps the epoch that it is told."""

    instance: str
    certificate: str | None = None
    boot: str = "boot-1"
    epoch: int | None = None
    before: str = ""

    def hello(self, tx: Connection, node: str = NODE) -> SessionStart:
        """Begins a session; raises as session.hello does."""
        start = self.lost(tx, node)
        self.epoch = start.epoch if not start.quarantined else self.epoch
        return start

    def lost(self, tx: Connection, node: str = NODE) -> SessionStart:
        """The same, but the answer is lost."""
        return hello(tx, node, self.facts())

    def facts(self) -> HelloFacts:
        """What it says."""
        words = {"boot_id": self.boot, "instance_id": self.instance, "previous_epoch": self.epoch}
        return replace(FACTS, **words, previous_instance_id=self.before, certificate=self.certificate)  # type: ignore[arg-type]

    def restart(self, instance: str) -> None:
        """bcd runs anew on the same machine."""
        self.before, self.instance = self.instance, instance
