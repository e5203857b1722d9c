"""How good clients' own models are: by round, against bytes, virtual and real time; and how unlike clients are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from intarsia.core.text import percent
from intarsia.report.curves import ACCURACY, OverSeeds, client_means, over_seeds
from intarsia.report.figures import MOST_SERIES, Band, Figure, Line, chart, curves_figure, panels
from intarsia.report.run_view import RunView
from intarsia.report.sections.base import Part
from intarsia.report.series import Kind, Series, kinds_of, measures_in_words

CLIENTS, SEEDS = "10th to 90th percentile of clients", "lowest to highest seed"
"""What bands are."""
ROUNDS = "<p>Mean over clients, each client's own model on its own test data{more}.</p>"
BYTES = "<p>Training traffic of all clients, both ways; up and to the left is better.{more}</p>"
FLEET = "<p>What the rounds would take on the fleet: counted multiplications and bytes, by what its devices can do.</p>"
TIME = "<p>The time that the run had taken, evaluation and records included.</p>"
SPREAD = (
    "<p>Every dot is a client after the last round{more}; the box holds the middle half of them. A good mean can hide "
    "clients that lose.</p>"
)
WIDE = 10
"""How many times dearer the dearest is than the cheapest where an axis is logarithmic."""
UNITS = ((7200, 3600, "hours"), (300, 60, "minutes"))
"""From how many seconds on time is counted in what."""


def quality_parts(series: Sequence[Series]) -> list[Part]:
    """Return what a page shows of results; nothing before clients were evaluated."""
    kinds = kinds_of(series)
    if not kinds:
        return []
    what = measures_in_words(series)
    several = any(len(own.views) > 1 for own in series)
    more = ", and over seeds" if several else ""
    found = [
        (f"{what} by round", ROUNDS.format(more=more) + _charts(kinds, lambda kind: _by_round(series, kind))),
        (
            "Spread over clients",
            SPREAD.format(more=more) + _charts(kinds, lambda kind: _spread(series, kind)),
        ),
    ]
    silent = [own.label for own in series if not any(any(view.sent_by) for view in own.views)]
    if len(silent) < len(series):
        words = BYTES.format(more=" What sends nothing is a level line." if silent else "")
        found.append((f"{what} against bytes", words + _charts(kinds, lambda kind: _by_bytes(series, kind))))
    found += _on_fleets(series, what)
    if any(any(view.seconds) for own in series for view in own.views):
        found.append(
            (f"{what} against time", TIME + _charts(kinds, lambda kind: _by_time(series, kind, _seconds)))
        )
    return found


def _on_fleets(series: Sequence[Series], what: str) -> list[Part]:
    """Return what a page shows of experiments that have a fleet's clock."""
    clocked = [own for own in series if all(view.virtual for view in own.views)]
    if not clocked:
        return []
    charts = _charts(kinds_of(clocked), lambda kind: _by_time(clocked, kind, _virtual))
    return [(f"{what} against virtual time", FLEET + charts)]


def _seconds(view: RunView) -> Sequence[float]:
    return view.seconds


def _virtual(view: RunView) -> Sequence[float]:
    return view.virtual


def _charts(kinds: Sequence[Kind], draw: Callable[[Kind], Figure]) -> str:
    """Return a chart, or one a task where there are several."""
    if len(kinds) == 1:
        return chart(draw(kinds[0]))
    return panels([(f"Task {task}" if task else "One task", draw((task, m))) for task, m in kinds])


def _by_round(series: Sequence[Series], kind: Kind) -> Figure:
    lines = []
    for own, said in _together(series, kind):
        lines.append(Line(own.label, said.rounds, said.mean, own.style, _bands(own, said)))
    return _figure(kind, lines, "round")


def _by_bytes(series: Sequence[Series], kind: Kind) -> Figure:
    lines = _against(series, kind, lambda view: view.sent_by)
    ends = [max(line.x) for line in lines if max(line.x, default=0) > 0]
    figure = _figure(kind, _levelled(lines, max(ends, default=1)), "sent in training, up and down")
    figure.axis("xaxis", tickformat="~s", ticksuffix="B", hoverformat=".3s")
    if len(ends) > 1 and max(ends) > WIDE * min(ends):
        figure.axis("xaxis", type="log", nticks=6)
    else:
        figure.axis("xaxis", rangemode="tozero")
    return figure


def _by_time(series: Sequence[Series], kind: Kind, time: Callable[[RunView], Sequence[float]]) -> Figure:
    longest = max((max(time(view), default=0) for own in series for view in own.views), default=0)
    each, unit = next(((each, unit) for above, each, unit in UNITS if longest >= above), (1, "seconds"))
    lines = _against(series, kind, lambda view: [seconds / each for seconds in time(view)])
    ends = [max(line.x) for line in lines if max(line.x, default=0) > 0]
    figure = _figure(kind, lines, unit)
    wide = len(ends) > 1 and max(ends) > WIDE * min(ends)
    figure.axis("xaxis", hoverformat=".3~g", **({"type": "log"} if wide else {"rangemode": "tozero"}))
    return figure


def _figure(kind: Kind, given: Sequence[Line], x: str) -> Figure:
    task, measure = kind
    lines = _ranked(given, measure)
    words = f"mean {measure} by {x}{f', task {task}' if task else ''}; after the last round: " + "; ".join(
        f"{line.name} {percent(line.y[-1]) if measure == ACCURACY else f'{line.y[-1]:.3g}'}"
        for line in lines
        if line.y
    )
    return curves_figure(f"mean {measure}", lines, x, shares=measure == ACCURACY, words=words)


def _ranked(lines: Sequence[Line], measure: str) -> list[Line]:
    """Return lines, of more than have colours the best first: others are grey until they are asked for."""
    if len(lines) <= MOST_SERIES:
        return list(lines)
    sign = -1 if measure == ACCURACY else 1
    return sorted(lines, key=lambda line: sign * line.y[-1] if line.y else math.inf)


def _together(series: Sequence[Series], kind: Kind) -> list[tuple[Series, OverSeeds]]:
    """Return what each experiment's seeds say of a task together, of those that have it."""
    return [
        (own, over_seeds([curve for _, curve in own.curves[kind]])) for own in series if kind in own.curves
    ]


def _bands(own: Series, said: OverSeeds) -> dict[str, Band]:
    seeds = {SEEDS: (said.lowest, said.highest)} if len(own.views) > 1 else {}
    return {**seeds, CLIENTS: (said.low, said.high)}


def _against(series: Sequence[Series], kind: Kind, cost: Callable[[RunView], Sequence[float]]) -> list[Line]:
    """Return lines over what was spent up to each round, the mean over seeds."""
    lines = []
    for own, said in _together(series, kind):
        spent = [dict(zip(view.rounds, cost(view), strict=True)) for view, _ in own.curves[kind]]
        x = [fmean(each[round] for each in spent) for round in said.rounds]
        lines.append(Line(own.label, x, said.mean, own.style, rounds=said.rounds))
    return lines


def _levelled(lines: Sequence[Line], longest: float) -> list[Line]:
    """Return lines, where what costs nothing is level with where it ended: it has no length of its own."""
    costs = [min(x for x in line.x if x > 0) for line in lines if max(line.x, default=0) > 0]
    start = min(costs, default=longest)
    return [
        line
        if max(line.x, default=0) > 0 or not line.y
        else Line(line.name, [start, longest], [line.y[-1]] * 2, line.style, rounds=[line.rounds[-1]] * 2)
        for line in lines
    ]


def _spread(series: Sequence[Series], kind: Kind) -> Figure:
    """Draw a box an experiment, one below the other."""
    _, measure = kind
    drawn = [own for own in series if kind in own.curves]
    figure = Figure(f"{measure} of a client", height=52 * len(drawn) + 80, key=False)
    for own in drawn:
        means = client_means([curve for _, curve in own.curves[kind]])
        figure.add(
            "box",
            x=list(means.values()),
            text=list(means),
            name=own.label,
            orientation="h",
            boxpoints="all",
            jitter=0.6,
            pointpos=0,
            marker={"color": own.style.word, "size": 5, "opacity": 0.6, "symbol": own.style.symbol},
            line={"color": own.style.word, "width": 1.5},
            fillcolor=f"{own.style.word}/0.1",
            hoverinfo="text+x",
        )
    figure.words = f"{measure} of every client: {', '.join(own.label for own in drawn)}"
    figure.axis("yaxis", type="category", autorange="reversed")
    if measure == ACCURACY:
        figure.axis("xaxis", tickformat=".2~%", hoverformat=".1%")
    return figure
