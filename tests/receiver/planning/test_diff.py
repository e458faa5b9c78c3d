"""The diff's rules, each by its name (SPEC B2, "Diff")."""

import pytest
from bettercompute.agent.v1 import inventory_pb2 as pb
from google.protobuf.message import Message

from receiver.planning.diff import CHANGE_TYPES, RULES, diff
from receiver.values import Change
from tests.receiver.builders import disk, disks, gpu, gpus


def changes(section: str, before: Message, after: Message) -> list[Change]:
    return list(diff({section: before}, {section: after}))


def types(section: str, before: Message, after: Message) -> list[str]:
    return [change.type for change in changes(section, before, after)]


def mig(number: int, *profiles: str, current: bool | None = True, pending: bool = False, **fields: object) -> pb.Gpu:
    instances = [
        pb.MigInstance(uuid=f"MIG-{number}-{start}", profile=profile, placement=pb.MigPlacement(start=start, size=1))
        for start, profile in enumerate(profiles)
    ]
    return gpu(number, mig=pb.Mig(capable=True, current=current, pending=pending, instances=instances), **fields)


def test_missing_when_neither_nvml_nor_pci_shows_it() -> None:
    (change,) = changes("gpus", gpus(gpu(0), gpu(1)), gpus(gpu(0)))
    assert (change.type, change.device_id, change.after) == ("gpu.missing", "GPU-00000001", None)
    assert change.before == {"name": "NVIDIA H100 80GB HBM3", "serial": "165001", "busId": "00000000:19:00.0", "index": 1}


def test_not_missing_while_pci_shows_its_function() -> None:
    assert types("gpus", gpus(gpu(0), gpu(1)), gpus(gpu(0), on_pci=2)) == []


def test_missing_when_another_gpu_has_its_place() -> None:
    assert types("gpus", gpus(gpu(0)), gpus(gpu(0, uuid="GPU-new"))) == ["gpu.missing", "gpu.added"]


@pytest.mark.parametrize("fields", [{"state": "lost"}, {"assigned": True}])
def test_lost_or_assigned_is_neither_missing_nor_added(fields: dict[str, object]) -> None:
    assert types("gpus", gpus(gpu(0)), gpus(gpu(0, **fields))) == []
    assert types("gpus", gpus(gpu(0, **fields)), gpus(gpu(0))) == []


def test_moved_gpu_is_the_same_gpu() -> None:
    assert types("gpus", gpus(gpu(0)), gpus(gpu(0, bus_id="00000000:99:00.0", index=7))) == []


def test_gpu_without_uuid_is_not_compared() -> None:
    assert types("gpus", gpus(gpu(0, uuid="")), gpus(gpu(1, uuid=""))) == []


def test_mig_layout_is_mode_and_sorted_instances() -> None:
    before, after = gpus(mig(0, "1g.10gb", "2g.20gb")), gpus(mig(0, "3g.40gb"))
    (change,) = changes("gpus", before, after)
    assert (change.type, change.device_id) == ("mig.layout.changed", "GPU-00000000")
    assert change.after == {
        "mode": "enabled",
        "instances": [{"uuid": "MIG-0-0", "profile": "3g.40gb", "placement": {"start": 0, "size": 1}}],
    }
    assert types("gpus", gpus(mig(0, current=False)), gpus(mig(0))) == ["mig.layout.changed"]


def test_mig_layout_is_the_same_in_another_order_or_with_a_mode_pending() -> None:
    one, other = mig(0, "1g.10gb", "2g.20gb"), mig(0, "1g.10gb", "2g.20gb", pending=True)
    turned = pb.Gpu()
    turned.CopyFrom(other)
    del turned.mig.instances[:]
    turned.mig.instances.extend(reversed(other.mig.instances))
    assert types("gpus", gpus(one), gpus(turned)) == []


@pytest.mark.parametrize("other", [mig(0, state="lost"), mig(0, assigned=True), mig(0, current=None), gpu(0)])
def test_mig_layout_is_not_compared_with_what_is_remembered_or_not_said(other: pb.Gpu) -> None:
    assert types("gpus", gpus(mig(0, "1g.10gb")), gpus(other)) == []
    assert types("gpus", gpus(other), gpus(mig(0, "1g.10gb"))) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (disk("sda", serial="A"), disk("sda", serial="B")),
        (disk("sda", wwn="naa.1"), disk("sda", wwn="naa.2")),
        (disk("sda", serial="A", wwn="naa.1"), disk("sda", serial="B", wwn="naa.2")),
        (disk("sda", serial="A", wwn="naa.1"), disk("sda", serial="B")),
        (disk("sda", serial="A", wwn="eui.0000000000000000"), disk("sda", serial="B", wwn="eui.0000000000000000")),
    ],
)
def test_disk_replaced_when_its_identity_is_another_and_the_old_is_nowhere(old: pb.Disk, new: pb.Disk) -> None:
    (change,) = changes("disks", disks(old), disks(new))
    assert (change.type, change.device_id) == ("disk.replaced", None)
    assert change.before is not None
    assert change.before["name"] == "sda"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (disk("sda"), disk("sda", serial="B", wwn="naa.2")),
        (disk("sda", serial="A"), disk("sda")),
        (disk("sda", serial="A"), disk("sda", wwn="naa.1")),
        (disk("sda", serial="A", wwn="naa.1"), disk("sda", serial="  A", wwn="naa.1")),
        (disk("sda", serial="A", wwn="naa.1"), disk("sda", serial="A", wwn="naa.2")),
    ],
)
def test_disk_not_replaced_when_identities_cannot_be_compared_or_one_is_still_there(old: pb.Disk, new: pb.Disk) -> None:
    assert types("disks", disks(old), disks(new)) == []


def test_disks_that_changed_names_are_no_change() -> None:
    before = disks(disk("sda", "A", "naa.1"), disk("sdb", "B"), disk("sdc", wwn="naa.3"))
    after = disks(disk("sda", wwn="naa.3"), disk("sdb", "A", "naa.1"), disk("sdc", "B"))
    assert types("disks", before, after) == []


def test_disk_that_left_or_came_is_not_replaced() -> None:
    assert types("disks", disks(disk("sda", "A"), disk("sdb", "B")), disks(disk("sdb", "B"))) == []
    assert types("disks", disks(disk("sdb", "B")), disks(disk("sda", "A"), disk("sdb", "B"))) == []


def test_replacement_with_a_shift_of_names_tells_of_the_one_that_is_gone() -> None:
    before = disks(disk("sda", "A"), disk("sdb", "B"))
    after = disks(disk("sda", "B"), disk("sdb", "C"))
    (change,) = changes("disks", before, after)
    assert change.before is not None
    assert change.before["serial"] == "A"


def test_driver_changed_with_the_driver_or_cuda() -> None:
    (change,) = changes("gpus", gpus(driver="550.54.15"), gpus(driver="570.86.10", cuda="12.8"))
    assert (change.type, change.before, change.after) == (
        "driver.changed",
        {"driver": "550.54.15", "cuda": "12.4"},
        {"driver": "570.86.10", "cuda": "12.8"},
    )
    assert types("gpus", gpus(), gpus(cuda="12.5")) == ["driver.changed"]


def test_driver_not_changed_when_one_side_does_not_say() -> None:
    assert types("gpus", gpus(), gpus(driver="", cuda="")) == []
    assert types("gpus", gpus(driver="", cuda=""), gpus()) == []


@pytest.mark.parametrize("after", [{}, {"gpus": gpus(error="DriverNotLoaded", driver="", cuda="")}])
def test_no_changes_from_a_section_that_is_missing_or_errored(after: dict[str, Message]) -> None:
    before: dict[str, Message] = {"gpus": gpus(gpu(0))}
    assert diff(before, after) == diff(after, before) == ()


def test_changes_come_in_the_order_of_the_types() -> None:
    before = {"gpus": gpus(gpu(0), mig(1, "1g.10gb")), "disks": disks(disk("sda", "A"))}
    after = {"gpus": gpus(mig(1), gpu(2), driver="570"), "disks": disks(disk("sda", "B"))}
    assert tuple(change.type for change in diff(before, after)) == CHANGE_TYPES
    assert len(RULES) == len(CHANGE_TYPES)
