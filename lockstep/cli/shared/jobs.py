"""What the commands of `lockstep pipeline` share: where tables and Spark are, and how far a job is on a
terminal.

Invariant: progress goes to stderr, so that what a job answers can be piped; without a terminal each phase is
one line. A package that is missing is told by name, never by a traceback.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from lockstep.cli.shared import render
from lockstep.cli.shared.client import DEFAULT_ADMIN_PORT, PASSWORD_VARIABLE, SHOWN
from lockstep.node.configuration import split_address
from lockstep.values.errors import ConfigurationError

if TYPE_CHECKING:
    from lockstep.spark.jobs.running import Progress, SessionSettings
    from lockstep.spark.jobs.tables import Access

CQL_PORT: Final = 9042
#: What the extra `spark` brings.
_EXTRA: Final = ("pyspark", "py4j", "pyarrow", "numpy")

hosts: render.Decorator = click.option(
    "--hosts",
    default="",
    metavar="ADDRESS,...",
    help="Nodes to ask by CQL; the address of --host by default.",
)
port: render.Decorator = click.option("--port", default=CQL_PORT, show_default=True, help="Their CQL port.")
options: render.Decorator = click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the Spark format lockstep, as consistencyLevel=QUORUM.",
)
master: render.Decorator = click.option(
    "--master",
    default="",
    metavar="URL",
    help="Where Spark runs, as Spark writes it; all cores of this machine by default.",
)
conf: render.Decorator = click.option(
    "--conf", multiple=True, metavar="NAME=VALUE", help="A setting of the Spark session."
)
dry_run: render.Decorator = click.option(
    "--dry-run", is_flag=True, help="Tell what would be read and written; start no Spark, change nothing."
)


class JobCall(msgspec.Struct, frozen=True):
    """What the options say that all jobs share."""

    call: render.Call
    hosts: str
    port: int
    options: tuple[str, ...]
    master: str
    conf: tuple[str, ...]

    def access(self) -> Access:
        """How tables are reached."""
        from lockstep.spark.jobs.running import pairs
        from lockstep.spark.jobs.tables import Access

        address = split_address(self.call.host, DEFAULT_ADMIN_PORT)[0]
        context = click.get_current_context(silent=True)
        shown: Mapping[str, Any] = context.meta.get(SHOWN, {}) if context is not None else {}
        user = shown.get("user") or ""
        password = os.environ.get(PASSWORD_VARIABLE, "") if user else ""
        if user and not password:
            raise ConfigurationError(f"{user} has no password here", hint=f"set {PASSWORD_VARIABLE}")
        others = pairs(self.options, "--option")
        return Access(self.hosts or address, self.port, user, password, others=others)

    def settings(self, app: str) -> SessionSettings:
        from lockstep.spark.jobs.running import SessionSettings, pairs

        return SessionSettings(app, self.master, pairs(self.conf, "--conf"))

    def as_json(self, report: msgspec.Struct, schema: str) -> bool:
        """Print it where JSON is wanted; whether it was."""
        return self.call.as_json(msgspec.to_builtins(report), schema)


_SHARED: Final = ("hosts", "port", "options", "master", "conf")


def _called(command: Callable[..., Any]) -> Callable[..., Any]:
    """Hand what all jobs share to the command as `job`; a missing package is an error like any other."""

    @functools.wraps(command)
    def handed(*given: Any, call: render.Call, **others: Any) -> Any:
        shared = {name: others.pop(name) for name in _SHARED}
        logging.root.addFilter(_is_told_by_log_alone)
        try:
            return command(*given, **others, job=JobCall(call, **shared))
        except ModuleNotFoundError as error:
            raise lacking(error) from error

    return handed


def _is_told_by_log_alone(record: logging.LogRecord) -> bool:
    """The connection to Spark raises whatever it logs, above all an interrupt."""
    return "py4j" not in Path(record.pathname).parts


def lacking(error: ModuleNotFoundError) -> Exception:
    """What to raise for a package of the extra that is not installed; the error itself for any other."""
    if (error.name or "").partition(".")[0] not in _EXTRA:
        return error
    return ConfigurationError(
        f"the package {error.name} is not installed", hint="pip install 'lockstep-db[spark]'"
    )


#: Of every job.
of_job: render.Decorator = render.together(
    dry_run, hosts, port, options, master, conf, render.of_call, _called
)


class Told:
    """Phases as lines."""

    def phase(self, text: str) -> None:
        click.echo(text, err=True)

    def at(self, done: int, total: int) -> None:
        """Nothing: a log has no use for it."""

    def close(self) -> None:
        """Leave what was shown."""


class Bar:
    """One bar a phase, drawn in place."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._shown = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"),
            TimeElapsedColumn(), console=Console(stderr=True, no_color=render.no_colour()),
        )  # fmt: skip
        self._task: Any = None
        self._shown.start()

    def phase(self, text: str) -> None:
        self._full()
        self._task = self._shown.add_task(text, total=None)

    def at(self, done: int, total: int) -> None:
        self._shown.update(self._task, completed=done, total=total)

    def close(self) -> None:
        self._full()
        self._shown.stop()

    def _full(self) -> None:
        if self._task is not None:
            task = self._shown.tasks[self._task]
            self._shown.update(self._task, completed=task.total or 1, total=task.total or 1)


def run(job: JobCall, app: str, work: Callable[[Any, Progress], Any]) -> Any:
    """What `work` answers, told a session and a progress; the session is stopped at the end."""
    from lockstep.spark.jobs.running import open_session, plain_errors

    settings = job.settings(app)
    shown = Bar() if sys.stderr.isatty() else Told()
    try:
        shown.phase("starting Spark")
        session = open_session(settings)
        try:
            with plain_errors():
                return work(session, shown)
        finally:
            session.stop()
    finally:
        shown.close()


def size_text(count: int | None) -> str:
    return "unknown" if count is None else render.bytes_text(count)


def names(texts: Sequence[str]) -> tuple[str, ...]:
    """Names between commas, of an option that may be given several times."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())
