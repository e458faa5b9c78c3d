"""A receiver of a simulation, as a process: `python -m tests.simulation.receiver_process DATABASE DIRECTORY [KEY=VALUE ...]`.

It is `bc-receiver serve` with unix sockets below DIRECTORY and these settings. What it measures in real time - rates of messages,
its own rounds, how long a lease holds - is as much faster as the fleet's time is, which leaps between two steps of the test.
"""

import importlib
import sys
from dataclasses import replace
from typing import Any

FASTER = 1000  # the rates of a node: an hour is 3.6 seconds
PERIODS = (  # module, name, seconds
    ("receiver.store.leases", "SECONDS", 2.0),  # first: what the others import takes it as a default
    ("receiver.gateway.heartbeat", "EVERY", 0.1),
    ("receiver.gateway.replanning", "EVERY", 0.2),
)
RATES = ("OFFERS", "TENANT_OFFERS", "DAILY_BYTES", "REPORTS", "NODE_SESSIONS")


def main(database: str, directory: str, *settings: str) -> None:
    """Serves until SIGTERM."""
    for module, name, seconds in PERIODS:  # before whoever takes them as defaults is imported
        setattr(importlib.import_module(module), name, seconds)
    limits: Any = importlib.import_module("receiver.gateway.limits")
    for name in RATES:
        rate = getattr(limits, name)
        setattr(limits, name, replace(rate, per=rate.per / FASTER))
    from receiver import config, log, service

    sockets = {"listen_session": f"unix:{directory}/s", "listen_api": f"unix:{directory}/a", "metrics_listen": ""}
    given = dict(one.split("=", 1) for one in settings)
    read = {one.name: one.kind.parse(given[one.name]) for one in config.SETTINGS if one.name in given}
    assert read.keys() == given.keys(), settings
    log.setup("json", journal=False)
    service.serve(config.Config(**{"database_url": database, "insecure": True, "drain": 0.5, **sockets, **read}))


if __name__ == "__main__":
    main(*sys.argv[1:])
