import pytest

from receiver.planning.budget import Load, full, limit


@pytest.mark.parametrize(
    ("budget", "in_service", "most"),
    [
        ("5%", 100, 5),
        ("5%", 119, 5),  # rounded down
        ("5%", 3, 1),  # at least one
        ("5%", 0, 1),
        ("100%", 8, 8),
        ("5.5%", 200, 11),  # as written, not as a binary fraction
        ("0.7%", 1000, 7),
        ("0%", 100, 0),
        (0, 100, 0),
        (3, 1, 3),
    ],
)
def test_a_percentage_is_rounded_down_and_at_least_one_and_a_number_is_itself(
    budget: str | int, in_service: int, most: int
) -> None:
    assert limit(budget, in_service) == most


def test_disruptions_begin_until_as_many_are_open_as_may_be() -> None:
    assert full("5%", Load(in_service=100, disrupted=4)) is None
    assert full("5%", Load(in_service=100, disrupted=5)) == (
        "5 of at most 5 disruptions are open (budget 5% of 100 nodes in service)"
    )


def test_budget_of_nothing_stops() -> None:
    assert full(0, Load(in_service=100)) == "the pool's disruption budget is 0"
