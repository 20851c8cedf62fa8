"""A start is waited for as long as the topology gets on, and no longer than that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from lockstep.local.admin_client import AdminClient
from lockstep.local.waiting import await_moving
from lockstep.values.errors import PeerUnreachable


class Admin:
    """Says of the running requests what it was given, one after the other; the last again and again."""

    def __init__(self, *said: list[dict[str, Any]] | None) -> None:
        self._said = list(said)
        self.asked = 0

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/v1/status"
        said = self._said.pop(0) if len(self._said) > 1 else self._said[0]
        self.asked += 1
        if said is None:
            raise PeerUnreachable("nobody runs")
        return {"operations": said}


def request(number: int, stage: str | None, **progress: int) -> dict[str, Any]:
    return {"id": str(number), "stage": stage, "progress": progress}


def waited(admin: Admin, answers: list[bool]) -> bool:
    asked: Iterator[bool] = iter(answers)
    return await_moving(lambda: next(asked), 0, lambda: cast(AdminClient, admin))


MOVES = [
    [[request(1, "write_both"), request(2, None)], [request(2, "started")]],
    [[request(1, "write_both", bytes=10)], [request(1, "write_both", bytes=20)]],
    [None, [request(1, "started")]],
    [[request(1, "read_new")], []],
]


@pytest.mark.parametrize("said", MOVES)
def test_what_moves_is_waited_for(said: list[list[dict[str, Any]] | None]) -> None:
    assert waited(Admin(*said), [False, True])


STANDS = [
    [[request(1, "write_both", bytes=10)], [request(1, "write_both", bytes=10)]],
    [[request(1, "write_both", left_s=10)], [request(1, "write_both", left_s=20, rate_bytes_s=3)]],
    [None, None],
    [None, []],
    [[], []],
]


@pytest.mark.parametrize("said", STANDS)
def test_what_stands_still_is_not(said: list[list[dict[str, Any]] | None]) -> None:
    admin = Admin(*said)
    assert not waited(admin, [False])
    assert admin.asked == 2


def test_what_is_there_is_not_waited_for() -> None:
    assert waited(Admin([request(1, "started")]), [True])
