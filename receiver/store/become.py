"""Starts a Postgres program in the place of this process: as a user that is not root, and never outliving its parent.

Run as a script by receiver.store.embedded (`python -I -S become.py PARENT-PID DIRECTORY PROGRAM ARGUMENT...`), so that
nothing is done between fork and exec of the receiver, which has threads. Standard library only.

Postgres refuses to run as root, and initdb as a user without a name. Where the receiver is one of these, this process
- enters a user namespace in which it is `postgres`, else `nobody` (for the kernel, and on disk, it is who it was); or, where
  namespaces are denied (some containers; BC_NO_USERNS=1 for tests) and it is root,
- becomes that user, owning DIRECTORY and keeping one capability, CAP_DAC_OVERRIDE, with which it can walk through parents of
  mode 0700 and read the programs, whoever owns them. No mode of any parent is ever changed.
"""

import ctypes
import os
import pwd
import signal
import struct
import sys
from pathlib import Path

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 1, 8, 47, 2
CAP_DAC_OVERRIDE = 1
CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _enter_namespace() -> None:
    """As the unprivileged user there, whatever the ids outside are."""
    (inside_uid, inside_gid), uid, gid = _unprivileged(), os.geteuid(), os.getegid()
    _call("unshare", CLONE_NEWUSER)
    for name, line in (("setgroups", "deny"), ("uid_map", f"{inside_uid} {uid} 1"), ("gid_map", f"{inside_gid} {gid} 1")):
        Path("/proc/self", name).write_text(line)


def namespaces_allowed() -> bool:
    """Whether a user namespace can be entered; tried in a child, because there is no way back out of one."""
    if os.environ.get("BC_NO_USERNS"):
        return False
    child = os.fork()
    if child == 0:
        try:
            _enter_namespace()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _unprivileged() -> tuple[int, int]:
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return user.pw_uid, user.pw_gid
    return 65534, 65534


def _named(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return False


def _own(directory: Path, uid: int, gid: int) -> None:
    if directory.stat().st_uid == uid:
        return
    for parent, folders, files in os.walk(directory):
        for name in folders + files:
            os.chown(os.path.join(parent, name), uid, gid, follow_symlinks=False)
    os.chown(directory, uid, gid)


def _drop(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    _call("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresuid(uid, uid, uid)
    mask = 1 << CAP_DAC_OVERRIDE
    _call("capset", struct.pack("Ii", CAPABILITY_VERSION_3, 0), struct.pack("6I", mask, mask, mask, 0, 0, 0))
    _call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0)


def main(parent: int, directory: Path, command: list[str]) -> None:
    """Becomes the right user, ties this process to its parent, and is `command` from then on."""
    os.umask(0o077)
    root = os.geteuid() == 0
    if (root or not _named(os.geteuid())) and namespaces_allowed():
        _own(directory, os.geteuid(), os.getegid())
        _enter_namespace()
    elif root:
        _own(directory, *_unprivileged())
        _drop(*_unprivileged())
    # After the change of user, which would reset it. SIGINT is Postgres's fast shutdown.
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the receiver that asked for it is gone")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
