import pytest

from agent.collectors.packages import dpkg_versions, upstream


def paragraph(name: str, version: str, status: str = "install ok installed") -> str:
    """One package of /var/lib/dpkg/status."""
    return (
        f"Package: {name}\nStatus: {status}\nPriority: optional\nSection: admin\nInstalled-Size: 104857\n"
        f"Maintainer: Docker <support@docker.com>\nArchitecture: amd64\nVersion: {version}\nDepends: containerd.io\n"
        "Description: an open-source project\n Package: not a field, a description\n .\n more\n\n"
    )


def test_wanted_packages_and_no_others() -> None:
    status = "".join(
        (
            paragraph("adduser", "3.118ubuntu5"),
            paragraph("containerd.io", "1.7.18-1"),
            paragraph("docker-ce", "5:27.0.3-1~ubuntu.22.04~jammy"),
            paragraph("nvidia-fabricmanager-550", "550.90.07-0ubuntu0.22.04.1"),
            paragraph("zlib1g", "1:1.2.11"),
        )
    )
    assert dpkg_versions(status.encode(), ["containerd", "docker", "nvidia-fabricmanager"]) == {
        "containerd.io": "1.7.18",
        "docker-ce": "27.0.3",
        "nvidia-fabricmanager-550": "550.90.07",
    }


def test_first_and_last_paragraphs_count() -> None:
    status = paragraph("containerd", "1.7.12-0ubuntu2") + paragraph("cri-o", "1.30.3-1.1").rstrip("\n")
    assert dpkg_versions(status.encode(), ["containerd", "cri-o"]) == {"containerd": "1.7.12", "cri-o": "1.30.3"}


@pytest.mark.parametrize(
    ("status", "there"),
    [
        ("install ok installed", True),
        ("hold ok installed", True),
        ("install ok triggers-pending", True),
        ("deinstall ok config-files", False),
        ("purge ok not-installed", False),
    ],
)
def test_removed_packages_are_not_there(status: str, there: bool) -> None:
    found = dpkg_versions(paragraph("docker.io", "24.0.7-0ubuntu4", status).encode(), ["docker"])
    assert bool(found) is there


@pytest.mark.parametrize(
    "status", [b"", b"\0" * 100, b"Package: docker-ce\n", b"Package: docker-ce\nStatus:\nVersion: \n", b"Package: "]
)
def test_damaged_file_gives_nothing(status: bytes) -> None:
    assert dpkg_versions(status, ["docker"]) == {}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("5:27.0.3-1~ubuntu.22.04~jammy", "27.0.3"),
        ("1.15.0-1", "1.15.0"),
        ("550.90.07", "550.90.07"),
        ("1.7.12-rc1-0ubuntu2", "1.7.12-rc1"),
    ],
)
def test_upstream_version(version: str, expected: str) -> None:
    assert upstream(version) == expected
