"""The model card: what a model is, what it was trained on, how good it is, how to use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from intarsia.core import harmless
from intarsia.data import ClientInfo


def card(about: Mapping[str, Any], story: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """Return the card as Markdown; `files` says of every file what it is."""
    parts = [
        f"# The model of client {_code(about['client'])}",
        _lead(about, story),
        "## Files",
        _table(("file", "what it is"), ((_code(name), what) for name, what in files.items())),
        "## Inputs",
        _inputs(about["input"]),
        "## Outputs",
        _outputs(about),
        "## Data",
        _data(story),
        "## How good it is",
        _metrics(story),
        "## Check",
        f"{str(about['checked_in_words']).capitalize()}.",
        "## Privacy",
        "Trained without noise for differential privacy: there is no epsilon to state.",
        "## Settings",
        f"```toml\n{str(story.get('settings', '')).strip()}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def attributes(
    about: Mapping[str, Any], groups: Mapping[str, Mapping[str, str]], client: str
) -> dict[str, Any]:
    """Return what is said of a client: what was given, and the group that was found for each block."""
    given = {key: about[key] for key in ("device", "cohort", "task") if key in about}
    if given.get("cohort") == ClientInfo.cohort:
        del given["cohort"]  # nobody gave one
    return given | {f"found group of {block}": of[client] for block, of in groups.items() if client in of}


def _lead(about: Mapping[str, Any], story: Mapping[str, Any]) -> str:
    method = story.get("method", about.get("method", "an unknown method"))
    origin = harmless(str(story.get("origin", "")))
    network = f"{about['network']}, {about['parameters']:,} parameters"
    return (
        f"Trained with {method}, round {about.get('round')} of run {_code(about.get('run', ''))}; {network}. Made with "
        f"Intarsia {about['intarsia_version']}; it runs without it." + (f" {origin}" if origin else "")
    )


def _inputs(given: Mapping[str, Any]) -> str:
    lines = [f"`{given['name']}`: {given['dtype']}, shape {_shape(given['shape'])}."]
    if given["kind"] == "table":
        lines += [
            "",
            "Raw readings, a column each, in this order; scaling is inside. NaN stands for a missing value. A word is "
            "given by its number in the list, one that is not in it as -1.",
            "",
            _table(
                ("column", "kind", "missing", "words"),
                (
                    (_code(c["name"]), _kind(c), _missing(c), ", ".join(c["words"]))
                    for c in given["preparation"]["columns"]
                ),
            ),
        ]
    elif given["kind"] == "images":
        lines.append("Pixels as bytes, channels first; scaling is inside.")
    elif given["form"]["scaling"]:
        lines.append("As stored; scaling is inside.")
    return "\n".join(lines)


def _kind(column: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (column["kind"], column["part"])))


def _missing(column: Mapping[str, Any]) -> str:
    if column["fill"] is None:
        return "not allowed"
    last = "the last before it, else " if column["carry"] else ""
    if column["kind"] == "words":
        known = 0 <= column["fill"] < len(column["words"])
        return f"{last}{column['words'][int(column['fill'])] if known else 'none of them'}"
    return f"{last}{column['fill']:g}"


def _outputs(about: Mapping[str, Any]) -> str:
    raw, result = about["outputs"]
    if about["problem"] == "classification":
        return f"`{raw}`: scores; `{result}`: probabilities of {', '.join(map(_code, about['labels']))}."
    named = f" of {', '.join(map(_code, about['targets']))}" if about["targets"] else ""
    return f"`{raw}`: the network's; `{result}`: predictions{named}, in the units of the training data."


def _data(story: Mapping[str, Any]) -> str:
    about = [f"{key} {_code(value)}" for key, value in story.get("attributes", {}).items()]
    lead = f"The client's own data ({', '.join(about)})." if about else "The client's own data."
    labels, counts = story.get("labels", []), story.get("counts", {})
    rows = [
        (split, number, *(counts.get(split, [""] * len(labels))))
        for split, number in story.get("samples", {}).items()
    ]
    return f"{lead}\n\n{_table(('split', 'samples', *labels), rows)}"


def _metrics(story: Mapping[str, Any]) -> str:
    if judged := story.get("judged"):
        return _judged(judged)
    rows: Sequence[Mapping[str, Any]] = story.get("metrics", [])
    if not rows:
        return "The run holds no scores of this model."
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
    return _table(names, ([_number(row.get(name, "")) for name in names] for row in rows))


def _judged(judged: Mapping[str, Any]) -> str:
    """Return metrics beside what they are worth: the usual label or mean, and the client alone where that was run."""
    sides = {"this model": judged["metrics"], "the usual label or mean": judged["usual"]}
    if "alone" in judged:
        sides["the client alone"] = judged["alone"]
    rows = [
        (name, *(_number(side.get(name, "")) for side in sides.values()), _interval(judged, name))
        for name, value in judged["metrics"].items()
        if value is not None  # not defined, as the AUC of one label
    ]
    table = _table(("metric", *sides, "95 % interval of this model"), rows)
    return f"On {judged['n']} {judged['split']} samples of the client's own.\n\n{table}"


def _interval(judged: Mapping[str, Any], metric: str) -> str:
    return " to ".join(map(_number, judged["interval"].get(metric, ())))


def _number(value: Any) -> str:
    if value is None:
        return "not defined"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _shape(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))})"


def _code(text: Any) -> str:
    return f"`{harmless(str(text)).replace('`', chr(39))}`"


def _table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    names = list(header)
    lines = [names, ["---"] * len(names), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return harmless(text).replace("|", "\\|").replace("\n", " ")
