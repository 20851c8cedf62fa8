"""Giving up the store of a stopped node, in one go or cut off."""

from __future__ import annotations

import asyncio
from contextlib import closing

import msgspec
import pytest

from lockstep.node.recovery.store import (
    DAMAGED_DIRECTORY,
    RECOVERY_PATH,
    Recoverable,
    recover_store,
    refuse_half_recovered,
)
from lockstep.runtime.ports import Runtime
from lockstep.runtime.real.family import RealClock
from lockstep.storage.engine import StorageEngine
from lockstep.storage.model import open_model_store
from lockstep.storage.store import STORE_DIRECTORY, Store
from lockstep.storage.store_position import Lacking, generation_of
from lockstep.values.errors import CorruptFile, PreconditionError, RangeLacking
from lockstep.values.tokens import Range
from tests.storage.support import runtime_of as storage_runtime

FOUND = Recoverable(node=2, address="n2", cluster_name="c", epoch=9, starts=3, alone=(), elsewhere=("k",))


def runtime_of() -> Runtime:
    return msgspec.structs.replace(storage_runtime(), clock=RealClock())


async def open_store(runtime: Runtime) -> Store:
    return await open_model_store(runtime.disk, STORE_DIRECTORY)


async def with_content(runtime: Runtime) -> None:
    with closing(await open_store(runtime)) as store:
        store.write([("put", b"key", b"value")])
        await store.sync()


def test_what_takes_its_place_lacks_everything_and_counts_in_new_shards() -> None:
    async def body() -> None:
        runtime = runtime_of()
        await with_content(runtime)
        await recover_store(runtime, FOUND, open_store, accept_data_loss=False)
        refuse_half_recovered(runtime.disk)
        engine = StorageEngine(await open_store(runtime), runtime)
        lacking = Lacking(engine)
        with pytest.raises(RangeLacking):
            lacking.require(1, Range(-5, 5))
        assert generation_of(engine) == 4 << 32 > 3 << 32
        assert runtime.disk.names(DAMAGED_DIRECTORY) == ["log-0"]

    asyncio.run(body())


def test_one_that_was_cut_off_is_known_and_begun_again() -> None:
    async def body() -> None:
        runtime = runtime_of()
        await with_content(runtime)

        async def fails(_runtime: Runtime) -> Store:
            runtime.disk.append(f"{STORE_DIRECTORY}/log-0", b"begun")
            raise PreconditionError("the process ends here")

        with pytest.raises(PreconditionError):
            await recover_store(runtime, FOUND, fails, accept_data_loss=False)
        assert runtime.disk.exists(RECOVERY_PATH)
        with pytest.raises(CorruptFile, match="its recovery has not ended"):
            refuse_half_recovered(runtime.disk)
        kept = runtime.disk.read(f"{DAMAGED_DIRECTORY}/log-0")
        await recover_store(runtime, FOUND, open_store, accept_data_loss=False)
        refuse_half_recovered(runtime.disk)
        assert runtime.disk.read(f"{DAMAGED_DIRECTORY}/log-0") == kept != b"begun"

    asyncio.run(body())


def test_the_only_replica_is_not_given_up_unasked() -> None:
    async def body() -> None:
        runtime = runtime_of()
        await with_content(runtime)
        alone = Recoverable(2, "n2", "c", 9, 3, ("k",), ())
        before = runtime.disk.read(f"{STORE_DIRECTORY}/log-0")
        with pytest.raises(PreconditionError, match="no other node has all ranges of k"):
            await recover_store(runtime, alone, open_store, accept_data_loss=False)
        assert runtime.disk.read(f"{STORE_DIRECTORY}/log-0") == before
        await recover_store(runtime, alone, open_store, accept_data_loss=True)
        assert [
            lack.given_up for lack in Lacking(StorageEngine(await open_store(runtime), runtime)).current
        ] == [True]

    asyncio.run(body())
