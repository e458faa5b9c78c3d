"""Ids are a prefix and a lower-case ULID, made of time and randomness that are given."""

import pytest
from bettercompute.contract.ids import PREFIXES, is_id, ulid

from receiver.ids import mint, minter


def test_sorts_by_time() -> None:
    made = [ulid(millis, bytes([255] * 10)) for millis in (0, 1, 31, 32, 1_700_000_000_000, (1 << 48) - 1)]
    assert made == sorted(made)
    assert made[-1] == "7zzzzzzzzz" + "z" * 16


def test_is_what_time_and_randomness_say() -> None:
    make = minter(lambda: 1_700_000_000_123_456_789, lambda size: bytes(range(size)))
    assert make("inv") == make("inv") == f"inv_{ulid(1_700_000_000_123, bytes(range(10)))}"


@pytest.mark.parametrize(("millis", "randomness"), [(-1, bytes(10)), (1 << 48, bytes(10)), (0, bytes(9)), (0, bytes(11))])
def test_refuses_what_does_not_fit(millis: int, randomness: bytes) -> None:
    with pytest.raises(ValueError, match="48 bits of time and 10 random bytes"):
        ulid(millis, randomness)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_minted_ids_are_ids(prefix: str) -> None:
    made = {mint(prefix) for _ in range(100)}
    assert len(made) == 100
    assert all(is_id(one, prefix) for one in made)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "node_",
        "node_01HF7YAT00000000000000000",
        "inv_01hf7yat000000000000000000",
        "node_81hf7yat000000000000000000",
        "node_" + "u" * 26,
    ],
)
def test_other_texts_are_not_node_ids(text: str) -> None:
    assert not is_id(text, "node")


def test_is_no_id_with_anything_behind_it() -> None:
    assert is_id("node_01hf7yat000000000000000000", "node")
    assert not is_id("node_01hf7yat000000000000000000\n", "node")
