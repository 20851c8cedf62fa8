"""The page about CQL: grammar, types, functions and options as the code has them, and what is refused.

Every statement of the table of refusals is prepared when the page is made: the message is the one it gives.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.literals import FITTING
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog
from lockstep.cql.ddl.changes import schema_change
from lockstep.cql.functions.aggregates import NAMES as AGGREGATES
from lockstep.cql.functions.arithmetic import NUMBERS, result_type
from lockstep.cql.functions.native import function_names, signatures
from lockstep.cql.parse.grammar import GRAMMAR, RESERVED
from lockstep.schema.changes import apply_change
from lockstep.schema.model import Schema
from lockstep.schema.table_options import DEFAULTS, MAP_OPTIONS
from lockstep.schema.types import NATIVE_NAMES, parse_type
from lockstep.values.errors import LockstepError, RequestError
from lockstep.values.node_limits import (
    BATCH_TEXT_CHARACTERS_MAX,
    COLLECTION_ENTRIES_MAX,
    NUMBER_BYTES_MAX,
    STATEMENT_TOKENS_MAX,
)

Table = Callable[[Sequence[str], Sequence[Sequence[Any]]], str]

_SCHEMA = (
    "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "CREATE TABLE t (k int, c int, v int, n decimal, x text, l list<int>, PRIMARY KEY (k, c))",
)
#: What users of Cassandra look for and do not find, or find to be refused there as well.
_REFUSED = (
    ("indexes of patterns", "CREATE CUSTOM INDEX ON t (x) USING 'SASIIndex'"),
    ("analysed texts", "CREATE CUSTOM INDEX ON t (x) USING 'sai' WITH OPTIONS = {'normalize': 'true'}"),
    ("triggers", "CREATE TRIGGER r ON t USING 'x'"),
    ("compact tables", "CREATE TABLE u (k int PRIMARY KEY) WITH COMPACT STORAGE"),
    ("column masks in tables", "CREATE TABLE u (k int PRIMARY KEY, v text MASKED WITH DEFAULT)"),
    ("other types for columns", "ALTER TABLE t ALTER v TYPE text"),
    ("unequal", "SELECT * FROM t WHERE v != 1 ALLOW FILTERING"),
    ("similar texts", "SELECT * FROM t WHERE x LIKE 'a%' ALLOW FILTERING"),
    ("nearest vectors", "SELECT * FROM t ORDER BY v ANN OF [1, 2] LIMIT 1"),
    ("filters without the words", "SELECT * FROM t WHERE v = 1"),
    ("a minus without a space", "SELECT v -1 FROM t"),
)
_DIFFERENCES = (
    "List elements are set and deleted by index, and removed by value, after a read at the level of the "
    "write; two clients that do so at once may both act on what the other one saw. Such a statement is not "
    "allowed at `ANY`. When a table changes under it after a part was written, it ends with a timeout "
    "instead of being tried again.",
    "`compaction`, `compression` and the other options of storage are checked and described as in "
    "Cassandra, but the store works by itself: the table of options says which ones matter.",
    "A conditional write that was beaten until `timeouts.cas_contention_ms` were over ends with a write "
    "timeout of type `CAS` and has no effect. One that was proposed and then lost sight of has error 0x1700, "
    "before protocol v5 that timeout: it may be applied.",
    "A query by a secondary index that too many replicas are still building fails with the reason "
    "`INDEX_NOT_AVAILABLE` of protocol v5, after 1.5 s.",
    "User functions are written in Python and in no other language, are evaluated by the coordinator after "
    "the rows are read, and a request with them looks at 100 000 rows at most. A name that a built-in "
    "function has means that one unless the keyspace is named.",
    "Of a column that is dropped a second time cells stay dead that the first drop made so, also when the "
    "second names an earlier time.",
    "A page of a `GROUP BY` ends with a whole group; its last page may be empty, as that of any scan.",
    "Where given partitions (`k IN (1, 2)`) fill a page exactly, the two do not always agree whether "
    "another, empty one follows.",
    "`unixTimestampOf`, which Cassandra 5.0 has no more, is still there.",
    "In operations with times (`t + ?`, `'2020-01-01' - ?`) a marker has its type from the other operand, "
    "not from the column that takes the result.",
    "What would keep a node from everything else is refused: a statement of more than "
    f"{STATEMENT_TOKENS_MAX} words, signs and literals, a batch with more than "
    f"{BATCH_TEXT_CHARACTERS_MAX} characters of statements, a collection of more than "
    f"{COLLECTION_ENTRIES_MAX} entries as one value, a varint, or digits of a decimal, of more than "
    f"{NUMBER_BYTES_MAX} bytes.",
    "Messages of errors of JSON name what Python's parser says of the text.",
    "`writetime` and `ttl` are of columns, elements and slices, not of slices of slices (`m[1..3][2..3]`).",
    "Of custom types (`'org.apache.cassandra.db.marshal…'`) there are `CompositeType` and "
    "`DynamicCompositeType` of built-in types, outside the primary key; they are compared as bytes.",
)
_MATTERS = {
    "additional_write_policy": "when a repair that a read waits for also goes to replicas that were not read",
    "cdc": "a map of `enabled`, `preimage`, `postimage`, `delta` and `ttl`, or `true`: changes go to a log "
    "beside the table ([change capture](../concepts/change-capture.md)); not for counters and views",
    "comment": "shown by DESCRIBE and in `system_schema.tables`",
    "default_time_to_live": "of what is written without a TTL",
    "gc_grace_seconds": "how long deletions are kept, with `tombstone_gc` in mode `timeout`",
    "replication_type": (
        "`keyspace`, `tracked` or `untracked`: whether replicas know by ids what they hold, on the ring and "
        "with tablets ([mutation tracking](../concepts/mutation-tracking.md))"
    ),
    "read_repair": "with `BLOCKING` reads repair what replicas lack before they answer",
    "speculative_retry": "when a read asks one more replica",
    "tablets": "a map of hints for tables that spread by tablets: `min_tablet_count`, `max_tablet_count`, "
    "`expected_data_size_in_gb`, `min_per_shard_tablet_count`",
    "tombstone_gc": "`mode` is `timeout`, `repair`, `disabled` or `immediate`; "
    "`propagation_delay_in_seconds` is about `repair`",
}


#: Each table made here has an id of its own.
_SEEDS = itertools.count()


def page(table: Table, joined: Callable[[Sequence[str]], str], note: str) -> str:
    return joined(
        [
            "# CQL",
            note,
            "The language of Cassandra 5, with its messages and codes of errors. This page is what the "
            "grammar, the functions and the checks of this version say of themselves.",
            *_grammar(),
            *_types(table),
            *_functions(table),
            *_arithmetic(table),
            *_options(table),
            *_refused(table),
            "## What differs",
            *(f"- {text}" for text in _DIFFERENCES),
        ]
    )


def _grammar() -> list[str]:
    """The grammar in its parts, without the names of handlers."""
    parts = [
        "## Statements",
        "Quoted words and signs stand for themselves, in any case of letters; `?` is at most once, `*` any "
        "number of times and `+` at least once. A name is a word or is within double quotes. Words that "
        f"are no names without quotes: {', '.join(f'`{word}`' for word in sorted(RESERVED))}.",
    ]
    title, lines = "", list[str]()

    def close() -> None:
        if lines:
            parts.extend((f"### {title}", "```text\n" + "\n".join(lines) + "\n```"))

    for raw in GRAMMAR.strip().split("\n"):
        heading = re.fullmatch(r"// ([A-Z][A-Za-z ]*)", raw)
        if heading is not None:
            close()
            title, lines = heading[1], []
        elif title and raw and not raw.startswith(("//", "%")):
            lines.append(re.sub(r" -> \w+", "", raw.removeprefix("?")))
    close()
    return parts


def _types(table: Table) -> list[str]:
    literals = [
        (f"`{name}`", ", ".join(kind for kind, names in FITTING.items() if parse_type(name).name in names))
        for name in NATIVE_NAMES
    ]
    return [
        "## Types",
        table(["type", "literals that fit"], literals),
        "And `list<…>`, `set<…>`, `map<…, …>`, `tuple<…>`, `vector<…, n>`, types made by CREATE TYPE, and "
        "`frozen<…>` of all but vectors.",
    ]


def _functions(table: Table) -> list[str]:
    found = signatures()
    blobs = [name for name in found if re.fullmatch(r".*_?as_?.*", name) and ("blob" in name)]
    rows = [(f"`{name}`", "; ".join(texts)) for name, texts in sorted(found.items()) if name not in blobs]
    assert {*found} == {*function_names()}
    return [
        "## Functions",
        "All are in the keyspace `system`, in letters of either case. A null argument gives null, except to "
        "`tojson`, `mask_default`, `mask_replace`, `mask_inner` and `mask_outer`. Besides these there are "
        "`token`, `ttl`, `writetime`, `maxwritetime` and `CAST(… AS …)`, and for every type but blob and "
        "counter `typeAsBlob`, `blobAsType`, `type_as_blob` and `blob_as_type` with its name.",
        table(["function", "arguments and result"], rows),
        f"Aggregates: {', '.join(f'`{name}`' for name in sorted(AGGREGATES))}. `sum` and `avg` have the "
        "type of their argument and take numbers; a sum of whole numbers wraps. Aggregates may stand inside "
        "other functions and operators, but not inside each other.",
    ]


def _arithmetic(table: Table) -> list[str]:
    rows = []
    for left in NUMBERS:
        kinds = [result_type("+", parse_type(left), parse_type(right)) for right in NUMBERS]
        rows.append((f"**{left}**", *(kind.text if kind is not None else "" for kind in kinds)))
    return [
        "## Operators",
        "`+ - * / %` of two numbers and `-` of one, in selections and wherever a value may stand. Whole "
        "numbers of fixed size wrap, their quotients are cut towards zero; a division by zero of whole "
        "numbers or decimals is an error of code 0x1400. A `timestamp` or `date` plus or minus a `duration` "
        "is one again; `+` joins texts. A bind variable has the type of the other side.",
        table(["", *NUMBERS], rows),
    ]


def _options(table: Table) -> list[str]:
    rows = [
        (
            f"`{name}`",
            "a map" if name in MAP_OPTIONS else f"`{text}`" if text else "",
            _MATTERS.get(name, "kept and described"),
        )
        for name, text in DEFAULTS.items()
    ]
    return ["## Options of tables", table(["option", "default", "what it does here"], rows)]


def _refused(table: Table) -> list[str]:
    schema = Schema()
    for epoch, text in enumerate(_SCHEMA, 1):
        schema, _ = apply_change(schema, schema_change(_prepared(text, schema), _context()), epoch, ("dc1",))
    rows = [(what, f"`{text}`", _message(text, schema)) for what, text in _REFUSED]
    return ["## What is refused", table(["what", "statement", "answer"], rows)]


def _prepared(text: str, schema: Schema) -> Any:
    return prepare(text, "ks", Catalog(schema))


def _context() -> Context:
    return Context(1, 0, 1, 1, bytes(14), lambda: bytes(15) + bytes([next(_SEEDS)]))


def _message(text: str, schema: Schema) -> str:
    try:
        prepared = _prepared(text, schema)
        assert prepared.kind == "DDL", f"{text} is not refused any more: take it from this page"
        apply_change(schema, schema_change(prepared, _context()), 9, ("dc1",))
    except LockstepError as error:
        code = getattr(error, "cql_code", RequestError.cql_code)
        return f"0x{code:04X}: {error.message}"
    raise AssertionError(f"{text} is not refused any more: take it from this page")
