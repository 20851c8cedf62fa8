"""Random statements that must be refused.

Invariant: which error each gets does not depend on the types and contents of its table.
"""

from __future__ import annotations

from lockstep.cql.wire.messages import UNSET
from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.changes import Wrong
from lockstep.sim.fuzz.tables import Table
from lockstep.sim.streams import Stream


def draw_wrong(draw: Stream, table: Table) -> Wrong:
    key = table.of("partition")[0]
    value = kinds.literal(key.kind, draw.choice(key.pool))
    column = draw.choice(table.of("regular"))
    deletion = f"DELETE FROM {table.path} WHERE {key.name} = {value}"
    stamped = f"FROM {table.path} USING TIMESTAMP 7 WHERE {key.name} = {value}"
    texts = (
        (f"SELECT nothing FROM {table.path}", 0x2200),
        (f"SELECT * FROM {table.path}x", 0x2200),
        (f"SELECT * FROM {table.path} WHERE", 0x2000),
        (f"INSERT INTO {table.path} ({column.name}) VALUES (null)", 0x2200),
        (f"INSERT INTO {table.path} ({key.name}, {key.name}) VALUES ({value}, {value})", 0x2200),
        (f"UPDATE {table.path} SET {column.name} = null", 0x2000),
        (f"UPDATE {table.path} SET {key.name} = {value} WHERE {key.name} = {value}", 0x2200),
        (f"UPDATE {table.path} USING TTL -1 SET {column.name} = null WHERE {key.name} = {value}", 0x2200),
        (f"DELETE {key.name} FROM {table.path} WHERE {key.name} = {value}", 0x2200),
        (f"DELETE FROM {table.path} WHERE {column.name} = null", 0x2200),
        (f"SELECT * FROM {table.path} WHERE {key.name} = null", 0x2200),
        (f"SELECT * FROM {table.path} LIMIT 0", 0x2200),
        (f"SELECT {column.name}[1].x FROM {table.path}", 0x2200),
        (f"SELECT {column.name} FROM {table.path} GROUP BY {column.name}", 0x2200),
        (f"SELECT * FROM {table.path} ORDER BY {column.name} ASC", 0x2200),
        (f"SELECT DISTINCT {column.name} FROM {table.path}", 0x2200),
        (f"INSERT INTO {table.path} JSON '[1]'", 0x2200),
        (f"SELECT DISTINCT {key.name} FROM {table.path} PER PARTITION LIMIT 1", 0x2200),
        (f"BEGIN BATCH USING TTL 5 {deletion}; APPLY BATCH", 0x2200),
        (f"BEGIN BATCH USING TIMESTAMP 5 DELETE {stamped}; APPLY BATCH", 0x2200),
        (f"DELETE {stamped} IF EXISTS", 0x2200),
        (f"ALTER TABLE {table.path} RENAME {column.name} TO other", 0x2200),
        (f"ALTER TABLE {table.path} RENAME nothing TO other", 0x2200),
        (f"ALTER TABLE {table.path} DROP {key.name}", 0x2200),
        (f"ALTER TABLE {table.path} ADD {column.name} int", 0x2200),
        (f"CREATE TABLE {table.path} (a int PRIMARY KEY)", 0x2400),
        (f"SELECT * FROM {table.path} WHERE {key.name} = ?", 0x2200, None),
        (f"SELECT * FROM {table.path} WHERE {key.name} = ?", 0x2200, UNSET),
        (f"SELECT * FROM {table.path} WHERE {key.name} = ?", 0x2200),
        (f"SELECT * FROM {table.path} LIMIT ?", 0x2200, None),
        (f"SELECT * FROM {table.path} LIMIT ?", 0x2200, b"\0\0\0\0"),
        (f"DELETE FROM {table.path} WHERE {key.name} = ?", 0x2200, UNSET),
    )
    statement, error, *values = draw.choice(texts)
    return Wrong(statement, error, tuple(values))
