"""What comes in crowds, in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.internode import repeated_log
from lockstep.internode.repeated_log import RepeatedLog
from lockstep.values.node_limits import REPEATED_LOG_MS

Said = list[tuple[str, dict[str, Any]]]


def logging(said: Said) -> RepeatedLog:
    return RepeatedLog(lambda event, **facts: said.append((event, facts)))


def in_a_loop(work: Callable[[], None]) -> None:
    async def main() -> None:
        work()

    asyncio.run(main())


def refused(log: RepeatedLog, node: str, at: int) -> None:
    log.note("replica.refused", node, facts=lambda: {"node": node, "at": at})


def test_what_comes_in_crowds_is_told_at_once_and_then_with_its_count() -> None:
    said: Said = []

    def work() -> None:
        log = logging(said)
        for number in range(5):
            refused(log, "n1", number)
        refused(log, "n2", 0)
        log.stop()
        log.stop()

    in_a_loop(work)
    assert said == [
        ("replica.refused", {"node": "n1", "at": 0}),
        ("replica.refused", {"node": "n2", "at": 0}),
        ("replica.refused", {"node": "n1", "at": 4, "count": 4}),
    ]


def test_crowds_of_crowds_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_log, "REPEATED_LOG_KINDS_MAX", 3)
    said: Said = []

    def work() -> None:
        log = logging(said)
        for number in range(100):
            refused(log, str(number), number)
        log.note("other", facts=dict)
        log.stop()

    in_a_loop(work)
    assert said[3] == ("replica.refused", {"node": "3", "at": 3}), "the first of those that share"
    assert said[4] == ("other", {}), "of another event"
    assert said[5:] == [("replica.refused", {"node": "99", "at": 99, "count": 96})]


def test_once_a_minute_the_newest_is_told_as_long_as_any_come(monkeypatch: pytest.MonkeyPatch) -> None:
    said: Said = []
    timers: list[tuple[float, Callable[[], None]]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(
            loop, "call_later", lambda delay_s, work, key: timers.append((delay_s, lambda: work(key)))
        )
        log = logging(said)
        for number in range(3):
            refused(log, "n1", number)
        assert len(said) == len(timers) == 1
        for number in range(3, 5):
            timers.pop()[1]()
            refused(log, "n1", number)
        assert [facts.get("count", 0) for _, facts in said] == [0, 2, 1]
        assert said[-1][1] == {"node": "n1", "at": 3, "count": 1}
        timers.pop()[1]()
        delay_s, quiet = timers.pop()
        assert delay_s == REPEATED_LOG_MS / 1000
        quiet()
        assert len(said) == 4 and not timers, "nothing came meanwhile"
        refused(log, "n1", 9)
        assert said[-1][1] == {"node": "n1", "at": 9}, "the first one again"

    asyncio.run(main())
