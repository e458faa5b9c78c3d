"""What is packaged: the files (fast), and the packages installed and started under a real systemd (make proof-install)."""
