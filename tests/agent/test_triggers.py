"""When bcd collects: one at a time, reasons merged."""

import pytest

from agent.triggers import ALL, REASONS, Fingerprint, Triggers, Work, at_start, rescan_delay

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
