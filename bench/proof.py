"""`make proof`: what clients are promised, tried on real processes that are killed, stopped and cut off.

Three nodes; processes of clients that write rows once, read and write registers at QUORUM, and compare and
set others; strikes one after another while nodes also join and leave. Everything that clients were told is
recorded under build/proof and judged at the end: no acknowledged row is lost and no refused one written,
registers are linearizable, decisions are. Exit code 1 when something was violated.
Usage: python bench/proof.py [--operations N] [--seed N] [--level QUORUM] [--skew SECONDS]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from client_process import ClientProcess
from measuring import ROOT, save
from proof_checks import Access, check_atomic, check_kept
from proof_faults import Faults
from quorum_path import driver_python

from lockstep.local.clusters import LocalCluster
from lockstep.sim.checkers.registers import Decided, check_decisions
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome
from lockstep.testing import Cluster, Node

HOME = ROOT / "build" / "proof"
#: What there must be some of.
MUST = ("rows acknowledged", "register reads judged", "conditional answers judged")
CLIENTS = 2
#: What is shown of a log where a node told of a defect.
FAULT_LINES = 25
REPLICATION = "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"
SCHEMA = (
    f"CREATE KEYSPACE proof WITH replication = {REPLICATION}",
    "CREATE TABLE proof.written (client text, block int, at int, value text, "
    "PRIMARY KEY ((client, block), at))",
    "CREATE TABLE proof.registers (key int PRIMARY KEY, value text)",
    "CREATE TABLE proof.decided (key int PRIMARY KEY, value text)",
)


class Client:
    """A process of clients."""

    def __init__(self, cluster: Cluster, name: str, seed: int, level: str) -> None:
        self.path = HOME / f"{name}.jsonl"
        command = [str(driver_python()), str(ROOT / "bench" / "proof_client.py")]
        command += [",".join(cluster.contact_points), str(cluster.port), name, str(seed), level]
        self.process = ClientProcess([*command, str(self.path)], HOME / f"{name}.log")

    @property
    def acknowledged(self) -> int:
        return int(self.process.told.get(Outcome.OK.value, 0))


def proof_cluster(skew_s: float) -> Cluster:
    made = Cluster(3, name="proof", directory=HOME / "cluster")
    if skew_s:
        command = (sys.executable, str(ROOT / "bench" / "skewed_node.py"), str(skew_s))
        made.local = LocalCluster(made.local.paths, command)
    return made


def load(operations: int, seed: int, level: str, skew_s: float) -> dict[str, Any]:
    """Run clients and faults until so many operations were acknowledged; then read all rows back."""
    began_s = time.monotonic()

    def tell(text: str) -> None:
        done = sum(client.acknowledged for client in clients)
        print(f"{time.monotonic() - began_s:7.1f} s {done:>9,} acknowledged  {text}", flush=True)

    clients: list[Client] = []
    with proof_cluster(skew_s) as cluster:
        for statement in SCHEMA:
            cluster.execute(statement)
        faults = Faults(cluster, seed, keep_log)
        try:
            clients += [Client(cluster, f"p{number}", seed, level) for number in range(CLIENTS)]
            while sum(client.acknowledged for client in clients) < operations:
                struck = faults.strike()
                for client in clients:
                    client.process.ask("counts")
                tell(struck)
            for client in clients:
                client.process.ask("stop")
            counts: dict[str, int] = {}
            for client in clients:
                for name, count in client.process.told.items():
                    counts[name] = counts.get(name, 0) + count
            seconds = time.monotonic() - began_s
            tell("reads all rows back")
            for client in clients:
                client.process.ask("read back")
            for node in cluster.nodes:
                keep_log(node)
            broken = faults_told()
        finally:
            for client in clients:
                client.process.close()
    return {"seconds": seconds, "counts": counts, "struck": faults.struck, "broken": broken}


def keep_log(node: Node) -> None:
    """A node that joins later may have the name of one that has left."""
    with (HOME / f"{node.name}.node.log").open("a") as kept:
        kept.write(node.log_path.read_text(errors="replace"))


def faults_told() -> list[str]:
    """What nodes logged of defects of their own, those that have left included."""
    told: list[str] = []
    for path in sorted(HOME.glob("*.node.log")):
        lines = path.read_text().splitlines()
        for at, line in enumerate(lines):
            if any(mark in line for mark in ("Traceback", "cql.fault", "task.fault")):
                told += [f"{path.stem}: {text}" for text in lines[max(0, at - 3) : at + FAULT_LINES]]
    return told


def lines(path: Path) -> Iterator[list[Any]]:
    decoder = msgspec.json.Decoder(list)
    with path.open("rb") as file:
        for line in file:
            yield decoder.decode(line)


def judge(paths: list[Path]) -> dict[str, int]:
    """What was judged. Raises the first Violation."""
    accesses: list[Access] = []
    decided: list[Decided] = []
    rows: dict[str, int] = dict.fromkeys(("acknowledged", "unknown", "refused", "found late"), 0)
    for path in paths:
        written: dict[str, list[int]] = {outcome.value: [] for outcome in Outcome}
        found: list[int] = []
        for kind, *facts in lines(path):
            if kind == "w":
                number, _, _, outcome = facts
                written[outcome].append(number)
            elif kind == "p":
                block, numbers, wrong = facts
                if wrong:
                    raise Violation("REP-1", f"{path.stem}: rows {wrong} of block {block} have other values")
                found.extend(numbers)
            elif kind in "sg":
                accesses.append(_access(kind, *facts))
            else:
                decided.append(_decided(kind, *facts))
        rows["found late"] += check_kept(written["ok"], written["failed"], written["unknown"], found)
        for name, outcome in (("acknowledged", "ok"), ("unknown", "unknown"), ("refused", "failed")):
            rows[name] += len(written[outcome])
    return {
        **{f"rows {name}": count for name, count in rows.items()},
        "register operations": len(accesses),
        "register reads judged": check_atomic(accesses),
        "conditional operations": len(decided),
        "conditional answers judged": check_decisions(decided),
    }


def _access(
    kind: str, who: str, key: int, value: str | None, start_ns: int, end_ns: int, outcome: str = "ok"
) -> Access:
    return Access(who, str(key), kind == "s", value, start_ns, end_ns, Outcome(outcome))


def _decided(kind: str, who: str, key: int, *facts: Any) -> Decided:
    if kind == "l":
        seen, start_ns, end_ns = facts
        return Decided(who, b"%d" % key, start_ns, end_ns, Outcome.OK, seen=_bytes(seen))
    expected, wrote, applied, seen, start_ns, end_ns, outcome = facts
    return Decided(
        client=who,
        key=b"%d" % key,
        start_ns=start_ns,
        end_ns=end_ns,
        outcome=Outcome(outcome),
        expected=_bytes(expected),
        wrote=_bytes(wrote),
        applied=applied,
        seen=_bytes(seen),
    )


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--level", default="QUORUM", help="of reads and writes; ONE must be found out")
    parser.add_argument(
        "--skew", type=float, default=0.0, metavar="SECONDS", help="how far nodes' clocks may be off"
    )
    given = parser.parse_args()
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    figures = load(given.operations, given.seed, given.level, given.skew)
    shutil.rmtree(HOME / "cluster")
    print(f"{figures['seconds']:.0f} s; struck: {figures['struck']}; told: {figures['counts']}")
    try:
        judged = judge(sorted(HOME.glob("*.jsonl")))
    except Violation as found:
        print(f"violated: {found}", file=sys.stderr)
        return 1
    for name, count in judged.items():
        print(f"{count:>12,}  {name}")
    if not all(judged[name] for name in MUST):
        print("the load did not reach everything that is judged", file=sys.stderr)
        return 1
    print("nothing acknowledged is lost, registers and decisions are linearizable")
    if figures["broken"]:
        print("\n".join(["nodes told of defects:", *figures["broken"]]), file=sys.stderr)
        return 1
    save("proof", {**figures, "judged": judged})
    return 0


if __name__ == "__main__":
    sys.exit(main())
