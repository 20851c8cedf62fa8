"""The node's log and its audit file, as an operator reads them."""

from __future__ import annotations

import asyncio
import io
import json
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable

import lockstep
from lockstep.local import admin_client
from lockstep.local.admin_client import AdminClient
from lockstep.node.settings import MASKED, is_secret, masked
from lockstep.runtime.real import RotatingFile
from lockstep.server.log import Audit, LineLog, iso_time
from lockstep.values.errors import LockstepError
from tests.server.parts import ADMIN_PORT, CQL_PORT, JOIN_SECRET, addresses
from tests.server.test_process import MAIN, configured, running

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
HOOKS = """
import sys, threading, warnings, logging
from lockstep.runtime.real import RealClock, route_diagnostics
from lockstep.server.log import LineLog
route_diagnostics(LineLog(RealClock(), "info", sys.argv[1]))
warnings.warn("old thing", DeprecationWarning)
warnings.warn("odd thing")
logging.getLogger("asyncio").error("a task was lost")
threading.Thread(target=lambda: 1 / 0).start()
class Unclean:
    def __del__(self):
        raise ValueError("at the end")
Unclean()
raise KeyError("nobody took it")
"""


class Wall:
    def __init__(self, wall_us: int = 1_790_000_000_123_456) -> None:
        self._wall_us = wall_us

    def wall_us(self) -> int:
        return self._wall_us

    def monotonic_s(self) -> float:
        return 0.0


def test_times_are_iso_8601_in_utc() -> None:
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert iso_time(1_790_000_000_123_456) == "2026-09-21T14:13:20.123Z"


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_begins_with_its_time_and_nothing_from_outside_ends_it(form: str) -> None:
    out = io.StringIO()
    LineLog(Wall(), "info", form, out)("cql.refused", role="a\nnode.broken x=\x1b[31m")
    (line,) = out.getvalue().splitlines()
    if form == "json":
        found = json.loads(line)
        assert (found["time"], found["level"]) == ("2026-09-21T14:13:20.123Z", "warning")
    else:
        assert line.startswith("2026-09-21T14:13:20.123Z warning cql.refused role=a\\n")
        assert "\x1b" not in line


def test_lines_that_found_no_room_are_counted_and_told() -> None:
    class Full(io.StringIO):
        fails = True

        def write(self, text: str) -> int:
            if self.fails:
                raise OSError(28, "No space left on device")
            return super().write(text)

    out = Full()
    log = LineLog(Wall(), "info", "json", out)
    log("a")
    log("b")
    out.fails = False
    log("c")
    lost, last = map(json.loads, out.getvalue().splitlines())
    assert (lost["event"], lost["count"], last["event"]) == ("log.lines_lost", 2, "c")


def test_all_that_an_interpreter_says_is_json_where_json_is_asked() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", HOOKS, "json"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert sorted(event["event"] for event in events) == [
        "library.fault", "object.fault", "process.fault", "python.warned", "python.warned", "thread.fault",
    ]  # fmt: skip
    assert all(ISO.fullmatch(event["time"]) for event in events)
    assert "ZeroDivisionError" in next(e["trace"] for e in events if e["event"] == "thread.fault")


def test_a_failed_start_is_one_json_line_also_when_the_settings_are_wrong(tmp_path: Path) -> None:
    file = configured(tmp_path, next(addresses()), '[log]\nformat = "json"\n[networc]\nx = 1\n')
    done = subprocess.run([*MAIN, str(file)], capture_output=True, text=True, timeout=20, check=False)
    (event,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, event["event"], event["level"]) == (2, "node.start_failed", "error")
    assert event["code"] == "CONFIGURATION" and "networc" in event["message"] and "network" in event["hint"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_ends_a_start_is_told_once_also_behind_the_settings(tmp_path: Path, form: str) -> None:
    settings = f'[log]\nformat = "{form}"\n[tls]\ncertificate = "/nowhere.pem"\nkey = "/nowhere.key"\n'
    file = configured(tmp_path, next(addresses()), settings)
    done = subprocess.run([*MAIN, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    if form == "json":
        (event,) = [json.loads(line) for line in done.stderr.splitlines()]
        assert (event["event"], event["code"]) == ("node.start_failed", "CONFIGURATION")
    else:
        assert done.stderr.startswith("error[CONFIGURATION]: ") and done.stderr.count("/nowhere") == 1


def test_a_node_says_what_it_is_and_logs_to_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    log, address = tmp_path / "node.log", next(addresses())
    settings = f'[log]\nformat = "json"\nfile = "{log}"\nrotate_bytes = 4096\nrotate_files = 2\n'
    with running(configured(tmp_path, address, settings)) as (process, _):
        process.terminate()
        assert process.wait(20) == 0
        assert process.stderr is not None and process.stderr.read() == ""
    files = sorted(tmp_path.glob("node.log*"))
    assert len(files) in (2, 3) and all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert all(file.stat().st_size <= 4096 for file in files)
    events = [json.loads(line) for file in reversed(files) for line in file.read_text().splitlines()]
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    starting = next(event for event in events if event["event"] == "node.starting")
    assert starting["version"] == lockstep.__version__ and starting["pid"] == process.pid
    shown = {key: value for event in events for key, value in event.items() if "." in key}
    assert shown["log.rotate_files"] == 2 and shown["audit.enabled"] is True


def test_files_rotate_by_size_and_number(tmp_path: Path) -> None:
    file = RotatingFile(str(tmp_path / "f"), 10, 2)
    for number in range(6):
        file.write(f"line {number}\n")
    file.close()
    found = [path.read_text() for path in sorted(tmp_path.iterdir())]
    assert found == ["line 5\n", "line 4\n", "line 3\n"]
    again = RotatingFile(str(tmp_path / "f"), 10, 0)
    again.write("anew 6\n")
    again.close()
    assert (tmp_path / "f").read_text() == "anew 6\n"


def test_secrets_are_masked_wherever_they_stand() -> None:
    shown = masked({"auth": {"join_secret": "s", "token": ""}, "n": [{"password": "p", "num_tokens": 16}]})
    assert shown == {
        "auth": {"join_secret": MASKED, "token": ""},
        "n": [{"password": MASKED, "num_tokens": 16}],
    }
    assert not is_secret("token_file") and not is_secret("tokens")


def in_a_loop(work: Callable[[], None]) -> None:
    async def run() -> None:
        work()

    asyncio.run(run())


def test_the_audit_file_has_who_what_and_how_it_ended_without_secrets() -> None:
    lines: list[str] = []

    def work() -> None:
        audit = Audit(Wall(), lambda event, **facts: None, lines.append)
        audit.changed(
            "POST /v1/x", "ann", "127.0.0.1", {"password": "p", "dry_run": False}, "refused", "REJECTED"
        )
        for _ in range(3):
            audit.login_failed("bob", "10.0.0.1", "CQL_CREDENTIALS", "wrong")
        audit.stop()

    in_a_loop(work)
    admin, first, rest = map(json.loads, lines)
    assert admin == {
        "time": "2026-09-21T14:13:20.123Z", "event": "admin", "who": "ann", "peer": "127.0.0.1",
        "request": "POST /v1/x", "outcome": "refused", "code": "REJECTED",
        "body": json.dumps({"password": MASKED, "dry_run": False}),
    }  # fmt: skip
    assert (first["event"], first["who"], first["peer"]) == ("login", "bob", "10.0.0.1")
    assert rest["count"] == 2


def test_a_full_disk_under_the_audit_file_is_in_the_log() -> None:
    said: list[str] = []

    def full(_line: str) -> None:
        raise OSError(28, "No space left on device")

    def work() -> None:
        audit = Audit(Wall(), lambda event, **facts: said.append(f"{event} {facts}"), full)
        audit.changed("POST /v1/x", "ann", "", None, "done")
        audit.stop()

    in_a_loop(work)
    assert len(said) == 1 and said[0].startswith("audit.write_failed") and "No space" in said[0]


def test_an_audit_that_is_off_writes_nothing() -> None:
    said: list[str] = []

    def work() -> None:
        audit = Audit(Wall(), lambda event, **facts: said.append(event), None)
        audit.changed("POST /", "", "", None, "done")
        audit.login_failed("bob", "10.0.0.1", "BAD_CREDENTIALS", "wrong")
        audit.stop()

    in_a_loop(work)
    assert said == [], "no line was lost: none was to be written"


def test_changing_requests_and_failed_logins_are_in_the_audit_file(tmp_path: Path) -> None:
    address = next(addresses())
    secret = tmp_path / "join.secret"
    secret.write_text(JOIN_SECRET)
    file = configured(tmp_path, address, '[auth]\nauthenticator = "password"\n')
    file.write_text(file.read_text().replace("[cluster]", f'[cluster]\njoin_secret_file = "{secret}"'))
    with running(file):
        shown = admin_client.of_token_file(tmp_path / "data" / admin_client.TOKEN_FILE)
        with pytest.raises(LockstepError):
            AdminClient(address, ADMIN_PORT, 10).post("/v1/drain", {})
        admin = AdminClient(address, ADMIN_PORT, 10, shown)
        admin.get("/v1/status")
        admin.post("/v1/cms/freeze", {"reason": "an audit"})
        with pytest.raises(LockstepError):
            admin.post("/v1/requests", {"kind": "move", "node": 99, "tokens": [7]})
        with pytest.raises(NoHostAvailable):
            provider = PlainTextAuthProvider("mallory", "guess")
            Cluster([address], port=CQL_PORT, auth_provider=provider, protocol_version=5).connect()
        audited = tmp_path / "data" / "audit.log"
        assert stat.S_IMODE(audited.stat().st_mode) == 0o600
        lines = [json.loads(line) for line in audited.read_text().splitlines()]
        stranger, frozen, moved, login = lines[:4]
        assert (stranger["who"], stranger["request"]) == ("anonymous", "POST /v1/drain")
        assert (stranger["outcome"], stranger["peer"]) == ("refused", "127.0.0.1")
        assert (frozen["who"], frozen["peer"]) == ("node token", "127.0.0.1")
        assert (frozen["event"], frozen["request"]) == ("admin", "POST /v1/cms/freeze")
        assert (frozen["outcome"], json.loads(frozen["body"])) == ("done", {"reason": "an audit"})
        assert (moved["outcome"], moved["code"]) == ("refused", "REJECTED")
        assert (login["event"], login["who"], login["outcome"]) == ("login", "mallory", "refused")
        assert login["code"] == "CQL_CREDENTIALS" and "guess" not in audited.read_text()
