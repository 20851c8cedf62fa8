"""Owns the demo's side of the load process: start it, give it commands, hear its reports, end it.

Invariant: the process never outlives the demo: it ends when its connection closes, whatever closed it.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from typing import Any, Final

from lockstep.local.demo_messages import Command, Failed, Finished, Report
from lockstep.values.errors import LockstepError

#: The process closes its driver when the connection closes; after this it is ended by signal.
END_TIMEOUT_S: Final = 3.0


class DemoProcess:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # Imported by name in the child, so that the driver is loaded there and not here.
        self._process = context.Process(target=_child, args=(theirs,), name="lockstep-demo-load", daemon=True)
        handler: Any = _ignore_interrupts()
        try:
            self._process.start()
        finally:
            if handler is not None:
                signal.signal(signal.SIGINT, handler)
        theirs.close()

    def send(self, command: Command) -> None:
        try:
            self._connection.send(command)
        except OSError as error:
            raise LockstepError(f"the load process has ended: {error}") from error

    def heard(self) -> Iterator[Report | Finished]:
        """What it said since the last call. Raises LockstepError when it cannot go on."""
        try:
            while self._connection.poll():
                message = self._connection.recv()
                if isinstance(message, Failed):
                    raise LockstepError(f"the load process failed: {message.reason}")
                yield message
        except (EOFError, OSError) as error:
            raise LockstepError("the load process has ended without a word") from error

    def close(self) -> None:
        self._connection.close()
        self._process.join(END_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(END_TIMEOUT_S)


def _ignore_interrupts() -> Any:
    """A child inherits that SIGINT is ignored, so an interrupt does not end it while it still imports."""
    try:
        return signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:
        # Only the main thread may set handlers; elsewhere no interrupt arrives.
        return None


def _child(connection: Any) -> None:
    from lockstep.local.demo_traffic import main

    main(connection)
