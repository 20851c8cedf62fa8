"""Commits of the metadata log a second, beside etcd and PySyncObj, with three syncing members each.

One commit sets a value of 100 bytes: here an extension, by the log's ordinary transformation and processor,
sent by a compiled client over one loopback connection; in etcd a key, sent by a compiled client of its own
protocol; in PySyncObj a dictionary entry, set by closed loops inside the leader, because that library has no
clients. The CPU is that of the members, without the client (PySyncObj's leader is also its client).
Usage: python bench/metadata_commits.py [seconds] [--only lockstep etcd pysyncobj] [--submitters N ...]
[--rounds N]
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from operator import itemgetter
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
#: The library listens on all addresses, so that the ports must differ.
PYSYNCOBJ_MEMBERS = ("127.0.1.51:14321", "127.0.1.52:14322", "127.0.1.53:14323")
#: At this many submitters the commits a second must be at least these multiples of the others'.
TARGET_SUBMITTERS = 64
TARGET_RATIOS = {"etcd": 1.0, "pysyncobj": 10.0}
_START_TIMEOUT_S = 30.0
_ANSWER_TIMEOUT_S = 10.0
_CLIENT_TIMEOUT_S = 60.0
#: A member that has not ended by then is killed; its data is thrown away anyway.
STOP_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Subject:
    """A running group of three. `run(submitters, seconds)` is one phase, and gives what its client printed;
    `syncs()` counts those of all members since they started; `pids` are the members."""

    run: Callable[[int, float], dict[str, Any]]
    syncs: Callable[[], int]
    pids: Sequence[int]


def built(name: str) -> Path:
    """The compiled client of `bench/peers/<name>`, built when its sources are newer."""
    source, binary = PEERS / name, BUILT / name
    files = [path for path in source.iterdir() if path.suffix in (".go", ".mod", ".sum")]
    if not binary.exists() or any(path.stat().st_mtime > binary.stat().st_mtime for path in files):
        BUILT.mkdir(parents=True, exist_ok=True)
        subprocess.run(["go", "build", "-o", str(binary), "."], cwd=source, check=True)
    return binary


def _client(command: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=_CLIENT_TIMEOUT_S)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def measured(subject: Subject, submitters: int, seconds: float) -> dict[str, Any]:
    """Figures of one phase; CPU and syncs include the time before the counted one."""
    meter, before = CpuMeter(subject.pids), subject.syncs()
    meter.start()
    answer = subject.run(submitters, seconds)
    used, synced = meter.stop(), subject.syncs() - before
    latencies = sorted(answer["latencies_us"])
    rate = answer["commits"] / answer["seconds"]
    whole = max(1.0, rate * (answer["seconds"] + WARM_S))
    return {
        "submitters": submitters,
        "per_second": rate,
        "p50_ms": percentile(latencies, 0.5) / 1000,
        "p99_ms": percentile(latencies, 0.99) / 1000,
        "cpu_s": used["cpu_s"],
        "cpu_us_each": used["cpu_s"] / whole * 1e6,
        "system_us_each": used["system_s"] / whole * 1e6,
        "cores_used": used["cpu_s"] / used["wall_s"],
        "syncs": synced,
        "syncs_each": synced / whole,
        "errors": answer["errors"],
    }


@contextmanager
def lockstep(profile: Path | None = None) -> Iterator[Subject]:
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

        yield Subject(run, syncs, pids_of(cluster))
        if profile is not None:
            cluster.stop()


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


@contextmanager
def etcd() -> Iterator[Subject]:
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

        yield Subject(run, lambda: sum(_etcd_syncs(url) for url in urls), pids)


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


@contextmanager
def pysyncobj(*options: str) -> Iterator[Subject]:
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
            _answer(process, _START_TIMEOUT_S)
        leader = next(process for process in processes if _ask(process, run="status")["leads"])

        def run(count: int, seconds: float) -> dict[str, Any]:
            load = {"submitters": count, "seconds": seconds, "warm": WARM_S, "size": VALUE_BYTES}
            return _ask(leader, seconds + WARM_S, run="load", **load)

        def syncs() -> int:
            return sum(_ask(process, run="status")["syncs"] for process in processes)

        yield Subject(run, syncs, [process.pid for process in processes])


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


def _ask(process: Any, takes_s: float = 0.0, **command: Any) -> dict[str, Any]:
    process.stdin.write(json.dumps(command) + "\n")
    process.stdin.flush()
    return _answer(process, takes_s + _ANSWER_TIMEOUT_S)


def _answer(process: Any, limit_s: float) -> dict[str, Any]:
    """The member's next line; RuntimeError when it gives none in time."""
    if not select.select([process.stdout], [], [], limit_s)[0]:
        raise RuntimeError(f"a member of the group says nothing for {limit_s:g} s")
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a member of the group has ended")
    answer: dict[str, Any] = json.loads(line)
    return answer


# -- all of them

SUBJECTS: dict[str, Callable[[], AbstractContextManager[Subject]]] = {
    "lockstep": lockstep,
    "etcd": etcd,
    "pysyncobj": pysyncobj,
    "pysyncobj, no sync": lambda: pysyncobj("--unsynced"),
}
#: Those that run side by side and take turns: whatever else the machine does then meets them alike. The
#: members of PySyncObj poll even when nothing is asked of them, so they have the machine to themselves.
SIDE_BY_SIDE = (("lockstep", "etcd"), ("pysyncobj",), ("pysyncobj, no sync",))


def measure(
    seconds: float = 3.0,
    names: Sequence[str] = tuple(SUBJECTS),
    submitters: Sequence[int] = SUBMITTERS,
    rounds: int = 3,
) -> dict[str, Any]:
    """Figures by name, of the round with the median rate (what takes no turns has one round); what is not
    installed is left out and said."""
    missing = {name: why for name in names if (why := _missing(name))}
    runs: dict[str, list[dict[str, Any]]] = {}
    for beside in SIDE_BY_SIDE:
        chosen = [name for name in beside if name in names and name not in missing]
        with ExitStack() as started:
            subjects = {name: started.enter_context(SUBJECTS[name]()) for name in chosen}
            for count in submitters:
                found: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
                for _ in range(rounds if len(chosen) > 1 else 1):
                    for name, subject in subjects.items():
                        found[name].append(measured(subject, count, seconds))
                for name, rows in found.items():
                    rows.sort(key=itemgetter("per_second"))
                    median = {**rows[len(rows) // 2], "rates": [row["per_second"] for row in rows]}
                    runs.setdefault(name, []).append(median)
    return {"value_bytes": VALUE_BYTES, "missing": missing, "runs": runs, "ratios": _ratios(runs)}


def _missing(name: str) -> str:
    """Why a subject cannot run here; empty when it can."""
    if name in ("lockstep", "etcd") and not shutil.which("go"):
        return "its client is compiled by go, which is not in PATH"
    if name == "etcd" and not shutil.which("etcd"):
        return "etcd is not in PATH (Debian package etcd-server)"
    return ""


def _ratios(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Our commits a second in units of theirs, by peer and number of submitters."""
    rates = {name: {row["submitters"]: row["per_second"] for row in rows} for name, rows in runs.items()}
    own = rates.pop("lockstep", {})
    return {
        name: {str(count): own[count] / rate for count, rate in theirs.items() if count in own and rate}
        for name, theirs in rates.items()
    }


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    names = (
        "per_second",
        "p50_ms",
        "p99_ms",
        "cpu_us_each",
        "system_us_each",
        "cores_used",
        "syncs",
        "syncs_each",
        "errors",
    )
    heading = [
        "submitters",
        "",
        "commits a second",
        "p50 ms",
        "p99 ms",
        "CPU us each",
        "system us",
        "cores",
        "syncs",
        "each",
        "errors",
        "ratio",
    ]
    rows: list[list[object]] = [heading]
    for at in range(max(map(len, figures["runs"].values()), default=0)):
        for name, found in figures["runs"].items():
            ratio = figures["ratios"].get(name, {}).get(str(found[at]["submitters"]))
            shown = f"{ratio:.2f}" if ratio is not None else ""
            rows.append([found[at]["submitters"], name, *(found[at][field] for field in names), shown])
    return rows


REQUEST_TRACE = """\
Each row is the round with the median rate; lockstep and etcd take turns. The last column is our rate in units
of theirs. CPU and syncs are those of the three members together. PySyncObj by itself never waits for a disk:
its row "pysyncobj" is with a patch that syncs its journal, when it changed, before a member sends or
acknowledges entries. It has its own settings, which send entries every 100 ms; its closed loops run inside
the leader and are in its CPU. The rates of etcd and lockstep hold for this machine as busy as it was."""


def report(figures: dict[str, Any]) -> None:
    title = f"Commits of {figures['value_bytes']} bytes, three members"
    print(table(title, rows_of(figures)))
    print(REQUEST_TRACE)
    for name, why in figures["missing"].items():
        print(f"{name} was left out: {why}")
    for name, target in TARGET_RATIOS.items():
        ratio = figures["ratios"].get(name, {}).get(str(TARGET_SUBMITTERS))
        if ratio is not None:
            print(f"{TARGET_SUBMITTERS} submitters: {ratio:.2f} times {name} (target: at least {target:g})")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=3.0)
    parser.add_argument("--only", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    parser.add_argument("--submitters", nargs="*", type=int, default=list(SUBMITTERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", type=Path)
    arguments = parser.parse_args()
    if arguments.profile is not None:
        with lockstep(arguments.profile) as subject:
            for count in arguments.submitters:
                print(json.dumps(measured(subject, count, arguments.seconds), indent=1))
        return 0
    figures = measure(arguments.seconds, arguments.only, arguments.submitters, arguments.rounds)
    report(figures)
    print(f"written to {save('metadata-commits', figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
