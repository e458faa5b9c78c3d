"""python -m tests.hosts.compose [NAME...]"""

import sys
from pathlib import Path

from tests.hosts.compose import MACHINES, compose

HERE = Path(__file__).resolve().parent.parent

for name in sys.argv[1:] or MACHINES:
    files = compose(name).write(HERE / name)
    print(f"{name}: {files} files")  # noqa: T201
