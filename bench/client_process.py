"""A process of clients that a benchmark asks, one command a line, and that answers each with a line of JSON;
and how such clients connect.

Invariant: each command has one answer, read before the next is sent. The process runs in the environment of
the load driver; `connected` is for it, and nothing here needs more than the standard library and that driver.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_END_S = 30.0


class ClientProcess:
    """`told`: its last answer; the first one comes once it is connected. Its errors are in `log`."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.told = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"clients ended, {self._log}: {self._log.read_text()[-500:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        self.told = self._answer()

    def close(self) -> None:
        """Let it end, so that its files are whole."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def connected(hosts: str, port: str, timeout_s: float, reconnect_ms: int) -> Any:
    """A session that tells of each failure: it tries nothing again by itself."""
    import acsylla

    cluster = acsylla.create_cluster(
        hosts.split(","),
        port=int(port),
        protocol_version=4,
        retry_policy="fallthrough",
        request_timeout=timeout_s,
        connect_timeout=2.0,
        constant_reconnect_delay_ms=reconnect_ms,
        heartbeat_interval_sec=1,
        idle_timeout_sec=4,
        log_level="critical",
    )
    return await cluster.create_session()
