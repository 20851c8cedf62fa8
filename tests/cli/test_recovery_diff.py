"""Where the logs of two incarnations part."""

from __future__ import annotations

import pytest

from lockstep.cli.recovery_diff import forked
from lockstep.documents.service import LoggedEntry
from lockstep.values.errors import PreconditionError


def log(first: int, last: int, differs_from: int = 100, name: str = "x") -> list[LoggedEntry]:
    """Entries of these epochs, whose hashes are of another history from an epoch on."""

    def hash_(epoch: int) -> str:
        return f"{epoch}" if epoch < differs_from else f"{name}{epoch}"

    return [
        LoggedEntry(epoch, previous_hash=hash_(epoch - 1), hash=hash_(epoch))
        for epoch in range(first, last + 1)
    ]


@pytest.mark.parametrize(
    ("here", "there", "common", "counts"),
    [
        (log(1, 9, 6), log(1, 12, 6, "y"), 5, (4, 7)),
        (log(1, 9), log(1, 12), 9, (0, 3)),
        (log(1, 9, 6), log(6, 12, 6, "y"), 5, (4, 7)),
        (log(1, 5), log(6, 12, 6, "y"), 5, (0, 7)),
    ],
)
def test_entries_behind_the_last_common_one_are_shown(
    here: list[LoggedEntry], there: list[LoggedEntry], common: int, counts: tuple[int, int]
) -> None:
    found = forked(here, there)
    assert found.common == common and (len(found.here), len(found.there)) == counts
    assert all(one.epoch > common for one in (*found.here, *found.there))


@pytest.mark.parametrize(
    ("here", "there", "text"),
    [
        (log(1, 5), log(8, 9), "no epoch is in both"),
        (log(5, 9, 1), log(5, 9, 1, "y"), "they differ at epoch 4"),
    ],
)
def test_nothing_is_claimed_of_what_neither_log_tells(
    here: list[LoggedEntry], there: list[LoggedEntry], text: str
) -> None:
    with pytest.raises(PreconditionError, match=text):
        forked(here, there)
