"""What lines and marks look like: one colour a method, wherever it is drawn; and the themes of pages."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from intarsia.methods import METHODS

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
"""One a dash."""
OTHERS = (3, 4)
"""The dashes of methods that are not in the box: no other begins with them."""


@dataclass(frozen=True)
class Style:
    """A colour of the theme, from 1, a dash and a symbol."""

    colour: int
    dash: str = DASHES[0]
    symbol: str = SYMBOLS[0]

    @property
    def word(self) -> str:
        """The colour as a page names it."""
        return f"--series-{self.colour}"

    @property
    def hex(self) -> str:
        """The colour as a picture has it."""
        return str(theme("light")["series"][self.colour - 1])


@cache
def _told() -> dict[str, Any]:
    return tomllib.loads((resources.files("intarsia.report") / "theme.toml").read_text())


def theme(name: str) -> dict[str, Any]:
    """Return the colours of a theme, `light` or `dark`."""
    return dict(_told()[name])


def series() -> int:
    """Return how many colours there are."""
    return len(theme("light")["series"])


def plain_style(number: int) -> Style:
    """Return the style of the n-th of several things that are no methods, from 0."""
    kind = number // series() % len(DASHES)
    return Style(number % series() + 1, DASHES[kind], SYMBOLS[kind])


def method_style(name: str) -> Style:
    """Return the style of a method; one that is not in the box has one that its name alone decides."""
    own = _told()["methods"].get(name)
    if own is not None:
        return Style(*own)
    number = int.from_bytes(hashlib.sha256(name.encode(errors="replace")).digest()[:4], "big")
    kind = OTHERS[number // series() % len(OTHERS)]
    return Style(number % series() + 1, DASHES[kind], SYMBOLS[kind])


def styles_of(methods: Iterable[str]) -> list[Style]:
    """Return a style for each of several runs: those of one method share its colour, and differ in the dash."""
    names = list(methods)
    first = {name: method_style(name) for name in reversed(names)}
    taken = {(style.colour, style.dash) for style in first.values()}
    seen: set[str] = set()
    found = []
    for name in names:
        style = first[name] if name not in seen else _another(first[name], taken)
        seen.add(name)
        taken.add((style.colour, style.dash))
        found.append(style)
    return found


def _another(style: Style, taken: set[tuple[int, str]]) -> Style:
    """Return the same colour with a dash that nothing has yet; with its own where all are taken."""
    free = [kind for kind, dash in enumerate(DASHES) if (style.colour, dash) not in taken]
    return replace(style, dash=DASHES[free[0]], symbol=SYMBOLS[free[0]]) if free else style


def styles_of_names(names: Sequence[str]) -> dict[str, Style]:
    """Return styles of names: of one that begins with a method's title, the method's; others get what is left."""
    method_of = {name: _method_in(name) for name in names}
    named = [name for name in names if method_of[name]]
    found = dict(zip(named, styles_of(method_of[name] for name in named), strict=True))
    colours = {style.colour for style in found.values()}
    free = [plain_style(n) for n in range(series() * len(DASHES))]
    free.sort(key=lambda style: style.colour in colours)
    rest = [style for style in free if style not in found.values()]
    plain = [name for name in names if not method_of[name]]
    found |= {name: rest[number % len(rest)] for number, name in enumerate(plain)}
    return {name: found[name] for name in names}


def _method_in(name: str) -> str:
    """Return the method that a name begins with, the longest one; nothing where there is none."""
    words = {title: key for key, kind in METHODS.items() for title in (kind.title, key)}
    begins = [w for w in words if name.casefold().startswith(w.casefold()) and _ends(name[len(w) :])]
    return words[max(begins, key=len)] if begins else ""


def _ends(rest: str) -> bool:
    """Return whether a word is over where this follows."""
    return not rest[:1].isalnum() and not rest.startswith("+")


def theme_rules() -> str:
    """Return the themes as CSS: light, dark where it is asked for, and dark where the reader's system is."""
    light, dark = (_variables(name) for name in ("light", "dark"))
    return (
        f":root{{color-scheme:light;{light}}}"
        f':root[data-theme="dark"]{{color-scheme:dark;{dark}}}'
        f'@media (prefers-color-scheme:dark){{:root:not([data-theme="light"]){{color-scheme:dark;{dark}}}}}'
    )


def _variables(name: str) -> str:
    return "".join(
        f"--{key}:{value};"
        if isinstance(value, str)
        else "".join(f"--{key}-{number}:{own};" for number, own in enumerate(value, 1))
        for key, value in theme(name).items()
    )


def label_colour(number: int, count: int) -> str:
    """Return, for a page, the colour of the n-th of so many labels: a place on the ramp of labels."""
    return f"--labels@{(number + 0.5) / max(1, count):.3f}"
