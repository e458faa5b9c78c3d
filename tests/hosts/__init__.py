"""Recorded hosts: `<name>/` is what `bcd --host DIR` takes, expected.json in it what the collectors must say of it.

All but `this-machine` are the output of tests.hosts.compose. That one is `bcd capture --redact` of a Firecracker microVM, after
which its kernel command line, kernel log and package list were shortened, and each memory block, whose folder the capture
leaves empty, got its `state`: git keeps no empty folder.
"""
