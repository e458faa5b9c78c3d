"""Numbered migrations: versions/0001_<word>.py, each with the next number as its `revision`, run by database.migrate().

There is no way back: a receiver refuses a schema that is newer than its own, and a backup is the way to undo.
"""
