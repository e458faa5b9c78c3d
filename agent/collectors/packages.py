"""Versions of installed packages from the package manager's own text files; no program is run.

dpkg keeps everything in /var/lib/dpkg/status, which is megabytes: it is searched as bytes, and only the wanted paragraphs are
taken apart. An rpm database needs librpm and is not read: there a collector sees what is installed, not its version.
"""

import re
from collections.abc import Iterable

DPKG_STATUS = "/var/lib/dpkg/status"


def dpkg_versions(status: bytes, prefixes: Iterable[str]) -> dict[str, str]:
    """Installed packages whose names begin with one of `prefixes`, and their upstream versions. A paragraph, shortened:

        Package: docker-ce
        Status: install ok installed
        Version: 5:27.0.3-1~ubuntu.22.04~jammy

    Removed packages whose configuration stays (`deinstall ok config-files`) are left out.
    """
    found: dict[str, str] = {}
    data = b"\n" + status
    wanted = b"|".join(re.escape(prefix.encode()) for prefix in prefixes)
    for match in re.finditer(rb"\nPackage: (?:" + wanted + b")", data):
        end = data.find(b"\n\n", match.start())
        paragraph = data[match.start() : end if end >= 0 else len(data)]
        name, state, version = (_field(paragraph, key) for key in (b"Package", b"Status", b"Version"))
        if version and state.split()[-1:] not in (["config-files"], ["not-installed"], []):
            found[name] = upstream(version)
    return found


def upstream(version: str) -> str:
    """A Debian version without its epoch and revision (deb-version(7)).

    >>> upstream("5:27.0.3-1~ubuntu.22.04~jammy")
    '27.0.3'
    """
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def _field(paragraph: bytes, key: bytes) -> str:
    start = paragraph.find(b"\n" + key + b": ")
    if start < 0:
        return ""
    return paragraph[start + len(key) + 3 :].split(b"\n", 1)[0].decode(errors="replace").strip()
