"""How amounts are told to people, wherever documents are shown."""

from __future__ import annotations


def bytes_text(count: int) -> str:
    """`1.4 MiB` for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
