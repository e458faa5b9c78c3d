"""Use cases: load, plan, write, each in an open transaction that the caller begins and ends."""
