"""Owns the writing of TOML text for the project's own two-level files.

Invariant: what `emit` writes, `tomllib` reads back to an equal value. Only what those files need is
supported: strings, integers, floats, booleans, lists of strings, tables, and lists of tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

Scalar = str | int | float | bool
Value = Scalar | Sequence[str]
Table = Mapping[str, Value]


def emit(tables: Mapping[str, Table | Sequence[Table]]) -> str:
    """TOML text with one `[name]` block a table and one `[[name]]` block a member of a list of tables."""
    blocks: list[str] = []
    for name, content in tables.items():
        if isinstance(content, Mapping):
            blocks.append(_block(f"[{name}]", content))
        else:
            blocks.extend(_block(f"[[{name}]]", table) for table in content)
    return "\n".join(blocks)


def _block(heading: str, table: Table) -> str:
    lines = [heading, *(f"{key} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are a subset of TOML's, except that TOML also wants DEL escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "[" + ", ".join(_value(item) for item in value) + "]"
