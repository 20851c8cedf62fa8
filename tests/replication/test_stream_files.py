"""Files of streams on their way in, and how far each stream has come, on a disk that loses power."""

from __future__ import annotations

import xxhash

from lockstep.streaming import stream_progress
from lockstep.streaming.stream_files import (
    DIRECTORY,
    ArrivingFile,
    Position,
    StreamFiles,
    StreamKey,
    digest_of,
)
from lockstep.streaming.stream_progress import TakenIn
from tests.storage.support import LossyDisk

from .support import run

ONE = StreamKey("s1", 1, 0, 100, ("n1", 1))
OTHER = StreamKey("s1", 2, 0, 100, ("n1", 1))
LATER = StreamKey("s2", 1, 0, 100, ("n1", 1))


def names(disk: LossyDisk) -> int:
    return len(disk.names(DIRECTORY))


def arrive(disk: LossyDisk, files: StreamFiles, key: StreamKey, number: int, content: bytes) -> None:
    disk.append(files.content(key, number), content)


def test_the_last_whole_record_counts_and_a_torn_one_is_cut_off() -> None:
    async def test() -> None:
        disk = LossyDisk()
        files = StreamFiles(disk)
        assert files.load(ONE) == Position(ONE)
        files.note(Position(ONE, number=1))
        await files.record(Position(ONE, b"k", 10, 2, 1))
        [name] = disk.names(DIRECTORY)
        whole = disk.size(f"{DIRECTORY}/{name}")
        disk.append(f"{DIRECTORY}/{name}", b"torn")
        assert files.load(ONE) == Position(ONE, b"k", 10, 2, 1)
        assert disk.size(f"{DIRECTORY}/{name}") == whole
        files.note(Position(ONE, b"l", 20, 3, 2))
        assert files.load(ONE).next_key == b"l", "what follows the cut is read"

    run(test)


def test_a_record_of_nothing_readable_begins_the_stream_anew() -> None:
    disk = LossyDisk()
    files = StreamFiles(disk)
    files.note(Position(ONE, b"k"))
    [name] = disk.names(DIRECTORY)
    disk.remove(f"{DIRECTORY}/{name}")
    disk.append(f"{DIRECTORY}/{name}", b"damaged beyond reading")
    assert files.load(ONE) == Position(ONE)
    assert names(disk) == 0


def test_files_of_a_stream_are_found_handed_over_and_removed_by_number() -> None:
    disk = LossyDisk()
    files = StreamFiles(disk)
    for number in (0, 1, 11):
        arrive(disk, files, ONE, number, b"x" * (number + 1))
    arrive(disk, files, OTHER, 1, b"y")
    files.note(Position(ONE))
    assert (files.arrived(ONE, 11), files.arrived(ONE, 2)) == (12, 0)
    path = files.hand_over(ONE, 1)
    assert disk.read(path) == b"xx" and files.arrived(ONE, 1) == 0
    arrive(disk, files, ONE, 1, b"again")
    files.taken_in(ONE, 1)
    assert not disk.exists(path) and files.arrived(ONE, 1) == 5
    files.taken_in(ONE, 1)
    files.hand_over(ONE, 1)
    files.discard(ONE, 1)
    assert (files.arrived(ONE, 0), files.arrived(ONE, 11), names(disk)) == (1, 12, 4)
    files.discard(ONE)
    assert names(disk) == 2, "how far it is, and the other stream"
    files.remove(ONE)
    files.remove(ONE)
    assert names(disk) == 1 and files.arrived(OTHER, 1) == 1


def test_what_belongs_to_a_closed_session_or_to_none_goes() -> None:
    disk = LossyDisk()
    files = StreamFiles(disk)
    for key in (ONE, LATER):
        files.note(Position(key, files=1))
        arrive(disk, files, key, 0, b"x")
    arrive(disk, files, OTHER, 0, b"x")
    disk.append(f"{DIRECTORY}/out-1-0", b"a file of a source")
    assert [position.key for position in files.of_session("s2")] == [LATER]
    assert files.forget_closed(lambda session: session == "s2") == 3
    assert files.arrived(LATER, 0) == 1 and files.arrived(ONE, 0) == files.arrived(OTHER, 0) == 0
    assert names(disk) == 3
    assert files.forget_closed(lambda session: True) == 0


def test_parts_in_order_are_written_once_and_summed_up() -> None:
    disk = LossyDisk()
    file = ArrivingFile(disk, "streams/f", 0)
    first, late, second = file.taker(0), file.taker(0), file.taker(3)
    second(memoryview(b"no"))
    assert file.size_bytes == 0, "it comes too early"
    first(memoryview(b"ab"))
    first(memoryview(b"c"))
    late(memoryview(b"ab"))
    second(memoryview(b"de"))
    assert file.size_bytes == 5 and file.digest() == xxhash.xxh3_128(b"abcde").digest()
    assert digest_of(disk, "streams/f") == file.digest()
    file.close()
    file.taker(5)(memoryview(b"f"))
    assert disk.read("streams/f") == b"abcde"


def test_a_file_that_goes_on_is_summed_up_by_reading_it() -> None:
    disk = LossyDisk()
    disk.append("streams/f", b"abc")
    file = ArrivingFile(disk, "streams/f", 3)
    file.taker(3)(memoryview(b"de"))
    assert file.size_bytes == 5 and file.digest() is None
    assert digest_of(disk, "streams/f") == xxhash.xxh3_128(b"abcde").digest()


def test_what_a_session_brought_is_read_once_and_grows() -> None:
    asked: list[str] = []

    def on_disk(session: str) -> tuple[int, int]:
        asked.append(session)
        return 10, 1

    taken = TakenIn(on_disk)
    taken.add("s", 5, 1)
    assert taken.remembered("s") is None, "what the disk says has it already"
    assert taken.of("s") == (10, 1) and taken.of("s") == (10, 1)
    taken.add("s", 5, 2)
    assert taken.remembered("s") == (15, 3) and asked == ["s"]
    for number in range(stream_progress.SESSIONS_REMEMBERED_MAX):
        taken.of(f"s{number}")
    assert taken.remembered("s") is None and taken.remembered("s0") == (10, 1)


def test_what_is_recorded_survives_a_power_loss_and_what_is_noted_need_not() -> None:
    async def test() -> None:
        disk = LossyDisk()
        files = StreamFiles(disk)
        recorded = Position(ONE, b"k", 10, 2, files=4)
        await files.record(recorded)
        files.note(Position(ONE, b"l", 20, 3, files=5))
        assert StreamFiles(disk.lose_power()).load(ONE) == recorded
        assert StreamFiles(disk.lose_power(lambda size: size)).load(ONE).next_key == b"l"

    run(test)


def test_files_that_were_taken_in_come_back_neither_after_the_first_nor_after_the_last() -> None:
    async def test() -> None:
        for done in (Position(ONE, files=1), Position(ONE, files=7, done=True)):
            disk = LossyDisk()
            files = StreamFiles(disk)
            await files.record(Position(ONE))
            arrive(disk, files, ONE, 0, b"x")
            await disk.sync(files.content(ONE, 0))
            await disk.sync_names(DIRECTORY)
            files.discard(ONE, 0)
            await files.record(done)
            after = StreamFiles(disk.lose_power())
            assert after.load(ONE) == done and after.arrived(ONE, 0) == 0

    run(test)
