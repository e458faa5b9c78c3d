"""Recorded hosts: `<name>/` is what `bcd --host DIR` takes. All but `this-machine` are the output of tests.hosts.compose."""
