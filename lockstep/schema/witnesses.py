"""What a keyspace with witnesses may not have, refused where it is asked for.

A witness keeps mutations until all full replicas hold them, and no tables. Invariant: everything in such a
keyspace is tracked, so that it is known who holds what; nothing in it needs the row that was there before at
each replica, nor has data that comes without mutations.
"""

from __future__ import annotations

from typing import Final

from lockstep.schema.model import Keyspace, Replication, Schema, Table
from lockstep.schema.table_options import CONFIGURATION
from lockstep.tracking.witnesses import Factor, change_refused
from lockstep.values.errors import Rejected
from lockstep.values.hash_tree import changed

_TRACK: Final = "say replication_type = 'tracked', or a factor without witnesses"
_FULL: Final = "have it in a keyspace whose factors name no witnesses"
_MADE_WITH: Final = "make a keyspace with the factor that is wanted, and copy the tables there"
_ONE_BY_ONE: Final = "take the witnesses away first, as in '3', then change the factor, then name them again"


def refuse_unfit(before: Schema, after: Schema, *, untracked: list[Table]) -> None:
    """Raises Rejected where a change gives a keyspace with witnesses what it may not have; costs what
    changed. `untracked`: tables that changed and are tracked no more, or never were."""
    assert all(table.keyspace in after.by_name for table in untracked), (
        "tables are of keyspaces that are there"
    )
    for was, now in before.keyspaces_changed_in(after):
        if now is None:
            continue
        if was is not None:
            refuse_change(was, now.replication)
        if not now.replication.has_witnesses:
            continue
        if not now.tracked:
            raise _refused(now.name, f"keyspace {now.name} has witnesses and is untracked", _TRACK)
    for table in untracked:
        keyspace = after.by_name[table.keyspace]
        if keyspace.replication.has_witnesses:
            kind = "view" if table.view is not None else "table"
            why = "each replica would work it out from rows" if table.view is not None else "it is untracked"
            raise _refused(
                keyspace.name,
                f"{kind} {keyspace.name}.{table.name}: its keyspace has witnesses, and {why}",
                _FULL,
            )
    for _, _, made in changed(before.table_tree, after.table_tree):
        if made is None or not after.by_name[made.keyspace].replication.has_witnesses:
            continue
        if made.is_counter:
            raise _refused(
                made.keyspace,
                f"table {made.keyspace}.{made.name} counts: its keyspace has witnesses, which add to no row",
                _FULL,
            )


def refuse_change(keyspace: Keyspace, target: Replication) -> None:
    """Raises Rejected where the replication of a keyspace with tables would change, and has witnesses before
    or after, unless all that changes is who is one, in steps of one, and its tables may have some."""
    before, name = keyspace.replication, keyspace.name
    if target == before or not (before.has_witnesses or target.has_witnesses) or not keyspace.by_name:
        return
    what = f"keyspace {name} cannot go from {before.text()} to {target.text()}"
    if keyspace.tablets is not None:
        raise _refused(
            name, f"{what}: tablets keep the witnesses that their keyspace was made with", _MADE_WITH
        )
    if (before.strategy, before.factors) != (target.strategy, target.factors):
        raise _refused(name, f"{what}: while there are witnesses no replica is added or removed", _ONE_BY_ONE)
    was, now = before.witnesses, target.witnesses
    assert {*was, *now} <= dict(before.factors).keys(), "witnesses are some of the replicas"
    for dc, factor in before.factors:
        why = change_refused(Factor(factor, was.get(dc, 0)), Factor(factor, now.get(dc, 0)), forced=True)
        if why:
            raise _refused(name, f"{what}: {why}", "name one witness more than there are")
    if not target.has_witnesses:
        return
    if not keyspace.tracked:
        raise _refused(name, f"{what}: it is untracked", _TRACK)
    for table in keyspace.tables:
        if table.view is not None or table.is_counter or table.tracked_since:
            raise _refused(
                name, f"{what}: {table.name} is a view, counts, or was there before it was tracked", _FULL
            )


def _refused(keyspace: str, message: str, hint: str) -> Rejected:
    return Rejected(message, cql_code=CONFIGURATION, keyspace=keyspace, hint=hint)
