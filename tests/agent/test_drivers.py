"""Which drivers a node advertises: its own by what is there, other components' by their files."""

import asyncio
from pathlib import Path

import pytest

from agent import drivers
from agent.drivers import BadDriver, Drivers, parse
from agent.host import Host
from agent.session.messages import Driver

DPKG = """Package: libvirt-daemon
Status: install ok installed
Version: 10.0.0-2ubuntu8.4

Package: cloud-hypervisor
Status: install ok installed
Version: 39.0

"""


def touch(root: Path, *paths: str) -> None:
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")


def advertised(tmp_path: Path) -> tuple[Driver, ...]:
    return made(tmp_path).current


def made(tmp_path: Path) -> Drivers:
    return Drivers(tmp_path / "data", lambda: Host(tmp_path / "root"))


def test_nothing_without_kvm(tmp_path: Path) -> None:
    touch(tmp_path / "root", "run/libvirt/libvirt-sock", "usr/bin/cloud-hypervisor")
    assert advertised(tmp_path) == ()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("run/libvirt/libvirt-sock", Driver("libvirt-kvm", "10.0.0", ("vm",))),
        ("usr/bin/cloud-hypervisor", Driver("cloud-hypervisor", "39.0", ("vm",))),
    ],
)
def test_kvm_and_the_runtime_s_own_file_make_a_driver(tmp_path: Path, path: str, expected: Driver) -> None:
    touch(tmp_path / "root", "dev/kvm", "var/lib/dpkg/status")
    assert advertised(tmp_path) == ()
    touch(tmp_path / "root", path)
    assert advertised(tmp_path) == (Driver(expected.id, "", expected.kinds),)
    (tmp_path / "root/var/lib/dpkg/status").write_text(DPKG)
    assert advertised(tmp_path) == (expected,)


def test_other_components_describe_theirs_and_the_data_directory_s_file_counts_more(tmp_path: Path) -> None:
    packaged, own = tmp_path / "root/etc/bcd/drivers.d", tmp_path / "data/drivers.d"
    for directory in (packaged, own):
        directory.mkdir(parents=True)
    (packaged / "a.toml").write_text('id = "firecracker"\nversion = "1.7.0"\nkinds = ["vm", "sandbox"]\n')
    (packaged / "b.toml").write_text('id = "gvisor"\nkinds = []\nfuture = 1\n')
    (own / "a.toml").write_text('id = "firecracker"\nversion = "1.8.0"\nkinds = ["sandbox"]\n')
    assert advertised(tmp_path) == (Driver("firecracker", "1.8.0", ("sandbox",)), Driver("gvisor", "", ()))


def test_a_file_that_describes_none_is_named_once_and_hides_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = tmp_path / "data/drivers.d"
    own.mkdir(parents=True)
    (own / "bad.toml").write_text("id = 7\n")
    (own / "bytes.toml").write_bytes(b"\xff")
    (own / "good.toml").write_text('id = "gvisor"\n')
    (own / "link.toml").symlink_to(own / "good.toml")
    subject = made(tmp_path)
    for _ in range(2):
        assert [driver.id for driver in subject.advertised(Host(tmp_path / "root"))] == ["gvisor"]
    assert caplog.text.count("bad.toml describes no driver") == 1
    assert caplog.text.count("link.toml describes no driver") == 1


def test_what_comes_and_goes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "CHECK", 0.01)
    subject, told = made(tmp_path), []

    async def work() -> None:
        running = asyncio.create_task(subject.run(lambda: told.append(subject.current)))
        await asyncio.sleep(0.05)
        assert told == [], "the same is no news"
        touch(tmp_path / "root", "dev/kvm", "run/libvirt/libvirt-sock")
        async with asyncio.timeout(5):
            while len(told) < 1:
                await asyncio.sleep(0.01)
        (tmp_path / "root/dev/kvm").unlink()
        async with asyncio.timeout(5):
            while len(told) < 2:
                await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(work())
    assert told == [(Driver("libvirt-kvm", "", ("vm",)),), ()]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("id = ", "not TOML"),
        ("", "id is None"),
        ('id = ""', "id is ''"),
        ('id = "a"\nversion = 1', "version is 1"),
        ('id = "a"\nkinds = "vm"', "kinds is 'vm'"),
        (f'id = "a"\nkinds = {[f"k{n}" for n in range(33)]}', "at most 32"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, what: str) -> None:
    with pytest.raises(BadDriver, match=what):
        parse(text)
