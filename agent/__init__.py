"""bcd, the daemon on a GPU host. `service.py` puts it together; ARCHITECTURE.md says where each sentence of the SPEC lives."""

__version__ = "0.1.0"  # the package's too (pyproject.toml); importlib.metadata would cost the idle daemon 2.7 MiB to tell it
