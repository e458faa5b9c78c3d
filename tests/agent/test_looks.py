"""The GPUs are looked at 2 s after what is new, and ever more rarely after what repeats itself."""

from agent.looks import AFTER_XID, Looks


def test_a_new_fault_is_looked_at_two_seconds_after_its_line() -> None:
    busy = Looks().taken(100.0).taken(104.0).taken(112.0)
    assert Looks().due(50.0, AFTER_XID, new=False) == 52.0
    assert busy.due(112.5, AFTER_XID, new=True) == 114.5


def test_what_repeats_itself_makes_the_next_look_wait_longer_up_to_a_minute() -> None:
    now, looks, waits = 100.0, Looks(), []
    for _ in range(7):
        due = looks.due(now, AFTER_XID, new=False)
        waits.append(due - now)
        now, looks = due, looks.taken(due)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_after_ten_quiet_minutes_it_is_as_at_first() -> None:
    looks = Looks().taken(0.0).taken(4.0).taken(12.0)
    assert looks.due(700.0, AFTER_XID, new=False) == 702.0
    assert looks.taken(702.0).gap == 4.0
