"""The singletons of a receiver (receiver/singletons.py), a row each."""

from receiver.config import Config
from receiver.singletons import Singleton


def kinds(config: Config) -> tuple[Singleton, ...]:
    """All of them, as the settings say."""
    return ()
