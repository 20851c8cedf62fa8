"""Starts of a node on a damaged directory, in a process of its own: what it read, or what it said.

The process opens what a node opens when it starts, without taking part in anything: identity, both Raft
groups, the metadata log and its snapshots, the store with its checks; then it reads every pair of the store.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec
from corrupt_cases import Case, copied, harm

#: A start that takes longer is counted as ended.
TIMEOUT_S = 60


class Result(msgspec.Struct, frozen=True):
    outcome: str
    said: str = ""


class Opener:
    """Cases one after the other, in a process that is started again when one ends it."""

    def __init__(self, home: Path, *, planted: bool) -> None:
        self._home = home
        self._planted = planted
        self._number = 0
        self._directory = home / "case-0"
        self._process: subprocess.Popen[str] | None = None
        self._templates: dict[str, Path] = {}
        self._whole: dict[str, dict[str, Any]] = {}

    def learn(self, name: str, directory: Path) -> None:
        """What a start on the undamaged directory reads."""
        self._templates[name] = directory
        copied(directory, self._place())
        answer = self._ask()
        if "read" not in answer:
            raise SystemExit(f"the undamaged directory of the {name} node does not open: {answer}")
        self._whole[name] = answer["read"]
        print(f"  {name} node: {answer['read']['pairs']} pairs, epoch {answer['read']['epoch']}", flush=True)

    def tried(self, case: Case) -> Result:
        copied(self._templates[case.template], self._place())
        harm(self._directory, case)
        answer = self._ask()
        if "read" in answer:
            lost = {
                name: (value, answer["read"].get(name))
                for name, value in self._whole[case.template].items()
                if answer["read"].get(name) != value
            }
            return Result("SILENT", str(lost)[:300]) if lost else Result("whole")
        if "damaged" in answer:
            return Result("damaged range" if _names(answer["damaged"], case) else "SILENT", answer["damaged"])
        if "refused" in answer:
            named = _names(answer["refused"], case)
            return Result("refused" if named else "refused, other file named", answer["refused"])
        return Result("ENDED", str(answer)[:600])

    def _place(self) -> Path:
        """A new directory for the next case; that of the last one goes."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._number += 1
        self._directory = self._home / f"case-{self._number}"
        return self._directory

    def _ask(self) -> dict[str, Any]:
        if self._process is None:
            command = [sys.executable, str(Path(__file__).resolve())]
            self._process = subprocess.Popen(
                [*command, "planted"] if self._planted else command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                stderr=subprocess.DEVNULL,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{self._directory}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            self._process = None
            return {"ended": code}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()


def _names(said: str, case: Case) -> bool:
    """Whether a message names the damaged file, or the directory that holds nothing but it."""
    return case.path in said or Path(case.path).name in said


# -- in the process of its own ----------------------------------------------------------------------


def serve() -> None:
    for line in sys.stdin:
        try:
            answer = asyncio.run(opened(line.strip()))
        except Exception:
            answer = {"fault": traceback.format_exc()[-600:]}
        # Whatever an error still refers to keeps the database open.
        gc.collect()
        print(json.dumps(answer), flush=True)


async def opened(directory: str) -> dict[str, Any]:
    from lockstep.node.configuration import parse
    from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP, RaftJournal
    from lockstep.node.node import Node
    from lockstep.node.processors.raft import logged_entries
    from lockstep.runtime.real import CHECK_HANDLER, CHECK_PACKAGES, HelperProcesses, real_runtime
    from lockstep.server.main import _open_store
    from lockstep.values.errors import LockstepError, TableFileDamaged

    text = (Path(directory).parent / "lockstep.toml").read_text()
    configuration = parse(text, {}, source="lockstep.toml")
    runtime = real_runtime(directory)
    checkers = HelperProcesses(CHECK_HANDLER, *CHECK_PACKAGES)
    faults: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(str(context)))
    path = os.path.join(directory, "store")
    node = Node(
        runtime, configuration, lambda _: _open_store(path, runtime, checkers), lambda *_a, **_f: None
    )
    try:
        await node.load()
        node.membership.voting.take_part()
        groups = [RaftJournal(runtime.disk, group).load() for group in (METADATA_GROUP, MANAGEMENT_GROUP)]
        read = {
            "host": node.context.identity.value.host_id,
            "cluster": node.context.identity.value.cluster_id,
            "generation": node.context.identity.value.generation,
            # Meaningless once there is a first entry.
            "founders": "" if node.log.state.epoch else str(node.log.founders_file.value),
            # What is in the log of the group is applied again, or fetched from any peer.
            "epoch": max([node.log.state.epoch, *(one.epoch for one in logged_entries(groups[0].entries))]),
            "raft": [
                (str(one.hard_state), len(one.entries), str(one.entries[-1:])[:300], str(one.snapshot)[:300])
                for one in groups
            ],
            **content(node.data.store),
        }
        if faults:
            return {"fault": faults[0][:600]}
        return {"read": read}
    except TableFileDamaged as error:
        return {"damaged": error.render()} if node.is_loaded else {"refused": error.render()}
    except LockstepError as error:
        return {"refused": error.render()}
    finally:
        await closed(node)
        await checkers.stop()


def content(store: Any) -> dict[str, Any]:
    """How many pairs there are, and a digest of all of them: every way of reading meets every block."""
    import xxhash

    from lockstep.storage.store import Family

    digest = xxhash.xxh3_128()
    count = 0
    for key, value in store.scan(b"", b"\xff"):
        if key[:1] != Family.LOCAL.value:
            count += 1
            digest.update(len(key).to_bytes(4, "big") + key + value)
    return {"pairs": count, "digest": digest.hexdigest()}


async def closed(node: Any) -> None:
    """Give the files back, without leaving a good order behind."""
    await node.runtime.tasks.cancel_all()
    if node.is_loaded:
        node.data.store.close()
    node.runtime.disk.close()


def plant() -> None:
    """Take damage for the end of a file, and start without what is missing: as a careless node would."""
    from lockstep.node.node import Seal
    from lockstep.values import codec

    async def nothing(_self: Any) -> None:
        return None

    codec._whole_record_after = lambda _data, _offset, _most: False
    codec._is_one_bit_off = lambda _data, _offset, _most: False
    Seal.open = nothing  # type: ignore[method-assign]


if __name__ == "__main__":
    if "planted" in sys.argv[1:]:
        plant()
    serve()
