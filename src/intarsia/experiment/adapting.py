"""A client that joins later: a model from the blocks that a run has, chosen and tuned at home."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from intarsia.blocks import Block, Task
from intarsia.clients.runtime import ClientRuntime
from intarsia.clients.scoring import score_rows
from intarsia.clients.state import State
from intarsia.clients.workbench import taken_out
from intarsia.core import DataError, SettingsError, chance, one_thread, suggest
from intarsia.data.cells import is_missing
from intarsia.data.preparation import Preparation
from intarsia.data.recorded import Form
from intarsia.data.tables import Table
from intarsia.experiment.assemblies import Blocks, Candidate
from intarsia.experiment.joining import Data, Kin, joining, lacking, name_in, table_of
from intarsia.experiment.kept import own_job
from intarsia.experiment.settings import portable
from intarsia.export import Exported, Inputs, Package, Predictions, Predictor, Samples, export
from intarsia.judging.metrics import METRICS, chosen, parts_of
from intarsia.judging.verdict import judged_rows, leading
from intarsia.methods import EVALUATE, NEW, TUNED, tuned_stages
from intarsia.runs import RunState
from intarsia.setup import Setup

if TYPE_CHECKING:
    from intarsia.experiment.opened import Run

ALONE = "alone"
"""The stage of a model that the newcomer trained from the start, with nothing of the run but its first weights."""
IN_WORDS = {NEW: "as it comes", TUNED: "tuned at home", ALONE: "trained alone"}
EPOCHS = 5
Row = dict[str, Any]


Made = tuple[nn.Module, list[dict[str, Any]]]
"""A model, and its scores on the splits that a client is judged by."""


@dataclass(frozen=True)
class Adapted:
    """A newcomer's model, and what it was chosen by."""

    package: Package
    kept: str
    """Which model it is: as it comes (`new`), `tuned`, or trained `alone`."""
    blocks: Mapping[str, str]
    """The address of each block that it was begun with."""
    judged: Sequence[Row]
    """One row a model (`stage`) and split: metrics, intervals and the baseline of the usual answer."""
    tried: Sequence[Row]
    """What it could be made of: blocks, and the leading metric on validation data; best first."""

    @property
    def model(self) -> torch.nn.Module:
        """The model, as a plain module."""
        return self.package.model

    def row(self, stage: str = "", split: str = "test") -> Row:
        """Return what a model is worth ("" : the one that was kept)."""
        wanted = (stage or self.kept, split)
        return next(row for row in self.judged if (row["stage"], row["split"]) == wanted)

    def export(self, to: str | Path, *, force: bool = False) -> Exported:
        """Write it as a plain model that runs without Intarsia."""
        return export(self.package, Path(to), force=force)

    def predict(self, samples: Samples, *, identity: str = "") -> Predictions:
        """Predict for new samples, as the models of a run's clients do."""
        return Predictor.of(self.package).predict(samples, identity)


def adapt(run: Run, data: Data, name: str, device: str | None, epochs: int) -> Adapted:
    """Give a client that was not there a model from the run's blocks; see `Run.adapt`."""
    if not isinstance(epochs, int) or epochs < 0:
        raise SettingsError(f"epochs: give a whole number of at least 0, not {epochs!r}")
    name = name or name_in(data, run.settings.population)
    if name in run.clients:
        raise DataError(f"the run has a client '{name}' already: give the newcomer another name (--name)")
    return _Adapting(run, name, epochs).adapted(data, device)


class _Adapting:
    """One newcomer, and the run that it joins."""

    def __init__(self, run: Run, name: str, epochs: int) -> None:
        self.run, self.name, self.epochs = run, name, epochs
        self.state: RunState = run.state()
        self.setup: Setup = run.setup.starting_from(run.initial_blocks())
        self.blocks = Blocks(self.setup, self.state, name)
        self.method = self.setup.method
        self.settings = run.settings
        problems = {goal.problem for goal in self.setup.population.goals.values()}
        self.metrics = chosen(self.settings.evaluation.metrics, problems)

    def adapted(self, data: Data, device: str | None) -> Adapted:
        candidates = self.candidates(data, device)
        tried = [(one, self.models(one)) for one in candidates]
        stage = TUNED if self.epochs and self.blocks.begins_at_home(candidates[0]) else NEW
        judged = [self.judged(one, made) for one, made in tried]
        order = sorted(range(len(tried)), key=lambda i: _merit(judged[i], stage), reverse=True)
        best, made = tried[order[0]]
        made = self.models(best, tuned=True) | {ALONE: self.alone(best)}
        rows = self.judged(best, made)
        kept = max((s for s in (TUNED, NEW, ALONE) if s in made), key=lambda s: _merit(rows, s))
        blocks = self.blocks.addresses(best)
        found = [
            {"blocks": self.blocks.addresses(tried[i][0]), **_figure(judged[i], stage, "validation")}
            for i in order
        ]
        package = self.package(best, made[kept], kept, rows, blocks)
        return Adapted(package, kept, blocks, rows, found)

    def candidates(self, data: Data, device: str | None) -> list[Candidate]:
        """Return all that a model for this data can be made of."""
        found: list[Candidate] = []
        refused: list[DataError] = []
        for kin in self.kins(data, device):
            try:
                read = joining(data, self.name, kin, self.population(kin), self.setup.seed)
            except DataError as error:
                refused.append(error)
            else:
                found += self.blocks.assemblies(kin, read)
        if not found:
            raise refused[0]
        return found

    def kins(self, data: Data, device: str | None) -> list[Kin]:
        """Return a client of every device, task and model that the newcomer may be like."""
        infos = self.setup.population.infos
        if device is not None and device not in {info.device for info in infos}:
            devices = list(dict.fromkeys(info.device for info in infos))
            raise DataError(f"device: the run has no device '{device}'{suggest(device, devices)}")
        alike = {(i.device, i.task, self.setup.model_of[i.name]): i.name for i in reversed(infos)}
        kins = [self.kin(name) for name in reversed(alike.values())]
        table = table_of(data, self.population(kins[0]))
        said = device if device is not None else _said(table, {info.device for info in infos})
        kins = [kin for kin in kins if said in (None, kin.info.device)]
        return kins if table is None else _fitting(kins, table)

    def kin(self, name: str) -> Kin:
        info, prepared = self.setup.population.clients[name].info, self.run.client(name).preparation
        columns = prepared.columns if isinstance(prepared, Preparation) else ()
        goal = self.setup.population.goals[info.task]
        return Kin(info, self.run.client(name).form, prepared, goal, columns)

    def population(self, kin: Kin) -> Mapping[str, Any]:
        """Return the settings that the data of clients like this one was read by."""
        chosen = self.settings.population
        members = chosen.get("members", {})
        own = [m for m in members.values() if m.get("name") == "files" and m.get("task", "") == kin.info.task]
        return own[0] if own else chosen

    def models(self, one: Candidate, tuned: bool = False) -> dict[str, Made]:
        """Return the newcomer's model as it comes, and tuned where that is asked for or needed to compare."""
        epochs = self.epochs if tuned or self.blocks.begins_at_home(one) else 0
        return self.made(one, self.blocks.begun(one), epochs)

    def alone(self, one: Candidate) -> Made:
        """Return a model that begins as those of the run did, and trains as long as a client of every round."""
        state = RunState(self.state.run, self.blocks.joined(one).initial_pool(), round=1)
        epochs = max(1, self.epochs, self.state.round * self.setup.training.epochs)
        return self.made(one, state, epochs)[TUNED]

    def made(self, one: Candidate, state: RunState, epochs: int) -> dict[str, Made]:
        setup = self.blocks.joined(one)
        job, content = own_job(setup, replace(self.settings.sampling, newcomers=0), state, self.name)
        runtime = ClientRuntime(setup, self.run._folder.store, "cpu")
        with one_thread(), torch.inference_mode(False), torch.enable_grad():
            asked = (job.task, job.state, content.__getitem__, epochs, parts_of(self.metrics))
            return newcomer_models(runtime, *asked)

    def judged(self, one: Candidate, made: Mapping[str, Made]) -> list[Row]:
        """Return a row a model and split, with metrics, intervals and baselines."""
        task = one.kin.info.task
        counted = [
            {
                **{key: row[key] for key in ("split", "n", "loss", "unseen", "tally")},
                **{"client": self.name, "task": task, "stage": stage, "usual_tally": row["usual"]},
            }
            for stage, (_, rows) in made.items()
            for row in rows
        ]
        return judged_rows(counted, self.metrics)

    def package(
        self, one: Candidate, made: Made, kept: str, rows: Sequence[Row], blocks: Mapping[str, str]
    ) -> Package:
        client, setup = one.joining.client, self.setup
        began = {} if kept == ALONE else dict(blocks)
        adapted = {"kept": kept, "blocks": began, "epochs": self.epochs, "device": client.info.device}
        return Package(
            client=self.name,
            model=made[0],
            inputs=Inputs.of(Form.of(client), one.joining.prepared),
            goal=one.kin.goal,
            facts={
                "method": self.method.name,
                "run": self.settings.name,
                "round": self.state.round,
                "adapted": adapted,
            },
            story=self.story(one, kept, rows, began, setup.method.title),
            test=client.data["test"],
        )

    def story(
        self, one: Candidate, kept: str, rows: Sequence[Row], blocks: Mapping[str, str], title: str
    ) -> dict[str, Any]:
        """Return what the model's card says."""
        client, goal = one.joining.client, one.kin.goal
        return {
            "method": title,
            "origin": _origin(kept, blocks, self.epochs),
            "attributes": {"device": client.info.device},
            "samples": dict(client.info.samples),
            "labels": goal.columns,
            "counts": {split: goal.histogram(own) for split, own in client.data.items()},
            "metrics": [_told(row, kept) for row in rows],
            "settings": portable(self.settings).to_toml(),
        }


def _said(table: Table | None, devices: Collection[str]) -> str | None:
    """Return the device that a column of the table names, if the run knows it."""
    cells = {cell for cell in (table.columns.get("device", ()) if table else ()) if not is_missing(cell)}
    return next(iter(cells)) if len(cells) == 1 and cells <= set(devices) else None


def _fitting(kins: Sequence[Kin], table: Table) -> list[Kin]:
    """Return those whose columns a table has: of the device with most of them."""
    made_of_columns = [kin for kin in kins if kin.columns]
    if not made_of_columns:
        raise DataError(
            f"{table.source}: the run's models take no table: give an .npz archive with x and y, or images"
        )
    gaps = [lacking(kin, table) for kin in made_of_columns]
    fitting = [kin for kin, missing in zip(made_of_columns, gaps, strict=True) if not missing]
    if not fitting:
        nearest = min(range(len(gaps)), key=lambda i: len(gaps[i]))
        device = made_of_columns[nearest].info.device
        raise DataError(
            f"{table.source}: column '{gaps[nearest][0]}' is missing or empty, and models of device '{device}' were "
            f"trained with it; there are: {', '.join(table.header)}: add it, or name another device (--device)"
        )
    most = max(len(kin.columns) for kin in fitting)
    return [kin for kin in fitting if len(kin.columns) == most]


def _merit(rows: Sequence[Row], stage: str) -> tuple[float, float]:
    """Return how good a model is on validation data: the leading metric, then the loss."""
    row = next(row for row in rows if (row["stage"], row["split"]) == (stage, "validation"))
    name = leading(row)
    value, loss = row["metrics"][name], row["loss"]
    good = -math.inf if value is None else float(value) if METRICS[name].more else -float(value)
    return good, -math.inf if loss is None or math.isnan(loss) else -loss


def _figure(rows: Sequence[Row], stage: str, split: str) -> Row:
    row = next(row for row in rows if (row["stage"], row["split"]) == (stage, split))
    return {leading(row): row["metrics"][leading(row)], "loss": row["loss"], "n": row["n"], "stage": stage}


def _origin(kept: str, blocks: Mapping[str, str], epochs: int) -> str:
    """Say how the model was made."""
    if kept == ALONE:
        return "The client joined later; no model from the run's blocks was better than one that it trained alone."
    tuned = f", tuned on its own data for {epochs} epochs" if kept == TUNED else ", as they are"
    return f"The client joined later: its model is made of {', '.join(blocks.values())}{tuned}."


def _told(row: Row, kept: str) -> Row:
    """Return a row of figures for the card."""
    name = leading(row)
    low_high = row["interval"].get(name)
    return {
        "model": IN_WORDS[row["stage"]] + (" (this one)" if row["stage"] == kept else ""),
        "split": row["split"],
        "n": row["n"],
        **{key: value for key, value in row["metrics"].items() if not isinstance(value, dict)},
        "95 %": f"{low_high[0]:.3g} ... {low_high[1]:.3g}" if low_high else "",
        f"{name} of the usual answer": row["usual"][name],
    }


def newcomer_models(
    runtime: ClientRuntime,
    task: Task,
    state: State,
    content: Callable[[str], Block],
    epochs: int,
    parts: Collection[str],
) -> dict[str, Made]:
    """Return the newcomer's model by stage: as it comes, and after some epochs on its own data (0: not tuned)."""
    setup = runtime.setup
    bench, local = runtime.join(task, state, content)
    with chance.torch_seeded(setup.seed, EVALUATE, task.round, task.client):
        return {
            stage: (taken_out(bench), score_rows(local, stage, parts))
            for stage in tuned_stages(setup.method, local, epochs)
        }
