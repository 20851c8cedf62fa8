"""One value of the metrics, and the Prometheus text of many.

Invariant: a sample is of a metric in METRICS and has its labels; all samples of a name stand together under
one HELP and one TYPE line, whatever order they come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec

from lockstep.server.metrics.metric_table import METRICS


class Sample(msgspec.Struct, frozen=True):
    """One value of a metric in METRICS. `suffix` is that of a histogram's series."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    suffix: str = ""


def histogram(
    name: str,
    of: tuple[Sequence[float], Sequence[int], float],
    labels: tuple[tuple[str, str], ...],
) -> Iterator[Sample]:
    """`of`: upper bounds, counts of what is in each and of what is above all, and the sum."""
    bounds, counts, total = of
    for end, below in zip((*map(str, bounds), "+Inf"), accumulate(counts), strict=True):
        yield Sample(name, below, (*labels, ("le", end)), "_bucket")
    yield Sample(name, total, labels, "_sum")
    yield Sample(name, sum(counts), labels, "_count")


def text_of(samples: Iterable[Sample]) -> bytes:
    """All samples as Prometheus text."""
    families: dict[str, list[str]] = {}
    for sample in samples:
        lines = families.setdefault(sample.name, [])
        metric = METRICS[sample.name]
        if not lines:
            lines += (f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}")
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels)
        series = sample.name + sample.suffix
        lines.append(
            f"{series}{{{labels}}} {_number(sample.value)}" if labels else f"{series} {_number(sample.value)}"
        )
    text = "\n".join(line for lines in families.values() for line in lines)
    return f"{text}\n".encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
