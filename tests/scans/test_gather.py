"""Stretches of one buffer compared at once, as comparing each alone would."""

from __future__ import annotations

from random import Random

import pytest

pytest.importorskip("numpy")

from lockstep.scans.gather import Joined


def _values(dice: Random) -> list[bytes]:
    """Some equal their neighbours, some but for one byte anywhere, some have other lengths."""
    found: list[bytes] = []
    for _ in range(dice.randrange(30)):
        last = bytearray(found[-1] if found else b"")
        kind = dice.randrange(4)
        if kind == 0:
            last = bytearray(dice.randbytes(dice.randrange(40)))
        elif kind == 1 and last:
            last[dice.randrange(len(last))] ^= 1 << dice.randrange(8)
        found.append(bytes(last))
    return found


def test_values_that_repeat_are_found_wherever_others_differ() -> None:
    repeated = 0
    for seed in range(2000):
        dice = Random(seed)
        values = _values(dice)
        found = Joined(values).repeats().tolist()
        expected = [at > 0 and values[at] == values[at - 1] for at in range(len(values))]
        assert found == [*expected, False], (seed, values)
        repeated += sum(expected)
    assert repeated > 5000
