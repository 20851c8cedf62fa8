"""Fixing the store's content on disk, for processes that build files of it.

Invariant: what is fixed of the range it was asked for is durable in the store, as what is read is.
"""

from __future__ import annotations

from lockstep.storage import keys
from lockstep.storage.group_commit import GroupCommit
from lockstep.storage.store import FixedContent, Store
from lockstep.values.errors import DiskRefused
from lockstep.values.tokens import Range


class Fixing:
    def __init__(self, store: Store, commit: GroupCommit) -> None:
        self._store = store
        self._commit = commit

    async def fixed(self, table_id: int, tokens: Range, path: str) -> FixedContent | None:
        """The store's content, that of a range being durable; None: see `Store.fixed`."""
        found = await self._store.fixed(path)
        if found is not None:
            try:
                # Written later, maybe, but nothing of the range that was fixed is missed.
                await self._commit.synced(self._commit.unsynced_between(*keys.token_bounds(table_id, tokens)))
            except BaseException as reason:
                try:
                    await found.close()
                except DiskRefused as error:
                    # What goes on is why it is closed: a cancellation above all must not become an error.
                    raise reason from error
                raise
        return found

    def remove(self, path: str) -> None:
        """See `Store.remove_fixed`."""
        self._store.remove_fixed(path)
