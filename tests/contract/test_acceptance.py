"""What the receiver takes the commands of acceptance for is what bcd makes of them (SPEC A7, B7)."""

import pytest

from agent import checks as diagnosis
from agent.commands import COMMANDS
from receiver.planning.checks import CHECKS, TOLERATED


@pytest.mark.parametrize("kind", CHECKS)
def test_a_check_may_take_as_long_as_bcd_lets_it_run(kind: str) -> None:
    assert CHECKS[kind].limit == COMMANDS[kind].limit({})


def test_the_unknowns_that_fail_no_diagnosis_are_the_same() -> None:
    assert TOLERATED == diagnosis.TOLERATED
