"""Statements that can be executed again without parsing: prepared ones, and texts that come often; the
catalog that they are planned against.

Invariant: a statement's id is a function of its keyspace (none for a statement that names its own) and its
text, so it is the same on every node; a statement is planned against the schema it is executed under; one
whose table got other columns must be prepared again, because only then do clients take the new columns. A
statement that writes to no captured table is looked at once, when it is compiled. As long as the schema is
the same object the catalog is too, so identity tells whether a plan is current. A virtual keyspace gives way
to a stored one of its name, once that has all its tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from lockstep.cql.compile.modification import BatchPlan, ModificationPlan
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog, Prepared
from lockstep.cql.functions.user_functions import definitions
from lockstep.cql.parse import tree
from lockstep.cql.wire.constants import VERSION_MAX
from lockstep.cql.wire.responses import RowsMetadata, encode_rows_metadata
from lockstep.schema.log_tables import log_of
from lockstep.schema.model import Schema
from lockstep.schema.user_types import types_of_table
from lockstep.server.auth.permits import Needs, needs_of
from lockstep.server.metrics.latencies import SYSTEM, operation_of
from lockstep.server.statements.user_functions import LongStatements
from lockstep.values.errors import InvalidRequest, Unprepared
from lockstep.values.limits import PREPARED_STATEMENTS_MAX, TEXT_STATEMENT_CHARACTERS_MAX, TEXT_STATEMENTS_MAX
from lockstep.values.node_limits import PREPARED_CHARACTERS_MAX


def is_captured(plan: object, schema: Schema) -> bool:
    """Whether changes of a table that a compiled statement writes to are captured."""
    parts = plan.parts if isinstance(plan, BatchPlan) else (plan,)
    tables = (part.shape.table for part in parts if isinstance(part, ModificationPlan))
    return any(log_of(schema, table) is not None for table in tables)


STATEMENT_ID_BYTES: Final = 16


def digest16(data: bytes) -> bytes:
    """16 bytes that name `data`."""
    return hashlib.blake2b(data, digest_size=STATEMENT_ID_BYTES).digest()


class Statement:
    """One statement and what is encoded of it once. `shape_changed`: its result columns have changed since
    it was first prepared here, so clients may hold outdated ones. `is_direct`: a write of one partition
    of a table whose changes are not captured.
    `operation`: what its latency is counted as.
    `is_outdated`: it must be prepared again before it is executed."""

    __slots__ = (
        "_metadata",
        "_needs",
        "catalog",
        "id",
        "is_direct",
        "is_outdated",
        "keyspace",
        "operation",
        "prepared",
        "result_id",
        "shape_changed",
        "text",
    )

    prepared: Prepared
    catalog: Catalog
    _needs: tuple[Catalog | None, Needs]

    def __init__(self, text: str, keyspace: str | None, prepared: Prepared, catalog: Catalog) -> None:
        self.text = text
        self.keyspace = keyspace
        self.shape_changed = False
        self.is_outdated = False
        named = "" if keyspace is None or _names_its_keyspace(prepared.statement) else keyspace
        self.id = digest16(f"{named}\x00{text}".encode())
        self._take(prepared, catalog)

    @property
    def needs(self) -> Needs:
        """The permissions it needs under the schema it is planned for."""
        catalog, needs = self._needs
        if catalog is not self.catalog:
            needs = needs_of(self.prepared, self.catalog)
            self._needs = (self.catalog, needs)
        return needs

    def _take(self, prepared: Prepared, catalog: Catalog) -> None:
        self._needs = (None, ())
        self.prepared = prepared
        self.catalog = catalog
        self._metadata: dict[int, RowsMetadata] = {}
        self.result_id = digest16(self.metadata(VERSION_MAX).columns if prepared.result_columns else b"")
        plan = prepared.plan
        self.operation = operation_of(prepared)
        self.is_direct = (
            isinstance(plan, ModificationPlan)
            and plan.steps is not None
            and not (prepared.called or self.operation.table_class == SYSTEM)
            and not is_captured(plan, catalog.schema)
        )

    def metadata(self, version: int) -> RowsMetadata:
        found = self._metadata.get(version)
        if found is None:
            found = self._metadata[version] = encode_rows_metadata(version, self.prepared.result_columns)
        return found

    def follow(self, catalog: Catalog) -> None:
        """Plan anew when the schema has moved under the statement, unless that outdates it."""
        if self.catalog is catalog:
            return
        if self._functions_moved(catalog):
            self._replan(catalog)
        elif self._still_fits(catalog):
            self.catalog = catalog
        elif self._columns_moved(catalog):
            self.is_outdated = True
        else:
            self._take(prepare(self.text, self.keyspace, catalog), catalog)

    def _replan(self, catalog: Catalog) -> None:
        """Plan anew for other functions; its result columns may have other types."""
        before = self.result_id
        if self._columns_moved(catalog):
            self.is_outdated = True
            return
        self._take(prepare(self.text, self.keyspace, catalog), catalog)
        self.shape_changed = self.shape_changed or self.result_id != before

    def _functions_moved(self, catalog: Catalog) -> bool:
        """Whether user functions that it calls are others now, or gone."""
        before, after = self.catalog.schema.by_name, catalog.schema.by_name
        return any(
            before.get(space) is not after.get(space)
            and definitions(before.get(space), name) != definitions(after.get(space), name)
            for space, name in self.prepared.called
        )

    def _columns_moved(self, catalog: Catalog) -> bool:
        """Whether a table is gone or has other columns than those planned against."""
        prepared, plan = self.prepared, self.prepared.plan
        if isinstance(plan, BatchPlan):
            tables = {part.shape.table.id: part.shape.table for part in plan.parts}
            return any(self._table_moved(table.keyspace, table.name, catalog) for table in tables.values())
        return self._table_moved(prepared.keyspace, prepared.table, catalog)

    def _table_moved(self, keyspace: str, name: str, catalog: Catalog) -> bool:
        before = self.catalog.schema.table(keyspace, name)
        after = catalog.schema.table(keyspace, name)
        if before is None or after is None:
            return before is not after
        if before.columns != after.columns or before.uuid != after.uuid:
            return True
        # Columns name user-defined types: another meaning of one is another column to clients.
        if before.epoch == after.epoch:
            return False
        spaces = (self.catalog.schema.by_name[before.keyspace], catalog.schema.by_name[after.keyspace])
        return types_of_table(spaces[0], before) != types_of_table(spaces[1], after)

    def _still_fits(self, catalog: Catalog) -> bool:
        prepared = self.prepared
        if prepared.kind not in ("SELECT", "MODIFY") or not prepared.table_id:
            return False
        table = catalog.virtual.tables_by_id if prepared.is_virtual else catalog.schema.tables_by_id
        found = table.get(prepared.table_id)
        return found is not None and found.epoch == prepared.table_epoch


def _names_its_keyspace(statement: tree.Statement) -> bool:
    if isinstance(statement, tree.Batch):
        return all(_names_its_keyspace(part) for part in statement.statements)
    named = getattr(statement, "table", None)
    return isinstance(named, tree.TableName) and named.keyspace is not None


def _require_size(text: str) -> None:
    if len(text) > PREPARED_CHARACTERS_MAX:
        raise InvalidRequest(
            f"Prepared statement of size {len(text)} bytes is larger than allowed maximum of "
            f"{PREPARED_CHARACTERS_MAX >> 20} MB: {text[:200]}..."
        )


class _Recent:
    """A bounded map that forgets what was used least recently. `characters`: of all texts."""

    def __init__(self, size_max: int, characters_max: int) -> None:
        self._size_max = size_max
        self._characters_max = characters_max
        self._kept: dict[object, Statement] = {}
        self.characters = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: object) -> Statement | None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept[key] = found
        return found

    def put(self, key: object, statement: Statement) -> None:
        self.drop(key)
        self._kept[key] = statement
        self.characters += len(statement.text)
        while len(self._kept) > self._size_max or self.characters > self._characters_max:
            self.drop(next(iter(self._kept)))

    def drop(self, key: object) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self.characters -= len(gone.text)


class Statements:
    """All statements of one node; `catalog` gives the present schema."""

    def __init__(self, catalog: Callable[[], Catalog]) -> None:
        self._catalog = catalog
        self._prepared = _Recent(PREPARED_STATEMENTS_MAX, PREPARED_CHARACTERS_MAX)
        self._texts = _Recent(TEXT_STATEMENTS_MAX, TEXT_STATEMENTS_MAX * TEXT_STATEMENT_CHARACTERS_MAX)

    def __len__(self) -> int:
        return len(self._prepared)

    def prepare(self, text: str, keyspace: str | None) -> Statement:
        """Plan and keep a statement. SyntaxError_ or InvalidRequest."""
        _require_size(text)
        return self._keep(self._made(text, keyspace, self._catalog()))

    async def prepare_long(self, text: str, keyspace: str | None, aside: LongStatements) -> Statement:
        """As `prepare`, beside the loop."""
        _require_size(text)
        catalog = self._catalog()
        return self._keep(await aside.run(lambda: self._made(text, keyspace, catalog)))

    async def by_long_text(self, text: str, keyspace: str | None, aside: LongStatements) -> Statement:
        """As `by_text`, beside the loop."""
        catalog = self._catalog()
        return await aside.run(lambda: self._made(text, keyspace, catalog))

    @staticmethod
    def _made(text: str, keyspace: str | None, catalog: Catalog) -> Statement:
        return Statement(text, keyspace, prepare(text, keyspace, catalog), catalog)

    def _keep(self, statement: Statement) -> Statement:
        known = self._prepared.get(statement.id)
        if known is not None:
            if known.result_id != statement.result_id:
                statement.shape_changed = True
            else:
                statement.shape_changed = known.shape_changed
        self._prepared.put(statement.id, statement)
        return statement

    def by_id(self, statement_id: bytes) -> Statement:
        """A prepared statement under the present schema. Unprepared when it is not, or no longer, known."""
        found = self._prepared.get(statement_id)
        if found is None:
            raise Unprepared(statement_id)
        catalog = self._catalog()
        if found.catalog is not catalog:
            found.follow(catalog)
        if found.is_outdated:
            # It is kept for `prepare`, which compares the result columns. Preparing it again also tells
            # the client when it fits no more.
            raise Unprepared(statement_id)
        return found

    def known(self, statement_id: bytes) -> Prepared | None:
        """What was prepared under this id, though it may be outdated."""
        found = self._prepared.get(statement_id)
        return found.prepared if found is not None else None

    def planned_anew(self, statement_id: bytes) -> Statement:
        """A prepared statement under the present schema for one more attempt at a request whose values are
        here: also an outdated one, if it has the same variables. Unprepared, SyntaxError_ or InvalidRequest.
        """
        found = self._prepared.get(statement_id)
        if found is None:
            raise Unprepared(statement_id)
        catalog = self._catalog()
        made = Statement(found.text, found.keyspace, prepare(found.text, found.keyspace, catalog), catalog)
        if made.prepared.bind_columns != found.prepared.bind_columns:
            raise Unprepared(statement_id)
        return made

    def by_text(self, text: str, keyspace: str | None) -> Statement:
        """The plan of a text. SyntaxError_ or InvalidRequest."""
        catalog = self._catalog()
        key = (keyspace, text)
        found = self._texts.get(key)
        if found is not None:
            if found.catalog is catalog:
                return found
            self._texts.drop(key)
        statement = self._made(text, keyspace, catalog)
        # Statements about roles may hold passwords.
        if len(text) <= TEXT_STATEMENT_CHARACTERS_MAX and statement.prepared.kind != "ROLE":
            self._texts.put(key, statement)
        return statement


def shown(stored: Schema, virtual: Schema) -> tuple[Schema, Schema]:
    """What clients see of both: of each keyspace that is in both, one."""
    for keyspace in virtual.keyspaces:
        made = stored.by_name.get(keyspace.name)
        if made is None:
            continue
        if all(name in made.by_name for name in keyspace.by_name):
            virtual = virtual.without_keyspace(keyspace.name)
        else:
            stored = stored.without_keyspace(keyspace.name)
    return stored, virtual


class Catalogs:
    """`schema` gives the newest schema; `virtual` holds the system tables."""

    def __init__(self, schema: Callable[[], Schema], virtual: Schema) -> None:
        self._schema = schema
        self._virtual = virtual
        self._of = schema()
        self._catalog = Catalog(*shown(self._of, virtual))

    def current(self) -> Catalog:
        schema = self._schema()
        if self._of is not schema:
            self._of = schema
            self._catalog = Catalog(*shown(schema, self._virtual))
        return self._catalog
