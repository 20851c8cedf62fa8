"""What stored forms mean whose writers knew fewer fields: entries and snapshots are read for ever."""

from __future__ import annotations

import enum
import importlib
import pkgutil
from typing import Any

import msgspec
import pytest

import lockstep.metadata
from lockstep.metadata.groups import management
from lockstep.metadata.groups.management import (
    GENESIS,
    Admit,
    Expel,
    Found,
    RecordVoters,
    Repair,
    VotersRecord,
)
from lockstep.metadata.loads import LoadState
from lockstep.metadata.log import snapshot_file
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.log.snapshot_entries import ANY_TIME
from lockstep.metadata.log.snapshot_file import RecordKind
from lockstep.metadata.repairs import RepairState
from lockstep.metadata.requests import Policy, RequestState
from lockstep.metadata.tablets import NOT_RESIZING, ResizePhase
from lockstep.placement.tablets.resize import NO_RESIZE

BASE = ("cluster-features", "file-streaming", "metadata-log", "replication-change", "zero-token-nodes")

#: Stored struct -> what a field stands for in bytes that end before it. A line that changes changes what
#: entries of old logs do, so nodes that replay them would differ from those that applied them.
DEFAULTS: dict[str, dict[str, Any]] = {
    # Bodies of entries.
    "Founder": {"version": "", "log_version": 1, "features": BASE},
    "Initialize": {"voters": (), "at_ms": 0},
    "Register": {
        "version": "", "log_version": 1, "may_vote": True, "replaces": 0, "num_tokens": 1, "features": BASE,
        "attempt": 0, "as_of": 0,
    },
    "UpdateNode": {"log_version": 1, "features": BASE},
    "ExcludeNodes": {"reason": ""},
    "PrepareMembership": {"reason": "", "size": 0, "down": ()},
    "CancelMembership": {"reason": "", "unreached": 0},
    "SetService": {"size": 0, "node": 0, "text": ""},
    "ChangeSchema": {"creator": ""},
    "CreateRole": {
        "superuser": False, "login": False, "salted_hash": "", "data_centers": (), "if_not_exists": False,
        "creator": "", "only_first": False,
    },
    "AlterRole": {
        "superuser": None, "login": None, "salted_hash": None, "data_centers": None, "if_exists": False,
    },
    "DropRole": {"if_exists": False},
    "TakeSnapshot": {"after": ANY_TIME, "base_epoch": 0, "digest": b""},
    # Parts of the value.
    "Identity": {"cluster_id": "", "cluster_name": "", "lineage": ()},
    "Directory": {"nodes": (), "next_node_id": 1},
    "NodeInfo": {
        "state": "none", "tokens": (), "version": "", "epoch": 0, "log_version": 1, "may_vote": True,
        "replaces": 0, "num_tokens": 1, "features": BASE, "attempt": 0, "accepted_epoch": 0,
    },
    "Service": {
        "voters": (), "size": 0, "change": None, "frozen": "", "snapshot_epoch": 0, "truncated_epoch": 0,
        "recovery_generation": 0, "leaving": (), "paused": "", "snapshot_voters": (),
    },
    "ManagementPlace": {"members": ()},
    "ResetCluster": {"management": (), "ring_mode": "", "silenced": ()},
    "ResetManagement": {"management": (), "admitted": (), "expelled": ()},
    "Ringed": {"mode": "", "upgrading": None, "silenced": (), "built_epoch": 0, "gave_up": ""},
    "Upgrading": {"actor": "", "ignored": ()},
    "BeginUpgrade": {"actor": "", "ignored": ()},
    "AbortUpgrade": {"reason": ""},
    "MembershipChange": {"index": 0, "reason": "", "cancelled": False},
    "Operation": {
        "session_id": "", "history": (), "cancel_reason": "", "step": 0, "counted_bytes": 0,
        "counted_fragments": 0,
    },
    "TabletGroupHead": {"is_balanced": True, "resizing": NOT_RESIZING},
    "Resizing": {"resize": NO_RESIZE, "phase": ResizePhase.NONE, "epoch": 0, "kept": 0},
    "Transition": {"new_replication": None, "operation_id": 0, "position": None},
    "Position": {"session_id": "", "former": None, "target": None},
    "Request": {
        "policy": Policy.WAIT, "actor": "",
        "requested_epoch": 0, "state": RequestState.QUEUED, "operation_id": 0, "began_epoch": 0,
        "ended_epoch": 0, "outcome": "", "is_failing": False, "original": None,
        "moved_bytes": 0, "moved_fragments": 0,
    },
    "Degraded": {"inherited": (), "keyspaces": ()},
    "FeatureState": {"enabled": (), "announced_epoch": 0},
    "Generation": {"published_epoch": 0},
    "repairs.Repair": {
        "run": 0, "began_epoch": 0, "state": RepairState.RUNNING, "reason": "", "ended_epoch": 0,
        "ended_s": 0, "purpose": "",
    },
    "Repairs": {"running": (), "ended": (), "tables": (), "next_id": 1},
    "Role": {"superuser": False, "login": False, "salted_hash": "", "data_centers": (), "member_of": ()},
    # Whole values, and what heads them.
    "Header": {"entry": None},
    # The management group.
    "ManagementState": {
        "index": 0, "hash": GENESIS, "cluster_name": "", "lineage": (), "nodes": (), "expelled": (),
        "voters": VotersRecord(), "outcomes": (), "forgotten_index": 0,
    },
    "StreamSet": {"is_pending": False},
    "Loads": {"running": (), "ended": ()},
    "Load": {
        "overwrite": False, "state": LoadState.RUNNING, "digest": b"", "rows": 0, "size_bytes": 0,
        "ended_epoch": 0, "reason": "", "began_ms": 0,
    },
    "BeginLoad": {"timestamp_us": 0, "overwrite": False},
    "CommitLoad": {"rows": 0, "size_bytes": 0},
    "EndLoad": {"at_ms": 0},
    "Outcome": {"refusal": None},
    "VotersRecord": {
        "voters": (), "configuration_index": 0, "epoch": 0, "recovery_generation": 0, "index": 0,
    },
    "management.Repair": {"kind": "founding", "actor": "", "detail": b""},
    "Host": {"node_id": 0},
    "Reset": {"lost": ""},
    "Former": {"repair": Repair()},
    "Found": {"repair": Repair(), "former": ()},
    "Expel": {"reason": ""},
    "RecordVoters": {"recovery_generation": 0},
    # In messages of nodes of two versions.
    "JoinRefusal": {"hint": ""},
}  # fmt: skip


def stored() -> dict[str, type[msgspec.Struct]]:
    """Every struct of the room whose fields are stored by their places, by its name; two that share one are
    told apart by their modules'."""
    found: dict[str, list[type[msgspec.Struct]]] = {}
    for module in pkgutil.walk_packages(lockstep.metadata.__path__, "lockstep.metadata."):
        for value in vars(importlib.import_module(module.name)).values():
            own = isinstance(value, type) and value.__module__ == module.name
            if own and issubclass(value, msgspec.Struct) and value.__struct_config__.array_like:
                found.setdefault(value.__qualname__, []).append(value)
    return {
        name if len(kinds) == 1 else f"{kind.__module__.rpartition('.')[2]}.{name}": kind
        for name, kinds in found.items()
        for kind in kinds
    }


STORED = stored()


def test_every_stored_struct_with_appended_fields_is_listed() -> None:
    assert set(DEFAULTS) == {name for name, kind in STORED.items() if kind.__struct_defaults__}


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_fields_that_an_old_writer_did_not_know_mean_what_they_always_did(name: str) -> None:
    kind = STORED[name]
    values = kind.__struct_defaults__
    assert dict(zip(kind.__struct_fields__[-len(values) :], values, strict=True)) == DEFAULTS[name]


#: What stored numbers mean, for ever; a new name gets a number of its own.
NUMBERS: dict[type[enum.IntEnum], dict[str, int]] = {
    EntryKind: {
        "INITIALIZE": 1, "REGISTER": 2, "SCHEMA_CHANGE": 3, "PREPARE_OPERATION": 4, "ADVANCE_OPERATION": 5,
        "CANCEL_OPERATION": 6, "UPDATE_NODE": 7, "SET_EXTENSION": 8, "SNAPSHOT": 9, "TRUNCATE_LOG": 10,
        "PREPARE_MEMBERSHIP": 11, "ADVANCE_MEMBERSHIP": 12, "CANCEL_MEMBERSHIP": 13, "SET_SERVICE": 14,
        "FORCE_REMOVE": 15, "MARK_REPAIRED": 16, "ENQUEUE_REQUEST": 20, "CANCEL_REQUEST": 21,
        "FAIL_REQUEST": 22, "EXCLUDE_NODES": 23, "INCLUDE_NODES": 24, "ENABLE_FEATURES": 30,
        "ROLE_CHANGE": 31, "ROLE_MEMBERSHIP": 32, "PERMISSIONS": 33, "BEGIN_REPAIR": 34, "END_REPAIR": 35,
        "RECORD_UNDELIVERED": 36, "ADVANCE_TRANSITIONS": 37, "BEGIN_MOVES": 38,
        "SET_BALANCING": 39, "DECIDE_RESIZES": 40, "ADVANCE_RESIZE": 41, "MIGRATE_KEYSPACE": 42,
        "ASK_RESIZE": 43,
        "BEGIN_LOAD": 49, "COMMIT_LOAD": 50, "END_LOAD": 51,
        "REPAIR_STREAMS": 46, "PUBLISH_GENERATIONS": 52,
        "ADVANCE_CAPTURED": 45, "CHANGE_CAPTURED": 47, "PUBLISH_STREAMS": 44,
        "RESET_CLUSTER": 70, "COUNT_MOVED": 48, "PLACE_MANAGEMENT": 71, "RESET_MANAGEMENT": 72,
        "FOUND_RING": 60, "END_RING": 61, "BEGIN_UPGRADE": 62, "BUILD_LOG": 63, "ABORT_UPGRADE": 64,
    },
    RecordKind: {"HEADER": 1, "PIECE": 2, "ENTRIES": 3, "TRAILER": 4},
}  # fmt: skip


@pytest.mark.parametrize("kind", list(NUMBERS))
def test_stored_numbers_mean_what_they_always_did(kind: type[enum.IntEnum]) -> None:
    assert {one.name: one.value for one in kind} == NUMBERS[kind]


def test_tags_and_formats_stay() -> None:
    tags = [kind.__struct_config__.tag for kind in (Found, Admit, Expel, RecordVoters)]
    assert tags == [1, 2, 3, 4]
    formats = management.SNAPSHOT_FORMAT, snapshot_file.FORMAT, snapshot_file.FORMAT_VERSION
    assert formats == (1, "lockstep-metadata", 4)
