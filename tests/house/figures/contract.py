"""The order of rooms as the import contract states it, and which of two modules stands higher."""

from __future__ import annotations

import configparser
import re
from typing import NamedTuple


class Order(NamedTuple):
    """One layers contract inside one container: {folder: height}; siblings have one height."""

    container: str
    heights: dict[str, int]

    def height(self, module: str) -> int | None:
        """None for a module that the contract does not place."""
        inner = module.removeprefix(f"{self.container}.") if self.container else module
        if inner == module and self.container:
            return None
        parts = inner.split(".")
        for length in range(len(parts), 0, -1):
            found = self.heights.get(".".join(parts[:length]))
            if found is not None:
                return found
        return None


class Contract:
    def __init__(self, text: str) -> None:
        parser = configparser.ConfigParser()
        parser.read_string(text)
        self.orders = [order for name in parser.sections() for order in _orders(parser[name])]
        if not self.orders:
            raise ValueError("the import contract orders no rooms")

    def is_up(self, caller: str, callee: str) -> bool:
        """Whether some contract places the callee's module above the caller's."""
        for order in self.orders:
            low, high = order.height(caller), order.height(callee)
            if low is not None and high is not None and high > low:
                return True
        return False


def _orders(section: configparser.SectionProxy) -> list[Order]:
    if section.get("type") != "layers":
        return []
    rows = [row.strip() for row in section.get("layers", "").splitlines() if row.strip()]
    heights = {
        name.strip().strip("()"): len(rows) - number
        for number, row in enumerate(rows)
        for name in re.split(r"[|:]", row)
    }
    containers = section.get("containers", "").split() or [""]
    return [Order(container, heights) for container in containers]
