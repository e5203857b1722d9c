"""The verdict on a run in a few lines: figures with intervals, baselines, who is worst off."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from intarsia.core.text import mean_and_std, percent
from intarsia.judging.metrics import METRICS
from intarsia.report.elements import chip, html_table, table_of
from intarsia.report.series import Series

SHARES = ("accuracy", "balanced_accuracy")
"""Metrics that are told in percent."""
WORDS = (
    "<p>Each client's own model on its own test data, the mean over clients; beside it what is usual in its training "
    "data: the majority label, or the mean.</p>"
)
LESS = ", less is better"
Verdict = Mapping[str, Any]


def verdict_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the verdict of a run's summary as lines (none: it was not judged)."""
    verdict = summary.get("judged", {})
    if not verdict:
        return []
    tasks = verdict.get("tasks", {"": verdict})
    return [line for task, own in tasks.items() for line in _lines(task, own)]


def seeds_lines(runs: Sequence[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]) -> list[str]:
    """Return the verdict on runs that differ in their seed, of their summaries and judged rows, as lines."""
    verdicts = [summary["judged"] for summary, _ in runs if summary.get("judged")]
    if not verdicts:
        return []
    name = "accuracy" if "accuracy" in verdicts[0]["metrics"] else "rmse"
    names = [name, "balanced_accuracy"] if name == "accuracy" else [name]
    what = "majority label" if name == "accuracy" else "mean of the targets"
    lines = [f"Judged with {len(verdicts)} seeds; means over clients, with the deviation over seeds:"]
    for own in names:
        ours, usual = (_over_seeds(verdicts, kind, own) for kind in ("metrics", "usual"))
        lines += [f"  {METRICS[own].title}: {ours}, {what} {usual}"] if ours else []
    worst = [f"{client} {figure(name, value)}" for client, value in _worst_over_seeds(runs, name)[:3]]
    return [*lines, f"  worst, mean over seeds: {', '.join(worst)}"] if len(worst) > 1 else lines


def _over_seeds(verdicts: Sequence[Verdict], kind: str, name: str, which: str = "mean") -> str:
    found = [own[kind][name].get(which) for own in verdicts if name in own[kind]]
    values = [value for value in found if value is not None]
    if not values:
        return ""
    deviation = stdev(values) if len(values) > 1 else None
    return mean_and_std(fmean(values), deviation, "accuracy" if name in SHARES else name)


def _worst_over_seeds(
    runs: Sequence[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]], name: str
) -> list[tuple[str, float]]:
    """Return clients and their mean over seeds, the worst first."""
    found: dict[str, list[float]] = {}
    for summary, rows in runs:
        last = summary.get("judged", {}).get("round")
        for row in rows:
            value = row["metrics"].get(name)
            if (row["round"], row["split"], row["stage"]) == (last, "test", "own") and value is not None:
                found.setdefault(row["client"], []).append(value)
    means = {client: fmean(values) for client, values in found.items()}
    return sorted(means.items(), key=lambda item: item[1], reverse=not METRICS[name].more)


def verdict_section(series: Sequence[Series]) -> str:
    """Return the verdicts of experiments as a part of a page: their metrics beside what is usual."""
    found = {own: [v.summary["judged"] for v in own.views if v.summary.get("judged")] for own in series}
    judged = {own: verdicts for own, verdicts in found.items() if verdicts}
    if not judged:
        return ""
    several = len(judged) > 1 or any(len(verdicts) > 1 for verdicts in judged.values())
    return WORDS + (_many(judged) if several else _one(next(iter(judged.values()))[0]))


def _one(verdict: Verdict) -> str:
    """Return the table of one run: a row a metric."""
    heads = ("Metric", "Mean over clients", "Worst client", "Pooled samples", "Usual answer, mean")
    rows = [
        (
            _title(name) + ("" if METRICS[name].more else LESS),
            *(figure(name, own.get(kind)) for kind in ("mean", "worst", "pooled")),
            figure(name, verdict["usual"].get(name, {}).get("mean")),
        )
        for name, own in verdict["metrics"].items()
    ]
    return html_table(heads, rows)


def _many(judged: Mapping[Series, Sequence[Verdict]]) -> str:
    """Return the table of several: a row an experiment, a column a metric; below, what is usual."""
    names = list(dict.fromkeys(n for verdicts in judged.values() for own in verdicts for n in own["metrics"]))
    head = "".join(
        f"<th scope='col'>{_title(n)}{'' if METRICS[n].more else f'<small>{LESS[2:]}</small>'}</th>"
        for n in names
    )
    rows = [
        _row(chip(own.style.word) + html.escape(own.label), [_both(verdicts, name) for name in names])
        for own, verdicts in judged.items()
    ]
    usual: dict[tuple[str, ...], list[str]] = {}
    for own, verdicts in judged.items():
        usual.setdefault(tuple(_over_seeds(verdicts, "usual", n) or "-" for n in names), []).append(own.label)
    for cells, labels in usual.items():
        whose = "" if len(usual) == 1 else f" of {html.escape(', '.join(labels))}"
        rows.append(_row(f"usual answer{whose}", cells))
    return table_of(f"<th scope='col'>Method</th>{head}", "".join(rows))


def _title(name: str) -> str:
    title = METRICS[name].title
    return title[:1].upper() + title[1:]


def _row(first: str, cells: Iterable[str]) -> str:
    return f"<tr><th scope='row'>{first}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _both(verdicts: Sequence[Verdict], name: str) -> str:
    """Return the mean over clients, and the worst client."""
    worst = _over_seeds(verdicts, "metrics", name, "worst")
    return (_over_seeds(verdicts, "metrics", name) or "-") + (
        f"<small>worst {worst}</small>" if worst else ""
    )


def figure(name: str, value: float | None) -> str:
    """Return a metric's value as text: shares of samples in percent."""
    if value is None:
        return "-"
    return percent(value) if name in SHARES else f"{value:.3g}"


def _lines(task: str, verdict: Verdict) -> list[str]:
    clients, samples = verdict["clients"], verdict["samples"]
    of_task = f" of task {task}" if task else ""
    whose = f"{clients} clients" if clients > 1 else "1 client"
    lines = [
        f"Judged{of_task} on {samples} test samples of {whose}; beside it what is usual in their training data:"
    ]
    leading = "accuracy" if "accuracy" in verdict["metrics"] else "mae"
    lines += [_metric(name, verdict) for name in (leading, *_others(leading)) if name in verdict["metrics"]]
    if "gain" in verdict:
        lines.append(_gain(verdict["gain"]))
    worst = [_worst(one) for one in verdict["worst"][:3]] if clients > 1 else []
    return [*lines, f"  worst: {', '.join(worst)}"] if worst else lines


def _others(leading: str) -> tuple[str, ...]:
    return ("balanced_accuracy", "f1", "auc") if leading == "accuracy" else ("rmse", "r2")


def _metric(name: str, verdict: Verdict) -> str:
    own, usual = verdict["metrics"][name], verdict["usual"].get(name, {})
    kind = "pooled" if "pooled" in own else "mean"
    over = "pooled" if kind == "pooled" else "mean over clients"
    interval = verdict.get("interval", {}).get(name)
    sure = f" ({figure(name, interval[0])} to {figure(name, interval[1])})" if interval else ""
    what = "majority label" if "accuracy" in verdict["metrics"] else "mean of the targets"
    beside = f", {what} {figure(name, usual[kind])}" if usual.get(kind) is not None else ""
    return f"  {METRICS[name].title}, {over}: {figure(name, own[kind])}{sure}{beside}"


def _gain(gain: Mapping[str, Any]) -> str:
    if gain["mean"] is None:
        return "  gain over training alone: no client has a figure on both sides"
    ends = (
        f" ({_step(gain, gain['interval'][0])} to {_step(gain, gain['interval'][1])})"
        if gain["interval"]
        else ""
    )
    losers = ", ".join(f"{one['client']} {_step(gain, one['gain'])}" for one in gain["losers"][:3])
    losers += f" and {gain['lost'] - 3} more" if gain["lost"] > 3 and losers else ""
    lost = f"; {gain['lost']} of {gain['clients']} clients lose{f': {losers}' if losers else ''}"
    return f"  gain over training alone: {_step(gain, gain['mean'])}{ends} {gain['metric']}{lost}"


def _step(gain: Mapping[str, Any], value: float) -> str:
    return f"{100 * value:+.1f} points" if gain["metric"] == "accuracy" else f"{value:+.3g}"


def _worst(one: Mapping[str, Any]) -> str:
    name = next(name for name in ("accuracy", "rmse") if name in one)
    return f"{one['client']} {figure(name, one[name])} of {one['n']} samples"
