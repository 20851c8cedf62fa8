"""Who changed or tried what on this node: one line of JSON each, in a file that only grows.

Invariant: nothing that a request keeps secret is in a line; failed logins of one name and address share a
line a minute, so that guessing does not wash out the rest; a line is written before its answer leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from lockstep.internode.repeated_log import Log, RepeatedLog
from lockstep.node.log_settings import masked
from lockstep.runtime.ports import Clock
from lockstep.server.log import iso_time
from lockstep.values.node_limits import AUDIT_TEXT_CHARACTERS_MAX

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
