"""Which tables are tracked, and what a tracked table may not have.

Replicas of a tracked table know by ids which mutations they hold. Invariant: it says since when, unless an id
names everything in it; what was there before is read as of an untracked table until a repair that began
later made the replicas of its range equal. Whatever would write to it without an id is refused where it is
asked for. A view is never tracked: each replica of its table works out for itself what a mutation changes in
it, so that is no mutation with an id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from lockstep.schema.model import Keyspace, Schema, Table
from lockstep.schema.table_options import CONFIGURATION, option
from lockstep.schema.witnesses import refuse_unfit
from lockstep.values.errors import Rejected
from lockstep.values.hash_tree import changed
from lockstep.values.memo import keep, kept, memo

REPLICATION_TYPE: Final = "replication_type"
TRACKED: Final = "tracked"
#: What is said of a keyspace, and of a table that differs from it.
_WORDS: Final = {TRACKED: True, "logged": True, "untracked": False, "legacy": False}
_NO_IDS: Final = (
    "each replica of its table works out for itself what a write changes in a view, so that is no mutation "
    "that has an id"
)
_TO_TABLETS: Final = "on its way from the ring to tablets"
_FINISH_FIRST: Final = "`lockstep tablets migrate KEYSPACE finalize` or `rollback` ends that; ALTER it then"


def means_tracked(word: str) -> bool:
    """Whether a keyspace of this replication type is tracked; Rejected for another word."""
    found = _WORDS.get(word.lower())
    if found is None:
        raise Rejected(
            f"{REPLICATION_TYPE} is 'tracked' or 'untracked', not '{word}'", cql_code=CONFIGURATION
        )
    return found


def is_tracked(keyspace: Keyspace, table: Table) -> bool:
    word = option(table.options, REPLICATION_TYPE)
    assert word == "keyspace" or word in _WORDS, "other words are refused at the statement"
    if table.view is not None:
        return False
    return keyspace.tracked if word == "keyspace" else word == TRACKED


def tracked_tables(schema: Schema) -> Iterator[Table]:
    return (table for keyspace in schema.keyspaces for table in _tracked_in(keyspace))


_GROUPS: Final = "_tracked_groups"


def tracked_groups(schema: Schema) -> Mapping[int, int]:
    """Tracked tables, by id in the order of their names, with the placement group of each. Looked for once,
    and from then on taken over from schema to schema."""
    return memo(schema, _GROUPS, _tracked_groups)


def _tracked_groups(schema: Schema) -> Mapping[int, int]:
    return {table.id: schema.by_name[table.keyspace].group_of(table) for table in tracked_tables(schema)}


def _take_over_groups(before: Schema, after: Schema) -> None:
    """Have the groups of tracked tables known of `after`; costs what changed where none of them does."""
    known: Mapping[int, int] | None = kept(before, _GROUPS)
    if known is None or after is before:
        return
    for was, now in before.keyspaces_changed_in(after):
        if was is not None and now is not None and (was.tracked, was.group) != (now.tracked, now.group):
            return
    found = dict(known)
    for _, old, table in changed(before.table_tree, after.table_tree):
        if old is not None:
            found.pop(old.id, None)
        if table is not None and is_tracked(after.by_name[table.keyspace], table):
            found[table.id] = after.by_name[table.keyspace].group_of(table)
    if found == known:
        keep(after, _GROUPS, known)
        return
    names = {of: (after.tables_by_id[of].keyspace, after.tables_by_id[of].name) for of in found}
    keep(after, _GROUPS, {of: found[of] for of in sorted(found, key=names.__getitem__)})


def tracking_follows(before: Schema, after: Schema, epoch: int) -> Schema:
    """With what a change begins or ends to track; costs what changed, and all tables of a keyspace that
    changes in that. Rejected where a tracked table would have what it may not have."""
    found: dict[tuple[str, str], Table] = {}
    for was, now in before.keyspaces_changed_in(after):
        if was is not None and now is not None and was.tracked != now.tracked:
            found.update({(table.keyspace, table.name): table for table in now.tables})
    for _, _, table in changed(before.table_tree, after.table_tree):
        if table is not None:
            found[table.keyspace, table.name] = table
    made = after
    for name in sorted(found):
        table = found[name]
        old = before.tables_by_id.get(table.id)
        since = table.tracked_since
        if old is None or not is_tracked(after.by_name[table.keyspace], table):
            since = 0
        elif not is_tracked(before.by_name[old.keyspace], old):
            since = epoch
        if since != table.tracked_since:
            made = made.with_table(replace(table, tracked_since=since))
    _check(before, made)
    _take_over_groups(before, made)
    return made


def _check(before: Schema, after: Schema) -> None:
    """Rejected where a change gives a tracked table what it may not have; costs what changed."""
    for _, now in before.keyspaces_changed_in(after):
        if now is not None and now.tracked and _on_its_way(now) and any(_tracked_in(now)):
            raise _refused(now.name, f"keyspace {now.name} is {_TO_TABLETS}", _FINISH_FIRST)
    untracked: list[Table] = []
    for _, _, table in changed(before.table_tree, after.table_tree):
        if table is None:
            continue
        keyspace = after.by_name[table.keyspace]
        if not is_tracked(keyspace, table):
            untracked.append(table)
        if table.view is not None and option(table.options, REPLICATION_TYPE) == TRACKED:
            what = f"view {table.keyspace}.{table.name} cannot be tracked: {_NO_IDS}"
            hint = f"leave {REPLICATION_TYPE} out: the view of a tracked table is untracked by itself"
            raise _refused(table.keyspace, what, hint)
        if not is_tracked(keyspace, table):
            continue
        if _on_its_way(keyspace):
            what = f"table {table.keyspace}.{table.name} is tracked: its keyspace is {_TO_TABLETS}"
            raise _refused(table.keyspace, what, _FINISH_FIRST)
    refuse_unfit(before, after, untracked=untracked)


def newly_tracked(before: Schema, after: Schema) -> list[Table]:
    """Tracked tables that were untracked; costs what changed."""
    return [
        table
        for _, old, table in changed(before.table_tree, after.table_tree)
        if table is not None
        and old is not None
        and is_tracked(after.by_name[table.keyspace], table)
        and not is_tracked(before.by_name[old.keyspace], old)
    ]


def _on_its_way(keyspace: Keyspace) -> bool:
    """Whether it may still go back to the ring: ids would change placement groups with each step."""
    return keyspace.tablets is not None and keyspace.tablets.from_ring


def _tracked_in(keyspace: Keyspace) -> Iterator[Table]:
    return (table for table in keyspace.tables if is_tracked(keyspace, table))


def _refused(keyspace: str, message: str, hint: str = "") -> Rejected:
    return Rejected(message, cql_code=CONFIGURATION, keyspace=keyspace, hint=hint)
