"""What the acceptance tests judge refusals by fails for each of the ways in which one can be wrong."""

from __future__ import annotations

import pytest

from tests.acceptance.parts import Ended

TOLD = "error[CONFIGURATION]: no node is called n9\nhint: lockstep status\n"


def test_a_refusal_with_code_sentence_and_hint_is_one() -> None:
    Ended(2, "", TOLD).refused("CONFIGURATION", 2, "no node", "n9")
    Ended(2, "", TOLD.splitlines()[0]).refused("CONFIGURATION", 2, "n9", hint=False)


@pytest.mark.parametrize(
    "ended",
    [
        Ended(0, "", TOLD),
        Ended(None, "", TOLD),
        Ended(2, "", ""),
        Ended(2, TOLD, ""),
        Ended(2, "", TOLD + TOLD),
        Ended(2, "", TOLD.replace("CONFIGURATION", "REJECTED")),
        Ended(2, "", TOLD.replace("n9", "n8")),
        Ended(2, "", TOLD.replace("hint", "note")),
        Ended(2, "", TOLD + "Traceback (most recent call last):"),
    ],
)
def test_any_other_end_is_none(ended: Ended) -> None:
    with pytest.raises(AssertionError):
        ended.refused("CONFIGURATION", 2, "n9")
