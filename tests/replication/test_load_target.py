"""A replica's side of bulk loads: what it holds, from whom, what it takes in, and what goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.metadata.loads import LOADS, Load, Loads, LoadState
from lockstep.metadata.schema_part import SCHEMA
from lockstep.replica.load_messages import (
    LoadFetch,
    LoadFile,
    LoadManifest,
    LoadPart,
    LoadPhase,
    LoadStage,
    LoadStaged,
    manifest_of,
)
from lockstep.schema.model import KeyspaceHead, keyspace_of, schema_of
from lockstep.storage.rows import keys
from lockstep.streaming.load_files import LoadFiles, key_of
from lockstep.streaming.load_target import LoadTarget
from lockstep.streaming.stream_files import digest_of
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import (
    DiskRefused,
    FrameCorrupt,
    InvalidRequest,
    LockstepError,
    PeerTimeout,
    SessionClosed,
    StorageError,
)
from lockstep.values.node_limits import (
    LOAD_FETCH_ATTEMPTS_MAX,
    LOAD_FILE_BYTES_MAX,
    LOAD_PART_BYTES_MAX,
    LOADS_ENDED_KEPT_MAX,
)

from .clusters import TABLE_ID, make_cluster, replication
from .load_parts import Disk, Engine, Wire
from .support import RecordingProbes, real_runtime

JOB = "a"
KEY = key_of(JOB)
CONTENT = b"rows of a file"
ONE, TWO = ("n1", 1), ("n2", 1)
LOAD = Load(JOB, "ks", "t", TABLE_ID, 1, TABLE_ID, 9_000_000, 5, 10_000)


class Place:
    """A node with one load under way, of a table whose tokens up to 100 it stores."""

    def __init__(
        self, load: Load | None = LOAD, disk: Disk | None = None, engine: Engine | None = None
    ) -> None:
        self.disk, self.engine, self.wire = disk or Disk(), engine or Engine(), Wire()
        self.engine.gate.set()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.probes = RecordingProbes()
        self.cluster = make_cluster(5, [(100, [1, 2], [1, 2], 1), (200, [2, 3], [2, 3], 1)])
        self.know(load)
        runtime: Any = replace(real_runtime(), disk=self.disk, probes=self.probes)
        self.caught_up: list[int] = []
        self.target = LoadTarget(
            runtime,
            self.wire,  # type: ignore[arg-type]
            self.engine,
            lambda: self.cluster,
            self._catch_up,
            lambda: 1,
            lambda event, **facts: self.told.append((event, facts)),
        )
        self.files = LoadFiles(self.disk)  # type: ignore[arg-type]

    async def _catch_up(self, epoch: int, source: Any) -> None:
        self.caught_up.append(epoch)

    def know(self, load: Load | None) -> None:
        loads = Loads()
        if load is not None and load.state is LoadState.RUNNING:
            loads = Loads((load,))
        elif load is not None:
            loads = Loads((), (load,))
        self.cluster = self.cluster.changed(LOADS.set(loads))

    def end(self) -> None:
        """The load is given up, and this node hears of it."""
        self.apply(replace(LOAD, state=LoadState.ABORTED, reason="enough", ended_epoch=6))

    def commit(self, *files: LoadFile) -> None:
        digest = manifest_of(JOB, files).digest
        self.apply(replace(LOAD, state=LoadState.COMMITTED, digest=digest, ended_epoch=6))

    def apply(self, load: Load) -> None:
        before = self.cluster
        self.know(load)
        self.target.applied(before, self.cluster, None)

    def names(self) -> list[str]:
        """Of the files of loads, without the name of the job."""
        return [name.removeprefix(KEY) for name in self.disk.names("loads")]

    def keep(self, file: LoadFile, content: bytes = CONTENT) -> None:
        self.disk.append(self.files.sorted_file(KEY, file.name), content)

    def serve(self, source: Address, content: bytes = CONTENT, part_bytes: int = LOAD_PART_BYTES_MAX) -> None:
        def answer(ask: LoadFetch) -> LoadPart:
            assert ask.job == JOB and ask.size == LOAD_PART_BYTES_MAX
            return LoadPart(True, content[ask.offset : ask.offset + part_bytes])

        self.wire.answers[source] = answer

    def fail(self, source: Address, error: LockstepError) -> None:
        def answer(ask: LoadFetch) -> LoadPart:
            raise error

        self.wire.answers[source] = answer


def file_of(number: int = 0, content: bytes = CONTENT, right: int = 100, **more: Any) -> LoadFile:
    """One of tokens in (0, right]; with what it holds beside the product's own way to sum up."""
    disk = Disk()
    disk.append("f", content)
    first, last = (
        keys.row_key(keys.partition_prefix(TABLE_ID, token, b"k"), b"", 1, bytes(14)) for token in (1, right)
    )
    digest = digest_of(disk, "f")  # type: ignore[arg-type]
    made = LoadFile(0, 0, number, 0, right, 3, len(content), first, last, digest)
    return replace(made, **more)


FILE = file_of()


def put(place: Place, offset: int, data: bytes, file: LoadFile = FILE) -> bool:
    return asyncio.run(place.target.put(JOB, file, offset, data))


def stage(
    place: Place, *files: LoadFile, sources: Sequence[Address] = (ONE,), whole: bool = False
) -> LoadStaged:
    manifest = manifest_of(JOB, files) if whole else None
    phase = LoadPhase.PREPARE if whole else LoadPhase.STAGE
    return asyncio.run(place.target.stage(LoadStage(JOB, phase, 5, files, tuple(sources), manifest)))


# What clients send


def test_a_file_arrives_in_parts_and_is_held_once_it_is_whole_and_durable() -> None:
    place = Place()
    assert [verb for verb, _ in place.wire.services] == [verbs.LOAD_STAGE, verbs.LOAD_FETCH]
    assert not put(place, 0, CONTENT[:4])
    assert place.names() == ["-0-0-0.part"] and place.target.staged(JOB) == (0, 0)
    assert put(place, 4, CONTENT[4:])
    assert place.names() == ["-0-0-0.sorted"] and place.target.staged(JOB) == (1, len(CONTENT))
    assert place.disk.durable == [f"loads/{KEY}-0-0-0.part", "loads"]
    assert (place.target.counts.files, place.target.counts.bytes) == (1, len(CONTENT))
    # What is held is not taken again, whatever part of it comes.
    assert put(place, 4, b"other")
    assert place.disk.read(f"loads/{KEY}-0-0-0.sorted") == CONTENT
    assert place.target.counts.files == 1 and place.target.counts.damaged == 0


def test_a_file_that_begins_again_replaces_what_came() -> None:
    place = Place()
    assert not put(place, 0, b"wro")
    assert not put(place, 0, CONTENT[:4])
    assert put(place, 4, CONTENT[4:])


@pytest.mark.parametrize(
    ("offset", "data", "file", "message"),
    [
        (3, b"a", FILE, "out of turn"),
        (0, CONTENT + b"x", FILE, "out of turn"),
        (0, b"", file_of(size_bytes=0), "has 1 to"),
        (0, b"a", file_of(size_bytes=LOAD_FILE_BYTES_MAX + 1), "has 1 to"),
        (0, CONTENT, file_of(digest=b"other"), "not what its digest says"),
        (0, CONTENT, file_of(left=100), "not of its range"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_held(
    offset: int, data: bytes, file: LoadFile, message: str
) -> None:
    place = Place()
    with pytest.raises(InvalidRequest, match=message):
        put(place, offset, data, file)
    assert place.names() == []
    assert put(place, 0, CONTENT), "it may be sent again"


def test_the_largest_file_is_one_that_may_begin() -> None:
    assert not put(Place(), 0, b"a", file_of(size_bytes=LOAD_FILE_BYTES_MAX))


def test_what_a_disk_changed_is_not_held() -> None:
    for changed in (CONTENT[:-1], CONTENT[:-1] + b"X"):
        place = Place()
        place.keep(FILE, changed)
        assert not put(place, 0, CONTENT[:4])
        assert place.names() == ["-0-0-0.part"] and place.target.counts.damaged == 1
        assert "load.target.damaged" in place.probes.reached
        assert put(place, 4, CONTENT[4:])


def test_a_file_that_goes_while_it_is_summed_up_is_not_held() -> None:
    place = Place()
    place.keep(FILE)
    place.disk.on_reader = lambda path: place.disk.files.clear()
    assert not put(place, 0, CONTENT[:4])
    assert place.target.counts.damaged == 1


@pytest.mark.parametrize("load", [None, replace(LOAD, state=LoadState.ABORTED, reason="no", ended_epoch=6)])
def test_of_a_load_that_does_not_run_nothing_is_taken(load: Load | None) -> None:
    place = Place(load)
    with pytest.raises(SessionClosed, match="is not known" if load is None else "is aborted: no"):
        put(place, 0, CONTENT)
    staged = pytest.raises(SessionClosed, match="load a is")
    with staged:
        stage(place, FILE)
    assert place.names() == []


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_file_that_becomes_durable_when_its_load_has_ended_goes(is_renamed: bool) -> None:
    place = Place()
    ended = replace(LOAD, state=LoadState.ABORTED, reason="enough", ended_epoch=6)
    # Either its files have gone, or whoever removes them has not come to it yet.
    place.disk.on_sync = (lambda path: place.know(ended)) if is_renamed else (lambda path: place.end())
    with pytest.raises(SessionClosed, match="aborted: enough"):
        put(place, 0, CONTENT)
    assert place.names() == [] and place.target.counts.files == 0


def test_a_file_that_is_gone_under_a_load_that_runs_is_damaged() -> None:
    place = Place()
    place.disk.on_sync = lambda path: place.disk.files.clear()
    with pytest.raises(FrameCorrupt, match="is gone"):
        put(place, 0, CONTENT)


def test_nothing_is_made_durable_for_a_load_that_ended_while_the_file_was_summed_up() -> None:
    place = Place()
    place.disk.on_reader = lambda path: place.know(None)
    with pytest.raises(SessionClosed, match="is not known"):
        put(place, 0, CONTENT)
    assert place.disk.durable == []


# What other nodes have


def test_files_come_from_whoever_has_them() -> None:
    place = Place()
    place.wire.answers[ONE] = lambda ask: LoadPart(False)
    place.serve(TWO, part_bytes=5)
    assert stage(place, FILE, sources=(ONE, TWO)) == LoadStaged(("0-0-0",), True)
    assert place.wire.asked == [(ONE, 0), (TWO, 0), (TWO, 5), (TWO, 10)]
    assert place.names() == ["-0-0-0.sorted"]
    assert stage(place, FILE, sources=(ONE, TWO)) == LoadStaged(("0-0-0",), True)
    assert len(place.wire.asked) == 4, "what is held is not asked for"
    assert place.target.part(LoadFetch(JOB, "0-0-0", 3, 4)) == LoadPart(True, CONTENT[3:7])
    assert place.target.part(LoadFetch(JOB, "0-0-1", 0, 4)) == LoadPart(False)


def test_a_file_that_nobody_has_is_asked_for_so_many_times() -> None:
    place = Place()
    place.wire.answers[ONE] = place.wire.answers[TWO] = lambda ask: LoadPart(False)
    assert stage(place, FILE, sources=(ONE, TWO)) == LoadStaged((), False)
    assert place.wire.asked == [(ONE, 0), (TWO, 0)] * LOAD_FETCH_ATTEMPTS_MAX
    assert stage(place, FILE, sources=()) == LoadStaged((), False)


def test_what_failed_last_is_told_and_the_others_are_held() -> None:
    place, other = Place(), file_of(1)
    place.keep(other)
    place.fail(ONE, PeerTimeout("n1 is silent"))
    staged = stage(place, FILE, other)
    assert (staged.names, staged.done) == (("0-0-1",), False) and staged.reason == "n1 is silent"
    assert len(place.wire.asked) == LOAD_FETCH_ATTEMPTS_MAX


@pytest.mark.parametrize("content", [CONTENT + b"x", CONTENT[:-1]])
def test_a_file_of_another_size_is_damaged(content: bytes) -> None:
    place = Place()
    place.serve(ONE, content)
    staged = stage(place, FILE)
    assert not staged.done and "has another size at n1:1" in staged.reason


def test_a_file_that_came_changed_is_fetched_again() -> None:
    place = Place()
    place.serve(ONE, CONTENT[:-1] + b"X")
    place.serve(TWO)
    assert stage(place, FILE, sources=(ONE, TWO)).done
    assert place.target.counts.damaged == 1 and place.names() == ["-0-0-0.sorted"]


def test_a_load_that_ends_while_a_file_comes_leaves_nothing() -> None:
    place = Place()

    def answer(ask: LoadFetch) -> LoadPart:
        if ask.offset:
            place.know(None)
        return LoadPart(True, CONTENT[ask.offset : ask.offset + 5])

    place.wire.answers[ONE] = answer
    with pytest.raises(SessionClosed):
        stage(place, FILE)
    assert place.names() == []


# Preparing and taking in


def test_the_list_is_kept_when_all_files_are_held() -> None:
    place, other = Place(), file_of(1)
    place.keep(FILE)
    place.wire.answers[ONE] = lambda ask: LoadPart(False)
    assert not stage(place, FILE, other, whole=True).done
    assert place.files.manifest(KEY) is None
    place.keep(other)
    assert stage(place, FILE, other, whole=True).done
    assert place.files.manifest(KEY) == manifest_of(JOB, (FILE, other))
    assert stage(place, FILE, whole=True).done
    assert place.files.manifest(KEY) == manifest_of(JOB, (FILE,)), "the newest list counts"


def test_a_list_that_is_not_whole_is_none() -> None:
    place = Place()
    path = f"loads/{KEY}.manifest"
    assert place.files.manifest(KEY) is None
    for content in (b"", b"\x01\x02", b"x" * 40):
        place.disk.files[path] = content
        assert place.files.manifest(KEY) is None
    del place.disk.files[path]
    asyncio.run(place.files.keep_manifest(manifest_of(JOB, (FILE,))))
    place.disk.files[path] = place.disk.files[path][:-1]
    assert place.files.manifest(KEY) is None


def prepared(*files: LoadFile) -> Place:
    place = Place()
    for file in files:
        place.keep(file)
    assert stage(place, *files, whole=True).done
    return place


async def settled(place: Place) -> LoadStaged:
    return await place.target.stage(LoadStage(JOB, LoadPhase.TAKEN, 6))


def test_committed_files_of_own_ranges_are_taken_in_durably_and_go() -> None:
    far = file_of(1, right=150)
    place = prepared(FILE, far)

    async def scenario() -> None:
        assert not (await settled(place)).done
        place.engine.gate.clear()
        place.commit(FILE, far)
        assert place.engine.taken == [
            (TABLE_ID, FILE.range, f"loads/{KEY}-0-0-0.run", 3, FILE.first_key, FILE.last_key)
        ]
        assert place.target.takes_in(JOB) and place.target.counts.taken_in == 1
        place.target.follow(place.cluster)
        assert len(place.engine.taken) == 1, "once"
        waiting = asyncio.get_running_loop().create_task(settled(place))
        await asyncio.sleep(0)
        place.engine.gate.set()
        assert (await waiting).done and not place.target.takes_in(JOB)
        assert place.engine.synced_to == [99], "with what was noted of it"

    asyncio.run(scenario())
    assert place.names() == []
    assert decoder(tuple[str, ...]).decode(place.engine.facts[b"loads"]) == (KEY,)
    again = Place(place.cluster.loads.by_job[JOB], place.disk, place.engine)
    assert asyncio.run(settled(again)).done, "it is known after a start"


def test_what_a_crash_interrupted_is_taken_in_at_the_next_start() -> None:
    place = prepared(FILE, file_of(1))
    # One was handed over already, of the other nothing is left: the store had it.
    place.files.hand_over(KEY, FILE)
    place.disk.remove(place.files.sorted_file(KEY, "0-0-1"))
    assert place.files.hand_over(KEY, file_of(1)) == ""
    digest = manifest_of(JOB, (FILE, file_of(1))).digest
    done = replace(LOAD, state=LoadState.COMMITTED, digest=digest, ended_epoch=6)

    async def scenario() -> None:
        again = Place(done, place.disk)
        assert [run[2] for run in again.engine.taken] == [f"loads/{KEY}-0-0-0.run"]
        assert (await settled(again)).done

    asyncio.run(scenario())


def test_a_file_that_the_store_does_not_take_is_lacking_here() -> None:
    place = prepared(FILE)
    place.engine.refuse = StorageError("not a table file")

    async def scenario() -> None:
        place.commit(FILE)
        assert place.told == [("load.damaged", {"job": JOB, "file": "0-0-0", "error": "not a table file"})]
        staged = await settled(place)
        assert (staged.done, staged.reason) == (False, "its files are not here")

    asyncio.run(scenario())
    assert place.target.counts.damaged == 1 and b"loads" not in place.engine.facts


def test_a_disk_that_refuses_stops_taking_in() -> None:
    place = prepared(FILE)
    place.engine.refuse = DiskRefused("full")
    place.commit(FILE)
    assert place.target.counts.taken_in == 0 and not place.target.takes_in(JOB)
    assert "-0-0-0.run" in place.names()


def test_what_is_not_durable_keeps_its_files() -> None:
    place = prepared(FILE)
    place.engine.sync_error = DiskRefused("full")

    async def scenario() -> None:
        place.commit(FILE)
        assert not (await settled(place)).done

    asyncio.run(scenario())
    assert "-0-0-0.run" in place.names() and "load.target.not_synced" in place.probes.reached


@pytest.mark.parametrize("has_other_list", [False, True])
def test_without_the_list_of_a_committed_load_its_files_are_lacking(has_other_list: bool) -> None:
    place = prepared(FILE, file_of(1)) if has_other_list else Place()
    place.keep(file_of(2))
    place.commit(FILE)
    assert place.target.counts.lacking == 1 and place.engine.taken == [] and place.names() == []
    assert place.told == [("load.lacking", {"job": JOB, "table": "ks.t"})]


def test_a_load_that_was_taken_in_before_is_not_lacking() -> None:
    place = Place()
    place.engine.facts[b"loads"] = encode((KEY,))
    again = Place(LOAD, place.disk, place.engine)
    again.keep(FILE)
    again.commit(FILE)
    assert again.target.counts.lacking == 0 and again.told == [] and again.names() == []


def test_of_a_table_that_was_dropped_since_nothing_is_lacking() -> None:
    place = prepared(FILE)
    head = KeyspaceHead("ks", replication({"": 3}), epoch=1, group=1)
    place.cluster = place.cluster.changed(SCHEMA.set(schema_of([keyspace_of(head, ())], 2)))
    place.commit(FILE)
    assert place.target.counts.lacking == 0 and place.engine.taken == [] and place.names() == []


def test_what_was_given_up_goes_and_other_jobs_stay() -> None:
    place = prepared(FILE)
    other = key_of("b")
    place.cluster = place.cluster.changed(LOADS.set(Loads((LOAD, replace(LOAD, job="b")))))
    place.disk.append(f"loads/{other}-0-0-0.part", b"x")
    place.cluster = place.cluster.changed(LOADS.set(Loads((replace(LOAD, job="b"),))))
    place.target.follow(place.cluster)
    assert place.disk.names("loads") == [f"{other}-0-0-0.part"]
    assert "load.target.forgotten" in place.probes.reached


def test_a_list_that_comes_after_the_commit_is_followed_at_once() -> None:
    place = prepared()
    place.keep(FILE)
    digest = manifest_of(JOB, (FILE,)).digest
    done = replace(LOAD, state=LoadState.COMMITTED, digest=digest, ended_epoch=6)

    async def scenario() -> None:
        place.disk.on_sync = lambda path: place.know(done)
        whole = LoadStage(JOB, LoadPhase.PREPARE, 5, (FILE,), (), LoadManifest(JOB, (FILE,)))
        assert (await place.target.stage(whole)).done
        assert len(place.engine.taken) == 1
        assert (await settled(place)).done

    asyncio.run(scenario())


def test_only_so_many_jobs_are_remembered_and_what_cannot_be_read_is_none() -> None:
    engine = Engine()
    before = tuple(key_of(f"job {number}") for number in range(LOADS_ENDED_KEPT_MAX))
    engine.facts[b"loads"] = encode(before)
    disk = prepared(FILE).disk

    async def scenario() -> None:
        place = Place(LOAD, disk, engine)
        place.commit(FILE)
        assert (await settled(place)).done

    asyncio.run(scenario())
    kept = decoder(tuple[str, ...]).decode(engine.facts[b"loads"])
    assert kept == (*before[1:], KEY)
    engine.facts[b"loads"] = b"\xc1"
    assert not asyncio.run(settled(Place(LOAD, disk, engine))).done


def test_what_others_ask_for_waits_until_this_node_knows_of_the_load() -> None:
    place = Place()
    place.keep(FILE)
    peer: Any = SimpleNamespace(endpoint=ONE)
    ask = LoadStage(JOB, LoadPhase.STAGE, 7, (FILE,), ())
    (answer,) = (one for verb, one in place.wire.services if verb == verbs.LOAD_STAGE)
    assert asyncio.run(answer(peer, ask)).done
    assert place.caught_up == [7]
