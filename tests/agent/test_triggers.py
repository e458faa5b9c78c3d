"""When bcd collects: one at a time, reasons merged."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.triggers import (
    ALL,
    LONGEST_SPACE,
    PATIENCE,
    QUIET,
    REASONS,
    SPACE,
    Fingerprint,
    Spacing,
    Triggers,
    Work,
    at_start,
    concerns,
    pci_address,
    rescan_delay,
)
from agent.udev import Event

NOW = Fingerprint("0.1.0", "550.90.07", 4711)


def test_reasons_that_wait_are_one_collection_of_all_their_sections() -> None:
    queue, work = Triggers().add("settling").add("images").add("settling").start()
    assert work == Work(1, "settling+images", frozenset({"gpus", "images"}))
    assert queue.start() == (queue, None)


def test_triggers_during_a_collection_are_merged_into_one_more() -> None:
    queue, first = Triggers().add("rescan").start()
    assert first is not None
    queue = queue.add("refresh").add("images")
    assert queue.next == 2
    assert queue.start() == (queue, None)
    queue, second = queue.finish().start()
    assert second == Work(2, "refresh+images", ALL)
    queue = queue.finish()
    assert (queue.done, queue.start()) == (2, (queue, None))


def test_an_unknown_reason_is_our_bug() -> None:
    with pytest.raises(KeyError):
        Triggers().add("because")
    assert all(sections <= ALL for sections in REASONS.values())


@pytest.mark.parametrize(
    ("stored", "missing", "reason"),
    [
        (None, [], "first"),
        (("boot-1", NOW), [], None),
        (("boot-0", NOW), [], "boot"),
        (("boot-1", Fingerprint("0.0.9", "550.90.07", 4711)), [], "upgrade"),
        (("boot-1", Fingerprint("0.1.0", "535.1", 4711)), [], "upgrade"),
        (("boot-1", Fingerprint("0.1.0", None, 4711)), [], "upgrade"),
        (("boot-1", Fingerprint("0.1.0", "550.90.07", 4710)), [], "events"),
        (("boot-1", NOW), ["gpus"], "incomplete"),
    ],
)
def test_a_restart_collects_only_when_something_differs(
    stored: tuple[str, Fingerprint] | None, missing: list[str], reason: str | None
) -> None:
    assert at_start(stored, "boot-1", NOW, missing) == reason


def test_a_rescan_is_spread_over_ten_percent() -> None:
    assert rescan_delay(100.0, 0.0) == pytest.approx(90.0)
    assert rescan_delay(100.0, 0.5) == pytest.approx(100.0)
    assert rescan_delay(100.0, 0.999999) == pytest.approx(110.0, abs=0.01)


# ---------------------------------------------------------------- hardware events

GPU, HCA, VF = "0000:18:00.0", "0000:19:00.0", "0000:19:00.2"
BEHIND = "/devices/pci0000:15/0000:15:01.0"


def sections(subsystem: str, devpath: str, action: str = "add", **properties: str) -> set[str]:
    event = Event(action, devpath, {"SUBSYSTEM": subsystem, **properties})
    return set(concerns(event, lambda slot: slot == GPU, lambda slot: slot == VF))


@pytest.mark.parametrize(
    ("subsystem", "devpath", "concerned"),
    [
        ("block", f"{BEHIND}/0000:3d:00.0/nvme/nvme4/nvme4n1", {"disks"}),
        ("nvme", f"{BEHIND}/0000:3d:00.0/nvme/nvme4", {"disks"}),
        ("net", f"{BEHIND}/{HCA}/net/ens5f0np0", {"nics"}),
        ("net", "/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0", {"nics"}),
        ("infiniband", f"{BEHIND}/{HCA}/infiniband/mlx5_0", {"nics"}),
        ("memory", "/devices/system/memory/memory42", {"memory"}),
        ("pci", f"{BEHIND}/{GPU}", {"gpus", "os"}),
        ("drm", f"{BEHIND}/{GPU}/drm/card1", {"gpus", "os"}),
        ("pci", f"{BEHIND}/{HCA}", {"disks", "nics"}),
        ("drm", "/devices/pci0000:00/0000:00:1c.0/0000:03:00.0/drm/card0", {"disks", "nics"}),
        ("usb", f"{BEHIND}/0000:00:14.0/usb1/1-2", set()),
        ("cpu", "/devices/system/cpu/cpu7", set()),
        ("", f"{BEHIND}/{GPU}", set()),
    ],
)
def test_an_event_concerns_its_sections(subsystem: str, devpath: str, concerned: set[str]) -> None:
    assert sections(subsystem, devpath) == concerned
    assert sections(subsystem, devpath, "remove") == concerned


@pytest.mark.parametrize(
    ("subsystem", "devpath", "properties"),
    [
        ("net", "/devices/virtual/net/veth2f1c0a9", {}),
        ("block", "/devices/virtual/block/dm-0", {}),
        ("block", "/devices/virtual/block/loop3", {}),
        ("block", f"{BEHIND}/0000:3d:00.0/nvme/nvme4/nvme4n1/nvme4n1p1", {"DEVTYPE": "partition"}),
        ("pci", f"{BEHIND}/{VF}", {}),
        ("net", f"{BEHIND}/{VF}/net/ens5f0v0", {}),
        ("infiniband", f"{BEHIND}/{VF}/infiniband/mlx5_10", {}),
    ],
)
def test_virtual_devices_functions_and_partitions_are_no_events(subsystem: str, devpath: str, properties: dict[str, str]) -> None:
    for action in ("add", "remove", "change"):
        assert sections(subsystem, devpath, action, **properties) == set()


@pytest.mark.parametrize("action", ["change", "bind", "unbind"])
def test_changes_and_bindings_are_events_of_nvidia_functions_only(action: str) -> None:
    assert sections("pci", f"{BEHIND}/{GPU}", action) == {"gpus", "os"}
    assert sections("pci", f"{BEHIND}/{HCA}", action) == set()
    assert sections("block", f"{BEHIND}/0000:3d:00.0/nvme/nvme4/nvme4n1", action) == set()
    assert sections("net", f"{BEHIND}/{HCA}/net/ens5f0np0", action) == set()


@pytest.mark.parametrize("action", ["add", "remove", "move", "online", "offline"])
def test_all_other_actions_are_events(action: str) -> None:
    assert sections("memory", "/devices/system/memory/memory42", action) == {"memory"}


def test_a_device_belongs_to_the_nearest_function() -> None:
    assert pci_address(f"{BEHIND}/{GPU}/drm/card1") == GPU
    assert pci_address("/devices/pci0000:00") is None
    assert pci_address("/devices/pci10000:e0/10000:e0:06.0/10000:e1:00.0/nvme/nvme0") == "10000:e1:00.0"


DISKS = frozenset({"disks"})


def test_an_event_is_collected_after_two_seconds_of_quiet() -> None:
    waiting = Spacing().heard(DISKS, 100.0)
    assert waiting.due == 102.0
    waiting = waiting.heard(frozenset({"nics"}), 101.5)
    assert (waiting.due, waiting.sections) == (103.5, frozenset({"disks", "nics"}))


def test_events_that_do_not_stop_wait_ten_seconds_at_most() -> None:
    waiting = Spacing()
    for tenth in range(300):
        waiting = waiting.heard(DISKS, 100.0 + tenth / 10)
    assert waiting.due == 110.0


def test_what_concerns_nothing_is_nothing() -> None:
    assert Spacing().heard(frozenset(), 1.0) == Spacing()
    assert Spacing().due is None


def collections(events: list[float], changes: bool = False) -> list[float]:
    """When events at these times are collected, each collection taking half a second."""
    waiting, times, rest = Spacing(), [], sorted(events)
    while rest or waiting.due is not None:
        due = waiting.due
        if due is None or (rest and rest[0] <= due):
            waiting = waiting.heard(DISKS, rest.pop(0))
        else:
            times.append(due)
            waiting = waiting.take(due).judged(changes)
    return times


def test_events_that_keep_coming_and_change_nothing_are_collected_ever_more_rarely() -> None:
    times = collections([float(second) for second in range(7200)])
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 10.0
    assert gaps[:6] == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0]
    assert max(gaps) == LONGEST_SPACE


def test_events_that_change_something_are_collected_each_minute() -> None:
    gaps = {after - before for before, after in pairwise(collections([float(second) for second in range(600)], changes=True))}
    assert gaps == {SPACE}


def test_a_pause_ends_the_spacing() -> None:
    storm = [float(second) for second in range(1000)]
    times = collections([*storm, 2500.0])
    assert times[-1] == 2500.0 + QUIET


@given(st.lists(st.floats(0, 5000), max_size=60), st.booleans())
def test_no_event_is_forgotten_and_none_collected_too_often(events: list[float], changes: bool) -> None:
    times = collections(events, changes)
    assert all(any(at >= event for at in times) for event in events)
    assert all(after - before >= SPACE - 1e-6 for before, after in pairwise(times))
    assert all(any(at <= event + max(PATIENCE, LONGEST_SPACE + PATIENCE) for at in times if at >= event) for event in events)
