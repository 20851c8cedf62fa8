"""Commits of the metadata log a second, beside etcd and PySyncObj, with three syncing members each.

One commit sets a value of 100 bytes: here an extension, by the log's ordinary transformation and processor,
sent by a compiled client over one loopback connection; in etcd a key, sent by a compiled client of its own
protocol; in PySyncObj a dictionary entry, set by closed loops inside the leader, because that library has no
clients. The CPU is that of the members, without the client (PySyncObj's leader is also its client).
Usage: python bench/metadata_commits.py [seconds] [--only lockstep etcd pysyncobj] [--submitters N ...]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import ROOT, SCRATCH, CpuMeter, percentile, save, table
from quorum_path import DRIVER_ENVIRONMENT, pids_of, running_cluster

SUBMITTERS = (1, 16, 64, 256)
VALUE_BYTES = 100
WARM_S = 1.0
PEERS = ROOT / "bench" / "peers"
BUILT = ROOT / "build" / "bench-peers"
PYSYNCOBJ = "pysyncobj==0.3.17"
ETCD_ADDRESSES = ("127.0.1.41", "127.0.1.42", "127.0.1.43")
ETCD_PORTS = (12379, 12380)
PYSYNCOBJ_MEMBERS = ("127.0.1.51:14321", "127.0.1.52:14321", "127.0.1.53:14321")
#: At this many submitters the commits a second must be at least these multiples of the others'.
TARGET_SUBMITTERS = 64
TARGET_RATIOS = {"etcd": 1.0, "pysyncobj": 10.0}
_START_TIMEOUT_S = 30.0
#: A member that has not ended by then is killed; its data is thrown away anyway.
STOP_TIMEOUT_S = 2.0

#: Runs one phase: (submitters, seconds) to what the client printed.
Run = Callable[[int, float], dict[str, Any]]
#: Syncs of all members since they started.
Syncs = Callable[[], int]


def built(name: str) -> Path:
    """The compiled client of `bench/peers/<name>`, built when its sources are newer."""
    source, binary = PEERS / name, BUILT / name
    files = [path for path in source.iterdir() if path.suffix in (".go", ".mod", ".sum")]
    if not binary.exists() or any(path.stat().st_mtime > binary.stat().st_mtime for path in files):
        BUILT.mkdir(parents=True, exist_ok=True)
        subprocess.run(["go", "build", "-o", str(binary), "."], cwd=source, check=True)
    return binary


def _client(command: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def measured(
    run: Run, syncs: Syncs, pids: Sequence[int], submitters: Sequence[int], seconds: float
) -> list[dict[str, Any]]:
    """Figures for each number of submitters; CPU and syncs include the time before the counted one."""
    found = []
    for count in submitters:
        meter, before = CpuMeter(pids), syncs()
        meter.start()
        answer = run(count, seconds)
        used, synced = meter.stop(), syncs() - before
        latencies = sorted(answer["latencies_us"])
        rate = answer["commits"] / answer["seconds"]
        whole = max(1.0, rate * (answer["seconds"] + WARM_S))
        found.append(
            {
                "submitters": count,
                "per_second": rate,
                "p50_ms": percentile(latencies, 0.5) / 1000,
                "p99_ms": percentile(latencies, 0.99) / 1000,
                "cpu_s": used["cpu_s"],
                "cpu_us_each": used["cpu_s"] / whole * 1e6,
                "syncs": synced,
                "syncs_each": synced / whole,
                "errors": answer["errors"],
            }
        )
    return found


def lockstep(submitters: Sequence[int], seconds: float, profile: Path | None = None) -> list[dict[str, Any]]:
    client, counts = built("lockstep_client"), SCRATCH / "metadata-syncs"
    shutil.rmtree(counts, ignore_errors=True)
    command = [sys.executable, str(ROOT / "bench" / "counted_node.py"), str(profile or counts)]
    if profile is not None:
        command.append("--profile")
        counts = profile
    with running_cluster("metadata", tuple(command)) as cluster:
        endpoints = ",".join(f"{host}:{cluster.file.internode_port}" for host in cluster.contact_points)

        def run(count: int, seconds: float) -> dict[str, Any]:
            command = [str(client), "-endpoints", endpoints, "-cluster", cluster.file.name]
            return _client([*command, *_load(count, seconds)])

        def syncs() -> int:
            return sum(int.from_bytes(path.read_bytes()[:8], "big") for path in counts.glob("*.syncs"))

        found = measured(run, syncs, pids_of(cluster), submitters, seconds)
        if profile is not None:
            cluster.stop()
        return found


def _load(submitters: int, seconds: float) -> list[str]:
    return [
        "-submitters", str(submitters), "-seconds", str(seconds), "-warm", str(WARM_S),
        "-size", str(VALUE_BYTES),
    ]  # fmt: skip


# -- etcd


@contextmanager
def _processes(commands: Sequence[Sequence[str]], log: Path, **options: Any) -> Iterator[list[Any]]:
    """Processes that are ended again, each waited for."""
    log.parent.mkdir(parents=True, exist_ok=True)
    started: list[subprocess.Popen[str]] = []
    with log.open("w") as errors:
        try:
            for command in commands:
                started.append(subprocess.Popen(command, stderr=errors, text=True, **options))
            yield started
        finally:
            for process in started:
                process.terminate()
            for process in started:
                try:
                    process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def etcd(submitters: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    client, home = built("etcd_client"), SCRATCH / "etcd"
    shutil.rmtree(home, ignore_errors=True)
    client_port, peer_port = ETCD_PORTS
    members = {f"m{at}": address for at, address in enumerate(ETCD_ADDRESSES)}
    initial = ",".join(f"{name}=http://{address}:{peer_port}" for name, address in members.items())
    urls = [f"http://{address}:{client_port}" for address in ETCD_ADDRESSES]
    commands = [
        [
            "etcd", "--name", name, "--data-dir", str(home / name), "--logger", "zap", "--log-level", "error",
            "--listen-client-urls", f"http://{address}:{client_port}",
            "--advertise-client-urls", f"http://{address}:{client_port}",
            "--listen-peer-urls", f"http://{address}:{peer_port}",
            "--initial-advertise-peer-urls", f"http://{address}:{peer_port}",
            "--initial-cluster", initial, "--initial-cluster-state", "new",
        ]
        for name, address in members.items()
    ]  # fmt: skip
    with _processes(commands, home / "etcd.log", stdout=subprocess.DEVNULL) as processes:
        _await_etcd(urls)
        pids = [process.pid for process in processes]

        def run(count: int, seconds: float) -> dict[str, Any]:
            return _client([str(client), "-endpoints", ",".join(urls), *_load(count, seconds)])

        return measured(run, lambda: sum(_etcd_syncs(url) for url in urls), pids, submitters, seconds)


def _await_etcd(urls: Sequence[str]) -> None:
    until_s = time.perf_counter() + _START_TIMEOUT_S
    for url in urls:
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=1) as reply:
                    if json.load(reply).get("health") == "true":
                        break
            except OSError:
                pass
            if time.perf_counter() > until_s:
                raise RuntimeError(f"etcd at {url} does not become healthy")
            time.sleep(0.1)


def _etcd_syncs(url: str) -> int:
    """Syncs of the write-ahead log, and commits of the backend file, each of which syncs."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    names = ("etcd_disk_wal_fsync_duration_seconds_count", "etcd_disk_backend_commit_duration_seconds_count")
    return sum(int(float(line.split()[1])) for line in lines if line.split(" ")[0] in names)


# -- PySyncObj


def pysyncobj(submitters: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    return _pysyncobj(submitters, seconds, ())


def pysyncobj_unsynced(submitters: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """As the library is by itself: nothing waits for a disk."""
    return _pysyncobj(submitters, seconds, ("--unsynced",))


def _pysyncobj(submitters: Sequence[int], seconds: float, options: Sequence[str]) -> list[dict[str, Any]]:
    python, home = _pysyncobj_python(), SCRATCH / "pysyncobj"
    shutil.rmtree(home, ignore_errors=True)
    script = str(PEERS / "pysyncobj_member.py")
    commands = []
    for at, own in enumerate(PYSYNCOBJ_MEMBERS):
        others = [member for member in PYSYNCOBJ_MEMBERS if member != own]
        commands.append([str(python), script, own, *others, str(home / f"m{at}"), *options])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with _processes(commands, home / "members.log", **pipes) as processes:
        for process in processes:
            _answer(process)
        leader = next(process for process in processes if _ask(process, run="status")["leads"])

        def run(count: int, seconds: float) -> dict[str, Any]:
            return _ask(leader, run="load", submitters=count, seconds=seconds, warm=WARM_S, size=VALUE_BYTES)

        def syncs() -> int:
            return sum(_ask(process, run="status")["syncs"] for process in processes)

        return measured(run, syncs, [process.pid for process in processes], submitters, seconds)


def _pysyncobj_python() -> Path:
    python = DRIVER_ENVIRONMENT / "bin" / "python"
    stamp = DRIVER_ENVIRONMENT / ".stamp-pysyncobj"
    if not stamp.exists():
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(DRIVER_ENVIRONMENT)], check=True)
        install = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*install, PYSYNCOBJ], check=True)
        stamp.touch()
    return python


def _ask(process: Any, **command: Any) -> dict[str, Any]:
    process.stdin.write(json.dumps(command) + "\n")
    process.stdin.flush()
    return _answer(process)


def _answer(process: Any) -> dict[str, Any]:
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a member of the group ended with code {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


# -- all of them

MEASURES: dict[str, Callable[[Sequence[int], float], list[dict[str, Any]]]] = {
    "lockstep": lockstep,
    "etcd": etcd,
    "pysyncobj": pysyncobj,
    "pysyncobj, no sync": pysyncobj_unsynced,
}


def measure(
    seconds: float = 5.0, names: Sequence[str] = tuple(MEASURES), submitters: Sequence[int] = SUBMITTERS
) -> dict[str, Any]:
    """Figures by name; a peer that is not installed is left out and named."""
    missing = [name for name in names if name == "etcd" and not (shutil.which("etcd") and shutil.which("go"))]
    runs = {name: MEASURES[name](submitters, seconds) for name in names if name not in missing}
    return {"value_bytes": VALUE_BYTES, "missing": missing, "runs": runs, "ratios": _ratios(runs)}


def _ratios(runs: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    at_target = {
        name: row["per_second"]
        for name, rows in runs.items()
        for row in rows
        if row["submitters"] == TARGET_SUBMITTERS
    }
    own = at_target.get("lockstep")
    return {name: own / at_target[name] for name in TARGET_RATIOS if own and at_target.get(name)}


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    names = ("per_second", "p50_ms", "p99_ms", "cpu_us_each", "syncs", "syncs_each", "errors")
    heading = [
        "submitters",
        "",
        "commits a second",
        "p50 ms",
        "p99 ms",
        "CPU us each",
        "syncs",
        "each",
        "errors",
    ]
    rows: list[list[object]] = [heading]
    for name, found in figures["runs"].items():
        for row in found:
            rows.append([row["submitters"], name, *(row[field] for field in names)])
    return rows


def report(figures: dict[str, Any]) -> None:
    title = f"Commits of {figures['value_bytes']} bytes, three members; CPU and syncs of all members together"
    print(table(title, rows_of(figures)))
    for name in figures["missing"]:
        print(f"{name} is not installed here and was left out")
    for name, ratio in figures["ratios"].items():
        target = TARGET_RATIOS[name]
        print(f"{TARGET_SUBMITTERS} submitters: {ratio:.2f} times {name} (target: at least {target:g})")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=5.0)
    parser.add_argument("--only", nargs="*", default=list(MEASURES), choices=list(MEASURES))
    parser.add_argument("--submitters", nargs="*", type=int, default=list(SUBMITTERS))
    parser.add_argument("--profile", type=Path)
    arguments = parser.parse_args()
    if arguments.profile is not None:
        print(json.dumps(lockstep(arguments.submitters, arguments.seconds, arguments.profile), indent=1))
        return 0
    figures = measure(arguments.seconds, arguments.only, arguments.submitters)
    report(figures)
    print(f"written to {save('metadata-commits', figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
