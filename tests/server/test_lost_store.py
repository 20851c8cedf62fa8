"""A node whose store was damaged, as a process: it names the file, and what to do."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.server.parts import CQL_PORT, addresses

from .test_process import configured, failed, running

ROWS = 200


def shell(address: str, statements: str) -> str:
    cqlsh = Path(sys.executable).with_name("cqlsh")
    done = subprocess.run(
        [str(cqlsh), address, str(CQL_PORT), "-e", statements],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_flipped_bit_or_a_missing_file_of_the_store_refuses_the_start(tmp_path: Path) -> None:
    address = next(addresses())
    file = configured(tmp_path, address)
    inserts = ";".join(f"INSERT INTO k.t (a, b) VALUES ({n}, 'value {n}')" for n in range(ROWS))
    with running(file) as (process, _):
        shell(
            address,
            "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1};"
            f"CREATE TABLE k.t (a int PRIMARY KEY, b text); {inserts};",
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
    data, kept = tmp_path / "data", tmp_path / "kept"
    data.rename(kept)

    def refused(name: str) -> None:
        code, errors = failed("--config", str(file))
        assert code == 1 and f"error[CORRUPT_FILE]: {name}" in errors, errors
        assert "hint: recover the node from its replicas: `lockstep node recover" in errors

    (log,) = (kept / "store").glob("*.log")
    shutil.copytree(kept, data)
    content = bytearray(log.read_bytes())
    content[len(content) // 10] ^= 1
    (data / "store" / log.name).write_bytes(content)
    refused(f"store/{log.name} is corrupt at byte")

    shutil.copy(log, data / "store" / log.name)
    (data / "store" / log.name).unlink()
    refused(f"store/{log.name} is corrupt at byte 0: it is missing")

    shutil.rmtree(data / "store")
    refused("store is corrupt at byte 0: it is missing")
    (data / "store-position").unlink()
    refused("store is corrupt at byte 0: it is missing or empty")
    command = Path(sys.executable).with_name("lockstep")
    told = subprocess.run(
        [str(command), "node", "recover", "--config", str(file), "--accept-data-loss"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    with running(file):
        shell(address, "SELECT key FROM system.local")

    shutil.rmtree(data)
    kept.rename(data)
    with running(file):
        assert f"\n   {ROWS}\n" in shell(address, "SELECT count(*) FROM k.t")
