"""The process of one node: `python -m lockstep.server.main --config FILE`.

Invariant: standard output holds one line, `ready {json}`, written when clients can connect; everything else
goes to standard error. An operator's mistake ends as `error[CODE]: sentence`, never as a traceback.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lockstep.node.configuration import Configuration, parse
from lockstep.node.node import Node
from lockstep.node.processors.kinds import BUILT_IN, ENTRY_POINT_GROUP, RAFT, Factory, from_entry_points
from lockstep.runtime.ports import Runtime
from lockstep.runtime.real import (
    ConfinedWorkers,
    HelperProcesses,
    claim,
    keep_private,
    read_secret,
    real_runtime,
    require_free,
    require_usable,
    run,
)
from lockstep.server.admin_door import serve_admin
from lockstep.server.admin_token import checked
from lockstep.server.cql_server import CqlServer
from lockstep.server.log import LineLog
from lockstep.server.user_functions import WORKERS_HANDLER
from lockstep.storage.rocks_building import BUILD_HANDLER, BUILD_PACKAGES
from lockstep.storage.store import STORE_DIRECTORY, Store
from lockstep.values.errors import CannotApply, ConfigurationError, LockstepError
from lockstep.values.limits import DRAIN_BY_SIGNAL_MS

USAGE: Final = "usage: python -m lockstep.server.main --config FILE"
#: Objects made and not freed before the youngest are searched for cycles: several hundred requests in flight.
OBJECTS_BETWEEN_COLLECTIONS: Final = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until it is told to stop; the exit code."""
    try:
        configuration = read_configuration(sys.argv[1:] if arguments is None else arguments)
        return _run_alone(configuration)
    except LockstepError as error:
        print(error.render(), file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def read_configuration(arguments: Sequence[str]) -> Configuration:
    """The configuration that the command line names. ConfigurationError when there is none."""
    if len(arguments) != 2 or arguments[0] != "--config":
        raise ConfigurationError("one argument is needed: --config FILE", hint=USAGE)
    file = Path(arguments[1])
    try:
        text = file.read_text()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not text: {error}") from error
    return parse(text, os.environ, source=str(file))


def _run_alone(configuration: Configuration) -> int:
    """Claim the directory and see that ports and certificates can be used, before anything is written."""
    keep_private()
    network = configuration.network
    for port in (network.internode_port, network.cql_port):
        require_free(network.address, port)
    require_free(configuration.admin_host, network.admin_port)
    for tls in (configuration.tls.files, configuration.tls.internode_files):
        if tls is not None:
            require_usable(tls)
    token_file = configuration.admin.token_file
    token = checked(read_secret(token_file, "admin.token_file"), token_file) if token_file else ""
    held = claim(configuration.node.data_directory)
    try:
        return run(lambda: _serve(configuration, token))
    finally:
        os.close(held)


async def _serve(configuration: Configuration, token: str) -> int:
    functions = configuration.functions
    workers = (
        ConfinedWorkers(WORKERS_HANDLER, unfiltered=functions.unfiltered_workers_allowed)
        if functions.user_defined_functions_enabled
        else None
    )
    helpers = HelperProcesses(BUILD_HANDLER, *BUILD_PACKAGES)
    runtime = real_runtime(
        configuration.node.data_directory,
        archive=configuration.metadata.archive_directory,
        workers=workers,
        helpers=helpers,
    )
    log = LineLog(runtime.clock, configuration.log.level, configuration.log.format)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: log("task.fault", **_described(context)))
    path = os.path.join(configuration.node.data_directory, STORE_DIRECTORY)
    processors = _installed_processors(configuration.cms.processor)
    node = Node(runtime, configuration, lambda _runtime: _open_store(path, runtime), log, processors)
    life = asyncio.current_task()
    assert life is not None, "the process runs as one task"
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, life.cancel)
    # A signal while the node starts ends it there, with nothing left running.
    try:
        await node.start()
    except asyncio.CancelledError:
        return 0
    stop: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _set, stop)
    try:
        return await _serve_clients(node, runtime, token, stop)
    finally:
        if workers is not None:
            await workers.stop()
        await helpers.stop()
        await node.stop()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _installed_processors(kind: str) -> dict[str, Factory]:
    """What other distributions bring of this kind; looked for only when it is not one of ours."""
    if kind == RAFT or kind in BUILT_IN:
        return {}
    from importlib.metadata import entry_points

    return from_entry_points(entry_points(group=ENTRY_POINT_GROUP), kind)


async def _open_store(path: str, runtime: Runtime) -> Store:
    # The store's library takes some time to load: only a node that gets this far pays for it.
    from lockstep.storage.rocks import open_rocks_store
    from lockstep.storage.rocks_keeping import KeptFiles

    return await open_rocks_store(path, runtime.tasks, kept=KeptFiles(runtime.disk, STORE_DIRECTORY))


async def _serve_clients(node: Node, runtime: Runtime, token: str, stop: asyncio.Future[None]) -> int:
    """Open the doors, wait for the end, close them; the exit code."""
    server = CqlServer(node, runtime)
    # The clients' door is the last to open: whoever finds it open finds the others open too.
    admin = await serve_admin(node, server, token)
    try:
        await server.start()
        _spare_the_collector()
        _say_ready(node)
        return await _until_the_end(node, server, stop)
    finally:
        admin.close()
        await server.draining.drain(DRAIN_BY_SIGNAL_MS)


def _spare_the_collector() -> None:
    """What the start has made stays, so the cycle collector need not look at it again, nor often at the
    rest: requests are freed by their reference counts."""
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)


def _say_ready(node: Node) -> None:
    import json

    network = node.configuration.network
    facts = {
        "node": node.node_id,
        "host_id": node.identity.value.host_id,
        "address": network.address,
        "cql_port": network.cql_port,
        "admin_port": network.admin_port,
        "epoch": node.cluster.epoch,
        "pid": os.getpid(),
    }
    print(f"ready {json.dumps(facts)}", flush=True)


async def _until_the_end(node: Node, server: CqlServer, stop: asyncio.Future[None]) -> int:
    """0 when told to stop or when the node has left; the error's exit code when it broke.

    A node that cannot apply an entry serves no client and votes no more, but answers operators until it is
    told to stop: only an upgrade helps, and status says so.
    """
    broken = node.broken
    assert broken is not None, "the node has started"
    await asyncio.wait((broken, stop), return_when=asyncio.FIRST_COMPLETED)
    if not broken.done():
        return 0
    error = broken.result()
    print(error.render(), file=sys.stderr, flush=True)
    if isinstance(error, CannotApply):
        await server.draining.drain(DRAIN_BY_SIGNAL_MS)
        await stop
    return 0 if node.has_left else error.exit_code


def _described(context: dict[str, object]) -> dict[str, object]:
    error = context.get("exception")
    if isinstance(error, BaseException):
        import traceback

        return {
            "message": context.get("message"),
            "error": f"{type(error).__name__}: {error}",
            "trace": "".join(traceback.format_exception(error)),
        }
    return {"message": context.get("message")}


if __name__ == "__main__":
    sys.exit(main())
