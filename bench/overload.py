"""What three nodes do under ten times the load that saturates them: goodput, who is refused, recovery.

Saturation is found first, with more and more connections of IN_FLIGHT requests each. Then OVERLOADS ask for
OVERLOAD_S seconds each, and after each the saturating number again: ten times what saturates (at least 500
connections), and so much that without a bound all would wait for longer than the write timeout. Goodput
counts successes that came within the write timeout. All clients run in one process on the same cores.
Meanwhile every node is asked each second whom it takes for dead and who leads.
Usage: python bench/overload.py [seconds]
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from typing import Any

from measuring import ROOT, SCRATCH, percentile, resident_mb, save, table
from quorum_path import pids_of, running_cluster

from lockstep.local.clusters import LocalCluster

IN_FLIGHT = 4
STEPS = (4, 8, 16, 32, 64)
#: The fewest requests in flight saturate that bring the best throughput divided by this.
GROWTH_MIN = 1.05
TIMES = 10
#: (connections, in flight on each); fewer connections than TIMES what saturates become so many.
OVERLOADS = ((500, 4), (500, 32))
OVERLOAD_S = 20.0
WINDOW_S = 0.5
WRITE_S = 2.0
#: What must hold.
GOODPUT_MIN, RECOVERY_S_MAX = 0.8, 2.0


class Clients:
    """The process of all clients."""

    def __init__(self, cluster: LocalCluster) -> None:
        hosts, port = ",".join(cluster.contact_points), str(cluster.file.cql_port)
        self._log = (SCRATCH / "overload-client.log").open("w")
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "bench" / "overload_client.py"),
                hosts,
                port,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the clients ended with code {self._process.wait()}: {self._log.name}")
        found: dict[str, Any] = json.loads(line)
        return found

    def drive(self, connections: int, seconds: float, in_flight: int = IN_FLIGHT) -> list[dict[str, Any]]:
        """What came back, by windows of WINDOW_S."""
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"connections": connections, "seconds": seconds, "in_flight": in_flight}) + "\n"
        )
        self._process.stdin.flush()
        answer = self._answer()
        self.late_s: float = answer["late_s"]
        windows: list[dict[str, Any]] = answer["windows"]
        return windows

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Watch:
    """Asks every node each second whom it takes for dead and in which term its metadata group is."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._stopped = threading.Event()
        self.suspected: list[str] = []
        self.leaders: dict[str, None] = {}
        self.unanswered = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        port = self._cluster.file.admin_port
        while not self._stopped.wait(1.0):
            for node in self._cluster.file.nodes:
                try:
                    url = f"http://{node.address}:{port}/metrics"
                    text = urllib.request.urlopen(url, timeout=2.0).read().decode()
                except OSError:
                    self.unanswered += 1
                    continue
                for line in text.splitlines():
                    name, _, value = line.rpartition(" ")
                    if name.startswith("lockstep_gossip_alive_bool") and float(value) != 1:
                        self.suspected.append(f"{node.name}: {name}")
                    elif name.startswith("lockstep_consensus_term_number"):
                        self.leaders[f"{name} {value}"] = None

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def summary(windows: list[dict[str, Any]], skip_s: float = 0.0) -> dict[str, Any]:
    """Figures of the windows after the first `skip_s` seconds."""
    kept = windows[int(skip_s / WINDOW_S) :]
    seconds = max(len(kept), 1) * WINDOW_S
    latencies_s = sorted(one for window in kept for one in window["latencies_s"])
    good = sum(1 for one in latencies_s if one <= WRITE_S)
    counts: dict[str, int] = {}
    for window in kept:
        for name, count in window.items():
            if name != "latencies_s":
                counts[name] = counts.get(name, 0) + count
    total = max(sum(counts.values()), 1)
    return {
        "good_per_second": good / seconds,
        "late": len(latencies_s) - good,
        "p50_ms": percentile(latencies_s, 0.5) * 1e3,
        "p99_ms": percentile(latencies_s, 0.99) * 1e3,
        "share_refused": counts.get("refused", 0) / total,
        "counts": counts,
    }


def recovery_s(windows: list[dict[str, Any]], best: float) -> float:
    """Until a window has 80 % of the best goodput; all the time when none has."""
    for at, window in enumerate(windows):
        good = sum(1 for one in window["latencies_s"] if one <= WRITE_S)
        if good / WINDOW_S >= GOODPUT_MIN * best:
            return (at + 1) * WINDOW_S
    return len(windows) * WINDOW_S


def measure(seconds: float = OVERLOAD_S) -> dict[str, Any]:
    """The figures, and the cluster's own view of its nodes meanwhile."""
    with running_cluster("overload") as cluster:
        pids, clients = pids_of(cluster), Clients(cluster)
        watch = Watch(cluster)
        try:
            clients.drive(STEPS[0], 2.0)
            steps: dict[int, dict[str, Any]] = {}
            for connections in STEPS:
                steps[connections] = summary(clients.drive(connections, seconds / 4), 1.0)
            best = max(one["good_per_second"] for one in steps.values())
            enough = [n for n in STEPS if steps[n]["good_per_second"] >= best / GROWTH_MIN]
            saturating = enough[0]
            overloads = [
                _overload(clients, max(connections, TIMES * saturating), in_flight, saturating, best, seconds)
                for connections, in_flight in OVERLOADS
            ]
        finally:
            watch.stop()
            clients.close()
        return {
            "in_flight_each": IN_FLIGHT,
            "steps": steps,
            "saturating_connections": saturating,
            "best_per_second": best,
            "overloads": overloads,
            "resident_mb": max(resident_mb(pid) for pid in pids),
            "suspected": watch.suspected,
            "terms": list(watch.leaders),
            "unanswered_by_admin": watch.unanswered,
        }


def _overload(
    clients: Clients, connections: int, in_flight: int, saturating: int, best: float, seconds: float
) -> dict[str, Any]:
    found = summary(clients.drive(connections, seconds, in_flight), 2.0)
    late_ms = clients.late_s * 1e3
    after = clients.drive(saturating, max(seconds / 4, 4.0))
    return {
        "in_flight": connections * in_flight,
        **found,
        "clients_late_ms": late_ms,
        "goodput_share": found["good_per_second"] / max(best, 1),
        "recovery_s": recovery_s(after, best),
        "after": summary(after),
    }


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    rows: list[list[object]] = [
        ["in flight", "", "good a second", "p50 ms", "p99 ms", "share refused", "late"]
    ]
    names = ("good_per_second", "p50_ms", "p99_ms", "share_refused", "late")
    for connections, found in figures["steps"].items():
        rows.append([connections * IN_FLIGHT, "load", *(found[name] for name in names)])
    for found in figures["overloads"]:
        rows.append([found["in_flight"], "overload", *(found[name] for name in names)])
        back = figures["saturating_connections"] * IN_FLIGHT
        rows.append([back, "after it", *(found["after"][name] for name in names)])
    return rows


def show(figures: dict[str, Any]) -> None:
    print(table("Writes and reads of one row at QUORUM on three nodes", rows_of(figures)))
    for found in figures["overloads"]:
        print(
            f"{found['in_flight']:,} in flight: goodput {found['goodput_share']:.0%} of the best (at least "
            f"{GOODPUT_MIN:.0%}), recovery in {found['recovery_s']:.1f} s (at most {RECOVERY_S_MAX:g}), "
            f"answers {found['counts']}; the clients' own loop was {found['clients_late_ms']:.0f} ms late"
        )
    print(f"at most {figures['resident_mb']:,.0f} MB resident")
    print(f"nodes suspected: {len(figures['suspected'])}; terms: {', '.join(figures['terms']) or 'unknown'}")


def main() -> None:
    figures = measure(float(sys.argv[1]) if len(sys.argv) > 1 else OVERLOAD_S)
    save("overload", figures)
    show(figures)


if __name__ == "__main__":
    main()
