"""The kernel log: reader.py (DOOR) gives records, record.py parses one, xid.py knows the NVIDIA driver's lines in its text."""
