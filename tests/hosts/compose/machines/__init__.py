"""One file a host: what it is made of, and nothing else."""
