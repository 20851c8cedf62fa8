"""What `/metrics` tells, and what is made from its table."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.cluster import Cluster, Session
from cassandra.query import BatchStatement, SimpleStatement
from prometheus_client.parser import text_string_to_metric_families

from lockstep.server.metrics.exposition import exposition
from lockstep.server.metrics.latencies import BOUNDS_S, OPERATIONS, Latencies
from lockstep.server.metrics.metric_table import METRICS
from lockstep.values.ids import Consistency
from tests.server.parts import CQL_PORT, Nodes

ROOT = Path(__file__).parents[2]
LATENCY = "lockstep_server_request_duration_seconds"
SERIES = re.compile(r"\b(?:lockstep_\w+|(?:cmg|metastorage)_available\w*|schemaSync_waits\w*)")


@pytest.fixture(scope="module")
def session(single: Nodes) -> Iterator[Session]:
    cluster = Cluster([single.members[0].address], port=CQL_PORT, protocol_version=5)
    session = cluster.connect()
    session.execute(
        "CREATE KEYSPACE timed WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute("CREATE TABLE timed.t (k int PRIMARY KEY, v int)")
    session.execute("CREATE TABLE timed.n (k int PRIMARY KEY, n counter)")
    yield session
    cluster.shutdown()


def counted(nodes: Nodes) -> dict[tuple[str, str, str], float]:
    """(operation, level, class of table) -> requests so far."""
    member = nodes.members[0]

    async def told() -> str:
        return exposition(member.node.services, member.server).decode()

    (family,) = [
        family for family in text_string_to_metric_families(nodes.call(told())) if family.name == LATENCY
    ]
    return {
        (one.labels["operation"], one.labels["consistency"], one.labels["table_class"]): one.value
        for one in family.samples
        if one.name == f"{LATENCY}_count"
    }


STATEMENTS = [
    ("SELECT v FROM timed.t WHERE k = 1", "QUORUM", "read", "user"),
    ("SELECT v FROM timed.t WHERE k = 1", "SERIAL", "cas_read", "user"),
    ("SELECT v FROM timed.t", "ONE", "range", "user"),
    ("SELECT key FROM system.local", "ONE", "range", "system"),
    ("INSERT INTO timed.t (k, v) VALUES (1, 1)", "ALL", "write", "user"),
    ("INSERT INTO timed.t (k, v) VALUES (2, 1) IF NOT EXISTS", "ONE", "cas_write", "user"),
    ("UPDATE timed.n SET n = n + 1 WHERE k = 1", "ONE", "counter", "user"),
    ("BEGIN BATCH INSERT INTO timed.t (k, v) VALUES (1, 1); APPLY BATCH", "TWO", "batch", "user"),
    ("CREATE TABLE timed.other (k int PRIMARY KEY)", "ONE", "schema", "user"),
    ("DESCRIBE KEYSPACES", "ONE", "other", "user"),
]


@pytest.mark.parametrize(("text", "level", "operation", "table_class"), STATEMENTS)
def test_a_request_is_counted_once_by_what_it_was(
    session: Session, single: Nodes, text: str, level: str, operation: str, table_class: str
) -> None:
    before = counted(single)
    statement = SimpleStatement(text, consistency_level=getattr(ConsistencyLevel, level))
    try:
        session.execute(statement)
    except Exception as error:
        assert level == "TWO" and "TWO" in str(error), (
            error
        )  # More than there are; it is counted all the same.
    after = counted(single)
    grown = {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}
    if table_class == "user":  # The driver may read the schema at any time, of an earlier statement too.
        grown = {key: count for key, count in grown.items() if key[2] == "user"}
    assert grown == {(operation, level, table_class): 1}


def test_prepared_writes_and_batches_are_counted(session: Session, single: Nodes) -> None:
    insert = session.prepare("INSERT INTO timed.t (k, v) VALUES (?, ?)")
    insert.consistency_level = ConsistencyLevel.LOCAL_QUORUM
    before = counted(single)
    for key in range(3):
        session.execute(insert, (key, key))
    batch = BatchStatement(consistency_level=ConsistencyLevel.EACH_QUORUM)
    batch.add(insert, (1, 1))
    session.execute(batch)
    after = counted(single)
    writes, batches = ("write", "LOCAL_QUORUM", "user"), ("batch", "EACH_QUORUM", "user")
    assert after[writes] - before.get(writes, 0) == 3
    assert after[batches] - before.get(batches, 0) == 1


def test_errors_are_counted_by_their_code(session: Session, single: Nodes) -> None:
    with pytest.raises(InvalidRequest):
        session.execute("SELECT nothing FROM timed.t")
    member = single.members[0]

    async def told() -> str:
        return exposition(member.node.services, member.server).decode()

    assert 'request_errors_total{operation="other",code="CQL_INVALID"}' in single.call(told())


def test_a_latency_lies_in_the_bucket_that_ends_behind_it() -> None:
    latencies = Latencies(lambda: 0.0)
    for took_s in (0.0, BOUNDS_S[0], BOUNDS_S[1], 11.0):
        latencies.of_write(Consistency.QUORUM).note(took_s)
    below = {
        dict(sample.labels)["le"]: sample.value
        for sample in latencies.samples()
        if sample.suffix == "_bucket"
    }
    assert (below["0.00025"], below["0.0005"], below["10.0"], below["+Inf"]) == (2, 3, 3, 4)


def test_labels_are_bounded_whatever_is_asked() -> None:
    latencies = Latencies(lambda: 0.0)
    for level in Consistency:
        for operation in OPERATIONS:
            for table_class in ("user", "system"):
                latencies.of(operation, level, table_class).note(0.1)
    assert len(list(latencies.samples())) == 198 * (len(BOUNDS_S) + 3)


def test_what_a_cluster_tells_is_in_the_table(three: Nodes) -> None:
    async def told(number: int) -> str:
        return exposition(three.members[number].node.services, three.members[number].server).decode()

    for number in range(3):
        families = list(text_string_to_metric_families(three.call(told(number))))
        assert len(families) > 50
        for family in families:
            name = family.name if family.type != "counter" else f"{family.name}_total"
            metric = METRICS[name]
            assert (metric.kind, metric.meaning) == (family.type, family.documentation)
            for one in family.samples:
                assert tuple(one.labels)[: len(metric.labels)] == metric.labels, one


def told_in(source: str) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Names of metrics that a module tells, with the names of their labels where the call shows them."""
    for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        literals: dict[str, ast.expr] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                literals[node.targets[0].id] = node.value
        for node in ast.walk(function):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Sample", "histogram")):
                continue
            name = node.args[0]
            if not isinstance(name, ast.Constant):
                continue
            labels: ast.expr = node.args[2] if len(node.args) > 2 else ast.Tuple([])
            if isinstance(labels, ast.Name):
                labels = literals.get(labels.id, labels)
            shown = isinstance(labels, ast.Tuple) and all(isinstance(pair, ast.Tuple) for pair in labels.elts)
            yield name.value, tuple(pair.elts[0].value for pair in labels.elts) if shown else None  # type: ignore[attr-defined]


def test_what_the_code_can_tell_is_in_the_table() -> None:
    found = [
        (name, labels)
        for path in sorted((ROOT / "lockstep/server").rglob("*.py"))
        for name, labels in told_in(path.read_text())
    ]
    assert len(found) > 70
    for name, labels in found:
        assert name in METRICS, f"{name} has no row in metric_table"
        assert labels in (None, METRICS[name].labels), f"{name} is told with the labels {labels}"


def test_each_row_of_the_table_is_told_somewhere() -> None:
    named, ends = set[str](), set[str]()
    for path in (ROOT / "lockstep/server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())) if path.name != "metric_table.py" else ():
            if isinstance(node, ast.Constant):
                named.add(node.value)
            elif isinstance(node, ast.JoinedStr) and isinstance(node.values[-1], ast.Constant):
                ends.add(node.values[-1].value)
    made = tuple(end for end in ends if isinstance(end, str) and end.startswith("_available"))
    silent = {name for name in set(METRICS) - named if not name.endswith(made)}
    assert made and not silent, f"rows that nothing tells: {sorted(silent)}"


@pytest.fixture(scope="module")
def monitoring() -> ModuleType:
    spec = importlib.util.spec_from_file_location("monitoring", ROOT / "docs/reference/monitoring.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "alert-rules.yml"])
def test_dashboard_and_alerts_name_metrics_that_exist(file: str) -> None:
    text = (ROOT / "docs/monitoring" / file).read_text()
    told = {name: re.sub("_(bucket|count|sum)$", "", name) for name in SERIES.findall(text)}
    named = {name if name in METRICS else base for name, base in told.items()}
    assert len(named) > 15 and named <= set(METRICS)


@pytest.mark.parametrize(
    "expression",
    [
        "rate(lockstep_server_nothing_total[5m])",
        'lockstep_node_condition{kode="X"}',
        "sum by (kode) (lockstep_node_condition)",
        f"rate({LATENCY}[5m])",
    ],
)
def test_an_expression_about_what_does_not_exist_is_an_error(monitoring: ModuleType, expression: str) -> None:
    with pytest.raises(AssertionError):
        monitoring.metrics_of(expression)


def test_alerts_lead_to_pages_and_panels_have_their_meaning(monitoring: ModuleType) -> None:
    assert all((ROOT / f"docs/operate/{alert.page}.md").exists() for alert in monitoring.ALERTS)
    assert len({alert.name for alert in monitoring.ALERTS}) == len(monitoring.ALERTS)
    panels = json.loads(monitoring.dashboard())["panels"]
    assert all(panel["description"] for panel in panels if panel["type"] != "row")
    assert len({panel["id"] for panel in panels}) == len(panels)
