"""Random statements: the product agrees with the model, planted bugs on either side are found, failures are
shortened, and no bytes break a node."""

from __future__ import annotations

import pytest

from lockstep.cql.wire import messages
from lockstep.sim.fuzz import effort, garbage, report
from lockstep.sim.fuzz.altering import Alter, AlterType, Rename
from lockstep.sim.fuzz.door import Door
from lockstep.sim.fuzz.driver import Difference, Wait, draw_script, in_cql
from lockstep.sim.fuzz.report import shrunk
from lockstep.sim.mutants.statements import PLANTS
from lockstep.sim.plant import Planted, replaced
from lockstep.values.ids import Consistency

#: (bug, a seed whose first tables show it): whole runs look for all of them, `lockstep sim fuzz --planted`.
QUICK = {
    "late_expiry": 1,
    "open_bounds_closed": 1,
    "falling_is_rising": 1,
    "limit_of_rows": 1,
    "model_expires_late": 1,
    "model_bounds_closed": 1,
    "model_limits_rows": 1,
    "unset_is_null": 1,
    "client_seconds_lost": 1,
    "dropped_cells_count": 2,
    "folds_once": 1,
    "times_of_all": 2,
}


def played(**order: object) -> report.Outcome:
    return report.run(report.Order(**order), lambda text: None)  # type: ignore[arg-type]


def test_one_node_agrees_with_the_model() -> None:
    outcome = played(seed=1, statements=600)
    assert [in_cql(found) for found in outcome.found] == []
    assert outcome.tally.rows > 100
    assert outcome.tally.refused > 5


def test_three_nodes_agree_with_it_while_one_of_them_fails() -> None:
    outcome = played(seed=2, statements=200, nodes=3)
    assert [in_cql(found) for found in outcome.found] == []


def test_a_script_is_the_same_each_time() -> None:
    assert draw_script(7, 3, statements=200) == draw_script(7, 3, statements=200)
    assert draw_script(7, 3, statements=200) != draw_script(8, 3, statements=200)


@pytest.mark.parametrize(("name", "seed"), QUICK.items())
def test_a_planted_bug_is_found(name: str, seed: int) -> None:
    assert played(seed=seed, statements=800, plant=name).found, PLANTS[name].harm


def test_what_is_found_is_shortened() -> None:
    with PLANTS["open_bounds_closed"].plant():
        found = shrunk(first_difference("open_bounds_closed"), tries=150)
    kept = Wait | Alter | AlterType | Rename
    assert len([step for step in found.script.steps if not isinstance(step, kept)]) <= 6
    assert "-- differs" in in_cql(found)


def first_difference(name: str) -> Difference:
    found: Difference = played(seed=1, statements=800, plant=name).found[0]
    return found


def test_no_bytes_and_no_statement_break_a_node() -> None:
    counts, wrong = garbage.run(1, 45, streams=1500)
    assert wrong == []
    assert counts["flood"] == 1
    assert len(counts) > 5


def test_a_node_that_breaks_on_bytes_is_noticed() -> None:
    levels = dict(enumerate(Consistency))
    with replaced((messages, "_level", lambda number: levels[number])):
        found = (garbage.run(seed, 100, streams=3)[1] for seed in range(1, 12))
        assert "KeyError" in next(wrong[0] for wrong in found if wrong)


@pytest.mark.parametrize("group", effort.GROUPS)
def test_no_long_statement_keeps_a_node_from_others(group: str) -> None:
    found, wrong = effort.run(1, group)
    assert wrong == []
    assert found


@pytest.mark.parametrize(("group", "plant"), effort.PLANTS, ids=[plant.name for _, plant in effort.PLANTS])
def test_a_turn_that_is_not_given_is_noticed(group: str, plant: Planted) -> None:
    with plant.plant():
        wrong = effort.run(1, group)[1]
    assert any("calls in one callback" in text for text in wrong), plant.harm


def test_static_content_without_rows_is_seen_as_in_cassandra() -> None:
    with Door(1) as door:
        door.run("CREATE TABLE f.t (a int, b int, s int STATIC, v int, PRIMARY KEY (a, b))")
        door.run("INSERT INTO f.t (a, s) VALUES (1, 2)")
        assert door.run("SELECT v FROM f.t").rows == ((None,),)
        assert door.run("SELECT v FROM f.t WHERE a = 1").rows == ((None,),)
        assert door.run("SELECT v FROM f.t WHERE a = 1 AND b > 0").rows == ()
        assert door.run("UPDATE f.t SET v = 1 WHERE a = 1 AND b = 1 IF s = 3").rows == ((False, 2),)
        assert door.run("UPDATE f.t SET v = 1 WHERE a = 1 AND b = 1 IF s = 2").rows == ((True,),)
        assert door.run("SELECT b, s, v FROM f.t").rows == ((1, 2, 1),)


def test_a_refused_row_of_json_shows_static_content_as_in_cassandra() -> None:
    with Door(1) as door:
        door.run("CREATE TABLE f.t (a int, b int, s int STATIC, v int, PRIMARY KEY (a, b))")
        door.run("INSERT INTO f.t (a, b, s, v) VALUES (1, 2, 3, 4)")
        for form, static in (
            ('JSON \'{"a": 1, "b": 2, "v": 5}\' DEFAULT UNSET', 3),
            ('JSON \'{"a": 1, "b": 2, "v": 5}\'', 3),
            ("(a, b, v) VALUES (1, 2, 5)", None),
            ("(a, b, s) VALUES (1, 2, 5)", 3),
        ):
            told = door.run(f"INSERT INTO f.t {form} IF NOT EXISTS")
            assert told.rows == ((False, 1, 2, static, 4),), form
    outcome = played(seed=5, only=5)
    assert [in_cql(found) for found in outcome.found] == []


def test_clients_wait_until_nodes_agree_about_the_schema() -> None:
    with Door(1, nodes=3) as door:
        door.run("CREATE TABLE f.t (a int PRIMARY KEY, v int)")
        door.run("INSERT INTO f.t (a, v) VALUES (1, 2)")
        first, second, third = (door.cluster.processes[name].host for name in door.names)
        door.world.network.partition([second], [first, third])
        door.run("ALTER TABLE f.t ADD w int", node="n1")
        door.world.network.heal()
        assert door.run("SELECT * FROM f.t", node="n2").rows == ((1, 2, None),)
