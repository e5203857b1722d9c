"""What FedMN's clients decided: their networks, who decided alike, what each block was used for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from intarsia.experiment import Settings
from intarsia.experiment.run_record import RunRecord
from intarsia.judging.agreement import adjusted_rand
from intarsia.methods import OWN
from intarsia.methods.fedmn import ModulePoolLayout
from intarsia.methods.fedmn.links import Layers, block_name, effective_links
from intarsia.methods.modfl.cohorts import group_decisions

KINDS = {"encoder": "encoders", "block": "blocks", "head": "heads", "router": "router"}
"""Kinds of blocks, by how their names begin."""
MOMENTS = 5
"""How many rounds are shown, from the first to the last."""


class Sent(NamedTuple):
    """How many copies of blocks travelled, and their bytes."""

    copies: int
    bytes: int


Payload = dict[str, dict[str, Sent]]
"""What travelled, by kind of block and direction."""


@dataclass(frozen=True)
class Decisions:
    """All decisions of a run."""

    layers: Layers
    rows: list[dict[str, Any]]
    """One a round, stage and client, as the method noted them."""
    losses: dict[int, float]
    """The global loss (eq. 6) by round."""
    cohorts: dict[str, str]
    """The true cohort of every client."""
    payload: Payload

    @property
    def blocks(self) -> list[str]:
        """All blocks of the pool, from the encoders to the heads."""
        return [block_name(self.layers, (i, k)) for i, width in enumerate(self.layers) for k in range(width)]

    @property
    def rounds(self) -> list[int]:
        """The rounds after which own models were decided."""
        return sorted({row["round"] for row in self.rows if row["stage"] == OWN})

    @cached_property
    def final(self) -> dict[str, list[bool]]:
        """The effective links of every client's own model after the last round."""
        last = self.rounds[-1]
        own = {
            row["client"]: row["gates"] for row in self.rows if (row["round"], row["stage"]) == (last, OWN)
        }
        return {client: effective_links(self.layers, gates) for client, gates in own.items()}

    @cached_property
    def clusters(self) -> dict[str, int]:
        """Every client's implicit cluster after the last round."""
        return implicit_clusters(self.final)

    @cached_property
    def clients(self) -> list[str]:
        """The clients, by true cohort and then by implicit cluster."""
        clusters = self.clusters
        return sorted(clusters, key=lambda client: (self.cohorts[client], clusters[client], client))

    @property
    def unused(self) -> dict[int, dict[str, frozenset[str]]]:
        """The blocks that each client's own model did without, by round and client."""
        found: dict[int, dict[str, frozenset[str]]] = defaultdict(dict)
        for row in self.rows:
            if row["stage"] == OWN:
                found[row["round"]][row["client"]] = frozenset(self.blocks) - set(row["blocks"])
        return dict(found)

    def use(self, round: int) -> list[list[float]]:
        """Return in which share of the rounds so far each client's own model had each block (rows: clients)."""
        used: dict[str, list[list[str]]] = defaultdict(list)
        for row in self.rows:
            if row["stage"] == OWN and row["round"] <= round:
                used[row["client"]].append(row["blocks"])
        return [
            [sum(block in own for own in used[c]) / max(1, len(used[c])) for block in self.blocks]
            for c in self.clients
        ]

    def fallbacks(self, stage: str) -> dict[int, int]:
        """Return by round how many clients had no complete path in a stage, `train` or `own`."""
        counts: dict[int, int] = defaultdict(int)
        for row in self.rows:
            if row["stage"] == stage:
                counts[row["round"]] += row["fallback"]
        return dict(counts)


def read_decisions(run: RunRecord) -> Decisions | None:
    """Return a run's decisions; None where none were noted or the settings do not tell the pool's layers."""
    layers, notes = _layers(run.settings), run.notes
    rows = [n for n in notes if n["kind"] == "decision"]
    if layers is None or not any(row["stage"] == OWN for row in rows):
        return None
    losses = {n["round"]: n["value"] for n in notes if n["kind"] == "global loss"}
    about = run.population.get("clients", {})
    cohorts = {row["client"]: about.get(row["client"], {}).get("cohort", "") for row in rows}
    return Decisions(layers, rows, losses, cohorts, payload(run.traffic))


def _layers(settings: Settings) -> Layers | None:
    """Return the layers of the pool; None if it was given in Python, or if there are unlike ones."""
    models = (settings.model, *settings.models.values())
    found = {tuple(m["layers"]) for m in models if m["name"] == ModulePoolLayout.name}
    return found.pop() if len(found) == 1 else None


def implicit_clusters(links: Mapping[str, Sequence[bool]]) -> dict[str, int]:
    """Return every client's cluster: those with equal links share one; numbered from 1, the largest first."""
    sizes = Counter(tuple(own) for own in links.values())
    numbers = {own: number for number, (own, _) in enumerate(sizes.most_common(), 1)}
    return {client: numbers[tuple(own)] for client, own in links.items()}


class Match(NamedTuple):
    """Groups that were found, and how well they match the true cohorts."""

    title: str
    groups: dict[str, int]
    rand: float | None
    """The adjusted Rand index; None where there is one cohort only."""


def matches(decisions: Decisions) -> list[Match]:
    """Compare the implicit clusters, and as many groups of alike decisions as there are cohorts, with these."""
    links = {client: decisions.final[client] for client in decisions.clients}
    given = [decisions.cohorts[client] for client in links]
    number = len(set(given))
    grouped = group_decisions(list(links.values()), number)
    names = {group: name for name, group in enumerate(dict.fromkeys(grouped), 1)}
    found = {
        "equal decisions": {client: decisions.clusters[client] for client in links},
        "average linkage, Hamming distance": {c: names[g] for c, g in zip(links, grouped, strict=True)},
    }
    return [
        Match(title, groups, adjusted_rand(given, list(groups.values())) if number > 1 else None)
        for title, groups in found.items()
    ]


def contingency(cohorts: Mapping[str, str], groups: Mapping[str, int]) -> list[list[int]]:
    """Return how many clients of each cohort (rows) are in each group (columns), both in order."""
    counts = Counter((cohorts[client], group) for client, group in groups.items())
    rows, columns = sorted({row for row, _ in counts}), sorted(set(groups.values()))
    return [[counts[row, column] for column in columns] for row in rows]


def payload(traffic: Iterable[Mapping[str, Any]]) -> Payload:
    """Return what travelled for training by kind of block and direction."""
    sent = {kind: {"down": Sent(0, 0), "up": Sent(0, 0)} for kind in KINDS.values()}
    for row in traffic:
        if row["purpose"] == "train" and row["block"]:
            own = sent.setdefault(_kind(row["block"]), {"down": Sent(0, 0), "up": Sent(0, 0)})
            before = own[row["direction"]]
            own[row["direction"]] = Sent(before.copies + 1, before.bytes + row["bytes"])
    return sent


def _kind(block: str) -> str:
    return next((kind for start, kind in KINDS.items() if block.startswith(start)), "other")
