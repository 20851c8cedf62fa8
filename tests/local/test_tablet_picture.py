"""Pictures of a table's tablets: the steps of a plan, and the animation that shows one after the other."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import msgspec

from lockstep.documents.tablets import HeldTablets, PlannedMove, Replica, Tablet, TabletMap
from lockstep.local import tablet_picture
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

SVG = "{http://www.w3.org/2000/svg}"


def told(*replicas: tuple[int, ...]) -> TabletMap:
    """A map of tablets on these nodes, of three."""
    width = (TOKEN_MAX - TOKEN_MIN) // len(replicas)
    ends = [TOKEN_MIN + width * (at + 1) for at in range(len(replicas) - 1)] + [TOKEN_MAX]
    tablets = tuple(
        Tablet(at, left, right, tuple(Replica(node) for node in nodes), bytes=1000 * at)
        for at, (left, right, nodes) in enumerate(zip([TOKEN_MIN, *ends], ends, replicas, strict=False))
    )
    held = tuple(HeldTablets(node, tablets=sum(node in one for one in replicas)) for node in (1, 2, 3))
    return TabletMap(epoch=9, keyspace="k", table="t", nodes=held, tablets=tablets)


def move(of: TabletMap, number: int, source: int, target: int, table: str = "k.t") -> PlannedMove:
    return PlannedMove(table, of.tablets[number].end, "migration", "balance", source, target)


def places(of: TabletMap) -> list[list[int]]:
    return [[at.node for at in one.replicas] for one in of.tablets]


def test_the_steps_of_a_plan_lead_from_the_map_of_now_to_where_all_has_moved() -> None:
    now = told((1, 2), (1, 2), (1, 2))
    frames = tablet_picture.steps(now, [move(now, 0, 1, 3), move(now, 2, 2, 3), move(now, 0, 2, 1)])
    assert frames[0] is now and len(frames) == 5
    assert [places(frame) for frame in frames[1:]] == [
        [[1, 2], [1, 2], [1, 2]],
        [[3, 2], [1, 2], [1, 2]],
        [[3, 2], [1, 2], [1, 3]],
        [[3, 1], [1, 2], [1, 3]],
    ]
    assert [[one.number for one in frame.tablets if one.stage] for frame in frames] == [[], [0], [2], [0], []]
    assert [(one.tablets, one.coming, one.leaving) for one in frames[1].nodes] == [
        (3, 0, 1),
        (3, 0, 0),
        (0, 1, 0),
    ]
    assert [one.tablets for one in frames[-1].nodes] == [3, 1, 2]


def test_what_is_on_its_way_has_arrived_before_the_plan_goes_on() -> None:
    now = told((1, 2), (1, 2))
    moving = msgspec.structs.replace(
        now.tablets[0], stage="streaming", kind="migration", next=(Replica(3), Replica(2))
    )
    now = msgspec.structs.replace(now, tablets=(moving, now.tablets[1]))
    frames = tablet_picture.steps(now, [move(now, 1, 1, 3)])
    assert places(frames[0])[0] == [1, 2] and places(frames[1])[0] == [3, 2]
    assert not any(one.stage for one in frames[-1].tablets)


def test_many_moves_share_pictures_and_none_of_them_is_left_out() -> None:
    now = told(*[(1, 2)] * 150)
    moves = [move(now, number, 1, 3) for number in range(150)]
    frames = tablet_picture.steps(now, moves)
    assert len(frames) <= tablet_picture.FRAMES_MAX + 2
    assert places(frames[-1]) == [[3, 2]] * 150


def test_without_moves_there_is_one_picture() -> None:
    now = told((1, 2))
    frames = tablet_picture.steps(now, [])
    assert frames == [now]
    assert "<animate" not in tablet_picture.animated([tablet_picture.picture(now)])


def test_each_picture_of_an_animation_is_seen_in_its_time_and_nothing_else() -> None:
    now = told((1, 2), (1, 2))
    frames = [tablet_picture.picture(one) for one in tablet_picture.steps(now, [move(now, 0, 1, 3)])]
    assert len(frames) == 3
    drawn = ElementTree.fromstring(tablet_picture.animated(frames))
    shown = drawn.findall(f"{SVG}rect")[1:] + drawn.findall(f"{SVG}text")
    begins = [0.0, 3 / 7, 4 / 7]
    for begin, frame in zip(begins, frames, strict=True):
        seen = [one for one in shown if _visible(one, begin + 0.01)]
        assert len(seen) == len(frame.boxes) + len(frame.words)


def _visible(shape: ElementTree.Element, at: float) -> bool:
    animate = shape.find(f"{SVG}animate")
    if animate is None:
        return True
    times = [float(time) for time in animate.attrib["keyTimes"].split(";")]
    values = animate.attrib["values"].split(";")
    assert times[0] == 0 and times == sorted(times) and len(times) == len(values)
    return [value for time, value in zip(times, values, strict=True) if time <= at][-1] == "visible"
