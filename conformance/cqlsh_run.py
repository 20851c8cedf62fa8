"""`make conformance-cqlsh SUITE=path`: cqlsh's own tests against a local cluster of real nodes.

The suite is a checkout of Apache Cassandra, of which `bin` and `pylib` are used. Owns what is done to the
copy: functions of its schema, which are written in Java, are put into Python, and cqlsh is told the release
that it was built for. Results go to `build/conformance/results-cqlsh.json`; `--write-docs` writes
`docs/reference/conformance-cqlsh.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance import report
from conformance.environment import BUILD, INSIDE, ROOT, wall_in
from conformance.suite_run import FileResult, make_cluster, read_record, test_files
from lockstep.values.ids import CASSANDRA_RELEASE

FOLDER: Final = "pylib/cqlshlib/test"
COPY: Final = BUILD / "cqlsh"
PAGE: Final = ROOT / "docs" / "reference" / "conformance-cqlsh.md"
_WORDS: Final = "src/resources/org/apache/cassandra/cql3/reserved_keywords.txt"
_FILE_TIMEOUT_S: Final = 900
_FUNCTION: Final = re.compile(r"LANGUAGE\s+java\s+AS\s+'(?P<body>[^']*)'", re.IGNORECASE)
_CONSTANT: Final = re.compile(r'\s*return\s+(?P<value>"[^"]*");\s*')


def copy_suite(suite: Path) -> None:
    """Copy cqlsh and its tests, changed as this module's docstring tells."""
    shutil.rmtree(COPY, ignore_errors=True)
    for part in ("bin", "pylib"):
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(suite / part, COPY / part, ignore=ignored)
    if (suite / _WORDS).exists():
        (COPY / _WORDS).parent.mkdir(parents=True)
        shutil.copy(suite / _WORDS, COPY / _WORDS)
    (COPY / "pylib" / "cqlshlib" / "serverversion.py").write_text(f'version = "{CASSANDRA_RELEASE}"\n')
    schema = COPY / FOLDER / "test_keyspace_init.cql"
    schema.write_text(in_python(schema.read_text()))


def in_python(schema: str) -> str:
    """The schema with its functions in Python: constants, and the larger or smaller of two values."""

    def body(found: re.Match[str]) -> str:
        java = found["body"]
        constant = _CONSTANT.fullmatch(java)
        if constant is not None:
            return f"LANGUAGE python AS 'return {constant['value']}'"
        for chosen in ("max", "min"):
            if f"Math.{chosen}(current, candidate)" in java:
                text = f"return candidate if current is None else {chosen}(current, candidate)"
                return f"LANGUAGE python AS '{text}'"
        return found[0]

    return _FUNCTION.sub(body, schema)


def run_file(address: str, file: str, select: str) -> FileResult:
    """The outcomes of the tests of one file."""
    record = BUILD / "records" / f"cqlsh_{Path(file).stem}.jsonl"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", file, "-p", "recorder", "-q", "-p", "no:cacheprovider"]
    command += ["--tb=short", "-c", str(INSIDE / "pytest.ini"), "--rootdir", str(COPY)]
    command += ["-k", select] if select else []
    ending = ""
    with record.with_suffix(".log").open("wb") as output:
        try:
            subprocess.run(
                command,
                cwd=COPY,
                env=_environment(address, record),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_FILE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            ending = f"the file was ended after {_FILE_TIMEOUT_S} s"
    lines = record.read_text().splitlines() if record.exists() else []
    outcomes, uncollected = read_record((json.loads(line) for line in lines), ending)
    if not lines:
        uncollected = uncollected or ending or f"pytest ended early: see {record.with_suffix('.log')}"
    return FileResult(file, outcomes, uncollected)


def _environment(address: str, record: Path) -> dict[str, str]:
    home = BUILD / "cqlsh-home"
    home.mkdir(parents=True, exist_ok=True)
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "TZ": "UTC",
        "PYTHONPATH": os.pathsep.join((str(INSIDE), str(COPY / "pylib"))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "ignore",
        "CQL_TEST_HOST": address,
        "CQL_TEST_PORT": "9042",
        "CQL_TEST_USER": "cassandra",
        "CQL_TEST_PWD": "cassandra",
        "CONFORMANCE_RECORD": str(record),
    }


def page(part: dict[str, Any]) -> str:
    sums = part["totals"]
    lines = [
        "# cqlsh's own tests",
        "",
        f"What the tests of cqlsh {part['setting']['version']} find against a local cluster of"
        f" {part['setting']['nodes']} nodes: of {sums['run']} run, {sums['passed']} pass,"
        f" {sums['failed']} fail.",
        "`make conformance-cqlsh SUITE=path/to/checkout ARGS=--write-docs` makes this page. The functions in",
        "the suite's schema are put into Python.",
        *report.part_lines(part),
    ]
    return "\n".join(lines) + "\n"


def _version(suite: Path) -> str:
    text = (suite / "pylib" / "cqlshlib" / "cqlshmain.py").read_text()
    found = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
    return found[1] if found is not None else "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path, help="root of a checkout of Apache Cassandra")
    parser.add_argument("files", nargs="*", help="parts of the names of the files to run; all by default")
    parser.add_argument("-k", dest="select", default="", help="run only tests that match, as pytest -k")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--write-docs", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    suite = arguments.suite.resolve()
    if not (suite / FOLDER).is_dir():
        print(f"error: {suite} holds no {FOLDER}: it is not a checkout of Cassandra", file=sys.stderr)
        return 2
    if not wall_in():
        print("no namespaces here: 127.0.0.1:9042 must be free", flush=True)
    copy_suite(suite)
    cluster = make_cluster(arguments.nodes, "conformance-cqlsh")
    try:
        address = cluster.file.first_address
        results = []
        for file in test_files(COPY, FOLDER, arguments.files):
            results.append(run_file(address, file, arguments.select))
            counts = (f"{results[-1].count(word)} {word}" for word in ("passed", "failed", "skipped"))
            print(f"{file}: {', '.join(counts)}", flush=True)
    finally:
        cluster.destroy()
    print(f"\n{report.table(results)}")
    setting = {"folder": FOLDER, "nodes": arguments.nodes, "version": _version(suite)}
    report.write_json(BUILD / "results-cqlsh.json", results, setting)
    if arguments.write_docs:
        PAGE.write_text(page(report.as_json(results, setting)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
