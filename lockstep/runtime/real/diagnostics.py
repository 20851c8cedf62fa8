"""What the interpreter itself has to say goes to the node's log: warnings, defects outside of tasks, and the
standard library's logging.

Invariant: after `route_diagnostics`, nothing but a crash of the interpreter writes to standard error by
itself.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

Log = Callable[..., None]


def facts_of(error: BaseException) -> dict[str, Any]:
    """A defect as facts of a log line."""
    return {
        "error": f"{type(error).__name__}: {error}",
        "trace": "".join(traceback.format_exception(error)),
    }


def route_diagnostics(log: Log) -> None:
    """Let this process's warnings and defects be events of the log."""

    def uncaught(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
        log("process.fault", **facts_of(error))

    def in_thread(given: threading.ExceptHookArgs) -> None:
        if given.exc_value is not None:
            log("thread.fault", thread=given.thread.name if given.thread else "", **facts_of(given.exc_value))

    def unraisable(given: sys.UnraisableHookArgs) -> None:
        facts = facts_of(given.exc_value) if given.exc_value is not None else {}
        log("object.fault", message=given.err_msg or "an exception that nobody could take", **facts)

    def warned(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        log("python.warned", category=category.__name__, message=str(message), at=f"{filename}:{lineno}")

    sys.excepthook = uncaught
    threading.excepthook = in_thread
    sys.unraisablehook = unraisable
    warnings.showwarning = warned
    root = logging.getLogger()
    root.handlers = [_Handler(log)]
    root.setLevel(logging.WARNING)


class _Handler(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            facts |= facts_of(record.exc_info[1])
        self._log("library.fault" if record.levelno >= logging.ERROR else "library.warned", **facts)
