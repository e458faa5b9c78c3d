"""What follows from an endpoint's answers: nothing is lost to a bad endpoint, and nothing waits for ever behind a bad event."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver.planning.webhook import BATCH, FIRST, LONGEST, PATIENCE, TRIES, Progress, Verdict, after, verdict


def test_what_is_delivered_is_done_with_and_batches_grow_again() -> None:
    step = after(Progress(3, 5), 3, "delivered", 0.5)
    assert (step.done, step.skip, step.delay, step.progress) == (True, False, 0.0, Progress(6))
    assert after(Progress(BATCH), 7, "delivered", 0.5).progress.size == BATCH


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404, 408, 410, 429, 500, 503])
def test_an_answer_about_the_endpoint_is_waited_out_for_ever_and_nothing_is_skipped(status: int) -> None:
    now = Progress()
    waits: list[float] = []
    for _ in range(100):
        step = after(now, BATCH, verdict(status), 0.999)
        assert not step.done
        now = step.progress
        waits.append(step.delay)
    assert now == Progress(BATCH, 100, 0)
    assert waits[0] <= FIRST
    assert all(one <= two for one, two in itertools.pairwise(waits))
    assert LONGEST * 0.9 < waits[-1] <= LONGEST


def test_only_refusals_count_against_an_event() -> None:
    now = Progress(1, 50)  # the endpoint was away for long
    for _ in range(TRIES - 1):
        step = after(now, 1, "refused", 0.0)
        assert (step.done, step.delay > 0) == (False, True)
        now = after(step.progress, 1, "failed", 0.0).progress
    step = after(now, 1, "refused", 0.0)
    assert (step.done, step.skip, step.progress) == (True, True, Progress(1))


def test_waits_are_spread() -> None:
    waits = {after(Progress(failures=5), 1, "failed", chance).delay for chance in (0.0, 0.3, 0.7, 0.99)}
    assert len(waits) == 4
    assert min(waits) == FIRST * 2**5 / 2


def test_the_endpoint_may_ask_for_more_time_but_not_for_any() -> None:
    assert after(Progress(), 1, "failed", 0.0, 120.0).delay == 120.0
    assert after(Progress(), 1, "failed", 0.0, 1e9).delay == PATIENCE
    assert after(Progress(failures=9), 1, "failed", 0.0, 1.0).delay == LONGEST / 2


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=20), st.integers(0, 2**32))
def test_of_any_events_exactly_those_that_are_refused_are_skipped_in_order(count: int, bad: set[int], seed: int) -> None:
    """An endpoint that refuses each batch that holds a bad event, and is away now and then."""
    chance = random.Random(seed)
    now, place, posts = Progress(), 0, 0
    told: list[int] = []
    skipped: list[int] = []
    while place < count:
        batch = range(place, min(count, place + now.size))
        posts += 1
        away = chance.random() < 0.1
        said: Verdict = "failed" if away else "refused" if bad & set(batch) else "delivered"
        step = after(now, len(batch), said, chance.random())
        now = step.progress
        if step.done:
            (skipped if step.skip else told).extend(batch)
            place = batch[-1] + 1
    assert told == [one for one in range(count) if one not in bad]
    assert skipped == sorted(one for one in bad if one < count)
    assert posts <= 20 + 2 * (count // BATCH + 1) + 30 * (TRIES + 16) * max(1, len(bad))
