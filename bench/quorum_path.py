"""QUORUM writes and reads against three real node processes, under load from a compiled driver.

Figures are the servers' CPU a request (all three nodes together), and requests a second and latencies as
the driver sees them while it competes for the same cores. Usage: python bench/quorum_path.py [seconds]
[in flight] [value bytes]; `--profile DIRECTORY` writes a cProfile of each node there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import ROOT, SCRATCH, CpuMeter, resident_mb, save, table

from lockstep.local.clusters import NODE_COMMAND, LocalCluster
from lockstep.local.processes import recorded

FIRST_ADDRESS = "127.0.0.11"
PORTS = (19242, 17200, 17280)
DRIVER_ENVIRONMENT = ROOT / "build" / "bench-venv"
DRIVER_PACKAGES = ("acsylla==1.2.0",)
WARM_UP_S = 2.0


def driver_python() -> Path:
    """The interpreter of the load driver's own environment, made when it is not there."""
    python = DRIVER_ENVIRONMENT / "bin" / "python"
    stamp = DRIVER_ENVIRONMENT / ".stamp-driver"
    if not stamp.exists():
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(DRIVER_ENVIRONMENT)], check=True)
        install = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*install, *DRIVER_PACKAGES], check=True)
        stamp.touch()
    return python


def pids_of(cluster: LocalCluster) -> list[int]:
    found = [recorded(cluster.paths.pid(node.name)) for node in cluster.file.nodes]
    return [identity.pid for identity in found if identity is not None]


@contextmanager
def running_cluster(
    name: str, command: tuple[str, ...] = NODE_COMMAND, first_address: str = FIRST_ADDRESS
) -> Iterator[LocalCluster]:
    """Three nodes on addresses and ports of the benchmarks, destroyed at the end."""
    home = SCRATCH / "clusters"
    shutil.rmtree(home / name, ignore_errors=True)
    with LocalCluster.create(
        name, 3, first_address=first_address, ports=PORTS, home=home, command=command
    ) as cluster:
        cluster.start()
        yield cluster


class Driver:
    """The load driver's process."""

    def __init__(self, hosts: list[str], port: int, dc: str = "dc1") -> None:
        # The driver remarks on every connection that the servers have no shards.
        self._log = SCRATCH / "driver.log"
        with self._log.open("w") as log:
            script = ROOT / "bench" / "load_driver.py"
            self._process = subprocess.Popen(
                [str(driver_python()), str(script), ",".join(hosts), str(port), dc],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code, tail = self._process.wait(), self._log.read_text()[-500:]
            raise RuntimeError(f"the load driver ended with code {code}: {tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def fill(self, value_bytes: int, keys: int = 0, *, space: str = "", noise: bool = False) -> None:
        """Write the rows that slices and scans read, or `keys` that are overwritten; `noise` stays as long in
        any store."""
        self._say(run="fill", value_bytes=value_bytes, keys=keys, space=space, noise=noise)
        self._answer()

    def make_space(self, name: str, options: str = "") -> None:
        """Make a keyspace with a table of its own, which requests are about that name it as `space`."""
        self._say(run="space", name=name, options=options)
        self._answer()

    def prepare(self, value_bytes: int) -> None:
        """Make and fill the tables of what is compared with others."""
        self._say(run="prepare", value_bytes=value_bytes)
        self._answer()

    def make_tables(self, count: int) -> None:
        """Make so many empty tables."""
        self._say(run="tables", count=count)
        self._answer()

    def _say(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def run(self, meter: CpuMeter, **command: Any) -> dict[str, Any]:
        """One phase; the servers' CPU is metered exactly while its requests are counted."""
        self._say(**command)
        self._answer()
        meter.start()
        answer = self._answer()
        used = meter.stop()
        done = answer["requests"]
        if not done or answer["failures"]:
            print(f"failures of {command['run']}: {answer['failures']}", file=sys.stderr)
        return {
            "requests": done,
            "per_second": done / answer["seconds"],
            "cpu_us_each": used["cpu_s"] / max(done, 1) * 1e6,
            "system_us_each": used["system_s"] / max(done, 1) * 1e6,
            "loop_us_each": used["loop_s"] / max(done, 1) * 1e6,
            "cores_used": used["cpu_s"] / used["wall_s"],
            "p50_ms": answer["p50_ms"],
            "p99_ms": answer["p99_ms"],
            "failures": answer["failures"],
        }

    def begin(self, **command: Any) -> None:
        """A phase that others are measured beside; `end` waits for it."""
        self._say(**command)
        self._answer()

    def end(self) -> None:
        self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def measure(
    seconds: float = 10.0, in_flight: int = 64, value_bytes: int = 100, profile: Path | None = None
) -> dict[str, Any]:
    """Figures by kind of request, and the nodes' resident memory before and after the load."""
    command = NODE_COMMAND
    if profile is not None:
        command = (sys.executable, str(ROOT / "bench" / "profiled_node.py"), str(profile))
    with running_cluster("quorum", command) as cluster:
        pids = pids_of(cluster)
        idle_mb = [resident_mb(pid) for pid in pids]
        driver = Driver(cluster.contact_points, cluster.file.cql_port)
        shared = {
            "seconds": seconds,
            "warm_up_s": WARM_UP_S,
            "in_flight": in_flight,
            "value_bytes": value_bytes,
        }
        try:
            writes = driver.run(CpuMeter(pids), run="write", **shared)
            reads = driver.run(CpuMeter(pids), run="read", **shared)
        finally:
            driver.close()
        loaded_mb = [resident_mb(pid) for pid in pids]
        if profile is not None:
            cluster.stop()
    return {
        "in_flight": in_flight,
        "value_bytes": value_bytes,
        "writes": writes,
        "reads": reads,
        "idle_mb": max(idle_mb),
        "loaded_mb": max(loaded_mb),
    }


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    names = ("per_second", "cpu_us_each", "system_us_each", "cores_used", "p50_ms", "p99_ms")
    rows: list[list[object]] = [["", *names]]
    for kind in ("writes", "reads"):
        rows.append([kind, *(figures[kind][name] for name in names)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=10.0)
    parser.add_argument("in_flight", type=int, nargs="?", default=64)
    parser.add_argument("value_bytes", type=int, nargs="?", default=100)
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args()
    figures = measure(given.seconds, given.in_flight, given.value_bytes, given.profile)
    if given.profile is None:
        save("quorum_path", figures)
    print(table(f"QUORUM, {given.in_flight} in flight, {given.value_bytes} bytes", rows_of(figures)))
    print(f"resident: {figures['idle_mb']:.0f} MB idle, {figures['loaded_mb']:.0f} MB after the load")


if __name__ == "__main__":
    main()
