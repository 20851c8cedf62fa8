"""What commands do to a node that is stopped, in its data directory."""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.node.configuration import parse
from lockstep.node.recovering import DAMAGED_DIRECTORY, Recoverable, recover_store, survey
from lockstep.runtime.ports import Runtime
from lockstep.runtime.real import claim, real_runtime, run
from lockstep.storage.store import STORE_DIRECTORY, Store
from lockstep.storage.store_position import Lack


def recover_stopped(
    file: Path, *, accept_data_loss: bool, keep_readable: bool, dry_run: bool
) -> tuple[Recoverable, tuple[Lack, ...]]:
    """Give up the store of the node that `file` configures, or what cannot be read of it: what it lacks then.

    PreconditionError when it runs, when it is no member of a cluster, when something would be lost for good
    that nobody accepts, or when what cannot be read are records of the node itself.
    """
    directory = parse(file.read_text(), os.environ, source=str(file)).node.data_directory
    held = claim(directory)
    try:
        return run(lambda: _recover(directory, accept_data_loss, keep_readable, dry_run))
    finally:
        os.close(held)


async def _recover(
    directory: str, accept_data_loss: bool, keep_readable: bool, dry_run: bool
) -> tuple[Recoverable, tuple[Lack, ...]]:
    runtime = real_runtime(directory)

    async def open_store(_runtime: Runtime) -> Store:
        # The store's library takes some time to load.
        from lockstep.storage.rocks.rocks import open_rocks_store

        return await open_rocks_store(os.path.join(directory, STORE_DIRECTORY), runtime.tasks)

    found = survey(runtime)
    lacks: tuple[Lack, ...] = ()
    if not dry_run:
        from lockstep.storage.rocks.rocks_errors import Salvage

        old = Salvage(os.path.join(directory, DAMAGED_DIRECTORY)) if keep_readable else None
        lacks = await recover_store(runtime, found, open_store, accept_data_loss=accept_data_loss, old=old)
    return found, lacks
