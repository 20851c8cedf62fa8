"""The node as a process: ready line, exit codes, clean errors, and cqlsh against it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.parts import ADMIN_PORT, CQL_PORT, INTERNODE_PORT, addresses

MAIN = [sys.executable, "-m", "lockstep.server.main", "--config"]
#: What digests and scans of content load: 12 MB that a node without them need not hold.
FOR_CONTENT = ("numpy", "pyarrow")


def configured(directory: Path, address: str, extra: str = "") -> Path:
    file = directory / "lockstep.toml"
    file.write_text(
        f"""
[node]
data_directory = "{directory / "data"}"
[cluster]
founders = ["{address}:{INTERNODE_PORT}"]
[network]
address = "{address}"
internode_port = {INTERNODE_PORT}
cql_port = {CQL_PORT}
admin_port = {ADMIN_PORT}
{extra}
"""
    )
    return file


@contextmanager
def running(file: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    process = subprocess.Popen([*MAIN, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        word, _, facts = process.stdout.readline().partition(" ")
        assert word == "ready", process.communicate()
        yield process, json.loads(facts)
    finally:
        process.kill()
        process.communicate()


def failed(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*MAIN[:-1], *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_node_serves_cqlsh_and_ends_in_good_order(tmp_path: Path) -> None:
    address = next(addresses())
    with running(configured(tmp_path, address)) as (process, facts):
        assert (facts["address"], facts["cql_port"], facts["node"]) == (address, CQL_PORT, 1)
        statements = (
            "CREATE KEYSPACE shell WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1};"
            "CREATE TABLE shell.t (a int, b text, PRIMARY KEY (a, b));"
            "INSERT INTO shell.t (a, b) VALUES (1, 'seen');"
            "SELECT * FROM shell.t; DESCRIBE shell.t; DESCRIBE KEYSPACES; SHOW VERSION"
        )
        cqlsh = Path(sys.executable).with_name("cqlsh")
        shell = subprocess.run(
            [str(cqlsh), address, str(CQL_PORT), "-e", statements],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert shell.returncode == 0, shell.stderr
        assert "seen" in shell.stdout and "CREATE TABLE shell.t" in shell.stdout
        resident_kb = int(Path(f"/proc/{process.pid}/status").read_text().split("VmRSS:")[1].split()[0])
        assert resident_kb < 80 * 1024
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stdout is not None and process.stdout.read() == ""
    with running(tmp_path / "lockstep.toml") as (_, again):
        assert again["host_id"] == facts["host_id"]
        shell = subprocess.run(
            [str(cqlsh), address, str(CQL_PORT), "-e", "SELECT b FROM shell.t WHERE a = 1"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert "seen" in shell.stdout


def test_a_second_process_on_the_same_address_or_directory_is_told_why(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    taken = iter(addresses())
    address = next(taken)
    with running(configured(mine, address)):
        code, text = failed("--config", str(configured(other, address)))
        assert code == 2
        assert f"{address}:{INTERNODE_PORT} is in use" in text and "error[CONFIGURATION]" in text
        assert "Traceback" not in text
        same = configured(other, next(taken)).read_text().replace(str(other / "data"), str(mine / "data"))
        (other / "lockstep.toml").write_text(same)
        code, text = failed("--config", str(other / "lockstep.toml"))
        assert code == 3
        assert "in use by another process" in text and "Traceback" not in text


def test_operators_mistakes_end_as_one_error(tmp_path: Path) -> None:
    code, text = failed()
    assert (code, text.splitlines()[0]) == (2, "error[CONFIGURATION]: one argument is needed: --config FILE")
    code, text = failed("--config", str(tmp_path / "absent.toml"))
    assert code == 2 and "cannot be read" in text
    file = configured(tmp_path, next(addresses()), extra="[log]\nlevle = 'info'")
    code, text = failed("--config", str(file))
    assert code == 2
    assert text.splitlines()[-1] == "hint: did you mean log.level?"
    blocked = tmp_path / "file"
    blocked.write_text("")
    text = file.read_text().replace(str(tmp_path / "data"), str(blocked / "data"))
    file.write_text(text.split("[log]")[0])
    code, text = failed("--config", str(file))
    assert code == 2 and "data directory" in text and "Traceback" not in text


def test_importing_the_entry_loads_nothing_that_a_start_does_not_need() -> None:
    web = ("starlette", "uvicorn", "h11")
    other = ("lark", "prometheus_client", "structlog", "rocksdict", "rich", "ctypes", "difflib")
    assert loaded("lockstep.server.main", *web, *other, *FOR_CONTENT) == "[]"


def test_the_admin_api_loads_nothing_that_only_content_needs() -> None:
    """Every node of a local cluster has answered there once."""
    assert loaded("lockstep.server.admin.api", *FOR_CONTENT) == "[]"


def loaded(module: str, *looked_for: str) -> str:
    """Which of these an import of the module loads."""
    script = f"import sys, {module}; print([name for name in {looked_for!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=True
    )
    return done.stdout.strip()


def test_a_node_that_waits_for_its_cluster_ends_at_once_when_told(tmp_path: Path) -> None:
    taken = addresses()
    address, absent = next(taken), next(taken)
    file = configured(tmp_path, address)
    founders = f'founders = ["{address}:{INTERNODE_PORT}", "{absent}:{INTERNODE_PORT}"]'
    alone = f'founders = ["{address}:{INTERNODE_PORT}"]'
    file.write_text(file.read_text().replace(alone, founders))
    process = subprocess.Popen([*MAIN, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        while "founding.waits" not in (line := process.stderr.readline()):
            assert line, "it waits for its cluster"
        assert absent in line
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
