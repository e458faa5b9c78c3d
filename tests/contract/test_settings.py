"""Settings as both sides read them."""

import pytest
from bettercompute.contract import settings


@pytest.mark.parametrize(
    ("text", "seconds"), [("12h", 43200), ("1h30m", 5400), ("90", 90), ("0.5s", 0.5), ("250ms", 0.25), ("2d", 172800), ("0s", 0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert settings.duration(text) == seconds


@pytest.mark.parametrize("text", ["", " ", "h", "12 parsecs", "-5s", "1e3", "nan", "5s!"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        settings.duration(text)
