"""What is watched of a cluster: a Grafana dashboard and Prometheus alert rules, made from the metric table.

Every expression is checked against the table when the files are made: a metric that it does not have, or a
label that a metric lacks, is an error. Descriptions are the table's meanings.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from lockstep.server.metrics.metric_table import HISTOGRAM, METRICS

_SELECTOR: Final = re.compile(r"\b(lockstep_\w+|(?:cmg|metastorage)_available\w*)(?:\{([^}]*)\})?")
_GROUPING: Final = re.compile(r"\b(?:by|without) \(([^)]*)\)")
_SUFFIX: Final = re.compile(r"_(?:bucket|sum|count)$")
#: What Prometheus adds to every series, and to those of histograms.
_ADDED: Final = frozenset(("instance", "job", "le"))
_OF_JOB: Final = 'job=~"$job",instance=~"$instance"'
_LATENCY: Final = "lockstep_server_request_duration_seconds"
#: Codes of requests that the cluster should have served.
_UNSERVED: Final = "CQL_(READ|WRITE)_(TIMEOUT|FAILURE)|CQL_UNAVAILABLE|CQL_CAS_UNKNOWN"


class Panel(NamedTuple):
    """`series`: (expression, legend) of each line; `unit` as Grafana names it."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]


class Alert(NamedTuple):
    """`holds_for`: how long before it fires; `severity`: page for what serves wrongly or not at all."""

    name: str
    expression: str
    holds_for: str
    severity: str
    summary: str
    page: str


def _latency(quantile: str, chosen: str = "") -> str:
    wanted = f",{chosen}" if chosen else ""
    per = "sum by (le, operation, consistency)"
    return (
        f"histogram_quantile({quantile}, {per} (rate({_LATENCY}_bucket"
        f'{{{_OF_JOB},table_class="user"{wanted}}}[$__rate_interval])))'
    )


def _rate(metric: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({metric}{{{_OF_JOB}}}[$__rate_interval]))"


def _value(metric: str, by: str = "instance", how: str = "sum") -> str:
    return f"{how} by ({by}) ({metric}{{{_OF_JOB}}})"


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Is it well": (
        Panel("Verdict", "short", ((_value("lockstep_cluster_level", how="max"), "{{instance}}"),)),
        Panel(
            "What is wrong",
            "short",
            (
                (
                    _value("lockstep_node_condition", "instance, code, subject"),
                    "{{instance}} {{code}} {{subject}}",
                ),
            ),
        ),
        Panel("Nodes that serve", "short", ((_value("lockstep_node_ready_bool"), "{{instance}}"),)),
        Panel(
            "Nodes that seem alive",
            "short",
            ((_value("lockstep_gossip_alive_bool", "instance"), "as {{instance}} sees it"),),
        ),
    ),
    "Requests of clients": (
        Panel(
            "Requests",
            "reqps",
            ((_rate(f"{_LATENCY}_count", "operation, consistency"), "{{operation}} {{consistency}}"),),
        ),
        Panel("Latency, median", "s", ((_latency("0.5"), "{{operation}} {{consistency}}"),)),
        Panel("Latency, 99th percentile", "s", ((_latency("0.99"), "{{operation}} {{consistency}}"),)),
        Panel(
            "Errors",
            "reqps",
            ((_rate("lockstep_server_request_errors_total", "operation, code"), "{{operation}} {{code}}"),),
        ),
        Panel(
            "In flight",
            "short",
            (
                (_value("lockstep_server_requests_in_flight"), "{{instance}}"),
                (_value("lockstep_replication_writes_in_flight"), "{{instance}} writes"),
                (_value("lockstep_replication_reads_in_flight"), "{{instance}} reads"),
            ),
        ),
        Panel("Refused as too many", "reqps", ((_rate("lockstep_server_overloaded_total"), "{{instance}}"),)),
        Panel("Connections", "short", ((_value("lockstep_server_connections_open"), "{{instance}}"),)),
    ),
    "Replicas": (
        Panel(
            "Refusals",
            "reqps",
            ((_rate("lockstep_replication_refusals_total", "instance, reason"), "{{instance}} {{reason}}"),),
        ),
        Panel(
            "Planned again",
            "reqps",
            ((_rate("lockstep_replication_replans_total", "instance, kind"), "{{instance}} {{kind}}"),),
        ),
        Panel(
            "Hints kept",
            "short",
            ((_value("lockstep_hints_pending", "instance, node"), "{{instance}} for {{node}}"),),
        ),
        Panel(
            "Hints dropped",
            "reqps",
            ((_rate("lockstep_hints_dropped_total", "instance, reason"), "{{instance}} {{reason}}"),),
        ),
        Panel("Logged batches kept", "short", ((_value("lockstep_batches_kept"), "{{instance}}"),)),
        Panel(
            "Digests that differed",
            "reqps",
            ((_rate("lockstep_replication_digest_mismatches_total"), "{{instance}}"),),
        ),
        Panel(
            "Conditional requests",
            "reqps",
            ((_rate("lockstep_conditional_requests_total", "kind, outcome"), "{{kind}} {{outcome}}"),),
        ),
        Panel("Damaged table files", "short", ((_value("lockstep_storage_damaged_files"), "{{instance}}"),)),
    ),
    "Metadata and topology": (
        Panel("Epoch", "short", ((_value("lockstep_metadata_epoch_entries"), "{{instance}}"),)),
        Panel(
            "Epochs behind",
            "short",
            ((_value("lockstep_metadata_lag_epochs", "node", "max"), "node {{node}}"),),
        ),
        Panel(
            "Leader",
            "short",
            ((_value("lockstep_consensus_leader_bool", "instance, group"), "{{instance}} {{group}}"),),
        ),
        Panel(
            "Voters that seem down",
            "short",
            ((_value("lockstep_consensus_voters_unreachable_count", "group", "max"), "{{group}}"),),
        ),
        Panel(
            "Topology operations",
            "short",
            ((_value("lockstep_topology_operations_running", how="max"), "{{instance}}"),),
        ),
        Panel(
            "Streamed",
            "Bps",
            ((_rate("lockstep_streaming_bytes_total", "instance, direction"), "{{instance}} {{direction}}"),),
        ),
    ),
}

ALERTS: Final = (
    Alert(
        "LockstepNodeSilent",
        'up{job=~".*lockstep.*"} == 0',
        "1m",
        "page",
        "{{ $labels.instance }} answers no scrape",
        "node-down",
    ),
    Alert(
        "LockstepClusterUnavailable",
        "max by (job) (lockstep_cluster_level) >= 2",
        "30s",
        "page",
        "some requests cannot be served",
        "README",
    ),
    Alert(
        "LockstepClusterDegraded",
        "max by (job) (lockstep_cluster_level) == 1",
        "5m",
        "ticket",
        "one failure more may cost requests or data",
        "README",
    ),
    Alert(
        "LockstepNodeCannotServe",
        "max by (instance, code) (lockstep_node_condition) >= 2",
        "30s",
        "page",
        "{{ $labels.instance }} serves no more: {{ $labels.code }}",
        "README",
    ),
    Alert(
        "LockstepNodeNotReady",
        "lockstep_node_ready_bool == 0",
        "10m",
        "ticket",
        "{{ $labels.instance }} has not become ready",
        "node-does-not-start",
    ),
    Alert(
        "LockstepMetadataMajorityLost",
        "min by (job) (metastorage_available) == 0",
        "1m",
        "page",
        "schema and topology cannot be changed",
        "service-majority-lost",
    ),
    Alert(
        "LockstepManagementMajorityLost",
        "min by (job) (cmg_available) == 0",
        "1m",
        "ticket",
        "no node can be admitted",
        "management-group-lost",
    ),
    Alert(
        "LockstepMetadataVoterDown",
        "max by (job, group) (lockstep_consensus_voters_unreachable_count) > 0",
        "10m",
        "ticket",
        "a voter of {{ $labels.group }} seems down",
        "service-member-lost",
    ),
    Alert(
        "LockstepMetadataStopped",
        "lockstep_metadata_stopped_bool == 1",
        "0m",
        "page",
        "{{ $labels.instance }} cannot apply an entry and serves no more",
        "entry-cannot-be-applied",
    ),
    Alert(
        "LockstepMetadataBehind",
        "max by (node) (lockstep_metadata_lag_epochs) > 100",
        "10m",
        "ticket",
        "node {{ $labels.node }} does not catch up",
        "nodes-differ",
    ),
    Alert(
        "LockstepMetadataForks",
        "increase(lockstep_metadata_forks_total[10m]) > 0",
        "0m",
        "page",
        "{{ $labels.instance }} met a history that contradicts its own",
        "nodes-differ",
    ),
    Alert(
        "LockstepMetadataFrozen",
        "lockstep_metadata_frozen_bool == 1",
        "1h",
        "ticket",
        "the metadata is still frozen",
        "metadata-frozen",
    ),
    Alert(
        "LockstepReplicaDamaged",
        "lockstep_storage_damaged_files > 0",
        "0m",
        "page",
        "{{ $labels.instance }} has damaged table files",
        "damaged-table-file",
    ),
    Alert(
        "LockstepJournalLarge",
        "lockstep_tracking_journal_bytes > 1073741824",
        "15m",
        "ticket",
        "{{ $labels.instance }} keeps more than 1 GiB of mutations that a replica lacks",
        "journal-is-large",
    ),
    Alert(
        "LockstepWitnessJournalLarge",
        "lockstep_tracking_witness_journal_bytes > 8589934592",
        "5m",
        "page",
        "{{ $labels.instance }} keeps more than 8 GiB as a witness, and refuses writes at its limit",
        "journal-is-large",
    ),
    Alert(
        "LockstepIdsAndDataDisagree",
        "increase(lockstep_tracking_disagreements_total[1h]) > 0",
        "0m",
        "page",
        "a full repair at {{ $labels.instance }} found tracked tables whose data lacks what ids claim",
        "ids-and-data-disagree",
    ),
    Alert(
        "LockstepRangesDegraded",
        "max by (job) (lockstep_topology_degraded_ranges) > 0",
        "5m",
        "ticket",
        "some ranges may lack writes: repair them",
        "README",
    ),
    Alert(
        "LockstepHintsDropped",
        "increase(lockstep_hints_dropped_total[10m]) > 0",
        "0m",
        "ticket",
        "{{ $labels.instance }} gave up hints ({{ $labels.reason }}): their ranges need a repair",
        "away-too-long",
    ),
    Alert(
        "LockstepHintsPile",
        "sum by (instance) (lockstep_hints_pending_bytes) > 536870912",
        "15m",
        "ticket",
        "{{ $labels.instance }} keeps more than 512 MiB of hints",
        "node-down",
    ),
    Alert(
        "LockstepBatchesUnfinished",
        "lockstep_batches_kept > 100",
        "15m",
        "ticket",
        "{{ $labels.instance }} keeps logged batches that nobody finishes",
        "client-timeouts",
    ),
    Alert(
        "LockstepRequestsTimeOut",
        f'sum by (operation) (rate(lockstep_server_request_errors_total{{code=~"{_UNSERVED}"}}[5m])) > '
        f"0.01 * sum by (operation) (rate({_LATENCY}_count[5m]))",
        "5m",
        "page",
        "more than one in a hundred requests ({{ $labels.operation }}) fails",
        "client-timeouts",
    ),
    Alert(
        "LockstepRequestsSlow",
        f"histogram_quantile(0.99, sum by (le, operation) (rate({_LATENCY}_bucket"
        '{table_class="user",operation=~"read|write|batch|counter"}[5m]))) > 1',
        "10m",
        "ticket",
        "the slowest of a hundred requests ({{ $labels.operation }}) takes longer than a second",
        "client-timeouts",
    ),
    Alert(
        "LockstepOverloaded",
        "rate(lockstep_server_overloaded_total[5m]) > 0",
        "5m",
        "ticket",
        "{{ $labels.instance }} refuses requests: too much is in flight",
        "client-timeouts",
    ),
    Alert(
        "LockstepFaults",
        "increase(lockstep_server_faults_total[10m]) > 0",
        "0m",
        "ticket",
        "{{ $labels.instance }} met a defect: its log has the trace",
        "README",
    ),
)


def metrics_of(expression: str) -> list[str]:
    """The metrics that an expression names, without the suffixes of histograms. AssertionError for one that
    does not exist, or for a label that it lacks."""
    plain = expression.replace("$__rate_interval", "5m")
    found = []
    labels: set[str] = set()
    for name, selector in _SELECTOR.findall(plain):
        base = _SUFFIX.sub("", name)
        metric = METRICS.get(name) or METRICS.get(base)
        assert metric is not None, f"there is no metric {name}"
        assert (metric.name != name) == (metric.kind == HISTOGRAM), f"{name}: only histograms have series"
        known = {*metric.labels, *_ADDED}
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
            assert label in known, f"{name} has no label {label}"
        labels |= known
        found.append(metric.name)
    for grouping in _GROUPING.findall(plain):
        for label in (part.strip() for part in grouping.split(",")):
            assert not found or label in labels, f"{found} have no label {label}"
    return found


def dashboard() -> str:
    """JSON for Grafana's import."""
    panels: list[dict[str, Any]] = []
    at = 0
    for row, members in ROWS.items():
        panels.append(
            {
                "type": "row",
                "title": row,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": at},
                "id": len(panels) + 1,
                "panels": [],
            }
        )
        at += 1
        for number, panel in enumerate(members):
            place = {"h": 8, "w": 12, "x": 12 * (number % 2), "y": at + 8 * (number // 2)}
            panels.append(_panel(panel, place, len(panels) + 1))
        at += 8 * ((len(members) + 1) // 2)
    made = {
        "title": "Lockstep",
        "uid": "lockstep",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["lockstep"],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _variable("job", "label_values(lockstep_node_ready_bool, job)"),
                _variable("instance", 'label_values(lockstep_node_ready_bool{job=~"$job"}, instance)'),
            ]
        },
        "panels": panels,
    }
    return json.dumps(made, indent=1) + "\n"


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "query": query,
        "datasource": _SOURCE,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def _panel(panel: Panel, place: dict[str, int], number: int) -> dict[str, Any]:
    names = dict.fromkeys(name for expression, _ in panel.series for name in metrics_of(expression))
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": "\n".join(f"{name}: {METRICS[name].meaning}" for name in names),
        "id": number,
        "gridPos": place,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
            for at, (expression, legend) in enumerate(panel.series)
        ],
    }


def alert_rules() -> str:
    """YAML for Prometheus's `rule_files`; a string of JSON is one of YAML."""
    lines = [
        "# Generated by docs/reference/generate.py (make reference). Changes made here are lost.",
        "groups:",
        "  - name: lockstep",
        "    rules:",
    ]
    for alert in ALERTS:
        metrics_of(alert.expression)
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.holds_for}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          page: docs/operate/{alert.page}.md",
        ]
    return "\n".join(lines) + "\n"
