"""Logged batches at their coordinator: what comes before anything is written, and what after."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.handoff.batch_store import ForgetBatch, KeepBatch
from lockstep.handoff.batches import Batches, open_outcome
from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.quorum.plans import PlanBook
from lockstep.quorum.round import Target
from lockstep.values.codec import decoder
from lockstep.values.errors import (
    ColumnsGone,
    InvalidRequest,
    LockstepError,
    Overloaded,
    PeerUnreachable,
    Unavailable,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import Consistency
from lockstep.values.rows import Mutation

from .clusters import upsert, whole_ring
from .support import RecordingProbes, run

ONE, QUORUM, ANY = Consistency.ONE, Consistency.QUORUM, Consistency.ANY
CHANGES = [upsert(token, b"a", b"x", 1, token) for token in (1, 2)]
DECODER = decoder(KeepBatch)


class Quiet:
    def note(self, *_: Any, **__: Any) -> None:
        return


class Office:
    """Node 1 of a cluster. Others keep batches unless they are in `refuse`; writes end as `ends` says."""

    def __init__(self, cluster: ClusterMetadata | None = None, dead: Sequence[int] = ()) -> None:
        self.cluster = cluster or whole_ring(5, [1, 2, 3])
        self.probes = RecordingProbes()
        self.said: list[tuple[str, Any]] = []
        self.ends: list[BaseException | None] = []
        self.refuse: set[str] = set()
        self.admits = True
        plans = PlanBook(lambda: self.cluster, lambda: 1)
        opinions = SimpleNamespace(alive=lambda node: node not in dead)
        runtime = SimpleNamespace(
            clock=SimpleNamespace(wall_us=lambda: 77, monotonic_s=lambda: 100.0),
            random=SimpleNamespace(bytes=bytes),
            probes=self.probes,
            tasks=SimpleNamespace(spawn=lambda work, name: asyncio.get_running_loop().create_task(work)),
        )
        internode = SimpleNamespace(submit=self._submit, send=self._send, repeated_log=Quiet())
        context: Any = SimpleNamespace(
            runtime=runtime,
            internode=internode,
            plans=plans,
            own_id=lambda: 1,
            alive=opinions.alive,
            opinions=opinions,
        )
        writes: Any = SimpleNamespace(plans=plans, admit=self._admit, begin=self._begin)
        store: Any = SimpleNamespace(
            keep=self._keep, forget=lambda batch: self.said.append(("forget 1", batch))
        )
        self.batches = Batches(context, writes, store)

    def _admit(self) -> None:
        if not self.admits:
            raise Overloaded("full")

    async def _keep(self, batch: KeepBatch) -> None:
        self.said.append(("keep 1", batch))
        if "n1" in self.refuse:
            raise Overloaded("full")

    def _submit(
        self, address: Any, verb: int, body: bytes, deadline_s: float, waiter: Any, context: Target
    ) -> None:
        assert verb == verbs.BATCH_KEEP and deadline_s == 101.0
        self.said.append((f"keep {address[0][1:]}", DECODER.decode(body)))
        loop = asyncio.get_running_loop()
        if address[0] in self.refuse:
            loop.call_soon(waiter.failed, context, PeerUnreachable("away"))
        else:
            loop.call_soon(waiter.replied, context, None, 5)

    def _send(self, address: Any, verb: int, batch: ForgetBatch) -> None:
        assert verb == verbs.BATCH_FORGET
        self.said.append((f"forget {address[0][1:]}", batch))

    def _begin(
        self, mutation: Mutation, consistency: Consistency, timeout_ms: float, kind: str
    ) -> asyncio.Future[None]:
        assert kind == "BATCH" and timeout_ms == 1000.0
        self.said.append(("write", mutation))
        end = self.ends.pop(0) if self.ends else None
        if type(end) is InvalidRequest:
            raise end
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if end is None:
            future.set_result(None)
        else:
            future.set_exception(end)
        return future

    async def write(self, consistency: Consistency = QUORUM) -> list[str]:
        await self.batches.write(CHANGES, consistency, 1000.0)
        return self.what()

    def what(self) -> list[str]:
        return [what for what, _ in self.said]


def test_two_others_keep_the_batch_before_it_is_written_and_forget_it_afterwards() -> None:
    async def test() -> None:
        office = Office()
        said = await office.write()
        assert sorted(said[:2]) == ["keep 2", "keep 3"] and said[2:4] == ["write", "write"]
        assert sorted(said[4:]) == ["forget 2", "forget 3"]
        kept, forgotten = office.said[0][1], office.said[-1][1]
        assert (kept.mutations, kept.created_us, len(kept.batch_id)) == (tuple(CHANGES), 77, 16)
        assert forgotten == ForgetBatch(kept.batch_id, 77)
        assert office.probes.reached == ["batches.logged", "batches.written"]

    run(test)


def test_this_node_keeps_it_where_another_one_does_not() -> None:
    async def test() -> None:
        office = Office()
        office.refuse = {"n2"}
        said = await office.write()
        assert sorted(said[:3]) == ["keep 1", "keep 2", "keep 3"]
        assert sorted(said[5:]) == ["forget 1", "forget 2", "forget 3"], "who may have it, too"

    run(test)


def test_alone_it_keeps_it_alone() -> None:
    async def test() -> None:
        office = Office(whole_ring(5, [1]))
        assert await office.write(ONE) == ["keep 1", "write", "write", "forget 1"]
        [holder] = await office.batches._keep(KeepBatch(b"id", 1, ()), ONE, 101.0)
        assert (holder.node, holder.address, holder.dc) == (1, ("n1", 1), "dc1")

    run(test)


def test_nothing_is_kept_that_could_not_be_written() -> None:
    async def test() -> None:
        for office, error in ((Office(dead=(2, 3)), Unavailable), (Office(), Overloaded)):
            office.admits = error is not Overloaded
            with pytest.raises(error):
                await office.write()
            assert office.said == []
        far = Office(dead=(2, 3))
        assert await far.write(ANY), "hints do"

    run(test)


def test_where_too_few_keep_it_nothing_is_written_and_all_are_told_to_forget_it() -> None:
    async def test() -> None:
        office = Office()
        office.batches._runtime.clock.monotonic_s = lambda: 100.9995  # type: ignore[method-assign]
        office.refuse = {"n1", "n2"}
        with pytest.raises(WriteTimeout) as late:
            await office.batches.write(CHANGES, QUORUM, 0.5)
        assert (late.value.write_type, late.value.received, late.value.required) == ("BATCH_LOG", 1, 2)
        assert "write" not in office.what()
        assert sorted(office.what())[:3] == ["forget 1", "forget 2", "forget 3"]
        assert office.probes.reached[-1] == "batches.log_failed"

    run(test)


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([None, WriteTimeout(QUORUM, 1, 2, "BATCH")], WriteTimeout),
        ([WriteFailure(QUORUM, 1, 2, 1, "BATCH"), None], WriteFailure),
        ([InvalidRequest("the table is gone"), None], WriteTimeout),
        ([None, Overloaded("full")], WriteTimeout),
        ([WriteFailure(QUORUM, 1, 2, 1, "BATCH"), WriteTimeout(QUORUM, 1, 2, "BATCH")], WriteFailure),
        ([None, ValueError("a defect")], ValueError),
    ],
)
def test_once_it_is_kept_it_is_not_forgotten_for_an_error_which_says_that_it_will_be_written(
    ends: list[BaseException | None], told: type[BaseException]
) -> None:
    async def test() -> None:
        office = Office()
        office.ends = list(ends)
        with pytest.raises(told):
            await office.write()
        assert office.what()[2:] == ["write", "write"], "all are begun, and nobody is told to forget"

    run(test)


def test_columns_that_are_gone_have_the_whole_batch_begun_anew() -> None:
    async def test() -> None:
        office = Office()
        office.ends = [WriteTimeout(QUORUM, 1, 2, "BATCH"), ColumnsGone("t", begun=False)]
        with pytest.raises(ColumnsGone) as gone:
            await office.write()
        assert gone.value.begun

    run(test)


def test_an_error_of_one_part_leaves_the_outcome_of_the_batch_open() -> None:
    timeout: LockstepError = WriteTimeout(QUORUM, 1, 2, "BATCH")
    assert open_outcome(timeout, QUORUM) is timeout
    told = open_outcome(Overloaded("full"), QUORUM)
    assert isinstance(told, WriteTimeout) and "part of the batch: full" in told.message
    assert (told.received, told.required, told.write_type, told.consistency) == (0, 1, "BATCH", QUORUM)
