"""Checking every table file of this node while it serves, and telling of damaged ones and of what the node
lacks, by name of table and range.

Invariant: each file is a condition of its own from the first time that anything met its damage; it ends with
the process, for only a store that is opened anew can be without the file. One scrub at a time; a file that is
damaged is named as one that a read came upon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.context import NodeContext
from lockstep.storage.damage import DamagedFiles
from lockstep.storage.rows.keys import table_of, with_ballots
from lockstep.storage.store import Store
from lockstep.storage.store_position import Lacking, tokens_between
from lockstep.values.conditions import Condition
from lockstep.values.errors import StorageError, TableFileDamaged
from lockstep.values.node_limits import DAMAGED_FILES_MAX
from lockstep.values.tokens import FULL_RING

#: Tables named in one line; a file of many says how many more there are.
TABLES_NAMED_MAX = 4
#: Named instead of a file when the whole store is lacking.
ALL_OF_IT = "all of it"


class TableDamage:
    def __init__(
        self,
        context: NodeContext,
        damaged: DamagedFiles,
        lacking: Lacking,
    ) -> None:
        self._lacking = lacking
        self._conditions = context.conditions
        self._cluster = context.cluster
        self._log = context.log
        self._told: dict[tuple[str, str], None] = {}
        damaged.listen(self._heard)
        context.conditions.watch(self._look)

    def _heard(self, error: TableFileDamaged) -> None:
        name = error.path.rpartition("/")[2]
        content = content_between(error.first_key, error.last_key, self._cluster())
        self._conditions.report("TABLE_FILE_DAMAGED", name, f"{content}; byte {error.offset}")
        self._log("storage.table_file_damaged", path=error.path, offset=error.offset, error=error.why)

    def _look(self) -> None:
        """What is lacking is reported under the file that held it."""
        cluster = self._cluster()
        now: dict[tuple[str, str], str] = {}
        for lack in self._lacking.current:
            content = content_between(lack.first_key, lack.last_key, cluster)
            if lack.sole:
                now["RANGE_LOST", content] = lack.lost
            else:
                now["RANGE_LACKING", lack.lost or ALL_OF_IT] = f"{self._filled()}; it lacks {content}"
        for code, subject in self._told:
            if (code, subject) not in now:
                self._conditions.clear(code, subject)
        for (code, subject), detail in now.items():
            self._conditions.report(code, subject, detail)
        self._told = dict.fromkeys(now)

    def _filled(self) -> str:
        """How far the rebuild is that fills what is lacking. Until it ends, nothing is taken for filled."""
        filling = self._lacking.filling
        if filling is None:
            return "no rebuild has begun"
        return f"{filling.ranges} of {filling.ranges_total} ranges are filled"


def lacks_everything(told: Sequence[Condition]) -> bool:
    """Whether a node says that it has lost its whole store, and is not filled yet."""
    return any((one.code, one.subject) == ("RANGE_LACKING", ALL_OF_IT) for one in told)


def content_between(first_key: bytes, last_key: bytes, cluster: ClusterMetadata) -> str:
    """Tables and tokens some of whose keys may lie between two, for people."""
    found: dict[str, None] = {}
    for keyspace in cluster.schema.keyspaces:
        for stored_id in with_ballots(table.id for table in keyspace.tables):
            tokens = tokens_between(first_key, last_key, stored_id)
            if tokens is not None:
                name = cluster.schema.tables_by_id[table_of(stored_id)].name
                where = "" if tokens == FULL_RING else f" ({tokens.left}, {tokens.right}]"
                found[f"{keyspace.name}.{name}{where}"] = None
    more = len(found) - TABLES_NAMED_MAX
    named = ", ".join(list(found)[:TABLES_NAMED_MAX]) or "no table, but records of this node"
    return f"{named} and {more} more" if more > 0 else named


class DamagedFile(msgspec.Struct, frozen=True):
    """`content`: tables and tokens that lie in it."""

    file: str
    offset: int
    content: str
    reason: str


class ScrubState(msgspec.Struct, frozen=True):
    """`state`: never, running, done or failed. `unchecked`: files that could not be checked, and why."""

    state: str = "never"
    files: int = 0
    checked: int = 0
    damaged: tuple[DamagedFile, ...] = ()
    unchecked: tuple[tuple[str, str], ...] = ()


class Scrub:
    def __init__(
        self,
        context: NodeContext,
        store: Store,
    ) -> None:
        self._runtime = context.runtime
        self._store = store
        self._cluster = context.cluster
        self._log = context.log
        self.state = ScrubState()

    def begin(self) -> ScrubState:
        """Check all files that there are now, unless that is under way."""
        if self.state.state != "running":
            names = self._store.table_files()
            self.state = ScrubState("running", len(names))
            self._runtime.tasks.spawn(self._run(names), "storage.scrub")
        return self.state

    async def _run(self, names: tuple[str, ...]) -> None:
        damaged: list[DamagedFile] = []
        unchecked: list[tuple[str, str]] = []
        for number, name in enumerate(names, start=1):
            try:
                error = await self._store.check_file(name)
            except (TimeoutError, ConnectionError, StorageError) as failure:
                unchecked.append((name, str(failure) or "it took too long"))
            else:
                if error is not None and len(damaged) < DAMAGED_FILES_MAX:
                    damaged.append(self._named(name, error))
            self.state = ScrubState("running", len(names), number, tuple(damaged), tuple(unchecked))
            await asyncio.sleep(0)
        self.state = msgspec.structs.replace(self.state, state="failed" if unchecked else "done")
        self._log("storage.scrubbed", files=len(names), damaged=len(damaged), unchecked=len(unchecked))

    def _named(self, name: str, error: TableFileDamaged) -> DamagedFile:
        content = content_between(error.first_key, error.last_key, self._cluster())
        return DamagedFile(name, error.offset, content, error.why)
