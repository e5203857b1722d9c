"""The picture of a method: the server's pool, what travels, and the clients with what each of them holds."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from benchmarks.method_pages.scene import Person, Piece, Scene, Tile, Trip

from intarsia.report.styles import series, theme

WIDTH, EDGE, GAP = 390, 8, 6
"""As wide as a phone: nothing in it is smaller than it must be to be read there."""
TILE, CHIP, LINE = 36, 22, 15
GLYPH = 0.602
"""How wide a letter of a fixed-width font is, in its size."""
NEUTRAL = 0
"""The colour of what is nobody else's."""
KEY = "Same colour: the same block."


@dataclass
class Canvas:
    """What was drawn so far, and how far down that reaches."""

    colours: dict[str, int]
    """The colour of every address, from 1."""
    y: float = EDGE
    drawn: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, w: float, h: float, kind: str, colour: int | None = None) -> None:
        """Draw a box."""
        tint = "" if colour is None else f" c{colour}"
        self.drawn.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" class="{kind}{tint}"/>'
        )

    def text(self, x: float, y: float, words: str, kind: str, room: float = 0, size: float = 10.5) -> None:
        """Write a line; an address that is longer than its room gets smaller letters, then an end."""
        style = ""
        if room and len(words) * GLYPH * size > room:
            size = max(9.0, room / (GLYPH * len(words)))
            most = int(room / (GLYPH * size) + 0.01)
            words = words if len(words) <= most else words[: most - 1] + "…"
            style = f' style="font-size:{size:.3g}px"'
        self.drawn.append(f'<text x="{x:g}" y="{y:g}" class="{kind}"{style}>{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Draw a line."""
        self.drawn.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>')


def draw(scene: Scene) -> str:
    """Return the picture as SVG, with its colours for light and dark pages."""
    blocks = {_block(tile.address) for person in scene.people for tile in person.tiles}
    shared = [address for address in scene.pool if _block(address) in blocks]
    canvas = Canvas({address: 1 + number % series() for number, address in enumerate(shared)})
    _server(canvas, scene)
    for trip in scene.trips:
        _trip(canvas, trip)
    canvas.text(EDGE + 2, canvas.y + 14, "clients", "name")
    canvas.text(EDGE + 64, canvas.y + 14, scene.own.clients, "said")
    canvas.y += 22
    _people(canvas, scene.people, _rows_of(scene))
    canvas.text(EDGE + 2, canvas.y + 12, f"A client's own model: {scene.own.own}", "said")
    canvas.y += 22
    for words in textwrap.wrap(_key(canvas, scene), 62):
        canvas.text(EDGE + 2, canvas.y + 10, words, "small")
        canvas.y += 14
    height = canvas.y + EDGE
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
            f'viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="what words">',
            f'<title id="what">{escape(scene.own.title)}: who shares what</title>',
            f'<desc id="words">{escape(scene.words)}</desc>',
            f"<style>{_rules()}</style>",
            f'<rect width="{WIDTH}" height="{height:g}" rx="8" class="page"/>',
            *canvas.drawn,
            "</svg>\n",
        )
    )


def _key(canvas: Canvas, scene: Scene) -> str:
    """Return what the marks mean that were drawn."""
    drawn = "".join(canvas.drawn)
    marks = {'"mine': "Dashed: never sent.", '"none"': "Dotted: not held."}
    if any(person.teacher for person in scene.people):
        marks["teacher"] = "Teachers: in the colours of whose blocks they are."
    elif any(address not in canvas.colours for address in scene.pool):
        marks["@"] = "No colour: nobody's in this round."
    return " ".join([KEY, *(words for mark, words in marks.items() if mark in drawn)])


def _server(canvas: Canvas, scene: Scene) -> None:
    """Draw the server: a chip an address."""
    lines = list(_rows(_chips(canvas, scene)))
    public = CHIP + GAP if scene.public else 0
    height = 24 + max(1, len(lines)) * (CHIP + GAP) + public
    canvas.box(EDGE, canvas.y, WIDTH - 2 * EDGE, height, "card")
    canvas.text(EDGE + 10, canvas.y + 17, "server", "name")
    canvas.text(EDGE + 64, canvas.y + 17, scene.own.server, "said")
    y = canvas.y + 24
    if not lines:
        canvas.text(EDGE + 10, y + 14, "keeps no block", "small")
        y += CHIP + GAP
    for line in lines:
        x: float = EDGE + 10
        for address in line:
            shared = canvas.colours.get(address)
            canvas.box(x, y, _chip(address), CHIP, "tile" if shared else "public", shared)
            canvas.text(x + 7, y + 15, address, "code")
            x += _chip(address) + GAP
        y += CHIP + GAP
    if scene.public:
        canvas.box(EDGE + 10, y, _chip("public data"), CHIP, "public")
        canvas.text(EDGE + 17, y + 15, "public data", "code")
    canvas.y += height


def _chips(canvas: Canvas, scene: Scene) -> list[str]:
    """Return what the pool holds; what is made for each client (a teacher) is named once."""
    of_each = {f"{block}@{person.name}" for block in map(_block, scene.pool) for person in scene.people}
    made = [address for address in scene.pool if address in of_each and address not in canvas.colours]
    plain = [address for address in scene.pool if address not in made]
    counts = Counter(map(_block, made))
    return [*plain, *(f"{block}@... ({count})" for block, count in counts.items())]


def _chip(words: str) -> float:
    return round(len(words) * GLYPH * 10.5 + 14, 1)


def _rows(addresses: Iterable[str]) -> Iterable[list[str]]:
    """Put chips into rows that are no wider than the server."""
    row: list[str] = []
    for address in addresses:
        if row and sum(_chip(a) + GAP for a in (*row, address)) > WIDTH - 2 * EDGE - 14:
            yield row
            row = []
        row.append(address)
    if row:
        yield row


def _trip(canvas: Canvas, trip: Trip) -> None:
    """Draw an exchange: an arrow down and one up, with what travels beside them."""
    down = [f"{name} (once)" if name in trip.once else name for name in trip.down]
    columns = [_wrapped(down), _wrapped(trip.up)]
    height = LINE * max(map(len, columns)) + 24
    top, middle = canvas.y + 2, WIDTH / 2
    for x, lines, down_way in ((EDGE + 14, columns[0], True), (middle + 10, columns[1], False)):
        _arrow(canvas, x, top, canvas.y + height - 2, down_way)
        canvas.text(x + 12, canvas.y + 15, f"{trip.step}, {'down' if down_way else 'up'}", "small")
        for number, words in enumerate(lines, 1):
            canvas.text(x + 12, canvas.y + 15 + number * LINE, words, "said")
    canvas.y += height


def _wrapped(names: Sequence[str]) -> list[str]:
    return textwrap.wrap(", ".join(names), 27, break_on_hyphens=False) or ["nothing"]


def _arrow(canvas: Canvas, x: float, top: float, bottom: float, down: bool) -> None:
    canvas.line(x, top + 4, x, bottom - 4, "way")
    tip, back = (bottom, bottom - 8) if down else (top, top + 8)
    canvas.drawn.append(f'<path d="M{x - 5:g} {back:g}L{x + 5:g} {back:g}L{x:g} {tip:g}Z" class="tip"/>')


def _rows_of(scene: Scene) -> list[str]:
    """Return the blocks that are shared, in the order of the pool."""
    held = {_block(tile.address) for person in scene.people for tile in person.tiles}
    return [block for block in dict.fromkeys(map(_block, scene.pool)) if block in held]


def _people(canvas: Canvas, people: Sequence[Person], rows: Sequence[str]) -> None:
    """Draw the clients beside each other: a row a block; below a rule, what stays with them."""
    lent = any(person.teacher for person in people)
    homes = max(len(person.home) for person in people) + 1
    head = 22 + 13 * max(len(person.about) for person in people)
    shared = (len(rows) + lent) * (TILE + GAP)
    height = head + shared + 22 + homes * (TILE + GAP)
    room = (WIDTH - 2 * EDGE - GAP * (len(people) - 1)) / len(people)
    for number, person in enumerate(people):
        x = EDGE + number * (room + GAP)
        canvas.box(x, canvas.y, room, height, "card")
        canvas.text(x + 5, canvas.y + 15, person.name, "name", room - 10, 11.5)
        for line, words in enumerate(person.about):
            canvas.text(x + 5, canvas.y + 29 + 13 * line, words, "small")
        _held(canvas, person, rows, lent, (x + 4, canvas.y + head, room - 8))
        _home(canvas, person, (x + 4, canvas.y + head + shared + 22, room - 8))
    rule = canvas.y + head + shared + 2
    canvas.line(EDGE, rule, WIDTH - EDGE, rule, "home")
    canvas.text(EDGE + 6, rule + 13, "stays at home", "small")
    canvas.y += height + 4


Place = tuple[float, float, float]
"""Left, top and width."""


def _held(canvas: Canvas, person: Person, rows: Sequence[str], lent: bool, place: Place) -> None:
    x, y, w = place
    for block in rows:
        own = [tile for tile in person.tiles if _block(tile.address) == block]
        if own:
            _tile(canvas, own[0], (x, y, w))
        else:
            canvas.box(x, y, w, TILE, "none")
        y += TILE + GAP
    if person.teacher:
        _teacher(canvas, person.teacher, (x, y, w))
    elif lent:
        canvas.box(x, y, w, TILE, "none")


def _tile(canvas: Canvas, tile: Tile, place: Place) -> None:
    """Draw a block: as wide as what the client holds of it."""
    x, y, w = place
    colour = canvas.colours[tile.address]
    if tile.share < 1:
        canvas.box(x, y, w, TILE, "none")
    canvas.box(x, y, round(w * tile.share, 1), TILE, "tile", colour)
    block, _, group = tile.address.partition("@")
    canvas.text(x + 4, y + 15, block, "code", w - 7)
    canvas.text(x + 4, y + 29, f"@{group}", "code", w - 7)
    if tile.share < 1:
        canvas.text(x + w * tile.share + 5, y + 22, f"{tile.share:.0%}", "small")


def _teacher(canvas: Canvas, pieces: Sequence[Piece], place: Place) -> None:
    """Draw a teacher: a piece a block, in the colour of whose block it is."""
    x, y, w = place
    canvas.text(x + 4, y + 12, "teacher", "code", w - 7)
    part = w / len(pieces)
    for number, piece in enumerate(pieces):
        canvas.box(x + number * part, y + 17, part - 1, TILE - 18, "tile", canvas.colours[piece.owner])


def _home(canvas: Canvas, person: Person, place: Place) -> None:
    x, y, w = place
    for words in ("data", *person.home):
        block, sign, group = words.partition("@")
        below = f"{person.samples} samples" if words == "data" else f"@{group}" if sign else "kept"
        canvas.box(x, y, w, TILE, "mine", NEUTRAL)
        canvas.text(x + 4, y + 15, block, "code", w - 7)
        canvas.text(x + 4, y + 29, below, "code", w - 7)
        y += TILE + GAP


def _block(address: str) -> str:
    return address.partition("@")[0]


def _rules() -> str:
    """Return the style: the colours of the pages that runs have, light and dark."""
    colours = "".join(f".c{n}{{fill:var(--s{n});stroke:var(--s{n})}}" for n in range(1, series() + 1))
    return (
        f"svg{{{_variables('light')}}}"
        f"@media (prefers-color-scheme:dark){{svg{{{_variables('dark')}}}}}"
        "text{fill:var(--ink);font:10.5px system-ui,sans-serif}"
        ".name{font-size:12.5px;font-weight:600}.small{fill:var(--faint)}.said{font-size:11.5px}"
        ".code{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
        ".page{fill:var(--page)}.card{fill:var(--card);stroke:var(--rule)}"
        ".tile{fill-opacity:.22;stroke-width:1.5}"
        f"{colours}"
        ".mine{fill:none;stroke:var(--faint);stroke-dasharray:4 3}.public{fill:none;stroke:var(--ink)}"
        ".none{fill:none;stroke:var(--faint);stroke-opacity:.5;stroke-dasharray:1 3}"
        ".way{stroke:var(--faint);stroke-width:2}.tip{fill:var(--faint)}"
        ".home{stroke:var(--faint);stroke-dasharray:4 3}"
    )


def _variables(name: str) -> str:
    told = theme(name)
    plain = "".join(f"--{word}:{told[word]};" for word in ("ink", "faint", "page", "card", "rule"))
    return plain + "".join(f"--s{n}:{colour};" for n, colour in enumerate(told["series"], 1))
