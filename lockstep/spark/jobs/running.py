"""What all jobs share: the session they run in, how far they are, work spread over tasks, errors made plain.

Invariant: under `spark-submit` the session is that of the submission, whatever else is asked for; what Spark
says of an error of ours is turned back into that error, so its code and its exit code survive the trip.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from lockstep.spark.java import prepare_environment
from lockstep.values import errors
from lockstep.values.errors import ConfigurationError, LockstepError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Part = TypeVar("Part")
Result = TypeVar("Result")

#: How often a job looks how far Spark is: a person sees no delay, Spark no load.
_LOOK_EVERY_S: Final = 0.2
#: Set by Spark for the program that `spark-submit` starts.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)\])?")
_OURS: Final = re.compile(r"lockstep\.values\.errors\.(\w+): (.*)")


class SessionSettings(msgspec.Struct, frozen=True):
    """`master` as Spark writes it; empty: all cores of this machine. `conf`: settings by their names."""

    app: str
    master: str = ""
    conf: tuple[tuple[str, str], ...] = ()


class Progress(Protocol):
    """Told how far a job is."""

    def phase(self, text: str) -> None:
        """What begins now."""
        ...

    def at(self, done: int, total: int) -> None:
        """How many of the phase's tasks are done."""
        ...


class Silent:
    """Tells nobody."""

    def phase(self, text: str) -> None:
        """Nothing."""

    def at(self, done: int, total: int) -> None:
        """Nothing."""


def open_session(settings: SessionSettings) -> SparkSession:
    """The session of a job. ConfigurationError without PySpark or Java, or for a master that Spark does not
    know."""
    with _interruptible():
        return _opened(settings)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Have an interrupt do what it did before, once the session is there. PySpark's own handler asks Spark to
    cancel jobs in the middle of another question, which fails with pages of tracebacks; jobs end with the
    process that began them. A start that is interrupted would leave its Java process behind for ever: only
    the second interrupt does that."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    told: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if len(told) > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if told:
        before(told[0], None)


def _opened(settings: SessionSettings) -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            "PySpark is not installed", hint="pip install 'lockstep-db[spark]'"
        ) from error
    local = _LOCAL.fullmatch(settings.master or "local")
    if _SUBMITTED not in os.environ and local is not None:
        from lockstep.spark.report import local_session

        cores = local[1] or "*"
        count = (os.cpu_count() or 1) if cores == "*" else int(cores)
        conf: dict[str, Any] = dict(settings.conf)
        return local_session(settings.app, count, **conf)
    builder = SparkSession.builder.appName(settings.app)
    if _SUBMITTED not in os.environ:
        prepare_environment(os.environ)
        builder = builder.master(settings.master)
    for name, value in (*_EVERYWHERE, *settings.conf):
        builder = builder.config(name, value)
    with plain_errors():
        session: SparkSession = builder.getOrCreate()
    return session


#: What a job needs of any session.
_EVERYWHERE: Final = (
    ("spark.sql.session.timeZone", "UTC"),
    ("spark.sql.python.filterPushdown.enabled", "true"),
)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """What Spark raises inside leaves as an error of the one tree, in one sentence, and an interrupt as such:
    the connection to Spark, which closes then, may raise an error of its own in its place."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ImportError:
        yield
        return
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise plain_error(str(error), type(error).__name__) from None


def plain_error(text: str, kind: str) -> LockstepError:
    """The error that Spark's `text` tells of: ours where a task raised it, else Spark's own first
    sentence."""
    ours = [found for found in _OURS.finditer(text) if _kind(found[1]) is not None]
    if ours:
        named = _kind(ours[-1][1])
        assert named is not None
        # Its own constructor wants what does not travel in words.
        made = named.__new__(named)
        LockstepError.__init__(made, ours[-1][2].strip())
        return made
    sentence = _sentence(text) or kind
    if kind in _USERS_FAULT and _TRACEBACK not in text:
        return ConfigurationError(sentence)
    return LockstepError(f"Spark gave the job up: {sentence}", hint="--conf spark.log.level=WARN tells more")


def _sentence(text: str) -> str:
    """The first line, with what Python raised where it ends with a traceback."""
    lines = [line.partition(" SQLSTATE")[0] for line in text.splitlines()]
    first = next((line.strip() for line in lines if line.strip()), "")
    before, is_traced, _ = first.partition(_TRACEBACK)
    if not is_traced:
        return first
    traced = lines[next(at for at, line in enumerate(lines) if _TRACEBACK in line) + 1 :]
    raised = next((line.strip() for line in traced if line.strip() and not line.startswith(" ")), "")
    return before + raised


#: Of Python; lines of it begin with blanks, what was raised does not.
_TRACEBACK: Final = "Traceback (most recent call last):"
#: Of PySpark: a plan that cannot be made, as for a path that is not there.
_USERS_FAULT: Final = ("AnalysisException", "ParseException", "IllegalArgumentException")


def _kind(name: str) -> type[LockstepError] | None:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, LockstepError) else None


@contextlib.contextmanager
def watched(session: SparkSession, progress: Progress, text: str) -> Iterator[None]:
    """A phase in which Spark runs: its tasks are told as they end, and errors leave plain."""
    progress.phase(text)
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(session.sparkContext.statusTracker(), progress, ended), daemon=True
    )
    watcher.start()
    try:
        with plain_errors():
            yield
    finally:
        ended.set()
        watcher.join()


def _watch(tracker: Any, progress: Progress, ended: threading.Event) -> None:
    told = (-1, -1)
    while not ended.wait(_LOOK_EVERY_S):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        now = (sum(one.numCompletedTasks for one in known), sum(one.numTasks for one in known))
        if now[1] and now != told:
            told = now
            progress.at(*now)


def spread(
    session: SparkSession, parts: Sequence[Part], work: Callable[[Part], Sequence[Result]]
) -> list[Result]:
    """What `work` answers for each part, one task a part, in the order of the parts."""
    if not parts:
        return []
    found: list[Result] = session.sparkContext.parallelize(parts, len(parts)).flatMap(work).collect()
    return found


def pairs(texts: Sequence[str], what: str) -> tuple[tuple[str, str], ...]:
    """`NAME=VALUE` texts taken apart. ConfigurationError."""
    taken: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise ConfigurationError(f"{what} {text!r} is not NAME=VALUE")
        taken[name] = value
    return tuple(taken.items())


def given(options: Mapping[str, str]) -> dict[str, str]:
    """Options that say something."""
    return {name: value for name, value in options.items() if value}
