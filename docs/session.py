"""`make session`: runs the terminal session of the README anew and writes what it printed.

The commands are those that stand there; what they need beside is made before them. What a wait tells on its
way is left out: it depends on how fast the machine is. Usage: python docs/session.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
README: Final = ROOT / "README.md"
BEGIN: Final = "<!-- terminal session: begin -->\nA real session, on two cores:\n\n```text\n"
END: Final = "```\n<!-- terminal session: end -->"
#: A node that joins while the machine does other work.
COMMAND_TIMEOUT_S: Final = 120
#: Before the session asks for rows.
MADE: Final = (
    "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3};"
    "CREATE TABLE shop.orders (customer int, number int, what text, PRIMARY KEY (customer, number));"
    "INSERT INTO shop.orders (customer, number, what) VALUES (7, 1, 'a lamp')"
)
ON_THE_WAY: Final = re.compile(r"request \d+: |  waits for ")


class Said(NamedTuple):
    """A command and the lines that it printed."""

    command: str
    lines: tuple[str, ...]


def written(text: str) -> list[Said]:
    """The session as the page has it."""
    body = text.partition(BEGIN)[2].partition(END)[0]
    assert body, "the page has a session"
    parts = [part.splitlines() for part in re.split(r"^\$ ", body, flags=re.MULTILINE) if part.strip()]
    return [Said(lines[0], tuple(lines[1:])) for lines in parts]


def run(commands: list[str], prefix: str = "127.0.0.") -> list[Said]:
    """Run them one after another on nodes at `prefix`, told as if it were 127.0.0. RuntimeError when one
    fails."""
    said = []
    with tempfile.TemporaryDirectory() as home:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
        environment = {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
            "LOCKSTEP_HOME": home,
            "LOCKSTEP_HOST": f"{prefix}1:7080",
        }
        try:
            for number, command in enumerate(commands):
                said.append(Said(command, _printed(command, prefix, environment)))
                if number == 0:
                    _printed(f'cqlsh 127.0.0.1 -e "{MADE}"', prefix, environment)
        finally:
            name = commands[0].split()[3]
            if (Path(home) / "clusters" / name).exists():
                subprocess.run(["lockstep", "cluster", "destroy", name], env=environment, check=False)
    return said


def _printed(command: str, prefix: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    real = command.replace("127.0.0.", prefix)
    if command.startswith("lockstep cluster create"):
        real += f" --first-address {prefix}1"
    done = subprocess.run(
        ["bash", "-c", real], env=environment, timeout=COMMAND_TIMEOUT_S, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{command} exits with {done.returncode}:\n{done.stdout}")
    # Elsewhere the hint of `create` names the address, which is the default one here.
    told = done.stdout.replace(f" --host {prefix}1:7080", "").replace(prefix, "127.0.0.")
    lines = told.strip("\n").splitlines()
    return tuple(line.rstrip() for line in lines if not ON_THE_WAY.match(line))


def shapes(said: Said) -> list[str]:
    """Its lines without what differs from run to run: numbers, hashes, and who votes and leads."""
    found = []
    for line in said.lines:
        plain = re.sub(r"\d+", "#", re.sub(r"\b[0-9a-f]{12,}\b", "#", line))
        plain = re.sub(r" (leader|voter)$", "", re.sub(r"[\s|]+", " ", plain).strip())
        if plain:
            found.append(plain)
    return found


def page(text: str, session: list[Said]) -> str:
    body = "\n".join("".join(f"{line}\n" for line in (f"$ {one.command}", *one.lines)) for one in session)
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + body + END + rest.partition(END)[2]


def main() -> int:
    text = README.read_text()
    README.write_text(page(text, run([one.command for one in written(text)])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
