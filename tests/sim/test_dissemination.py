"""A thousand nodes follow the log, and the leader hardly notices."""

from __future__ import annotations

import pytest

from lockstep.gossip.pulling import Tree
from lockstep.sim.drills.dissemination import Dissemination, Outcome, Setting


def run(**changes: object) -> Outcome:
    return Dissemination(Setting(**changes)).run()  # type: ignore[arg-type]


def test_a_thousand_nodes_follow_two_hundred_commits_although_frames_are_lost() -> None:
    outcome = run(nodes=1000, commits=200, loss=0.05)
    assert outcome.holds, outcome.text()
    assert outcome.leader_messages_max <= 32 and outcome.converged_s <= 3.0 and outcome.behind == 0
    assert outcome.frames_lost > 0.04 * outcome.frames


def test_what_the_leader_sends_does_not_grow_with_the_cluster() -> None:
    few, many = run(nodes=60, commits=40), run(nodes=800, commits=40)
    assert few.holds and many.holds, many.text()
    assert many.leader_messages_mean <= 1.5 * few.leader_messages_mean


def test_with_a_third_of_the_frames_lost_everyone_gets_there_in_the_end() -> None:
    outcome = run(nodes=200, commits=30, loss=0.33)
    assert outcome.behind == 0, outcome.text()


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_small_clusters_lose_nothing(nodes: int) -> None:
    outcome = run(nodes=nodes, commits=20, loss=0.0)
    assert outcome.holds and outcome.converged_s < 0.2, outcome.text()


def test_the_same_seed_gives_the_same_run() -> None:
    setting = Setting(nodes=150, commits=20, seed=5)
    assert Dissemination(setting).run() == Dissemination(setting).run()
    other = Dissemination(Setting(nodes=150, commits=20, seed=6)).run()
    assert other.frames_lost != Dissemination(setting).run().frames_lost


def test_when_everyone_is_told_by_the_leader_the_promise_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def everyone(tree: Tree, own: int, *, leads: bool, alive: object) -> tuple[int, ...]:
        return tuple(node for node in range(1, 101) if leads and node != own)

    monkeypatch.setattr("lockstep.sim.drills.dissemination.receivers", everyone)
    assert not run(nodes=100, commits=20).holds
