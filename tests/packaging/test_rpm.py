"""The .rpm has what the .deb has, and installs on a root without a network. `make proof-install` runs it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging import machines
from tests.packaging.scripts import build
from tests.packaging.test_install import WHY_NOT, built, network, packages

__all__ = ["built", "network", "packages"]  # fixtures

WHY = WHY_NOT or ("" if shutil.which("rpmbuild") else "rpmbuild is not installed")
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY or "runs")


def rpm(*argv: str | Path) -> str:
    return subprocess.run(["rpm", *argv], check=True, capture_output=True, text=True, timeout=120).stdout


def of(built: list[Path], package: str) -> Path:
    (found,) = (path for path in built if path.name.startswith(f"{package}-") and path.suffix == ".rpm")
    return found


@pytest.mark.parametrize("package", list(build.PACKAGES))
def test_it_has_the_files_of_the_deb_and_the_configuration_as_such(
    package: str, built: list[Path], packages: dict[str, Path]
) -> None:
    listed = subprocess.run(["dpkg-deb", "-c", packages[package]], check=True, capture_output=True, text=True, timeout=120).stdout
    files = {line.split()[5].lstrip(".") for line in listed.splitlines() if not line.startswith("d")}
    path = of(built, package)
    assert {line for line in rpm("-qpl", path).splitlines() if line in files} == files
    assert rpm("-qpc", path).split() == [f"/{build.PACKAGES[package].config}"]
    assert "/usr/bin/python3.11" in rpm("-qpR", path).split()
    for line in rpm("-qp", "--scripts", path).split("scriptlet (using /bin/sh):")[1:]:
        subprocess.run(["sh", "-n"], input=line.rsplit("\n", 1)[0], text=True, check=True, timeout=30)


def test_it_installs_runs_and_leaves_state_and_changed_configuration(built: list[Path], network: str, tmp_path: Path) -> None:
    with machines.machine("rpm", tmp_path, network) as machine:
        subprocess.run(
            ["rpm", f"--root={machine.root}", "--nodeps", "-i", of(built, "bcd")], check=True, capture_output=True, timeout=300
        )
        assert machine.run("bcd", "--version").startswith("bcd ")
        assert machine.run("getent", "passwd", "bcd")
        assert machine.run("systemctl", "is-enabled", "bcd.service", "bcd-helper.socket").split() == ["enabled", "enabled"]
        (machine.root / "etc/bcd/bcd.toml").write_text('settle = "1s"\n')
        subprocess.run(["rpm", f"--root={machine.root}", "-e", "bcd"], check=True, capture_output=True, timeout=300)
        assert not (machine.root / "opt/bcd").exists()
        assert (machine.root / "etc/bcd/bcd.toml.rpmsave").read_text() == 'settle = "1s"\n'
