"""The node's log, one line an event, as text for people or JSON for machines, and its audit file: who changed
or tried what on this node, in a file that only grows.

Invariant: writing a line never fails the caller; a level below the configured one costs one comparison; what
came from outside ends no line, so nobody can forge one. Nothing that a request keeps secret is in a line;
failed logins of one name and address share a line a minute, so that guessing does not wash out the rest; a
line is written before its answer leaves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from lockstep.internode.repeated_log import Log, RepeatedLog
from lockstep.node.settings import masked
from lockstep.runtime.ports import Clock
from lockstep.values.node_limits import AUDIT_TEXT_CHARACTERS_MAX

_LEVELS: Final = ("debug", "info", "warning", "error")
#: Events that are not information only, by the end of their name.
_BY_ENDING: Final = {
    "failed": "warning",
    "waits": "info",
    "refused": "warning",
    "warned": "warning",
    "broken": "error",
    "fault": "error",
}
_BY_NAME: Final = {"node.start_failed": "error"}


class Output(Protocol):
    def write(self, text: str, /) -> Any: ...

    def flush(self) -> None: ...


def level_of(event: str) -> str:
    """The level of an event, from the last word of its name (`node.broken`, `topology.step_failed`)."""
    return _BY_NAME.get(event) or _BY_ENDING.get(event.replace("_", ".").rpartition(".")[2], "info")


def iso_time(wall_us: int) -> str:
    """`2026-11-23T04:36:52.123Z`: ISO 8601 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(wall_us // 1_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_us // 1000 % 1000:03d}Z"


class LineLog:
    """Called as `log(event, **facts)`."""

    def __init__(self, clock: Clock, level: str, form: str, output: Output | None = None) -> None:
        self._clock = clock
        self._rank = _LEVELS.index(level)
        self._write: Callable[[str, str, dict[str, Any]], str] = _json if form == "json" else _text
        self._output = output if output is not None else sys.stderr
        #: Lines that could not be written since the last that was.
        self._lost = 0

    def __call__(self, event: str, **facts: Any) -> None:
        level = level_of(event)
        if _LEVELS.index(level) < self._rank:
            return
        time = iso_time(self._clock.wall_us())
        text = self._write(time, level, {"event": event, **facts}) + "\n"
        if self._lost:
            text = (
                self._write(time, "warning", {"event": "log.lines_lost", "count": self._lost}) + "\n" + text
            )
        try:
            self._output.write(text)
            self._output.flush()
        except (BrokenPipeError, ValueError):
            # The reader of the log is gone; the node serves on.
            self._rank = len(_LEVELS)
        except OSError:
            # A full disk, as it seems: told with the next line that there is room for.
            self._lost += 1
        else:
            self._lost = 0


def _json(time: str, level: str, facts: dict[str, Any]) -> str:
    return json.dumps({"time": time, "level": level, **facts}, default=str)


def _text(time: str, level: str, facts: dict[str, Any]) -> str:
    event = facts.pop("event")
    trace = str(facts.pop("trace", ""))
    rest = " ".join(f"{name}={_on_one_line(value)}" for name, value in facts.items())
    line = f"{time} {level:<7} {event} {rest}".rstrip()
    return "\n    ".join((line, *trace.splitlines()))


def _on_one_line(value: Any) -> str:
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


#: Who asks without a credential.
ANONYMOUS: Final = "anonymous"


class Audit:
    """`write` appends a line, or raises OSError; None: audit is off. `log` hears of lines that were lost."""

    def __init__(self, clock: Clock, log: Log, write: Callable[[str], None] | None) -> None:
        self._clock = clock
        self._write = write
        self._log = RepeatedLog(log)
        self._repeated = RepeatedLog(self._record)

    def changed(self, request: str, who: str, peer: str, body: Any, outcome: str, code: str = "") -> None:
        """An admin request that changes something ended; `request` is its method and path, `outcome` done,
        refused or failed, `code` that of its error."""
        facts: dict[str, Any] = {
            "who": who or ANONYMOUS,
            "peer": peer,
            "request": _cut(request),
            "outcome": outcome,
        }
        if code:
            facts["code"] = code
        if body is not None:
            facts["body"] = _cut(json.dumps(masked(body)))
        self._record("admin", **facts)

    def loaded(self, request: str, who: str, peer: str, load: Any, outcome: str, code: str = "") -> None:
        """A client began a bulk load, committed one or gave one up; `load` says which."""
        facts = {"who": who or ANONYMOUS, "peer": peer, "request": request, "outcome": outcome}
        named = {key: _cut(value) if isinstance(value, str) else value for key, value in load.items()}
        self._record("load", **facts, **({"code": code} if code else {}), **named)

    def login_failed(self, role: str, peer: str, code: str, reason: str) -> None:
        """A client did not get in as `role` from the address `peer`."""
        role = _cut(role)
        facts = {"who": role, "peer": peer, "outcome": "refused", "code": code, "reason": _cut(reason)}
        self._repeated.note("login", role, peer, facts=lambda: facts)

    def not_admitted(self, request: str, peer: str, code: str, reason: str) -> None:
        """An admin request from the address `peer` had no credential that lets it."""
        facts = {"peer": peer, "request": _cut(request), "outcome": "refused", "code": code}
        self._log.note("admin.refused", peer, code, facts=lambda: {**facts, "reason": reason})
        self._repeated.note("admin", peer, code, facts=lambda: {"who": ANONYMOUS, **facts})

    def _record(self, event: str, **facts: Any) -> None:
        if self._write is None:
            return
        line = json.dumps({"time": iso_time(self._clock.wall_us()), "event": event, **facts})
        try:
            self._write(line + "\n")
        except OSError as error:
            reason = str(error)
            self._log.note("audit.write_failed", facts=lambda: {"reason": reason})

    def stop(self) -> None:
        """Write what was counted."""
        self._repeated.stop()
        self._log.stop()


def _cut(text: str) -> str:
    return text if len(text) <= AUDIT_TEXT_CHARACTERS_MAX else text[:AUDIT_TEXT_CHARACTERS_MAX] + "…"
