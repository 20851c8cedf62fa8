"""Getting a transformation into the log from any node.

Invariants: one submission keeps one entry id over all its retries, so it is applied at most once; when the
deadline passes and some attempt may have been appended, OutcomeUnknown is raised, never a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.metadata.registry import Registry
from lockstep.node.catch_up import CatchUp
from lockstep.node.messages import Submit, Submitted
from lockstep.node.metadata_state import MetadataState
from lockstep.node.processor import Processor
from lockstep.replication import verbs
from lockstep.replication.handshake import Address
from lockstep.replication.internode import Internode
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import encode
from lockstep.values.errors import (
    LockstepError,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    PeerTimeout,
    PeerUnreachable,
)

#: One attempt at one node; an election takes about as long.
ATTEMPT_TIMEOUT_MS = 2000
#: Pause between rounds over all voters: well below an election, and no busy loop.
RETRY_PAUSE_MS = (20, 120)


class Submitter:
    """`voters()` gives the addresses to try, the likeliest leader first."""

    def __init__(
        self,
        runtime: Runtime,
        state: MetadataState,
        internode: Internode,
        catch_up: CatchUp,
        registry: Registry,
        *,
        own_address: Address,
        voters: Callable[[], Sequence[Address]],
        actor: Callable[[], str],
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._internode = internode
        self._catch_up = catch_up
        self._registry = registry
        self._own = own_address
        self._voters = voters
        self._actor = actor
        self.processor: Processor | None = None
        internode.register(verbs.SUBMIT, Submit, Submitted, self._serve)

    async def _serve(self, _peer: object, submit: Submit) -> Submitted:
        if self.processor is None:
            raise NotLeader(None)
        return Submitted(await self.processor.submit(submit))

    async def submit(self, transformation: Any, timeout_ms: int, *, entry_id: bytes = b"") -> int:
        """Epoch of the committed entry, applied here on return.

        Rejected: judged and refused. OutcomeUnknown: it may be in the log (retry with the same
        `entry_id` to find out). PeerUnreachable: no attempt reached any voter.
        """
        submit = Submit(
            entry_id or self._runtime.random.bytes(16),
            self._registry.kind_of(transformation),
            encode(transformation),
            self._actor(),
            self._state.epoch,
        )
        deadline = self._runtime.clock.monotonic_s() + timeout_ms / 1000
        attempts = _Attempts()
        while self._runtime.clock.monotonic_s() < deadline:
            for address in self._voters():
                epoch = await self._attempt(address, submit, attempts)
                if epoch is not None:
                    await self._applied_here(epoch, address, deadline)
                    return epoch
            await self._pause()
        raise attempts.verdict(timeout_ms)

    async def _attempt(self, address: Address, submit: Submit, attempts: _Attempts) -> int | None:
        try:
            if address == self._own and self.processor is not None:
                return await self.processor.submit(submit)
            reply: Submitted = await self._internode.request(
                address, verbs.SUBMIT, submit, ATTEMPT_TIMEOUT_MS
            )
        except (PeerUnreachable, Overloaded) as error:
            attempts.nothing_sent(error)
            return None
        except (NotLeader, PeerTimeout) as error:
            attempts.unknown(error)
            return None
        return reply.epoch

    async def _applied_here(self, epoch: int, source: Address, deadline: float) -> None:
        left_ms = max(1, int((deadline - self._runtime.clock.monotonic_s()) * 1000))
        if source == self._own:
            await self._state.wait_for(epoch)
        else:
            await self._catch_up.reach(epoch, source, left_ms)

    async def _pause(self) -> None:
        low, high = RETRY_PAUSE_MS
        await asyncio.sleep((low + self._runtime.random.below(high - low)) / 1000)


class _Attempts:
    """What is known of a submission after some attempts."""

    def __init__(self) -> None:
        self._maybe_appended = False
        self._last: LockstepError | None = None

    def nothing_sent(self, error: LockstepError) -> None:
        self._last = error

    def unknown(self, error: LockstepError) -> None:
        self._maybe_appended = True
        self._last = error

    def verdict(self, timeout_ms: int) -> LockstepError:
        if self._maybe_appended:
            return OutcomeUnknown(
                f"no metadata leader answered within {timeout_ms} ms; the change may be in the log",
                hint="lockstep cms log",
            )
        return PeerUnreachable(
            f"no voter of the metadata group could be reached within {timeout_ms} ms: {self._last}",
            hint="lockstep status",
        )
