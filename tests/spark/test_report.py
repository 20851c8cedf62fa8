"""The report: numbers of the chart, what is drawn, and the job over real tables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from lockstep.local.clusters import LocalCluster
from lockstep.spark.report import SAMPLE_COLUMNS, Second, Span, draw, per_second, read_samples, summarise
from lockstep.values.errors import ConfigurationError

from .conftest import EVENT_ROWS
from .support import PORTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


START_S = 5000.0
SPANS = [
    Span("n4 joins", START_S + 1, START_S + 2.5),
    Span("the leader is killed", START_S + 1.1, START_S + 1.2),
    Span("n4 is decommissioned", START_S + 8.5, START_S + 9.8),
]


def samples_file(path: Path, columns: tuple[str, ...] = SAMPLE_COLUMNS) -> Path:
    """Ten seconds of 100 reads and 100 writes each; reads take 1 to 100 ms, writes the tenfold."""
    with path.open("w", newline="") as file:
        rows: list[tuple[Any, ...]] = [columns]
        for second in range(10):
            for number in range(100):
                at = START_S + second + number / 100
                rows.append((at, number + 1, "read", "ok"))
                rows.append((at, 10 * (number + 1), "write", "error" if number == 50 else "ok"))
        csv.writer(file).writerows(rows)
    return path


def test_percentiles_of_each_second(tmp_path: Path) -> None:
    samples = read_samples(samples_file(tmp_path / "samples.csv"))
    reads = per_second(samples, "read")
    assert len(reads) == 10
    assert reads[0] == Second(0.5, 100, 50.5, pytest.approx(99.01))
    assert per_second(samples, "write")[9] == Second(9.5, 100, 505.0, pytest.approx(990.1))
    assert int((~samples.succeeded).sum()) == 10


def test_a_parquet_file_gives_the_same_samples(tmp_path: Path) -> None:
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    text = samples_file(tmp_path / "samples.csv")
    parquet.write_table(arrow_csv.read_csv(text), tmp_path / "samples.parquet")
    assert per_second(read_samples(tmp_path / "samples.parquet"), "read") == per_second(
        read_samples(text), "read"
    )


def test_other_columns_are_refused(tmp_path: Path) -> None:
    path = samples_file(tmp_path / "samples.csv", ("at", "latency_ms", "operation", "outcome"))
    with pytest.raises(ConfigurationError, match="lacks the columns ended_s"):
        read_samples(path)


def test_a_chart_says_what_it_shows(tmp_path: Path) -> None:
    samples = read_samples(samples_file(tmp_path / "samples.csv"))
    svg, png = draw(samples, SPANS, "A title", tmp_path / "chart")
    text = svg.read_text()
    for said in ("A title", "latency per second (ms)", "requests/s", "read p50", "write p99", "failed (10)"):
        assert f"<!-- {said} -->" in text
    for span in SPANS:
        assert span.label in text
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_labels_of_events_do_not_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    draw(read_samples(samples_file(tmp_path / "samples.csv")), SPANS, "A title", tmp_path / "chart")
    figure = pyplot.gcf()
    monkeypatch.undo()
    renderer = figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    assert len(boxes) == len(SPANS)
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    pyplot.close(figure)


def test_a_chart_of_nothing_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(",".join(SAMPLE_COLUMNS) + "\n")
    assert all(one.is_file() for one in draw(read_samples(path), [], "Nothing", tmp_path / "chart"))


@pytest.mark.slow
def test_a_report_counts_exports_and_draws(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    summary = summarise(
        hosts=cluster.contact_points,
        port=PORTS[0],
        keyspace="shop",
        tables={"events": EVENT_ROWS},
        out=tmp_path / "out",
        samples=samples_file(tmp_path / "samples.csv"),
        spans=SPANS,
        session=spark,
    )
    [table] = summary.tables
    assert summary.right
    assert (table.rows, table.distinct_keys) == (EVENT_ROWS, EVENT_ROWS)
    assert spark.read.parquet(table.parquet).columns == ["day", "at", "what"]
    assert all(Path(chart).is_file() for chart in summary.charts)
