"""The process of one node, `python -m lockstep.server.main --config FILE`, and its admin port: it listens at
once and loads the API with the first connection.

Invariant: standard output holds one line, `ready {json}`, written when clients can connect; everything else
goes to the log, on standard error or in a file. An operator's mistake ends as `error[CODE]: sentence`, never
as a traceback; where the log is JSON, every line is, also of what ends the start. A node that nobody
administers pays for a listening socket only.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import signal
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep import __version__
from lockstep.node.configuration import Configuration, parse, with_join_secret
from lockstep.node.node import Node
from lockstep.node.processors.kinds import BUILT_IN, ENTRY_POINT_GROUP, RAFT, Factory, from_entry_points
from lockstep.node.services import NodeServices
from lockstep.node.settings import AuditSection, LogSection, masked
from lockstep.node.work.condition_watches import watch_certificates
from lockstep.runtime.ports import Helpers, Runtime, Server, Tls
from lockstep.runtime.real import (
    CHECK_HANDLER,
    CHECK_PACKAGES,
    Certificate,
    ConfinedWorkers,
    DoorProcesses,
    HelperProcesses,
    RealClock,
    RotatingFile,
    claim,
    facts_of,
    keep_private,
    own_certificate,
    read_secret,
    real_runtime,
    refuse_ended,
    require_free,
    require_usable,
    route_diagnostics,
    run,
)
from lockstep.scans.session_files import DOOR_HANDLER, DOOR_PACKAGES
from lockstep.server.admin.admin_access import checked, own_token
from lockstep.server.cql.cql_server import CqlServer
from lockstep.server.log import LineLog
from lockstep.server.reports.leader_views import serve_live
from lockstep.server.reports.tablet_plans import serve_plans
from lockstep.server.statements.user_functions import WORKERS_HANDLER
from lockstep.storage.rocks.rocks_building import BUILD_HANDLER, BUILD_PACKAGES
from lockstep.storage.store import STORE_DIRECTORY, Store
from lockstep.values.errors import CannotApply, ConfigurationError, LockstepError, NodeRestarting
from lockstep.values.limits import DRAIN_BY_SIGNAL_MS
from lockstep.values.node_limits import DRAIN_BY_RESTART_MS

if TYPE_CHECKING:
    from lockstep.server.admin.api import Admin


class AdminDoor:
    """Made by `serve_admin`."""

    def __init__(self, node: NodeServices, cql: CqlServer, token: str) -> None:
        self._node = node
        self._cql = cql
        self._token = token
        self._admin: Admin | None = None
        self.server: Server | None = None

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            from lockstep.server.admin.admin_access import AdminAccess
            from lockstep.server.admin.api import Admin

            settings, cql = self._node.context.configuration, self._cql
            access = AdminAccess(
                settings.admin, settings.admin_host, self._token, cql.authentication, cql.permits
            )
            self._admin = Admin(self._node, cql, access)
        return self._admin

    def connection(self) -> asyncio.Protocol:
        return self.admin.connection()

    def live(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """What this node knows by itself, for other nodes."""
        return self.admin.live()

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        if self._admin is not None:
            self._admin.close()


async def serve_admin(node: NodeServices, cql: CqlServer, token: str = "") -> AdminDoor:
    """Open the admin port of a node; an empty `token` stands for the one in its data directory.
    ConfigurationError when the address is in use, or the token unreadable."""
    configuration = node.context.configuration
    door = AdminDoor(node, cql, token or await own_token(node.context.runtime))
    serve_live(node, door.live)
    serve_plans(node)
    tls = configuration.tls.files
    # Whoever asks shows a token or a password, so it shows no certificate.
    shown = Tls(tls.certificate, tls.key) if tls is not None else None
    door.server = await node.context.runtime.network.listen(
        configuration.admin_host, configuration.network.admin_port, door.connection, shown
    )
    return door


USAGE: Final = "usage: python -m lockstep.server.main --config FILE"
#: Objects made and not freed before the youngest are searched for cycles: several hundred requests in flight.
OBJECTS_BETWEEN_COLLECTIONS: Final = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until it is told to stop; the exit code."""
    keep_private()
    given = sys.argv[1:] if arguments is None else arguments
    said = Said(early_format(given))
    route_diagnostics(said.log)
    try:
        configuration = read_configuration(given)
        said = Said(configuration.log.format, open_log(configuration.log), configuration.log.file)
        route_diagnostics(said.log)
        return _run_alone(configuration, said)
    except LockstepError as error:
        said.ended(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        said.log("process.fault", **facts_of(error))
        return 1


class Said:
    """What the process says: `log` takes events; standard error is told of an end as well, in the log's
    format, for whoever started the process reads that."""

    def __init__(self, form: str, log: LineLog | None = None, file: str = "") -> None:
        self._form = form
        self._console = LineLog(RealClock(), "info", form)
        self.log = log if log is not None else self._console
        self._logs = [self.log] if file else []

    def ended(self, error: LockstepError) -> None:
        """Why the node did not start, or does not go on."""
        for log in [*self._logs, self._console] if self._form == "json" else self._logs:
            log("node.start_failed", code=error.code, message=error.message, hint=error.hint)
        if self._form == "text":
            print(error.render(), file=sys.stderr, flush=True)


def early_format(arguments: Sequence[str]) -> str:
    """The log's format before the configuration was read: what it asks for, as far as can be told."""
    wanted = os.environ.get("LOCKSTEP_LOG_FORMAT")
    if wanted is None and arguments:
        try:
            text = Path(arguments[-1]).read_text()
            # Most files do not say it, and are parsed once only.
            wanted = tomllib.loads(text)["log"]["format"] if "json" in text else ""
        except (OSError, ValueError, KeyError, TypeError):
            wanted = ""  # whatever is wrong is told when the configuration is read
    return "json" if wanted == "json" else "text"


def open_log(settings: LogSection) -> LineLog:
    """Where the node's events go. ConfigurationError when its file cannot be written."""
    file = _rotating(settings, settings.file, "log.file") if settings.file else None
    return LineLog(RealClock(), settings.level, settings.format, file)


def open_audit(configuration: Configuration) -> RotatingFile | None:
    """The audit file; None: audit is off. ConfigurationError when it cannot be written."""
    settings = configuration.audit
    if not settings.enabled:
        return None
    path = settings.file or os.path.join(configuration.node.data_directory, "audit.log")
    return _rotating(settings, path, "audit.file")


def _rotating(settings: LogSection | AuditSection, path: str, key: str) -> RotatingFile:
    try:
        return RotatingFile(path, settings.rotate_bytes, settings.rotate_files)
    except OSError as error:
        raise ConfigurationError(f"{key}: {path} cannot be written: {error.strerror}") from error


def banner(log: LineLog, configuration: Configuration) -> None:
    """What starts, and with which settings."""
    log(
        "node.starting",
        version=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processors=os.cpu_count(),
        pid=os.getpid(),
    )
    for section, settings in masked(msgspec.to_builtins(configuration)).items():
        log("node.settings", **{f"{section}.{key}": value for key, value in settings.items()})


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
    configuration = parse(text, os.environ, source=str(file))
    secret_file = configuration.cluster.join_secret_file
    if not secret_file:
        return configuration
    return with_join_secret(configuration, read_secret(secret_file, "cluster.join_secret_file"))


def _run_alone(configuration: Configuration, said: Said) -> int:
    """Claim the directory and see that ports and certificates can be used, before anything is written."""
    network = configuration.network
    for port in (network.internode_port, network.cql_port):
        require_free(network.address, port)
    require_free(configuration.admin_host, network.admin_port)
    files = (configuration.tls.files, configuration.tls.internode_files)
    certificates = [_certificate(tls) for tls in files if tls is not None]
    token_file = configuration.admin.token_file
    token = checked(read_secret(token_file, "admin.token_file"), token_file) if token_file else ""
    held = claim(configuration.node.data_directory)
    try:
        audit = open_audit(configuration)
        banner(said.log, configuration)
        return run(lambda: _serve(configuration, said, token, audit, certificates))
    finally:
        os.close(held)


def _certificate(tls: Tls) -> Certificate:
    """What this side shows. ConfigurationError when it cannot be used, or not any more."""
    require_usable(tls)
    found = own_certificate(tls)
    refuse_ended(found, RealClock().wall_us())
    return found


async def _serve(
    configuration: Configuration,
    said: Said,
    token: str,
    audit: RotatingFile | None,
    certificates: Sequence[Certificate],
) -> int:
    functions = configuration.functions
    workers = (
        ConfinedWorkers(WORKERS_HANDLER, unfiltered=functions.unfiltered_workers_allowed)
        if functions.user_defined_functions_enabled
        else None
    )
    helpers = HelperProcesses(BUILD_HANDLER, *BUILD_PACKAGES)
    checkers = HelperProcesses(CHECK_HANDLER, *CHECK_PACKAGES)
    doors = DoorProcesses(DOOR_HANDLER, *DOOR_PACKAGES)
    runtime = real_runtime(
        configuration.node.data_directory,
        archive=configuration.metadata.archive_directory,
        workers=workers,
        helpers=helpers,
        doors=doors,
    )
    log = said.log
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: log("task.fault", **_described(context)))
    path = os.path.join(configuration.node.data_directory, STORE_DIRECTORY)
    processors = _installed_processors(configuration.cms.processor)
    node = Node(runtime, configuration, lambda _: _open_store(path, runtime, checkers), log, processors)
    life = asyncio.current_task()
    assert life is not None, "the process runs as one task"
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, life.cancel)
    # A signal while the node starts ends it there, with nothing left running.
    try:
        await _begin_life(node, said, certificates)
    except asyncio.CancelledError:
        return 0
    except BaseException:
        await checkers.stop()
        raise
    stop: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _set, stop)
    try:
        while True:
            server = CqlServer(node.services, runtime, audit.write if audit is not None else None)
            code = await _serve_clients(node, server, said, token, stop)
            if code is not None:
                return code
            await node.stop()
            await _begin_life(node, said, certificates)
    finally:
        if workers is not None:
            await workers.stop()
        await helpers.stop()
        await checkers.stop()
        await doors.close()
        await node.stop()


async def _begin_life(node: Node, said: Said, certificates: Sequence[Certificate]) -> None:
    """Start the node, again when what was decided meanwhile takes another life, and have it know what others
    know before clients come."""
    while True:
        try:
            await node.start()
        except NodeRestarting as error:
            said.log("node.restarting", reason=error.message)
            continue
        if node.broken is None or not node.broken.done():
            await node.membership.membership.hear_news()
        context = node.context
        context.conditions.watch(watch_certificates(context.conditions, context.runtime.clock, certificates))
        return


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _installed_processors(kind: str) -> dict[str, Factory]:
    """What other distributions bring of this kind; looked for only when it is not one of ours."""
    if kind == RAFT or kind in BUILT_IN:
        return {}
    from importlib.metadata import entry_points

    return from_entry_points(entry_points(group=ENTRY_POINT_GROUP), kind)


async def _open_store(path: str, runtime: Runtime, checkers: Helpers) -> Store:
    # The store's library takes some time to load: only a node that gets this far pays for it.
    from lockstep.storage.rocks.rocks import open_rocks_store
    from lockstep.storage.rocks.rocks_building import TableChecker
    from lockstep.storage.rocks.rocks_keeping import KeptFiles

    kept = KeptFiles(runtime.disk, STORE_DIRECTORY)
    return await open_rocks_store(path, runtime.tasks, kept=kept, checker=TableChecker(checkers))


async def _serve_clients(
    node: Node, server: CqlServer, said: Said, token: str, stop: asyncio.Future[None]
) -> int | None:
    """Open the doors, wait for the end, close them; the exit code, None before another life."""
    # The clients' door is the last to open: whoever finds it open finds the others open too.
    admin = await serve_admin(node.services, server, token)
    code: int | None = 0
    try:
        if node.broken is None or not node.broken.done():
            await server.start()
            _spare_the_collector()
            _say_ready(node)
        code = await _until_the_end(node, server, said, stop)
        return code
    finally:
        admin.close()
        await server.draining.drain(DRAIN_BY_SIGNAL_MS if code is not None else DRAIN_BY_RESTART_MS)
        server.audit.stop()


def _spare_the_collector() -> None:
    """What the start has made stays, so the cycle collector need not look at it again, nor often at the
    rest: requests are freed by their reference counts."""
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)


def _say_ready(node: Node) -> None:
    import json

    network = node.configuration.network
    facts = {
        "node": node.context.own_id(),
        "host_id": node.context.identity.value.host_id,
        "address": network.address,
        "cql_port": network.cql_port,
        "admin_port": network.admin_port,
        "epoch": node.log.cluster.epoch,
        "pid": os.getpid(),
    }
    print(f"ready {json.dumps(facts)}", flush=True)


async def _until_the_end(node: Node, server: CqlServer, said: Said, stop: asyncio.Future[None]) -> int | None:
    """0 when told to stop or when the node has left; the error's exit code when it broke; None when it is to
    begin another life.

    A node that cannot apply an entry serves no client and votes no more, but answers operators until it is
    told to stop, or a repair of its metadata has it begin another life; status says so.
    """
    broken = node.broken
    assert broken is not None, "the node has started"
    await asyncio.wait((broken, stop), return_when=asyncio.FIRST_COMPLETED)
    if not broken.done():
        return 0
    error = broken.result()
    if isinstance(error, NodeRestarting):
        said.log("node.restarting", reason=error.message)
        return None
    said.ended(error)
    if isinstance(error, CannotApply):
        await server.draining.drain(DRAIN_BY_SIGNAL_MS)
        again = asyncio.create_task(node.again.wait())
        await asyncio.wait((stop, again), return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not stop.done():
            said.log("node.restarting", reason="a repair of its metadata was decided")
            return None
    return 0 if node.context.has_left else error.exit_code


def _described(context: dict[str, object]) -> dict[str, object]:
    error = context.get("exception")
    facts = facts_of(error) if isinstance(error, BaseException) else {}
    return {"message": context.get("message"), **facts}


if __name__ == "__main__":
    sys.exit(main())
