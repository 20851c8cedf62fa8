"""The picture of a table's tablets: tokens from left to right, a lane for each node, colour by load; and the
steps of a plan as pictures that follow each other.

Invariant: a picture is a list of shapes made from a `tablet-map/1` document alone; SVG and PNG show the same
shapes, and an animation shows those of each of its pictures.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Final
from xml.sax.saxutils import escape

import msgspec

from lockstep.documents.tablets import HeldTablets, PlannedMove, Replica, Tablet, TabletMap
from lockstep.documents.texts import bytes_text
from lockstep.values.errors import ConfigurationError
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

_WIDTH: Final = 1200
_LEFT: Final = 150
_RIGHT: Final = 130
_TOP: Final = 84
_LANE: Final = 34
_BAR: Final = 24
_BOTTOM: Final = 96
#: From nothing to the largest tablet: readable in grey, too.
_COLOURS: Final = ("#e3eef9", "#b7d4ea", "#7fb6d9", "#4a92c3", "#1f6aa5", "#0b3f73")
_UNKNOWN: Final = "#d9d9d9"
_INK: Final = "#1c2733"
_MOVING: Final = "#e07b00"


class Box(msgspec.Struct, frozen=True):
    x: float
    y: float
    width: float
    height: float
    fill: str
    stroke: str = ""
    title: str = ""


class Words(msgspec.Struct, frozen=True):
    """`anchor`: start, middle or end."""

    x: float
    y: float
    text: str
    size: int = 13
    anchor: str = "start"
    colour: str = _INK
    bold: bool = False


class Picture(msgspec.Struct, frozen=True):
    width: int
    height: int
    boxes: tuple[Box, ...]
    words: tuple[Words, ...]


def picture(told: TabletMap) -> Picture:
    """The shapes of a map."""
    lanes = {one.node: _TOP + at * _LANE for at, one in enumerate(told.nodes)}
    most = max((tablet.bytes or 0 for tablet in told.tablets), default=0)
    boxes: list[Box] = []
    words = list(_head(told))
    for node in told.nodes:
        y = lanes[node.node]
        boxes.append(Box(_LEFT, y, _WIDTH - _LEFT - _RIGHT, _BAR, "#f6f7f8"))
        words.append(Words(_LEFT - 12, y + 17, f"node {node.node}  {node.dc}/{node.rack}", 12, "end"))
        change = f" +{node.coming}" if node.coming else ""
        change += f" -{node.leaving}" if node.leaving else ""
        words.append(Words(_WIDTH - _RIGHT + 12, y + 17, f"{node.tablets} tablets{change}", 12))
    for tablet in told.tablets:
        boxes += _boxes(tablet, lanes, most)
    below = _TOP + len(told.nodes) * _LANE + 8
    words += _axis(below)
    legend_boxes, legend_words = _legend(below + 34, most, any(t.stage for t in told.tablets))
    height = below + _BOTTOM
    return Picture(_WIDTH, height, (*boxes, *legend_boxes), (*words, *legend_words))


def _head(told: TabletMap) -> list[Words]:
    moving = sum(bool(tablet.stage) for tablet in told.tablets)
    known = [tablet.bytes for tablet in told.tablets if tablet.bytes is not None]
    facts = [f"{len(told.tablets)} tablets on {sum(bool(n.tablets) for n in told.nodes)} nodes"]
    facts.append(f"{bytes_text(sum(known))} once" if known else "sizes are not known")
    facts.append(f"{moving or 'none'} on {'their' if moving > 1 else 'its'} way")
    return [
        Words(_LEFT, 30, f"{told.keyspace}.{told.table}", 20, bold=True),
        Words(_LEFT, 54, f"{', '.join(facts)}; epoch {told.epoch}", 13),
    ]


def _place(token: int) -> float:
    share = (token - TOKEN_MIN) / (TOKEN_MAX - TOKEN_MIN)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _boxes(tablet: Tablet, lanes: dict[int, int], most: int) -> list[Box]:
    left, right = _place(tablet.start), _place(tablet.end)
    width = max(right - left - 0.6, 0.4)
    held = "unknown" if tablet.bytes is None else bytes_text(tablet.bytes)
    where = f"tablet {tablet.number}: tokens ({tablet.start}, {tablet.end}], {held}"
    found = []
    for at, replica in enumerate(tablet.replicas):
        if replica.node in lanes:
            first = ", first replica" if at == 0 else ""
            stroke = _MOVING if tablet.stage else ""
            title = f"{where}{first}" + (f", {tablet.kind}: {tablet.stage}" if tablet.stage else "")
            found.append(Box(left, lanes[replica.node], width, _BAR, _colour(tablet, most), stroke, title))
    present = {replica.node for replica in tablet.replicas}
    for replica in tablet.next:
        if replica.node not in present and replica.node in lanes:
            title = f"{where}, comes here: {tablet.stage}"
            found.append(Box(left, lanes[replica.node], width, _BAR, "#ffffff", _MOVING, title))
    return found


def _colour(tablet: Tablet, most: int) -> str:
    if tablet.bytes is None:
        return _UNKNOWN
    share = tablet.bytes / most if most else 0.0
    return _COLOURS[min(int(share * len(_COLOURS)), len(_COLOURS) - 1)]


def _axis(y: float) -> list[Words]:
    marks = ((TOKEN_MIN, "-2⁶³"), (0, "token 0"), (TOKEN_MAX, "2⁶³"))
    return [Words(_place(token), y + 12, text, 12, "middle", "#5a6672") for token, text in marks]


def _legend(y: float, most: int, is_moving: bool) -> tuple[list[Box], list[Words]]:
    boxes, words = [], [Words(_LEFT, y + 12, "bytes of a tablet", 12)]
    x = _LEFT + 120.0
    for at, colour in enumerate(_COLOURS):
        boxes.append(Box(x + at * 34, y, 34, 16, colour))
    words.append(Words(x, y + 32, "0", 11))
    words.append(Words(x + 34 * len(_COLOURS), y + 32, bytes_text(most), 11, "end"))
    x += 34 * len(_COLOURS) + 30
    boxes.append(Box(x, y, 20, 16, _UNKNOWN))
    words.append(Words(x + 28, y + 12, "not known", 12))
    if is_moving:
        boxes.append(Box(x + 120, y, 20, 16, "#ffffff", _MOVING))
        words.append(Words(x + 148, y + 12, "on its way (white: comes here)", 12))
    return boxes, words


def svg(shapes: Picture) -> str:
    """As a document that any browser shows."""
    drawn = [*map(_rect, shapes.boxes), *map(_text, shapes.words)]
    return "\n".join([*_document(shapes.width, shapes.height), *drawn, "</svg>", ""])


def _document(width: int, height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]


def _rect(box: Box, inside: str = "") -> str:
    stroke = f' stroke="{box.stroke}" stroke-width="1.6"' if box.stroke else ""
    title = f"<title>{escape(box.title)}</title>" if box.title else ""
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.2f}" height="{box.height:.1f}" '
        f'fill="{box.fill}"{stroke}>{title}{inside}</rect>'
    )


def _text(words: Words, inside: str = "") -> str:
    weight = ' font-weight="bold"' if words.bold else ""
    return (
        f'<text x="{words.x:.1f}" y="{words.y:.1f}" font-size="{words.size}" '
        f'text-anchor="{words.anchor}" fill="{words.colour}"{weight}>{escape(words.text)}{inside}</text>'
    )


#: Pictures of an animation; where a plan has more moves, several are on their way in each.
FRAMES_MAX: Final = 60
#: How long a picture is shown; the first and the last one for some of these.
_FRAME_S: Final = 0.7
_STAYS: Final = 3


def steps(told: TabletMap, moves: Sequence[PlannedMove]) -> list[TabletMap]:
    """The map now, then with one move after the other on its way, and at last with all of them done."""
    tablets = {one.end: _arrived(one) for one in told.tablets}
    here = [move for move in moves if move.end in tablets]
    together = max(1, -(-len(here) // FRAMES_MAX))
    found = [told]
    for first in range(0, len(here), together):
        some = here[first : first + together]
        for move in some:
            one = tablets[move.end]
            after = [
                Replica(move.target) if at.node == move.source else at for at in one.next or one.replicas
            ]
            tablets[move.end] = msgspec.structs.replace(one, kind=move.kind, stage="moves", next=tuple(after))
        found.append(_held(told, tablets.values()))
        for move in some:
            tablets[move.end] = _arrived(tablets[move.end])
    return [*found, _held(told, tablets.values())] if here else found


def _arrived(one: Tablet) -> Tablet:
    return msgspec.structs.replace(one, replicas=one.next, next=(), kind="", stage="") if one.next else one


def _held(told: TabletMap, tablets: Iterable[Tablet]) -> TabletMap:
    """The map with these tablets, and what nodes hold of them."""
    nodes = {one.node: HeldTablets(one.node, one.dc, one.rack) for one in told.nodes}
    for one in tablets:
        now, then = ({at.node for at in replicas} for replicas in (one.replicas, one.next or one.replicas))
        for node in now | then:
            known = nodes[node]
            nodes[node] = msgspec.structs.replace(
                known,
                tablets=known.tablets + (node in now),
                coming=known.coming + (node not in now),
                leaving=known.leaving + (node not in then),
            )
    return msgspec.structs.replace(told, nodes=tuple(nodes.values()), tablets=tuple(tablets))


def animated(frames: Sequence[Picture]) -> str:
    """As one document that shows the pictures one after the other, again and again."""
    assert frames, "an animation has a picture"
    shown = [_STAYS, *[1] * (len(frames) - 2), _STAYS][: len(frames)]
    begins = [sum(shown[:at]) for at in range(len(frames) + 1)]
    there: dict[Box | Words, list[int]] = {}
    for at, frame in enumerate(frames):
        shapes: tuple[Box | Words, ...] = (*frame.boxes, *frame.words)
        for shape in shapes:
            there.setdefault(shape, []).append(at)
    lines = _document(max(one.width for one in frames), max(one.height for one in frames))
    for shape, at_frames in there.items():
        inside = "" if len(at_frames) == len(frames) else _seen(at_frames, begins)
        lines.append(_rect(shape, inside) if isinstance(shape, Box) else _text(shape, inside))
    return "\n".join([*lines, "</svg>", ""])


def _seen(at_frames: Sequence[int], begins: Sequence[int]) -> str:
    """Of a shape that only some frames have: it is to be seen in these."""
    times: list[str] = []
    values: list[str] = []
    for at in range(len(begins) - 1):
        value = "visible" if at in at_frames else "hidden"
        if not values or values[-1] != value:
            times.append(f"{begins[at] / begins[-1]:.4f}")
            values.append(value)
    return (
        f'<animate attributeName="visibility" calcMode="discrete" dur="{begins[-1] * _FRAME_S:.1f}s" '
        f'repeatCount="indefinite" keyTimes="{";".join(times)}" values="{";".join(values)}"/>'
    )


#: Pixels for each unit: sharp on dense screens.
_SCALE: Final = 2


def png(shapes: Picture) -> bytes:
    """As pixels. ConfigurationError where the library for it is not installed."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise ConfigurationError(
            "PNG pictures need Pillow, which is not installed",
            hint="pip install 'lockstep-db[pictures]', or ask for `-o svg`",
        ) from None
    size = (shapes.width * _SCALE, shapes.height * _SCALE)
    image = Image.new("RGB", size, "#ffffff")
    draw = ImageDraw.Draw(image)
    for box in shapes.boxes:
        edges = [box.x, box.y, box.x + box.width, box.y + box.height]
        corners = [edge * _SCALE for edge in edges]
        draw.rectangle(corners, fill=box.fill, outline=box.stroke or None, width=_SCALE if box.stroke else 0)
    anchors = {"start": "ls", "middle": "ms", "end": "rs"}
    for words in shapes.words:
        font = ImageFont.load_default(words.size * _SCALE)
        at = (words.x * _SCALE, words.y * _SCALE)
        stroke = 1 if words.bold else 0
        text = _plain(words.text)
        draw.text(at, text, words.colour, font, anchors[words.anchor], stroke_width=stroke)
    written = io.BytesIO()
    image.save(written, "PNG")
    return written.getvalue()


def _plain(text: str) -> str:
    """What the font of the library has."""
    return text.replace("2⁶³", "2^63")


def imbalance(held: Sequence[int]) -> float:
    """(most - least) / most of what nodes hold; 0 where nobody holds anything."""
    most = max(held, default=0)
    return (most - min(held)) / most if most else 0.0
