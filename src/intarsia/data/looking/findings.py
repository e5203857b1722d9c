"""What is odd about own files, and the settings that deal with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from intarsia.data.cells import is_missing, look_alike
from intarsia.data.sources.readers import Holding, label_of
from intarsia.data.tables import Table

if TYPE_CHECKING:
    from intarsia.data.looking.look import Look

TINY = 10
"""Clients with fewer rows than this have hardly one of each label to be tested on."""
RARE = 0.2
"""A column with more missing values than this share is named."""
UNLIKE = 10.0
"""Columns whose deviations differ by more than this factor are named."""


def of_labels(found: Look, table: Table) -> None:
    """Find labels that are missing, written in two ways, or hardly there; numbers to predict that are large."""
    target = next(column for column in found.columns if column.name == found.roles.target)
    if target.missing:
        found.findings.append(f"'{target.name}' is missing in {target.missing} rows: they are dropped")
        found.put("unlabelled", "drop", f"{target.missing} rows have no {target.name}")
    if found.roles.problem == "regression":
        found.put(
            "target_scale", "standard", "the network learns deviations from the mean, whatever the unit"
        )
        return
    counts = Counter(label_of(cell) for cell in table.columns[target.name] if not is_missing(cell))
    twins = look_alike(counts)
    if twins:
        best = {group[0]: max(group, key=lambda word: (counts[word], word)) for group in twins}
        renamed = {word: best[group[0]] for group in twins for word in group if word != best[group[0]]}
        found.put("relabel", renamed, "the same label, written in two ways")
        found.findings += [
            f"labels {' and '.join(map(repr, group))} look alike: they are made one" for group in twins
        ]
        for word, name in renamed.items():
            counts[name] += counts.pop(word)
    found.reasons["target"] = "labels: " + ", ".join(f"{label} {n}" for label, n in counts.most_common(8))
    label, most = counts.most_common(1)[0]
    if most > 0.75 * counts.total():
        found.findings.append(
            f"{most / counts.total():.0%} of rows are '{label}': who always says so is right as often; class weights "
            "are balanced"
        )
        found.reasons["class_weights"] = f"{most / counts.total():.0%} of rows are '{label}'"


def of_clients(found: Look, of_client: Mapping[str, Table]) -> None:
    """Find clients with few rows, without a label that others have, or alone."""
    rows = {name: len(table) for name, table in of_client.items()}
    tiny = [name for name, count in rows.items() if count < TINY]
    if tiny:
        shown = ", ".join(f"'{name}' ({rows[name]})" for name in tiny[:4])
        if len(tiny) < len(rows):
            found.put("min_rows", TINY, f"{len(tiny)} clients have fewer rows: {shown}")
            found.findings.append(f"clients with fewer than {TINY} rows are left out: {shown}")
        else:
            found.findings.append(
                f"every client has fewer than {TINY} rows: scores will hardly mean anything"
            )
    if len(rows) == 1:
        found.findings.append("there is one client alone: federating needs others")
    if found.roles.time:
        found.put("time", found.roles.time, "rows go in its order")
        found.put("order", "time", "the last fifth of each client's rows is for testing")
    if found.roles.problem == "classification":
        _of_labels_by_client(found, of_client)


def _of_labels_by_client(found: Look, of_client: Mapping[str, Table]) -> None:
    renamed = found.settings.get("relabel", {})
    held = {
        name: {
            renamed.get(label_of(cell), label_of(cell)) for cell in table.columns.get(found.roles.target, ())
        }
        for name, table in of_client.items()
    }
    everywhere = {label for own in held.values() for label in own if not is_missing(label)}
    for name, own in held.items():
        lacks = sorted(everywhere - own)
        if lacks and len(everywhere) <= 10:
            found.findings.append(f"client '{name}' has no row with {' or '.join(map(repr, lacks))}")


def of_cells(found: Look, of_client: Mapping[str, Table]) -> None:
    """Find missing values; columns that some clients lack altogether are their device's, and not missing."""
    gaps, total = Counter[str](), Counter[str]()
    lacking: dict[str, list[str]] = {}
    for column in (c for c in found.columns if c.role == "feature"):
        for name, table in of_client.items():
            cells = table.columns.get(column.name, ())
            missing = sum(map(is_missing, cells))
            if missing == len(cells):
                lacking.setdefault(column.name, []).append(name)
            else:
                gaps[column.name] += missing
                total[column.name] += len(cells)
    for name, clients in lacking.items():
        shown = ", ".join(clients[:4]) + (" ..." if len(clients) > 4 else "")
        found.findings.append(
            f"column '{name}': {len(clients)} of {len(of_client)} clients have none ({shown})"
        )
    if lacking:
        found.reasons["devices"] = "clients with the same columns are one device"
    missed = {name: n for name, n in gaps.items() if n}
    for name, n in missed.items():
        if n > RARE * total[name]:
            found.findings.append(f"column '{name}' misses {n / total[name]:.0%} of its values")
    if missed:
        rule = "carry" if found.roles.time else "mean"
        shown = ", ".join(f"{name} {n}" for name, n in missed.items())
        how = "the last value before, else the mean" if rule == "carry" else "the mean of training rows"
        found.put("missing", rule, f"missing values ({shown}): {how}")
        found.findings.append(f"missing values: {shown}; each becomes {how}")


def of_scales(found: Look) -> None:
    """Find columns of unlike size; numbers are always scaled, which networks need."""
    numbers = [c for c in found.columns if c.role == "feature" and c.kind == "number" and c.deviation]
    if not numbers:
        return
    least = min(numbers, key=lambda c: c.deviation or 0.0)
    most = max(numbers, key=lambda c: c.deviation or 0.0)
    why = "networks learn best from numbers around 0 and 1"
    if (most.deviation or 0.0) > UNLIKE * (least.deviation or 1.0):
        found.findings.append(
            f"columns are of unlike size ('{least.name}' varies by {least.deviation:.3g}, '{most.name}' by "
            f"{most.deviation:.3g}): they are scaled"
        )
    found.put("scale", "standard", why)
    found.put(
        "scale_by",
        "all",
        'mean and deviation of all clients\' training rows ("device" or "client": of fewer)',
    )


def of_archives(found: Look, holdings: Mapping[str, Holding]) -> None:
    """Find shapes, missing values and the problem of archives."""
    shapes = {name: own.x.shape[1:] for name, own in holdings.items()}
    for shape in dict.fromkeys(shapes.values()):
        names = [name for name, own in shapes.items() if own == shape]
        found.findings.append(f"inputs of shape {list(shape)}: {len(names)} clients ({', '.join(names[:4])})")
    targets = [y for own in holdings.values() for y in own.y]
    numbers = all(
        isinstance(y, list) or (isinstance(y, float) and not float(y).is_integer()) for y in targets
    )
    if numbers:
        found.put("problem", "regression", "y holds numbers that are not whole")
        found.put(
            "target_scale", "standard", "the network learns deviations from the mean, whatever the unit"
        )
    gaps = sum(int(np.isnan(own.x).sum()) for own in holdings.values() if own.x.dtype.kind == "f")
    if gaps:
        found.put("missing", "mean", f"{gaps} values are missing: the mean of training rows")
        found.findings.append(f"{gaps} values are missing: they become the mean of training rows")
    if all(own.x.dtype.kind == "f" and own.x.ndim == 2 for own in holdings.values()):
        found.put("scale", "standard", "networks learn best from numbers around 0 and 1")
        found.put(
            "scale_by", "all" if len(set(shapes.values())) == 1 else "client", "whose mean and deviation"
        )


def sizes_of(found: Look, pictures: Sequence[Path]) -> None:
    """Find the size of pictures; unlike ones are resized to the smallest side."""
    sizes: Counter[tuple[int, int]] = Counter()
    for path in pictures:
        try:
            with Image.open(path) as picture:
                sizes[picture.size] += 1
        except OSError:
            found.findings.append(f"{path} is no image that can be read: replace it, or take it away")
    if len(sizes) > 1:
        side = min(min(size) for size in sizes)
        shown = ", ".join(f"{w}x{h} ({n})" for (w, h), n in sizes.most_common(4))
        found.put("size", side, f"pictures differ in size: {shown}")
        found.findings.append(f"pictures differ in size, {shown}: all become {side}x{side}")
