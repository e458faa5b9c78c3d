"""The singletons of a receiver (receiver/singletons.py), a row each."""

from functools import partial

from receiver import webhook
from receiver.apply import acceptance, command, hygiene, repairs
from receiver.config import Config
from receiver.planning.hygiene import Options
from receiver.singletons import Singleton, while_true
from receiver.store import webhooks
from receiver.store.view import REMEDIATION


def kinds(config: Config) -> tuple[Singleton, ...]:
    """All of them, as the settings say. Raises ReceiverError for a webhook that cannot be."""
    options = Options(
        config.hygiene_batch,
        config.min_daemon_version,
        config.protocol_max,
        config.cert_expiring_fraction,
        config.cert_expiring_min_seconds,
        config.status_interval,
        config.rescan_interval,
    )
    told = webhook.opened(config)
    return (
        Singleton("hygiene", config.hygiene_every, partial(hygiene.sweep, options=options)),
        Singleton("acceptance", acceptance.EVERY, acceptance.sweep, acceptance.CHANNEL),
        Singleton("remediation", repairs.EVERY, repairs.work, REMEDIATION, repairs.work_soon),
        Singleton("commands", command.FORGET_EVERY, while_true(command.forget)),
        *((Singleton("webhook", webhook.EVERY, told.work, webhooks.CHANNEL),) if told else ()),
    )
