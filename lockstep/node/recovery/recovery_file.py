"""What this node recorded of repairs of the groups, in its data directory."""

from __future__ import annotations

from typing import Final

from lockstep.node.log.journal import Journal
from lockstep.recovery.steps import Record, Standing, decode_record, follow, standing_of
from lockstep.runtime.ports import Disk
from lockstep.values.codec import UNREADABLE, encode
from lockstep.values.errors import CorruptFile

RECOVERY_PATH: Final = "recovery"


class RecoveryFile:
    """Errors: CorruptFile, CannotApply on load; Rejected for a record that may not come now, DiskRefused."""

    def __init__(self, disk: Disk) -> None:
        self._journal = Journal(disk, RECOVERY_PATH)
        self.standing = Standing()

    def load(self) -> Standing:
        try:
            records = [decode_record(body) for body in self._journal.load()]
        except UNREADABLE as error:
            raise CorruptFile(RECOVERY_PATH, 0, f"a record cannot be read: {error}") from error
        self.standing = standing_of(records)
        return self.standing

    async def record(self, record: Record) -> None:
        """Durable on return."""
        after = follow(self.standing, record)
        await self._journal.append(encode(record))
        self.standing = after
