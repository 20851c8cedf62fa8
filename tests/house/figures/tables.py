"""The figures as text: plain tables of one tree, or of two side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]
#: How many ways up of a walk, and how many wide values, are printed; the JSON has all.
_WAYS_UP = 5
_VALUES = 10
_WIDTH = 110


def report(figures: Figures) -> str:
    """Everything about one tree."""
    parts = [f"The house at {figures['revision']}", *_static(figures)]
    if "walks" in figures:
        parts += [_validates(figures["validates"]), *_walks(figures["walks"])]
    return "\n\n".join(parts)


def comparison(before: Figures, after: Figures) -> str:
    """Every number of both trees, in one table a topic; what only one of them has stands beside a dash."""
    parts = [f"The house at {before['revision']} (before) and {after['revision']} (after)"]
    for topic, old, new in zip(_TOPICS, _numbers(before), _numbers(after), strict=True):
        rows = [
            (name, _shown(old.get(name)), _shown(new.get(name)), _change(old.get(name), new.get(name)))
            for name in dict.fromkeys((*old, *new))
        ]
        if rows:
            parts.append(table(topic, ("", "before", "after", "change"), rows))
    return "\n\n".join(parts)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns as wide as they must be; the first is text, the others end at the right."""
    cells = [tuple(head), *(tuple(_shown(cell) for cell in row) for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    shown = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join([title, "-" * len(title), *shown])


# ---- one tree


def _static(figures: Figures) -> Iterator[str]:
    sizes, classes, writes = figures["sizes"], figures["classes"], figures["memos"]
    folders = [(name, row["files"], row["modules"], row["lines"]) for name, row in sizes["folders"].items()]
    yield table("Product by folder (flat)", ("folder", "files", "modules", "lines"), folders)
    apart = [(name, row["modules"], row["lines"]) for name, row in figures["apart"].items()]
    yield table("Apart from the product", ("folder", "modules", "lines"), apart)
    yield table("In all", ("", "number"), _summary(figures).items())
    yield table(
        "Largest classes over their whole inheritance",
        ("class", "lines", "own", "classes"),
        [(row["class"], row["lines"], row["of"][row["class"]], len(row["of"])) for row in classes["largest"]],
    )
    yield table("Constructors of more than 8", ("class", "arguments"), classes["constructors"].items())
    values = list(classes["values"].items())
    yield table("Values of more than 8 fields", ("class", "fields"), _first(values, _VALUES))
    yield from _cycles(figures["cycles"])
    yield table("Writes behind frozen values", ("module", "places"), writes.items())
    rooms = figures["asserts"]
    head = ("room", *next(iter(rooms.values())))
    yield table("Asserts of pure rooms", head, [(room, *row.values()) for room, row in rooms.items()])


def _validates(found: Figures) -> str:
    rows = [(name, row["by the simulator"], row["by anybody"]) for name, row in found.items()]
    return table(
        "validate() called in simulations", ("validate() of", "by the simulator", "by anybody"), rows
    )


def _walks(walks: Figures) -> Iterator[str]:
    names = [name for name, value in next(iter(walks.values())).items() if isinstance(value, int)]
    rows = [(walk, *(row[name] for name in names)) for walk, row in walks.items()]
    yield table("Walks", ("walk", *names), rows)
    for walk, row in walks.items():
        ways = list(row["ways up"].items())
        if ways:
            yield table(f"Ways up: {walk}", ("from -> to", "calls"), _first(ways, _WAYS_UP))


def _cycles(views: Figures) -> Iterator[str]:
    """A group that an earlier view has is not named again."""
    named: list[list[str]] = []
    for view, groups in views.items():
        title = f"Import cycles {view}: {len(groups)} groups"
        new = [group for group in groups if group not in named]
        shown = [
            textwrap.fill(f"{len(group)}: {', '.join(group)}", _WIDTH, subsequent_indent="   ")
            for group in new
        ]
        yield "\n".join([title, "-" * len(title), *shown])
        named += new


def _first(rows: Sequence[Sequence[Any]], count: int) -> list[Sequence[Any]]:
    more = [(f"... and {len(rows) - count} more", *("" for _ in rows[0][1:]))] if len(rows) > count else []
    return [*rows[:count], *more]


# ---- two trees

_TOPICS = ("In all", "Modules by folder", "Lines by folder", "Asserts of pure rooms", "validate()", "Walks")


def _numbers(figures: Figures) -> tuple[dict[str, Any], ...]:
    """Per topic {name: number}."""
    folders = figures["sizes"]["folders"]
    return (
        _summary(figures),
        {name: row["modules"] for name, row in folders.items()},
        {name: row["lines"] for name, row in folders.items()},
        {f"{room}: per function": row["per function"] for room, row in figures["asserts"].items()}
        | {f"{room}: with validate": row["with validate"] for room, row in figures["asserts"].items()}
        | {f"{room}: per larger": row["per larger"] for room, row in figures["asserts"].items()},
        {name: row["by anybody"] for name, row in figures.get("validates", {}).items()},
        {
            f"{walk}: {name}": value
            for walk, row in figures.get("walks", {}).items()
            for name, value in row.items()
            if isinstance(value, int)
        },
    )


def _summary(figures: Figures) -> dict[str, Any]:
    sizes, classes, cycles = figures["sizes"], figures["classes"], figures["cycles"]
    whole = {
        "modules": sizes["modules"],
        "lines": sizes["lines"],
        "modules under 60 lines": sizes["modules under 60 lines"],
        "modules with one importer": sizes["modules with one importer"],
        "folders": len(sizes["folders"]),
        "folders above 25 files": len(sizes["folders above 25 files"]),
        "lines of the largest class": classes["largest"][0]["lines"] if classes["largest"] else 0,
        "classes above 400 lines": classes["above 400 lines"],
        "constructors above 8 arguments": len(classes["constructors"]),
        "arguments of the largest": max(classes["constructors"].values(), default=0),
        "values above 8 fields": len(classes["values"]),
        **{f"cycles {view}": len(groups) for view, groups in cycles.items()},
        **{f"modules in cycles {view}": sum(map(len, groups)) for view, groups in cycles.items()},
        "writes behind frozen values": sum(figures["memos"].values()),
        "cached properties": figures["cached properties"],
        "asserts per function in pure rooms": figures["asserts"]["all pure rooms"]["per function"],
        "the same with validate()": figures["asserts"]["all pure rooms"]["with validate"],
        "the same per function that builds or changes": figures["asserts"]["all pure rooms"]["per larger"],
    }
    if "validates" in figures:
        found = figures["validates"].values()
        whole["validate() bodies"] = len(found)
        whole["validate() that the simulator calls"] = sum(row["by the simulator"] > 0 for row in found)
        whole["validate() that nobody calls in simulations"] = sum(not row["by anybody"] for row in found)
    return whole | {f"modules of {name}": row["modules"] for name, row in figures["apart"].items()}


def _shown(cell: Any) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _change(old: Any, new: Any) -> str:
    if old is None or new is None or old == new:
        return ""
    change = new - old
    shown = f"{change:+,}" if isinstance(change, int) else f"{change:+.3f}"
    return f"{shown} ({change / old:+.0%})" if old else shown
