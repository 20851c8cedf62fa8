"""`make conformance SUITE=path`: a driver's own integration tests against a local cluster of real nodes.

The suite is a checkout of the Apache Cassandra Python driver. Results go to
`build/conformance/results-PART.json`; `--write-docs` writes `docs/reference/conformance.md` from all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance import report, suite_run
from conformance.environment import BUILD, REQUIREMENTS, ROOT, copy_tests, prepare_python, wall_in
from lockstep.values.errors import LockstepError

STANDARD = "tests/integration/standard"
FOLDERS = {"standard": STANDARD, "cqlengine": "tests/integration/cqlengine"}


def main() -> int:
    arguments = _arguments()
    suite = arguments.suite.resolve()
    folder = FOLDERS[arguments.part]
    if not (suite / folder).is_dir():
        print(f"error: {suite} holds no {folder}: it is not a checkout of the driver", file=sys.stderr)
        return 2
    python = prepare_python()
    walled = not arguments.bare and wall_in()
    if not walled:
        print("no namespaces here: the tests run unconfined, and 127.0.0.1:9042 must be free", flush=True)
    copy = copy_tests(suite)
    files = suite_run.test_files(copy, folder, arguments.files)
    clients = suite_run.Clients(
        python,
        copy,
        arguments.select,
        arguments.test_timeout,
        arguments.file_timeout,
        arguments.protocol,
    )
    spread = {"tablets": {"mode_for_new_keyspaces": "enabled"}} if arguments.tablets else {}
    cluster = suite_run.make_cluster(arguments.nodes, settings=spread)
    results: list[suite_run.FileResult] = []
    broken = False
    try:
        for file in files:
            began = time.monotonic()
            try:
                result = suite_run.run_file(cluster, clients, file, walled=walled)
            except LockstepError as error:
                print(f"{file}: the cluster is beyond repair, so the run ends: {error}", flush=True)
                broken = True
                break
            results.append(result)
            counts = ", ".join(f"{result.count(word)} {word}" for word in ("passed", "failed", "skipped"))
            print(f"{file}: {counts} in {time.monotonic() - began:.0f} s", flush=True)
    finally:
        for node in cluster.file.nodes:
            kept = BUILD / "logs" / f"{node.name}.log"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(cluster.paths.log(node.name).read_bytes())
        cluster.destroy()
    setting = {
        "folder": folder,
        "nodes": arguments.nodes,
        "driver": _driver_version(),
        "protocol": arguments.protocol,
    }
    print(f"\n{report.table(results)}")
    report.write_json(BUILD / f"results-{arguments.part}.json", results, setting)
    if arguments.write_docs and not broken:
        _write_page()
    return 1 if broken or (arguments.strict and report.totals(results)["failed"]) else 0


def _write_page() -> None:
    """From the newest results of each part."""
    files = [BUILD / f"results-{part}.json" for part in FOLDERS]
    parts = [json.loads(file.read_text()) for file in files if file.exists()]
    (ROOT / "docs" / "reference" / "conformance.md").write_text(report.page(parts))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path, help="root of a checkout of the Python driver")
    parser.add_argument("files", nargs="*", help="parts of the names of the files to run; all by default")
    parser.add_argument("--part", choices=sorted(FOLDERS), default="standard")
    parser.add_argument(
        "--protocol", type=int, choices=(3, 4, 5), default=5, help="version that clients speak"
    )
    parser.add_argument("-k", dest="select", default="", help="run only tests that match, as pytest -k")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--test-timeout", type=int, default=60, metavar="S")
    parser.add_argument("--file-timeout", type=int, default=600, metavar="S")
    parser.add_argument("--bare", action="store_true", help="without namespaces, on this machine's loopback")
    parser.add_argument("--tablets", action="store_true", help="new keyspaces have tablets if they can")
    parser.add_argument("--strict", action="store_true", help="exit 1 when any test fails")
    parser.add_argument("--write-docs", action="store_true", help="write docs/reference/conformance.md")
    return parser.parse_args()


def _driver_version() -> str:
    lines = REQUIREMENTS.read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith("cassandra-driver=="))


if __name__ == "__main__":
    sys.exit(main())
