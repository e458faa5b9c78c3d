"""The singletons of a receiver (receiver/singletons.py), a row each."""

from receiver.apply import acceptance, repairs
from receiver.config import Config
from receiver.singletons import Singleton
from receiver.store.view import REMEDIATION


def kinds(config: Config) -> tuple[Singleton, ...]:
    """All of them, as the settings say."""
    return (
        Singleton("acceptance", acceptance.EVERY, acceptance.sweep, acceptance.CHANNEL),
        Singleton("remediation", repairs.EVERY, repairs.work, REMEDIATION),
    )
