"""Names of what was passed, noted in a file at once, so that a long run that was ended goes on later."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lockstep.values.errors import ConfigurationError


class Ledger:
    """Invariant: it holds for one seed, which its first line names."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        head = f"# survived with seed {seed}"
        if not path.exists():
            path.write_text(f"{head}\n")
        first, *names = path.read_text().splitlines()
        if first != head:
            raise ConfigurationError(f"{path} is not of seed {seed}", hint="another --resume FILE")
        self.names: Final = frozenset(names)

    def note(self, name: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{name}\n")
