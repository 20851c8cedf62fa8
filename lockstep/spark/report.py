"""The report that a Spark job makes, with its chart, in a local Spark session.

Invariant: a table is scanned once; its numbers are those of the exported file, so what is reported is what
can be looked at afterwards. A session made here can push filters down (Spark refuses a reader that offers it
unless a setting allows it) and its Python workers run this interpreter. Drawn from the samples alone, without
a display and without a JVM; every second that had a request has a point, and no two labels of events overlap.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from lockstep.spark.java import cache_directory, prepare_environment, written_whole
from lockstep.values.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: The columns of a samples file: when a request ended (seconds), how long it took, what it was, how it ended.
SAMPLE_COLUMNS: Final = ("ended_s", "latency_ms", "operation", "outcome")
SUCCEEDED: Final = "ok"

_COLORS: Final = ("#1f5fa8", "#c2571a", "#3b7d4f", "#7a4fa3")
_BAND: Final = "#e9edf2"
_INK: Final = "#22272e"
_FAINT: Final = "#8b949e"
_FAILED: Final = "#c62828"
_LABEL_GAP_PX: Final = 10.0
_PNG_DPI: Final = 150


class Span(msgspec.Struct, frozen=True):
    """Something that went on from `begin_s` to `end_s`, on the clock of the samples."""

    label: str
    begin_s: float
    end_s: float


class Samples(msgspec.Struct, frozen=True):
    """Columns of equal length: float arrays, and two arrays of text."""

    ended_s: Any
    latency_ms: Any
    operation: Any
    succeeded: Any

    @property
    def begin_s(self) -> float:
        return float(self.ended_s.min()) if len(self.ended_s) else 0.0


class Second(msgspec.Struct, frozen=True):
    """One second of one operation; `at_s` is its middle, counted from the first sample."""

    at_s: float
    requests: int
    p50_ms: float
    p99_ms: float


def read_samples(path: Path) -> Samples:
    """Samples from a CSV or Parquet file with SAMPLE_COLUMNS. ConfigurationError when it has others."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        table = parquet.read_table(path)
    else:
        from pyarrow import csv

        table = csv.read_csv(path)
    missing = [name for name in SAMPLE_COLUMNS if name not in table.column_names]
    if missing:
        raise ConfigurationError(f"{path} lacks the columns {', '.join(missing)}")
    return Samples(
        np.asarray(table["ended_s"].to_numpy(), dtype="f8"),
        np.asarray(table["latency_ms"].to_numpy(), dtype="f8"),
        np.array(table["operation"].to_pylist(), dtype=object),
        np.array([outcome == SUCCEEDED for outcome in table["outcome"].to_pylist()], dtype=bool),
    )


def per_second(samples: Samples, operation: str) -> list[Second]:
    """Percentiles of each second in which the operation ended, successes and failures alike."""
    chosen = samples.operation == operation
    at = samples.ended_s[chosen] - samples.begin_s
    latency = samples.latency_ms[chosen]
    whole = np.floor(at).astype("i8")
    seconds = []
    for second in np.unique(whole):
        within = latency[whole == second]
        p50, p99 = np.percentile(within, (50, 99))
        seconds.append(Second(float(second) + 0.5, len(within), float(p50), float(p99)))
    return seconds


def draw(samples: Samples, spans: Sequence[Span], title: str, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.svg and `stem`.png; returns both paths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(_STYLE):
        figure, (labels, latency, rate) = pyplot.subplots(
            3, 1, figsize=(11, 6.2), sharex=True, height_ratios=(1, 5, 1.6), layout="constrained"
        )
        figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold", color=_INK)
        _draw_latency(latency, samples)
        _draw_rate(rate, samples)
        end_s = float(samples.ended_s.max()) - samples.begin_s if len(samples.ended_s) else 1.0
        rate.set_xlim(0, max(math.ceil(end_s), 1))
        _draw_spans(figure, (labels, latency, rate), spans, samples.begin_s)
        paths = (stem.with_suffix(".svg"), stem.with_suffix(".png"))
        for path in paths:
            figure.savefig(path, dpi=_PNG_DPI)
        pyplot.close(figure)
    return paths


_STYLE: Final[Any] = {
    "font.size": 10,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "svg.hashsalt": "lockstep",
}


def _operations(samples: Samples) -> list[tuple[str, str]]:
    """(operation, colour), in the order of the names."""
    names = sorted({str(name) for name in samples.operation})
    return [(name, _COLORS[index % len(_COLORS)]) for index, name in enumerate(names)]


def _draw_latency(axes: Any, samples: Samples) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    for operation, color in _operations(samples):
        seconds = per_second(samples, operation)
        at = [second.at_s for second in seconds]
        axes.plot(at, [second.p50_ms for second in seconds], color=color, lw=1.8, label=f"{operation} p50")
        p99 = [second.p99_ms for second in seconds]
        axes.plot(at, p99, color=color, lw=1.2, ls=(0, (3, 1.5)), alpha=0.85, label=f"{operation} p99")
    failed = ~samples.succeeded
    if failed.any():
        at = samples.ended_s[failed] - samples.begin_s
        axes.plot(
            at, samples.latency_ms[failed], "x", color=_FAILED, ms=5, label=f"failed ({int(failed.sum())})"
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("latency per second (ms)")
    axes.grid(axis="y", color="#d0d7de", lw=0.6)
    axes.set_axisbelow(True)
    if axes.has_data():
        # The legend gets a strip of its own above the lines.
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** 0.14)
        axes.legend(loc="upper right", ncols=9, frameon=False, fontsize=9, borderpad=0.1)


def _draw_rate(axes: Any, samples: Samples) -> None:
    base: Any = 0.0
    count = int(np.floor((samples.ended_s - samples.begin_s).max())) + 1 if len(samples.ended_s) else 1
    at = np.arange(count) + 0.5
    for operation, color in _operations(samples):
        chosen = samples.operation == operation
        second = np.floor(samples.ended_s[chosen] - samples.begin_s).astype("i8")
        requests = np.bincount(second, minlength=count)[:count]
        axes.bar(at, requests, width=0.92, bottom=base, color=color, alpha=0.75, linewidth=0)
        base = base + requests
    axes.set_ylabel("requests/s")
    axes.set_xlabel("time since the traffic began (s)")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="y", color="#d0d7de", lw=0.6)
    axes.set_axisbelow(True)


def _draw_spans(figure: Any, all_axes: Sequence[Any], spans: Sequence[Span], begin_s: float) -> None:
    """Bands over all axes, and labels in rows of the first one so that none overlaps another."""
    labels, *others = all_axes
    labels.axis("off")
    for span in spans:
        left, right = span.begin_s - begin_s, span.end_s - begin_s
        for axes in others:
            axes.axvspan(left, max(right, left + 0.05), color=_BAND, zorder=0, lw=0)
            axes.axvline(left, color=_FAINT, lw=0.8, ls=":", zorder=1)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    rows: list[float] = []
    placed = []
    edge_px = labels.get_window_extent(renderer).x1
    for span in sorted(spans, key=lambda span: span.begin_s):
        begin = span.begin_s - begin_s
        said = f"{span.label} ({span.end_s - span.begin_s:.1f} s)"
        text = labels.text(begin, 0, f"▸ {said}", fontsize=9, color=_INK, va="bottom")
        extent = text.get_window_extent(renderer)
        left_px = extent.x0
        if extent.x1 > edge_px:
            # No room to the right of the mark: the label ends there instead.
            text.set_text(f"{said} ◂")
            left_px -= extent.width
        row = next((index for index, end in enumerate(rows) if end <= left_px), len(rows))
        if row == len(rows):
            rows.append(0.0)
        rows[row] = left_px + extent.width + _LABEL_GAP_PX
        placed.append((text, left_px, row))
    labels.set_ylim(0, max(len(rows), 1))
    to_data = labels.transData.inverted()
    for text, left_px, row in placed:
        text.set_position((to_data.transform((left_px, 0))[0], row + 0.15))


#: Only the quick compiler and the serial collector: short jobs start in half the time. A benchmark
#: passes `spark_driver_extraJavaOptions=""` to run what a long-lived session would.
QUICK_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JAVA_OPTIONS,
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.daemon.module": "lockstep.spark.daemon",
}
#: Read by the launcher script before any Java runs; keeps its banner and warnings off the terminal.
_LOG_SETTINGS: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def local_session(app: str, cores: int = 2, *, cache: Path | None = None, **conf: str) -> SparkSession:
    """A session `local[cores]`; `conf` adds or replaces settings, with `_` for the dots of their names.

    There is one session a process: when one runs already, it is returned and `conf` applies to what can
    still change. Raises ConfigurationError when there is no Java or no pyspark.
    """
    prepare_environment(os.environ, cache)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            "PySpark is not installed", hint="pip install 'lockstep-db[spark]'"
        ) from error
    settings = {**_SETTINGS, **{name.replace("_", "."): value for name, value in conf.items()}}
    log_file = written_whole((cache or cache_directory(os.environ)) / "spark-log.properties", _LOG_SETTINGS)
    options = settings["spark.driver.extraJavaOptions"]
    settings["spark.driver.extraJavaOptions"] = f"{options} -Dlog4j2.configurationFile={log_file}".strip()
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


CHART: Final = "latency"


class TableReport(msgspec.Struct, frozen=True):
    """One table. `expected_rows` is None when nobody knows; `distinct_keys` shows that no row came twice."""

    table: str
    rows: int
    distinct_keys: int
    expected_rows: int | None
    parquet: str
    scan_s: float

    @property
    def right(self) -> bool:
        """Whether each row came once, and as many as expected."""
        return self.rows == self.distinct_keys and self.expected_rows in (None, self.rows)


class Summary(msgspec.Struct, frozen=True):
    """`scan_s` is the time from the table to Parquet, `total_s` everything but the start of Java."""

    tables: tuple[TableReport, ...]
    charts: tuple[str, ...]
    total_s: float

    @property
    def right(self) -> bool:
        return all(table.right for table in self.tables)

    @property
    def scan_s(self) -> float:
        return sum(table.scan_s for table in self.tables)


def summarise(
    *,
    hosts: Sequence[str],
    port: int,
    keyspace: str,
    tables: Mapping[str, int | None],
    out: Path,
    samples: Path | None = None,
    spans: Sequence[Span] = (),
    title: str = "Latency while the cluster changed",
    session: SparkSession | None = None,
) -> Summary:
    """Count and export `tables` (name -> rows expected, or None) to `out`, and draw `samples` there.

    A session is made, and stopped at the end, unless one is given. Raises what Spark raises when a table
    cannot be read, ConfigurationError when there is no Java or the samples have other columns.
    """
    out.mkdir(parents=True, exist_ok=True)
    used = session or local_session(f"report of {keyspace}")
    begin_s = time.monotonic()
    try:
        reports = tuple(
            _export(used, {"hosts": ",".join(hosts), "port": str(port), "keyspace": keyspace, "table": name},
                    expected, out / f"{name}.parquet")
            for name, expected in tables.items()
        )  # fmt: skip
    finally:
        if session is None:
            used.stop()
    charts: tuple[str, ...] = ()
    if samples is not None:
        charts = tuple(str(path) for path in draw(read_samples(samples), spans, title, out / CHART))
    return Summary(reports, charts, time.monotonic() - begin_s)


def _export(
    session: SparkSession, options: Mapping[str, str], expected: int | None, target: Path
) -> TableReport:
    from pyspark.sql import functions

    begin_s = time.monotonic()
    frame = session.read.format("lockstep").options(**options).load()
    frame.write.mode("overwrite").parquet(str(target))
    scan_s = time.monotonic() - begin_s
    keys = _key_columns(options)
    counted = (
        session.read.parquet(str(target))
        .agg(functions.count("*"), functions.countDistinct(*[functions.col(f"`{key}`") for key in keys]))
        .first()
    )
    assert counted is not None
    return TableReport(options["table"], counted[0], counted[1], expected, str(target), scan_s)


def _key_columns(options: Mapping[str, str]) -> list[str]:
    from lockstep.spark.options import parse_options
    from lockstep.spark.source import table_shape

    return [column.name for column in table_shape(parse_options(options)).key]
