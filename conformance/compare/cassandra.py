"""One real Cassandra as a process: its jars from Maven Central, a directory of its own, an end.

Owns what lies below `build/conformance/cassandra`. Invariant: the process listens on one loopback address
and ends with the block that started it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from conformance.environment import BUILD

HOME: Final = BUILD / "cassandra"
_HERE: Final = Path(__file__).resolve().parent
_START_TIMEOUT_S: Final = 180
_STOP_TIMEOUT_S: Final = 30
_JOIN_WAIT_MS: Final = 5000
#: What Cassandra 5.0 reaches into on Java 17.
_EXPORTS: Final = """
java.base/jdk.internal.misc java.base/jdk.internal.ref java.base/sun.nio.ch java.sql/java.sql
java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry java.rmi/sun.rmi.server
java.rmi/sun.rmi.transport.tcp java.base/java.lang.ref java.base/jdk.internal.perf jdk.unsupported/sun.misc
jdk.attach/sun.tools.attach java.base/sun.security.x509
"""
_OPENS: Final = """
java.base/java.lang.module java.base/java.net java.base/java.lang java.base/java.lang.reflect
java.base/java.math java.base/java.nio java.base/java.util java.base/java.util.concurrent java.base/java.io
java.base/java.util.concurrent.atomic java.base/jdk.internal.loader java.base/jdk.internal.ref
java.base/jdk.internal.reflect java.base/jdk.internal.math java.base/jdk.internal.module
java.base/jdk.internal.util.jar java.base/jdk.internal.vm java.base/sun.nio.ch
jdk.management/com.sun.management.internal jdk.management.jfr/jdk.management.jfr
"""


def prepare_jars() -> Path:
    """The folder of its jars, fetched once."""
    jars, pom = HOME / "lib", (_HERE / "pom.xml").read_text()
    stamp = HOME / "pom.xml"
    if stamp.exists() and stamp.read_text() == pom:
        return jars
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise SystemExit("error: Java 17 and Maven are needed to fetch and run Cassandra")
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    print("fetching Cassandra", flush=True)
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(_HERE / "pom.xml")]
    subprocess.run([*command, "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], check=True)
    stamp.write_text(pom)
    return jars


@contextmanager
def running(address: str, seed: str = "") -> Iterator[int]:
    """An empty Cassandra that answers CQL at `address`, port 9042, in the cluster of the node at `seed` or in
    one of its own; its process id."""
    jars, home = prepare_jars(), HOME / f"node-{address}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    file = home / "cassandra.yaml"
    text = (_HERE / "cassandra.yaml").read_text()
    file.write_text(text.replace("{seed}", seed or address).replace("{address}", address))
    options = [f"--add-exports={place}=ALL-UNNAMED" for place in _EXPORTS.split()]
    options += [f"--add-opens={place}=ALL-UNNAMED" for place in _OPENS.split()]
    options += ["-Xms512m", "-Xmx1g", f"-javaagent:{next(jars.glob('jamm-*.jar'))}"]
    options += ["-Djdk.attach.allowAttachSelf=true", "-Dio.netty.tryReflectionSetAccessible=true"]
    options += [f"-Dcassandra.config={file.as_uri()}", f"-Dcassandra.storagedir={home / 'data'}"]
    # Who joins another gives it so long to answer; who is alone waits for nobody.
    options += [
        "-Dcassandra-foreground=yes",
        f"-Dcassandra.ring_delay_ms={_JOIN_WAIT_MS if seed not in ('', address) else 1}",
    ]
    options += ["-Dcassandra.skip_wait_for_gossip_to_settle=0"]
    command = ["java", *options, "-cp", f"{jars}{os.sep}*", "org.apache.cassandra.service.CassandraDaemon"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _await(process, address, home / "log")
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise SystemExit(f"error: Cassandra ended while it started: see {log}")
        try:
            socket.create_connection((address, 9042), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"error: Cassandra does not answer after {_START_TIMEOUT_S} s: see {log}")
