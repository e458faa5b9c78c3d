"""The host's files that are root's alone: what the service manager hands over stands for them, and only for them."""

import errno
import os
from pathlib import Path

import pytest

from agent import host
from agent.errors import Unreadable
from agent.host import Host

SERIAL = "/sys/class/dmi/id/product_serial"


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory, and a kernel that lets nobody read anything (the tests are root)."""

    def denied(path: object, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(host.os, "open", denied)  # type: ignore[attr-defined]
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    return tmp_path


def refused(path: str, root: str = "/") -> int:
    with pytest.raises(Unreadable) as caught:
        Host(Path(root)).read(path)
    return caught.value.errno


def test_what_may_not_be_read_is_what_was_handed_over(credentials: Path) -> None:
    (credentials / "product_serial").write_bytes(b"S123\n")
    (credentials / "dmi_table").write_bytes(b"\x01\x02")
    assert Host().read(SERIAL) == b"S123\n"
    assert Host().read("/sys/firmware/dmi/tables/DMI") == b"\x01\x02"


def test_what_was_not_handed_over_stays_unreadable(credentials: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(SERIAL) == errno.EACCES
    (credentials / "shadow").write_bytes(b"root:x")
    assert refused("/etc/shadow") == errno.EACCES
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    assert refused(SERIAL) == errno.EACCES


def test_it_never_stands_for_a_file_of_a_recorded_host(credentials: Path, tmp_path: Path) -> None:
    (credentials / "product_serial").write_bytes(b"S123\n")
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    assert refused(SERIAL, str(tmp_path)) == errno.EACCES


def test_what_is_absent_is_absent_whatever_was_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "product_serial").write_bytes(b"\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(host, "_HANDED_OVER", {"/nowhere/product_serial": "product_serial"})
    assert refused("/nowhere/product_serial") == errno.ENOENT
