"""A recorded host that can be rebooted: bcd is killed, and its next start finds another boot."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.processes import wait_for
from tests.hosts_catalog import copy

ROOT = Path(__file__).resolve().parent.parent.parent
ALLOW = "inventory.refresh,diag.nvml,diag.dcgm,gpu.reset,node.reboot"


@dataclass
class Machine:
    """A recorded host that can be rebooted: `systemctl` notes the call, changes the boot id and kills bcd, its parent."""

    host: Path
    systemctl: Path

    @property
    def reboots(self) -> int:
        """How often it went down."""
        noted = self.systemctl.with_suffix(".calls")
        return len(noted.read_text().splitlines()) if noted.exists() else 0

    @property
    def env(self) -> dict[str, str]:
        """bcd's settings."""
        return {
            "BCD_SETTLE": "0s",
            "BCD_COMMANDS_ALLOW": ALLOW,
            "BCD_TOOLS_SYSTEMCTL": str(self.systemctl),
            "BCD_RESET_PAUSE": "",
        }

    def wait_until_up(self) -> None:
        """A machine that is going down starts nothing before it is up again."""
        time.sleep(0.2)  # a systemctl that bcd was about to start has started by now
        going, up = (self.systemctl.with_suffix(suffix) for suffix in (".calls", ".up"))
        wait_for("the machine to be up", lambda: not going.exists() or up.exists())


def machine(base: Path, recorded: str, before: str = "") -> Machine:
    """A copy of a recorded host. `before`: shell commands of `systemctl` that run before anything is done."""
    made = Machine(copy(recorded, base), base / "systemctl")
    made.systemctl.write_text(
        f"""#!/bin/sh
exec > /dev/null 2>&1  # bcd, which reads this, may die first
die() {{ [ "$(cat /proc/$PPID/comm)" = bcd ] && kill -9 $PPID; }}
{before}
echo "$*" >> {made.systemctl}.calls
cd {ROOT} && {sys.executable} -c 'import sys; from pathlib import Path; from tests.hosts_catalog import new_boot
new_boot(Path(sys.argv[1]))' {made.host}
die
touch {made.systemctl}.up
"""
    )
    made.systemctl.chmod(0o755)
    made.systemctl.with_suffix(".calls").unlink(missing_ok=True)
    return made
