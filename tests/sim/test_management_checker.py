"""The management group's checker rejects planted histories, one for each rule."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.groups.management import (
    EMPTY_STATE,
    Action,
    Admit,
    Command,
    Found,
    Host,
    ManagementState,
    RecordVoters,
    apply,
)
from lockstep.sim.checkers.consensus import ManagementMonitor
from lockstep.sim.checkers.violation import Violation
from tests.metadata.histories import simple, started


def command(number: int, action: Action) -> Command:
    return Command(number.to_bytes(16, "big"), 0, "test", action)


#: What three commands make of a group, with the ids.
COMMANDS = [
    command(1, Found("c1", "town", (Host("h1", "127.0.0.1", 7000),))),
    command(2, Admit(Host("h2", "127.0.0.2", 7000), 1)),
    command(3, RecordVoters((1, 2), 3, 4)),
]


def history() -> list[tuple[ManagementState, bytes]]:
    states, state = [], EMPTY_STATE
    for index, given in enumerate(COMMANDS, 2):
        state = apply(state, index, given)
        states.append((state, given.id))
    return states


def tell(monitor: ManagementMonitor, label: str, *steps: tuple[ManagementState, bytes]) -> None:
    for state, command_id in steps:
        monitor(0, label, "management.applied", {"state": state, "command_id": command_id})


def test_members_that_agree_over_restarts_pass() -> None:
    monitor, steps = ManagementMonitor(), history()
    for label in ("n1.1", "n2.1", "n1.2"):
        tell(monitor, label, *steps)
    assert monitor.newest == steps[-1][0]


def test_another_state_at_an_index_is_refused() -> None:
    monitor, steps = ManagementMonitor(), history()
    tell(monitor, "n1.1", *steps)
    state, command_id = steps[0]
    other = msgspec.structs.replace(state, cluster_name="village")
    with pytest.raises(Violation, match=r"CMG-1: n2.1 has another state at index 2"):
        tell(monitor, "n2.1", (other, command_id))


def test_a_member_that_goes_back_is_refused() -> None:
    monitor, steps = ManagementMonitor(), history()
    tell(monitor, "n1.1", *steps)
    with pytest.raises(Violation, match=r"CMG-1: n1.1 applied 2 after 4"):
        tell(monitor, "n1.1", steps[0])


def test_a_command_with_a_second_effect_is_refused_and_a_repetition_is_not() -> None:
    monitor, steps = ManagementMonitor(), history()
    tell(monitor, "n1.1", *steps)
    newest = steps[-1][0]
    repeated = apply(newest, 5, COMMANDS[1])
    tell(monitor, "n1.1", (repeated, COMMANDS[1].id))
    forgetful = apply(msgspec.structs.replace(repeated, outcomes=()), 6, COMMANDS[1])
    with pytest.raises(Violation, match=r"CMG-2: n1.1 applied the command of index 3 again at 6"):
        tell(monitor, "n1.1", (forgetful, COMMANDS[1].id))


def test_a_node_that_was_not_admitted_and_a_foreign_cluster_are_refused() -> None:
    values = started([(0,), (100,)], ("ks", simple(2))).values
    monitor = ManagementMonitor()
    with pytest.raises(Violation, match="CMG-3: the metadata is of cluster"):
        monitor.first_applied(values[0], values[1])
    cluster_id = values[1].identity.cluster_id
    hosts = tuple(Host(node.host_id, node.address, 7000) for node in values[1].directory.nodes)
    for admitted, registered in ((hosts, True), (hosts[:1], False)):
        monitor = ManagementMonitor()
        given = command(1, Found(cluster_id, "town", admitted))
        tell(monitor, "n1.1", (apply(EMPTY_STATE, 2, given), given.id))
        if registered:
            monitor.first_applied(values[0], values[1])
        else:
            with pytest.raises(Violation, match="CMG-3: node 2 is registered and was not admitted"):
                monitor.first_applied(values[0], values[1])


def test_what_a_member_lacks_in_the_end_is_named() -> None:
    monitor, steps = ManagementMonitor(), history()
    tell(monitor, "n1.1", *steps)
    value = started([(0,), (100,)], ("ks", simple(2))).values[-1]
    assert "index 3" in monitor.lacking(steps[1][0], value)
    assert "nodes" in monitor.lacking(steps[2][0], value) or "voters" in monitor.lacking(steps[2][0], value)


def test_a_group_may_begin_with_a_state_that_no_command_made() -> None:
    monitor, ((state, _), (later, later_id), _) = ManagementMonitor(), history()
    monitor(0, "n1.1", "management.installed", {"state": state})
    assert monitor.newest == state
    other = msgspec.structs.replace(state, cluster_name="village")
    with pytest.raises(Violation, match="another state at index 2"):
        monitor(0, "n2.1", "management.installed", {"state": other})
    tell(monitor, "n1.1", (later, later_id))
    assert monitor.newest == later
