"""What only this node gives: ids, by who it is in the metadata, and the timestamps of writes, in
microseconds.

Invariant: each is above every one that this node gave before, also before a restart, whatever its wall clock
does; as long as nothing forces them apart it is what the clock shows. None is given at or above the bound in
the file, which is durable before it counts; so a node that starts goes on from the bound. A mutation id is
given once: its boot generation is durable before the first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from lockstep.runtime.ports import Runtime
from lockstep.values.codec import UNREADABLE, decoder, encode, frame_record, scan_records
from lockstep.values.errors import CorruptFile, DiskRefused, LockstepError
from lockstep.values.ids import mutation_id
from lockstep.values.node_limits import (
    STAMPS_BEHIND_MAX_US,
    STAMPS_CAUGHT_UP_MS,
    STAMPS_KEPT_BACK_US,
    STAMPS_RENEWED_BELOW_US,
    STAMPS_RESERVED_US,
    STAMPS_RETRY_MS,
)

STAMPS_PATH: Final = "stamps"
_NEW_PATH: Final = "stamps.new"
_RECORD_BYTES_MAX: Final = 1024
_LOOK_MS: Final = 5


class Reservation(msgspec.Struct, frozen=True, array_like=True):
    """What is stored: every timestamp given so far is below `bound_us`."""

    bound_us: int


_DECODER = decoder(Reservation)


class Stamps:
    """`load` comes first. In a clean stop `release` gives back what was reserved in vain."""

    def __init__(self, runtime: Runtime, log: Callable[..., None]) -> None:
        self._runtime = runtime
        self._wall_us = runtime.clock.wall_us
        self._log = log
        self._last_us = 0
        #: Durable; nothing at or above it is given.
        self._bound_us = 0
        self._reserving = False

    @property
    def ahead_us(self) -> int:
        """How far the timestamps are ahead of the wall clock, because that was set back."""
        return max(0, self._last_us - self._wall_us())

    async def load(self) -> None:
        """Go on from what the file says. Waits until the clock has passed what a crash left reserved, unless
        it is so far behind that it was set back. CorruptFile, DiskRefused."""
        self._last_us = self._stored_us()
        await self._save(max(self._wall_us(), self._last_us) + STAMPS_RESERVED_US)
        ahead_us = self.ahead_us
        if 0 < ahead_us <= STAMPS_RESERVED_US:
            await asyncio.sleep(ahead_us / 1e6)

    def next_us(self) -> int:
        """The next timestamp. DiskRefused when the disk has not taken a reservation for so long that none is
        left."""
        wall_us = self._wall_us()
        stamp_us = max(self._last_us + 1, min(wall_us, self._bound_us - STAMPS_KEPT_BACK_US))
        if stamp_us >= self._bound_us:
            raise DiskRefused("the disk does not store which timestamps this node may give")
        self._last_us = stamp_us
        if stamp_us > self._bound_us - STAMPS_RENEWED_BELOW_US and not self._reserving:
            self._reserving = True
            self._runtime.tasks.spawn(self._reserve(), "stamps.reserve")
        self._runtime.probes.observe("stamp.given", stamp_us=stamp_us)
        return stamp_us

    @property
    def is_behind(self) -> bool:
        """Whether the next timestamp would be behind the clock: after a time without any, until more is
        reserved."""
        wall_us = self._wall_us()
        return max(self._last_us + 1, self._bound_us - STAMPS_KEPT_BACK_US) < wall_us

    async def present(self) -> None:
        """Returns when timestamps are those of the clock, or little behind it. DiskRefused when the disk does
        not store so many that what is written now would be older than what others wrote long before."""
        if not self.is_behind:
            return
        stamp_us = await self.caught_up_us()
        if self._wall_us() - stamp_us > STAMPS_BEHIND_MAX_US:
            raise DiskRefused("the disk does not store which timestamps this node may give")

    async def caught_up_us(self) -> int:
        """The next timestamp, once enough is reserved that it is not behind the clock; a slow disk is waited
        for at most STAMPS_CAUGHT_UP_MS, so it may be behind."""
        wall_us, stamp_us = self._wall_us(), self.next_us()
        for _ in range(STAMPS_CAUGHT_UP_MS // _LOOK_MS):
            if stamp_us >= wall_us:
                break
            await asyncio.sleep(_LOOK_MS / 1000)
            stamp_us = self.next_us()
        return stamp_us

    async def release(self) -> None:
        """Give none any more; who starts next need not wait, if the disk lets that be written."""
        if self._bound_us:
            self._bound_us = 0
            try:
                await self._write(self._last_us + 1)
            except (LockstepError, OSError) as error:
                self._log("stamps.not_released", error=str(error))

    # -- the file ---------------------------------------------------------------------------------

    def _stored_us(self) -> int:
        disk = self._runtime.disk
        if not disk.exists(STAMPS_PATH):
            return 0
        data = disk.read(STAMPS_PATH)
        bodies = [body for _, body in scan_records(STAMPS_PATH, data, record_bytes_max=_RECORD_BYTES_MAX)]
        if len(bodies) != 1:
            raise CorruptFile(STAMPS_PATH, 0, "it does not hold one whole record")
        try:
            return _DECODER.decode(bodies[0]).bound_us
        except UNREADABLE as error:
            raise CorruptFile(STAMPS_PATH, 0, f"it cannot be read: {error}") from error

    async def _reserve(self) -> None:
        try:
            while True:
                try:
                    await self._save(max(self._wall_us(), self._last_us) + STAMPS_RESERVED_US)
                    return
                except (LockstepError, OSError) as error:
                    self._log("stamps.not_reserved", error=str(error))
                    await asyncio.sleep(STAMPS_RETRY_MS / 1000)
        finally:
            self._reserving = False

    async def _save(self, bound_us: int) -> None:
        await self._write(bound_us)
        self._bound_us = max(self._bound_us, bound_us)

    async def _write(self, bound_us: int) -> None:
        """Durable on return; a crash leaves the old bound or the new one."""
        disk = self._runtime.disk
        if disk.exists(_NEW_PATH):
            disk.remove(_NEW_PATH)
        await disk.append_synced(_NEW_PATH, frame_record(encode(Reservation(bound_us))))
        disk.rename(_NEW_PATH, STAMPS_PATH)
        self._runtime.probes.reach("stamps.renamed")
        await disk.sync_names("")


class MutationIds:
    def __init__(self, own_id: Callable[[], int], generation: int) -> None:
        self._own_id = own_id
        self._generation = generation
        self._sequence = 0

    def new(self) -> bytes:
        self._sequence += 1
        return mutation_id(self._own_id(), self._generation, self._sequence)
