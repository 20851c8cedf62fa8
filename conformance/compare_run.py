"""`make compare STATEMENTS=file`: the statements of a file on this product and on Cassandra 5.0.6, and what
differs.

A file holds statements that end with `;` at the end of a line. `--` begins a comment line; such a line before
a statement may say how to run it: `-- prepare` compares the markers and columns of PREPARE, `-- page N` reads
page after page of N rows and compares each, `-- bind 0x01 null` gives its markers these bytes. Compared are
kinds of answers, names and wire types of columns, cells, pages and error codes, not the words of errors.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance.compare import cassandra
from conformance.environment import wall_in
from conformance.suite_run import make_cluster
from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.messages import QueryParameters
from lockstep.values.ids import Consistency
from tests.server.wire_client import WireClient

PEER_ADDRESS: Final = "127.0.0.77"
OWN_ADDRESS: Final = "127.0.0.1"
CQL_PORT: Final = 9042
#: Pages of one statement; whoever wants more compares something else.
_PAGES_MAX: Final = 50
_TIMEOUT_S: Final = 30.0
_CLASS: Final = re.compile(rb"org\.apache\.cassandra\.db\.marshal\.[\w.(),:=>]*")
_DIRECTIVE: Final = re.compile(r"--\s*(?:(prepare)|page\s+(\d+)|bind((?:\s+(?:0x[0-9a-f]*|null))+))\s*$")


class Statement(NamedTuple):
    """`page_rows`: 0 reads without pages."""

    text: str
    prepare: bool = False
    page_rows: int = 0
    bound: tuple[bytes | None, ...] = ()


def read_statements(text: str) -> Iterator[Statement]:
    lines: list[str] = []
    prepare, page_rows = False, 0
    bound: tuple[bytes | None, ...] = ()
    for line in text.splitlines():
        if not lines and line.lstrip().startswith("--"):
            if found := _DIRECTIVE.match(line.strip()):
                prepare = prepare or found[1] == "prepare"
                page_rows = int(found[2] or page_rows)
                bound = _bytes_of(found[3]) if found[3] else bound
            continue
        if lines or line.strip():
            lines.append(line)
        if line.rstrip().endswith(";"):
            yield Statement("\n".join(lines).strip().rstrip(";"), prepare, page_rows, bound)
            lines, prepare, page_rows, bound = [], False, 0, ()
    if lines:
        raise SystemExit("error: the last statement does not end with ;")


def _bytes_of(words: str) -> tuple[bytes | None, ...]:
    return tuple(None if word == "null" else bytes.fromhex(word[2:]) for word in words.split())


def connect(address: str) -> WireClient:
    client = WireClient(address, CQL_PORT)
    client.socket.settimeout(_TIMEOUT_S)
    client.startup()
    return client


def outcome(client: WireClient, statement: Statement) -> tuple[list[str], str]:
    """(what is compared, a line each; what is only shown)."""
    if statement.prepare:
        answer, classes = _asked(client, Opcode.PREPARE, wire.prepare(client.version, statement.text))
        if isinstance(answer, wire.PreparedResult):
            markers = [f"? {spec.name} {spec.type.text}" for spec in answer.bind]
            return [
                "prepared",
                *markers,
                f"key {answer.partition_key_indexes}",
                *_columns(answer.result),
                *classes,
            ], ""
        return _told(answer)
    said: list[str] = []
    state: bytes | None = None
    for _ in range(_PAGES_MAX):
        parameters = QueryParameters(
            Consistency.ONE, statement.bound, page_size=statement.page_rows or None, paging_state=state
        )
        answer, classes = _asked(client, Opcode.QUERY, wire.query(client.version, statement.text, parameters))
        lines, shown = _told(answer)
        said += [*lines, *classes]
        if not isinstance(answer, wire.RowsResult) or answer.metadata.paging_state is None:
            return said, shown
        state = answer.metadata.paging_state
        said.append("more pages")
    return said, ""


def _asked(client: WireClient, opcode: int, body: bytes) -> tuple[wire.Body, list[str]]:
    """(the answer, the names of classes that stand for types in its bytes)."""
    client.send(opcode, body)
    found = client.envelope()
    answer = wire.decode_response(found.version, found.opcode, found.flags, found.body).body
    names = [] if isinstance(answer, wire.ErrorResponse) else _CLASS.findall(bytes(found.body))
    return answer, [f"class {name.decode()}" for name in names]


def _columns(metadata: wire.Metadata) -> list[str]:
    return [f"column {spec.name} {spec.type.text}" for spec in metadata.columns]


def _told(answer: wire.Body) -> tuple[list[str], str]:
    if isinstance(answer, wire.ErrorResponse):
        return [f"error {answer.code:#06x}"], answer.message
    if isinstance(answer, wire.RowsResult):
        return ["rows", *_columns(answer.metadata), *(f"row {_cells(row)}" for row in answer.rows)], ""
    if isinstance(answer, wire.VoidResult | wire.SchemaChange | wire.SetKeyspaceResult):
        return [type(answer).__name__], ""
    return [str(answer)], ""


def _cells(row: wire.Row) -> str:
    return " ".join("null" if cell is None else f"0x{cell.hex()}" for cell in row)


def compare(statements: list[Statement], *, show_equal: bool = False) -> int:
    """Prints what differs, and with `show_equal` the rest as well; how many statements differ."""
    differ = 0
    with connect(OWN_ADDRESS) as own, connect(PEER_ADDRESS) as peer:
        for number, statement in enumerate(statements, 1):
            (ours, our_words), (theirs, their_words) = outcome(own, statement), outcome(peer, statement)
            if ours == theirs:
                if show_equal:
                    print(f"\n{number}. {statement.text}\n   both      {'; '.join(ours)}")
                continue
            differ += 1
            print(f"\n{number}. {statement.text}")
            for name, lines, words in (("lockstep ", ours, our_words), ("cassandra", theirs, their_words)):
                only = [line for line in lines if line not in (theirs if lines is ours else ours)] or lines
                print(f"   {name} {'; '.join(only)}{': ' if words else ''}{words}")
    return differ


def main() -> int:
    parser = argparse.ArgumentParser(prog="make compare")
    parser.add_argument("statements", type=Path)
    parser.add_argument("--show-equal", action="store_true", help="print equal answers as well")
    arguments = parser.parse_args()
    statements = list(read_statements(arguments.statements.read_text()))
    # Fetched before the walls: there is no network behind them.
    cassandra.prepare_jars()
    wall_in()
    cluster = make_cluster(1, "compare")
    try:
        with cassandra.running(PEER_ADDRESS):
            differ = compare(statements, show_equal=arguments.show_equal)
    finally:
        cluster.destroy()
    print(f"\n{len(statements)} statements, {differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
