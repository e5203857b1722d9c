"""Whether an update can be the answer to its task: who, what, how many; asked before anything is merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.blocks import Expected, Number, Task, Update
from intarsia.blocks.expected import Kind
from intarsia.blocks.plain import shown
from intarsia.core import Refused
from intarsia.judging import FACTS, JUDGE
from intarsia.judging.tallies import Facts, LabelTally, ValueTally
from intarsia.methods import EVALUATE, Asked, scored_stages
from intarsia.setup import Setup
from intarsia.trust import STEPS, answers

SCORES = "scores"
STAGES = 16
"""The most stages of its own model that a client can score."""
SCORED = ("test", "validation")


def check_answer(setup: Setup, task: Task, update: Update) -> None:
    """Refuse an update that answers another task, or says what cannot be of this client."""
    asked = (task.run, task.round, task.exchange, task.purpose, task.client)
    got = (update.run, update.round, update.exchange, update.purpose, update.client)
    if asked != got:
        raise Refused(f"the update is for {shown(got)}, the task was {asked}")
    samples = setup.population.clients[task.client].info.train_samples
    if update.samples != samples:
        raise Refused(f"the update stands for {update.samples} samples, the client has {samples}")
    expected(setup, task).check(update)
    if task.exchange not in (EVALUATE, *STEPS):
        setup.method.check_reply(setup.template(task.client).model, update)


def expected(setup: Setup, task: Task) -> Expected:
    """Return what the answer to a task may hold beside blocks."""
    if task.exchange in STEPS:
        return answers(task)
    about = asked(setup, task.client)
    if task.exchange != EVALUATE:
        return setup.method.expects(task.exchange, about)
    parts = task.values.get(JUDGE)
    told = {} if parts is None else {FACTS: Facts(about.outputs if about.loss.hits else 0)}
    return Expected({SCORES: _Scores(about, scored_stages(task.values), parts), **told})


def asked(setup: Setup, client: str) -> Asked:
    """Return who was asked, and what bounds the answer."""
    info = setup.population.clients[client].info
    public = setup.population.public
    return Asked(
        info,
        setup.template(client).model,
        setup.training,
        setup.loss(info),
        None if public is None else len(public),
    )


class _Scores(Kind):
    """The scores of a client's own model: each stage and split once, some stages at least, over all its samples.

    Where it is judged, those of the last stage come with what was counted: it must fit the scores.
    """

    def __init__(self, about: Asked, stages: Sequence[str], parts: Sequence[str] | None) -> None:
        self.about = about
        self.parts = parts
        self.judged = stages[-1] if parts is not None else ""
        self.counts = {s: n for s, n in about.client.samples.items() if s in SCORED}
        self.needed = {(stage, split) for stage in stages for split in self.counts}

    def fault(self, value: Any) -> str:
        """Return what is wrong with a list of scores."""
        if not isinstance(value, list) or len(value) > STAGES * len(SCORED):
            return f"{shown(value)}: a list of scores was expected"
        seen: set[tuple[str, str]] = set()
        for score in value:
            fault = self._fault(score, seen)
            if fault:
                return fault
        missing = self.needed - seen
        return f"no score of stage and split {min(missing)}" if missing else ""

    def _fault(self, score: Any, seen: set[tuple[str, str]]) -> str:
        fields = {"stage", "split", "n", "correct", "loss"}
        if isinstance(score, dict) and self.judged and score.get("stage") == self.judged:
            fields |= {"tally", "usual", "unseen"}
        if not isinstance(score, dict) or score.keys() != fields:
            return f"{shown(score)}: a score has {', '.join(sorted(fields))}"
        stage, split = score["stage"], score["split"]
        if not isinstance(stage, str) or not stage.isprintable() or len(stage) > 100:
            return f"a score of stage {shown(stage)}"
        if not isinstance(split, str) or split not in self.counts or (stage, split) in seen:
            return (
                f"a score of stage {shown(stage)} and split {shown(split)}, which is not there or there twice"
            )
        seen.add((stage, split))
        count = self.counts[split]
        kinds = self.about.score(count, count)
        fault = _first_fault(kinds, score)
        return fault or _first_fault(self._counted(score) if stage == self.judged else {}, score)

    def _counted(self, score: dict[str, Any]) -> dict[str, Kind]:
        """Return what may have been counted of predictions with this score."""
        n, correct = score["n"], score["correct"]
        if not self.about.loss.hits:
            tally = ValueTally(self.about.columns)
            return {"tally": tally, "usual": tally, "unseen": Number(0, 0, whole=True)}
        outputs, parts = self.about.outputs, self.parts or ()
        return {
            "tally": LabelTally(outputs, n, correct, parts),
            "usual": LabelTally(outputs, n, None, parts),
            "unseen": Number(0, n, whole=True),
        }


def _first_fault(kinds: Mapping[str, Kind], score: Mapping[str, Any]) -> str:
    faults = {name: kind.fault(score[name]) for name, kind in kinds.items()}
    return next((f"a score with {name} = {fault}" for name, fault in faults.items() if fault), "")
