"""What looks wrong with a run, each with what to do: small checks over plain data, and their list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from intarsia.judging.metrics import METRICS
from intarsia.judging.verdict import Row, Words, gain_of, leading, said_by, there_in

NAMED = 3
"""How many clients a warning names."""
TIMES = 100
"""How many times the usual loss is too much."""


@dataclass(frozen=True)
class Before:
    """What is known before a run begins."""

    samples: Mapping[str, int]
    """Training samples by client."""
    batch_size: int
    method: str
    doubt: str = ""
    """Why the method itself thinks that it is hardly meant for these clients."""
    unscaled: Sequence[str] = ()
    """Clients with unscaled inputs, where their data is at hand."""
    few_holders: str = ""
    """Which addresses too few clients hold for the merge to bear a hostile one."""


@dataclass(frozen=True)
class After:
    """What is known when a run has ended."""

    rows: Sequence[Row]
    """Judged rows of test data."""
    losses: Mapping[str, float | None]
    """Test loss by client (None: not finite)."""
    training: Sequence[float | None]
    """Mean training loss by round (None: not finite)."""
    lr: float
    words: Words = field(default_factory=dict)
    balanced: bool = False
    """Whether rare labels are weighed higher already."""
    scaled: bool = False
    """Whether the inputs of all clients are known to be scaled."""
    not_finite: int = 0
    """Updates that were left out since they held a NaN or an infinite number."""


@dataclass(frozen=True)
class Warned:
    """A warning: its kind, what is wrong and what to do, and whom it is about (empty: everyone)."""

    kind: str
    message: str
    clients: Sequence[str] = ()


def one_client(known: Before) -> Warned | None:
    """There is nobody to federate with."""
    if len(known.samples) != 1:
        return None
    return Warned(
        "one client",
        "there is one client, so that nothing is federated: name the column or attribute that tells clients apart, or "
        "add clients",
    )


def hardly_meant(known: Before) -> Warned | None:
    """The method doubts itself: ModFL with one cohort is FedAvg."""
    return Warned("hardly meant", known.doubt) if known.doubt else None


def few_holders(known: Before) -> Warned | None:
    """A merge against hostile clients cannot help where too few share a block."""
    return Warned("few holders", known.few_holders) if known.few_holders else None


def large_batch(known: Before) -> Warned | None:
    """A batch holds more than any client has."""
    most = max(known.samples.values())
    if known.batch_size <= most:
        return None
    return Warned(
        "large batch",
        f"training.batch_size is {known.batch_size}, and no client has more than {most} training samples: every epoch "
        "is a single step; set a smaller one",
    )


def one_label_said(known: After) -> Warned | None:
    """Models say one label to everything, though there are several."""
    several = [row for row in _labelled(known) if len(there_in(row["tally"])) > 1]
    stuck = [row for row in several if len(said_by(row["tally"])) == 1]
    if not stuck:
        return None
    words = {_word(known, row, next(iter(said_by(row["tally"])))) for row in stuck}
    what = f"'{words.pop()}'" if len(words) == 1 else "one label"
    who = "every model" if len(stuck) == len(several) else _models(stuck, len(several))
    return Warned(
        "one label said",
        f"{who} says {what} to everything: look at balanced_accuracy, not at accuracy; "
        + _advice(known, _WEIGH),
        _names(stuck),
    )


def no_better_than_usual(known: After) -> Warned | None:
    """Models do no better than the majority label, or the mean, of their clients' training data."""
    having = [row for row in known.rows if row["metrics"][leading(row)] is not None]
    if not having or fmean(map(_over_usual, having)) > 0:
        return None
    poor = [row for row in having if _over_usual(row) <= 0]
    name = leading(having[0])
    ours, usual = (
        fmean(row[kind][name] for row in having if name in row[kind]) for kind in ("metrics", "usual")
    )
    what = "the majority label" if name == "accuracy" else "the mean of the training data"
    return Warned(
        "no better than usual",
        f"no better than always saying {what}: {METRICS[name].title} {_figure(name, ours)}, that has "
        f"{_figure(name, usual)} (means over clients; {len(poor)} of {len(having)} clients are not above it): "
        + _advice(known, "try another training.lr or model"),
        _names(poor),
    )


_WEIGH = 'weigh rare labels higher (training.class_weights = "balanced")'


def _advice(known: After, last: str) -> str:
    """Return what to do for models that learned little, without what is done already."""
    if known.not_finite or _diverges(known):
        return f"lower training.lr (now {known.lr:g}) before anything else, as training diverges"
    steps = [] if known.scaled else ["scale the inputs"]
    steps.append("train longer")
    steps.append("try another training.lr or model" if last == _WEIGH and known.balanced else last)
    return f"{', '.join(steps[:-1])}, or {steps[-1]}"


def harmed_clients(known: After) -> Warned | None:
    """Single clients would be better off with the usual answer, beyond chance, and alone as far as that is known."""
    found = [
        row
        for row in _labelled(known)
        if row["usual"]["accuracy"] > row["interval"]["accuracy"][1] and row.get("gain", -1) < 0
    ]
    if not found:
        return None
    found.sort(key=lambda row: float(row["metrics"]["accuracy"] - row["usual"]["accuracy"]))
    figures = ", ".join(map(_beside, found[:NAMED]))
    more = ", ..." if len(found) > NAMED else ""
    return Warned(
        "harmed clients",
        f"{len(found)} of {len(known.rows)} clients are far below what always saying their majority label would give: "
        f'{figures}{more}; scale inputs at each client (own files: population.scale_by = "client"), look at their data '
        'or give more of it, let cohorts be found (modfl, sharing.cohorts = "found"), or choose a personal method '
        "(fedper, fedavg+)",
        _names(found),
    )


def _beside(row: Row) -> str:
    own, usual = (_figure("accuracy", row[kind]["accuracy"]) for kind in ("metrics", "usual"))
    alone = row.get("alone", {}).get("accuracy")
    lone = f", {_figure('accuracy', alone)} alone" if alone is not None else ""
    return f"{row['client']} ({own}, majority label {usual}{lone})"


def not_finite_updates(known: After) -> Warned | None:
    """Clients' training ended in no numbers, so that their updates were left out."""
    if not known.not_finite:
        return None
    return Warned(
        "not finite",
        f"{known.not_finite} updates of clients held a NaN or an infinite number and were left out: lower training.lr "
        f"(now {known.lr:g})",
    )


def unscaled_inputs(known: Before) -> Warned | None:
    """Columns differ so much in range, or are so far from 0, that training suffers."""
    return _unscaled(known.unscaled, len(known.samples))


def unscaled_at_clients(known: After) -> Warned | None:
    """The same, as clients told it whose data is elsewhere."""
    return _unscaled([row["client"] for row in known.rows if row["unscaled"]], len(known.rows))


def _unscaled(found: Sequence[str], count: int) -> Warned | None:
    if not found:
        return None
    return Warned(
        "unscaled inputs",
        f"the inputs of {_clients(found, count)} are not scaled: some columns are a hundred times wider than others, "
        'or far from 0; standardise them before training (own files: population.scale = "standard")',
        found,
    )


def unseen_labels(known: After) -> Warned | None:
    """There are labels in test data that a client's training data lacks."""
    found = [row for row in known.rows if row["unseen"]]
    if not found:
        return None
    count = sum(row["unseen"] for row in found)
    return Warned(
        "unseen labels",
        f"{count} test samples of {_clients(_names(found), len(known.rows))} have a label that the client's training "
        "data lacks, so that only others know it: divide the data by label (stratified), or give more of it",
        _names(found),
    )


def one_class(known: After) -> Warned | None:
    """Clients have a single label to learn from."""
    labelled = _labelled(known)
    found = [row for row in labelled if row["labels"] == 1]
    if not found:
        return None
    return Warned(
        "one class",
        f"{_clients(_names(found), len(labelled))} train on a single label: what such a client gets right says "
        "little; check the target column and how the data is divided",
        _names(found),
    )


def diverging(known: After) -> Warned | None:
    """The training loss ended higher than it began, or is no number any more."""
    if not _diverges(known):
        return None
    first, last = known.training[0], known.training[-1]
    ended = "is not finite" if last is None else f"is {last:.3g}"
    began = "not finite" if first is None else f"{first:.3g}"
    return Warned(
        "diverging",
        f"training diverges: its loss {ended} after the last round and was {began} after the first; lower training.lr "
        f"(now {known.lr:g})",
    )


def _diverges(known: After) -> bool:
    if len(known.training) < 2:
        return False
    first, last = known.training[0], known.training[-1]
    finite = [loss for loss in known.training if loss is not None]
    return last is None or (first is not None and last > max(first, 2 * min(finite)))


def outlying_loss(known: After) -> Warned | None:
    """A client's loss is a hundred times the median."""
    finite = [loss for loss in known.losses.values() if loss is not None]
    usual = median(finite) if finite else 0.0
    far = [n for n, loss in known.losses.items() if loss is None or (usual > 0 and loss > TIMES * usual)]
    if not far or len(known.losses) < 2:
        return None
    figures = ", ".join(
        f"{n} ({'not finite' if (s := known.losses[n]) is None else f'{s:.3g}'})" for n in far[:NAMED]
    )
    return Warned(
        "outlying loss",
        f"the test loss of {len(far)} of {len(known.losses)} clients is not finite, or over a hundred times the median "
        f"({usual:.3g}): {figures}; look at the units and labels of their data",
        far,
    )


def federating_hurts(known: After) -> Warned | None:
    """Clients that train alone do better."""
    if not any("gain" in row for row in known.rows):
        return None
    gain = gain_of(known.rows)
    if gain["mean"] is None or gain["mean"] >= 0:
        return None
    name = gain["metric"]
    interval = gain["interval"]
    sure = f", 95 % interval {_step(name, interval[0])} to {_step(name, interval[1])}" if interval else ""
    return Warned(
        "federating hurts",
        f"clients that train alone do better: federating changes {name} by {_step(name, gain['mean'])} on average"
        f"{sure}; {gain['lost']} of {gain['clients']} clients lose by it. Share less (fedper, modfl, sharing.by), or "
        "use local",
        [row["client"] for row in gain["losers"]],
    )


BEFORE: tuple[Callable[[Before], Warned | None], ...] = (
    one_client,
    hardly_meant,
    few_holders,
    large_batch,
    unscaled_inputs,
)
AFTER: tuple[Callable[[After], Warned | None], ...] = (
    one_label_said,
    no_better_than_usual,
    federating_hurts,
    harmed_clients,
    not_finite_updates,
    unscaled_at_clients,
    unseen_labels,
    one_class,
    diverging,
    outlying_loss,
)


def before(known: Before) -> list[Warned]:
    """Return what is to be told before a run."""
    return [warned for check in BEFORE if (warned := check(known)) is not None]


def after(known: After) -> list[Warned]:
    """Return what is to be told when a run has ended."""
    return [warned for check in AFTER if (warned := check(known)) is not None]


def _labelled(known: After) -> list[Row]:
    return [row for row in known.rows if "confusion" in row["tally"]]


def _over_usual(row: Row) -> float:
    """Return by how much a client's model is better than the baseline."""
    name = leading(row)
    gap = row["metrics"][name] - row["usual"][name]
    return float(gap if METRICS[name].more else -gap)


def _word(known: After, row: Row, label: int) -> str:
    words = known.words.get(row["task"], ())
    return words[label] if label < len(words) else str(label)


def _models(rows: Sequence[Row], count: int) -> str:
    one = "the model of " if len(rows) == 1 else "each of the models of "
    return f"{one}{_clients(_names(rows), count)}"


def _clients(names: Sequence[str], count: int) -> str:
    """Return whom a warning is about: all, or how many of how many and the first names."""
    if len(names) == count:
        return f"all {count} clients" if count > 1 else f"client {names[0]}"
    more = ", ..." if len(names) > NAMED else ""
    return f"{len(names)} of {count} clients ({', '.join(names[:NAMED])}{more})"


def _names(rows: Sequence[Row]) -> list[str]:
    return [row["client"] for row in rows]


def _figure(name: str, value: float) -> str:
    return f"{100 * value:.1f} %" if name == "accuracy" else f"{value:.4g}"


def _step(name: str, value: float) -> str:
    return f"{100 * value:+.1f} points" if name == "accuracy" else f"{value:+.3g}"


def to_rows(found: Sequence[Warned], round: int) -> list[dict[str, Any]]:
    """Return warnings as lines of `events.jsonl`, in the form of failures."""
    return [
        {
            "round": round,
            "exchange": "",
            "kind": "warning",
            "client": one.clients[0] if len(one.clients) == 1 else "",
            "stage": one.kind,
            "block": "",
            "message": one.message,
            "details": ", ".join(one.clients) if len(one.clients) > 1 else "",
        }
        for one in found
    ]
