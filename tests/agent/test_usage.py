"""Who uses GPUs, by rule: holds, VMs, processes by the files they have open. Nothing of a command line is ever told."""

from pathlib import Path

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.errors import Unreadable
from agent.holds import Hold, Holds
from agent.host import Host
from agent.usage import FABRIC_MANAGER, User, users
from tests.agent.processes import driver, process

GPUS = (
    pb.Gpu(uuid="GPU-0", minor=0, bus_id="00000000:18:00.0"),
    pb.Gpu(uuid="GPU-1", minor=1, bus_id="00000000:3B:00.0", mig=pb.Mig(instances=[pb.MigInstance(uuid="MIG-1a")])),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    for slot in ("0000:18:00.0", "0000:3b:00.0"):
        driver(tmp_path, slot, "nvidia")
    return tmp_path


def found(root: Path, holds: Holds | None = None, ignore: tuple[str, ...] = ()) -> tuple[User, ...]:
    return users(Host(root), holds or Holds(), GPUS, ignore)


def hold(*devices: str) -> Holds:
    return Holds((Hold("h1", "metal", "allocation", devices),))


def test_nobody_uses_anything_on_an_idle_host(root: Path) -> None:
    process(root, 1, "systemd", "socket:[12]", "anon_inode:[eventpoll]", "/dev/nvidiactl", "/dev/nvidia-uvm", "/tmp/nvidia0.log")
    assert found(root) == ()


@pytest.mark.parametrize(
    ("held", "devices"),
    [
        ("GPU-1", ("GPU-1",)),
        ("MIG-1a", ("GPU-1",)),
        ("MIG-unheard-of", ("*",)),
        ("*", ("*",)),
        ("GPU-of-another", ("GPU-of-another",)),
    ],
)
def test_a_hold_uses_the_gpus_of_its_devices(root: Path, held: str, devices: tuple[str, ...]) -> None:
    (user,) = found(root, hold(held))
    assert (user.what, user.devices) == ("hold", devices)
    assert user.uses({"GPU-1"}) == (devices in {("GPU-1",), ("*",)})


def test_a_hold_that_cannot_be_read_uses_every_gpu(root: Path) -> None:
    (user,) = found(root, Holds(unreadable=(("a.json", "not JSON"),)))
    assert user.uses({"GPU-0"})
    assert "a.json" in user.name


def test_a_process_with_a_gpu_s_device_file_open_uses_it_and_is_named_from_comm(root: Path) -> None:
    process(root, 4711, "python3", "/dev/nvidia1", "/dev/nvidia-uvm")
    process(root, 4712, "old", "/dev/nvidia0 (deleted)")
    assert found(root) == (User("process", "python3", ("GPU-1",), 4711), User("process", "old", ("GPU-0",), 4712))
    assert found(root)[0].describe() == {"what": "process", "name": "python3", "devices": ["GPU-1"], "pid": 4711}
    assert "hunter2" not in repr(found(root))


def test_a_display_server_uses_the_gpu_of_its_drm_file(root: Path) -> None:
    (root / "sys/bus/pci/devices/0000:3b:00.0/drm/card1").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:3b:00.0/drm/renderD129").mkdir(parents=True)
    process(root, 900, "Xorg", "/dev/dri/card1")
    process(root, 901, "kms", "/dev/dri/card0")
    assert found(root) == (User("process", "Xorg", ("GPU-1",), 900),)


def test_a_device_file_of_a_gpu_that_is_not_known_may_be_any_gpu_s(root: Path) -> None:
    process(root, 4711, "python3", "/dev/nvidia7")
    assert found(root)[0].uses({"GPU-0"})


def test_a_lost_gpu_s_minor_comes_from_the_driver(root: Path) -> None:
    information = root / "proc/driver/nvidia/gpus/0000:18:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 105\nDevice Minor: \t 4\n")
    process(root, 4711, "python3", "/dev/nvidia4")
    lost = pb.Gpu(uuid="GPU-0", bus_id="00000000:18:00.0", state="lost")
    assert users(Host(root), Holds(), [lost])[0].devices == ("GPU-0",)


def test_a_gpu_bound_to_vfio_belongs_to_a_vm_whatever_was_collected(root: Path) -> None:
    driver(root, "0000:18:00.0", "vfio-pci")
    assert found(root) == (User("vm", "vfio-pci", ("GPU-0",)),)


def test_a_vm_without_a_gpu_is_a_user_of_none(root: Path) -> None:
    process(root, 77, "qemu-system-x86", "/dev/kvm", "anon_inode:kvm-vm", "anon_inode:kvm-vcpu:0")
    (user,) = found(root)
    assert (user.what, user.devices, user.uses({"GPU-0", "GPU-1"})) == ("vm", (), False)


def test_services_that_are_ignored_and_the_fabric_manager_do_not_count(root: Path) -> None:
    process(root, 10, "nvidia-persiste", "/dev/nvidia0", unit="nvidia-persistenced")
    process(root, 11, "nv-fabricmanage", "/dev/nvidia0", unit="nvidia-fabricmanager")
    process(root, 12, FABRIC_MANAGER, "/dev/nvidia1")  # in a container
    assert [user.name for user in found(root)] == ["nvidia-persiste"]
    assert found(root, ignore=("nvidia-persistenced",)) == ()


def test_a_process_that_may_not_be_looked_at_counts_as_a_user_of_every_gpu(root: Path) -> None:
    process(root, 4711, "python3", "/dev/nvidia1")
    host = Host(root, {"/proc/4711/fd": 13})
    (user,) = users(host, Holds(), GPUS)
    assert user.what == "unknown"
    assert user.uses({"GPU-0"})


def test_a_process_that_ends_while_it_is_looked_at_uses_nothing(root: Path) -> None:
    process(root, 4711, "python3", "/dev/nvidia1")

    class Ending(Host):
        def listdir(self, path: str) -> list[str]:
            if path.endswith("/fd"):
                raise Unreadable(path, 3)  # ESRCH
            return super().listdir(path)

    assert users(Ending(root), Holds(), GPUS) == ()
