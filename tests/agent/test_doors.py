"""What the settings mean for a collection."""

from pathlib import Path

import pytest

from agent import doors
from agent.config import Config
from agent.errors import UserError
from tests.hosts_catalog import HOSTS


@pytest.mark.parametrize("written", ["/run/containerd/containerd.sock", "unix:///run/containerd/containerd.sock"])
def test_a_cri_socket_is_a_path_or_written_as_runtimes_write_it(written: str) -> None:
    assert doors.options(Config(cri_socket=written)).cri_socket == "/run/containerd/containerd.sock"
    assert doors.options(Config()).cri_socket == ""


def test_a_recording_of_nvml_is_looked_at_unless_a_library_answers_in_its_place(tmp_path: Path) -> None:
    doors.check(Config(), None)
    doors.check(Config(), HOSTS["h100-sxm-8"])
    (tmp_path / "root/proc").mkdir(parents=True)
    (tmp_path / "nvml.json").write_text("{")
    with pytest.raises(UserError, match=r"nvml\.json:1: not JSON"):
        doors.check(Config(), tmp_path)
    doors.check(Config(nvml_library="/opt/libnvidia-ml.so.1"), tmp_path)
