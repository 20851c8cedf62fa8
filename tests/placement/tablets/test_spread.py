"""How evenly each table lies on shards once a target is reached: the first clusters of `make spread`."""

from __future__ import annotations

import pytest

from . import spread
from .spread import WORST, main, worst_share

CASES = 300
_EACH = 30


@pytest.mark.parametrize("first", range(0, CASES, _EACH))
def test_each_table_is_even_over_shards(first: int) -> None:
    assert max(worst_share(seed) for seed in range(first, first + _EACH)) < WORST


def test_the_command_tells_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(3) == 0 and "0 of 3 at 1.4 or more" in capsys.readouterr().out
    monkeypatch.setattr(spread, "worst_share", lambda seed: 1.0 + seed / 2)
    assert main(3) == 1 and "failed: [1, 2]" in capsys.readouterr().out
