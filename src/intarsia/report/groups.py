"""Groups of clients that share blocks: who is in them, how they do, and how they changed from round to round."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from intarsia.blocks import ME
from intarsia.core.text import percent
from intarsia.judging.agreement import adjusted_rand
from intarsia.report.assemblies import LEFT_OUT, Assemblies, Moment
from intarsia.report.clients import ClientScores
from intarsia.report.elements import evenly, folded, html_table
from intarsia.report.figures import as_data
from intarsia.report.mosaic import Palette

MOST_COLUMNS, MOST_GROUPS, MOST_MOVES, NAMED = 8, 24, 30, 4
"""How many rounds a flow has, how many groups and moves a table has, and how many clients are named at once."""
Members = Mapping[str, str]
"""The group of every client that has a block."""


def groups_part(assemblies: Assemblies, moves: Sequence[Mapping[str, Any]], scores: ClientScores) -> str:
    """Return the groups of a run as a part of a page; empty where everything is everyone's, or at home."""
    blocks = [block for block in assemblies.blocks if _is_divided(assemblies, block)]
    changed = [block for block in blocks if any(move["block"] == block for move in moves)]
    if not blocks:
        return ""
    flows = "".join(_flow_part(assemblies, block, scores) for block in changed)
    return _group_table(assemblies, blocks, scores) + flows + (_move_table(moves) if moves else "")


def _is_divided(assemblies: Assemblies, block: str) -> bool:
    """Return whether a block was ever shared in several groups, one of them by more than one client."""
    sizes = (Counter(members(moment, block).values()) for moment in assemblies.moments)
    return any(len(own) > 1 and max(own.values()) > 1 for own in sizes)


def members(moment: Moment, block: str) -> dict[str, str]:
    """Return the group that each client shares a block in."""
    found = {client: own.get(block, LEFT_OUT) for client, own in moment.groups.items()}
    return {client: group for client, group in found.items() if group not in (LEFT_OUT, ME)}


def _group_table(assemblies: Assemblies, blocks: Sequence[str], scores: ClientScores) -> str:
    rows = []
    for block in blocks:
        of_group: dict[str, list[str]] = {}
        for client, group in members(assemblies.last, block).items():
            of_group.setdefault(group, []).append(client)
        rows += [
            (group, block, str(len(own)), *_worth(own, scores)) for group, own in sorted(of_group.items())
        ]
    more = len(rows) - MOST_GROUPS
    told = f"<p>{more} groups more are left out.</p>" if more > 0 else ""
    heads = ("Group", "Block", "Clients", "Mean accuracy", "Worst client")
    return html_table(heads, rows[:MOST_GROUPS]) + told


def _worth(clients: Sequence[str], scores: ClientScores) -> tuple[str, str]:
    """Return the mean accuracy of clients, and the worst of them."""
    found = {c: own for c in clients if (own := scores.metrics.get(c, {}).get("accuracy")) is not None}
    if not found:
        return "-", "-"
    worst = min(found, key=lambda client: found[client])
    return percent(sum(found.values()) / len(found)), f"{worst}, {percent(found[worst])}"


def _flow_part(assemblies: Assemblies, block: str, scores: ClientScores) -> str:
    """Return how the groups of a block changed: a column a round, a ribbon for those who went together."""
    data = flow_of(assemblies, block)
    heading = f"<h3>How the groups of {html.escape(block)} changed</h3>"
    part = f'<div class="flow-of" data-part="flow" id="flow-{_hex(block)}-{_hex(str(scores.run.path))}">'
    return heading + _match(members(assemblies.last, block), scores) + part + as_data(data) + "</div>"


def _hex(text: str) -> str:
    return text.encode(errors="replace").hex()


def flow_of(assemblies: Assemblies, block: str) -> dict[str, Any]:
    """Return the groups of a block by round, and how many clients went from which to which."""
    palette = Palette.of(assemblies)
    moments = evenly(_changes(assemblies, block), MOST_COLUMNS)
    held = [members(moment, block) for moment in moments]
    columns = [sorted(set(own.values())) for own in held]
    sizes = [Counter(own.values()) for own in held]
    return {
        "words": f"how many clients went from which group of {block} to which, round by round",
        "rounds": [moment.round for moment in moments],
        "columns": [
            [[palette.colour(moment, block, group), count[group], group] for group in own]
            for moment, own, count in zip(moments, columns, sizes, strict=True)
        ],
        "flows": [
            [
                [columns[at].index(old), columns[at + 1].index(new), n]
                for (old, new), n in _together(*both).items()
            ]
            for at, both in enumerate(pairwise(held))
        ],
    }


def _changes(assemblies: Assemblies, block: str) -> list[Moment]:
    """Return the moments after which a block's groups were others."""
    found = [assemblies.moments[0]]
    for moment in assemblies.moments[1:]:
        if members(moment, block) != members(found[-1], block):
            found.append(moment)
    return found


def _together(before: Members, after: Members) -> Counter[tuple[str, str]]:
    pairs = ((group, after[client]) for client, group in before.items() if client in after)
    return Counter(sorted(pairs))


def _match(own: Members, scores: ClientScores) -> str:
    """Say how well groups that were found match the cohorts that the data has."""
    about = scores.run.population.get("clients", {})
    cohorts = [about.get(client, {}).get("cohort", "") for client in own]
    if len(set(cohorts)) < 2 or len(set(own.values())) < 2:
        return ""
    rand = adjusted_rand(cohorts, list(own.values()))
    return (
        f"<p>Beside the cohorts of the data, the groups have an adjusted Rand index of {rand:.2f} (1: the same, 0: no "
        "better than chance).</p>"
    )


def _move_table(moves: Sequence[Mapping[str, Any]]) -> str:
    """Return who went where, the newest first."""
    found: dict[tuple[int, str, str, str], list[str]] = {}
    for move in moves:
        key = (move["round"], move["block"], move.get("before", ""), move["group"])
        found.setdefault(key, []).append(move["client"])
    rows = [
        (str(round), block, before or "-", group, str(len(who)), _some(who))
        for (round, block, before, group), who in sorted(found.items(), key=lambda item: -item[0][0])
    ]
    left = len(rows) - MOST_MOVES
    told = f"<p>{left} earlier changes are left out.</p>" if left > 0 else ""
    heads = ("Round", "Block", "From", "To", "Clients", "Who")
    title = f"Who changed groups: {len(rows)} {'change' if len(rows) == 1 else 'changes'}"
    return folded(title, html_table(heads, rows[:MOST_MOVES]) + told)


def _some(clients: Sequence[str]) -> str:
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    return ", ".join(clients[:NAMED]) + more
