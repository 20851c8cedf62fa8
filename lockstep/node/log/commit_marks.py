"""How far a Raft journal durably says that entries are committed, and who waits for it to say more.

A write of entries says what was committed before it, so where entries follow each other a commit costs no
write of its own: a mark waits a moment for such company where the last one had company. Invariant: everyone
who waits is told, once the journal says it or when it never will. Where nothing followed the last mark, none
waits: who submits one change after the other, each when the one before can be seen, is not slowed down.
"""

from __future__ import annotations

import asyncio

from lockstep.values.node_limits import COMMIT_MARK_WAIT_MS


class CommitMarks:
    def __init__(self, durable_index: int) -> None:
        self._durable_index = durable_index
        self._wanted_index = 0
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []
        #: Something else was to be written while the last mark was due.
        self._had_company = False
        self._ended = False

    @property
    def is_due(self) -> bool:
        return self._wanted_index > self._durable_index

    def wait(self, index: int) -> asyncio.Future[bool]:
        """True once `reached` was called with the index or a later one; False once this has ended."""
        marked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if index <= self._durable_index or self._ended:
            marked.set_result(index <= self._durable_index)
        else:
            self._wanted_index = max(self._wanted_index, index)
            self._waiting.append((index, marked))
        return marked

    def accompanied(self) -> None:
        """Something else is to be written."""
        if self.is_due:
            self._had_company = True

    async def company(self, wanted: asyncio.Event) -> None:
        """Return when `wanted` says that there is more to write, or when the mark is to be written alone."""
        if not self._had_company:
            return
        self._had_company = False
        timer = asyncio.get_running_loop().call_later(COMMIT_MARK_WAIT_MS / 1000, wanted.set)
        try:
            await wanted.wait()
        finally:
            timer.cancel()
        wanted.clear()

    def reached(self, index: int) -> None:
        """The journal durably says that entries up to `index` are committed."""
        self._durable_index = max(self._durable_index, index)
        self._tell()

    def end(self) -> None:
        """Nothing more will be written."""
        self._ended = True
        self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for index, marked in waiting:
            if index > self._durable_index and not self._ended:
                self._waiting.append((index, marked))
            elif not marked.done():
                marked.set_result(index <= self._durable_index)
