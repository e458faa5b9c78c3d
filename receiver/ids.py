"""Makes ids; their form is bettercompute.contract.ids."""

import os
import time
from collections.abc import Callable

from bettercompute.contract.ids import ulid

Mint = Callable[[str], str]


def minter(clock: Callable[[], int], random: Callable[[int], bytes]) -> Mint:
    """A function that makes ids: prefix in, `prefix_ulid` out. `clock` gives nanoseconds since 1970, `random` n random bytes."""
    return lambda prefix: f"{prefix}_{ulid(clock() // 1_000_000, random(10))}"


mint: Mint = minter(time.time_ns, os.urandom)
