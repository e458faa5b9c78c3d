"""Postgres: the declared tables, the migrations that make them, the database as a whole, and the embedded server."""
