"""A run played anew, in a folder of its own, with somebody who listens to what clients send."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from intarsia.blocks import Address, Block, Fold, Task, Update
from intarsia.core import DataError, IntarsiaError
from intarsia.engines import Engine, Job, Reply
from intarsia.experiment import EngineSettings, Experiment, Run
from intarsia.experiment.earlier import Earlier
from intarsia.federation import Observer
from intarsia.runs import RunFolder, RunState

Key = tuple[str, str, str]
"""A client, what an exchange is for, and its step."""


@dataclasses.dataclass(frozen=True)
class Heard:
    """One task and its answer, as they travelled, with the blocks that the client started from."""

    task: Task
    update: Update
    held: Mapping[Address, Block]
    samples: int

    @property
    def changes(self) -> dict[str, Block]:
        """By how much the client changed each tensor that it sent back, by the block's name."""
        return {
            address.block: Block(
                {n: t.double() - self.held[address].tensors[n].double() for n, t in block.tensors.items()}
            )
            for address, block in self.update.blocks.items()
        }


@dataclasses.dataclass
class Ear:
    """Keeps the first and the last answer of every client to every step."""

    first: dict[Key, Heard] = dataclasses.field(default_factory=dict)
    last: dict[Key, Heard] = dataclasses.field(default_factory=dict)

    def hear(self, job: Job, content: Mapping[str, Block], update: Update) -> None:
        """Take in one answer."""
        held = {address: content[version] for address, version in job.task.versions.items()}
        heard = Heard(job.task, update, held, job.samples)
        key = (job.task.client, job.task.purpose, job.task.exchange)
        self.first.setdefault(key, heard)
        self.last[key] = heard

    def blocks_of(self, client: str) -> Heard | None:
        """Return the client's last answer that had blocks in it."""
        having = [h for (name, _, _), h in self.last.items() if name == client and h.update.blocks]
        return max(having, key=lambda heard: heard.task.round, default=None)


class ListeningEngine(Engine):
    """Carries tasks as another engine does; all that comes back is heard."""

    def __init__(self, engine: Engine, ear: Ear) -> None:
        self.name = engine.name
        self.engine = engine
        self.ear = ear

    def exchange(
        self, jobs: Sequence[Job], content: Mapping[str, Block], fold: Fold | None, keep_blocks: bool
    ) -> Iterator[Reply]:
        """Carry the jobs; hear every update with its blocks."""
        by_name = {job.task.client: job for job in jobs}
        for reply in self.engine.exchange(jobs, content, fold, True):
            if reply.update is not None:
                self.ear.hear(by_name[reply.client], content, reply.update)
            kept = reply.update if keep_blocks or reply.update is None else reply.update.without_blocks()
            yield dataclasses.replace(reply, update=kept)

    def close(self) -> None:
        """Let go of what the engine holds."""
        self.engine.close()


@dataclasses.dataclass(frozen=True)
class Overheard(Experiment):
    """An experiment with somebody who listens."""

    ear: Ear = dataclasses.field(default_factory=Ear)

    def engine(self, folder: RunFolder) -> Engine:
        """Start the engine, and listen to it."""
        return ListeningEngine(super().engine(folder), self.ear)


class _Until(Observer):
    """Stops a run after a round."""

    def __init__(self, round: int | None) -> None:
        self.round, self.done = round, 0

    def round_done(self, report: object) -> None:
        """Count it."""
        self.done += 1

    def wants_stop(self) -> bool:
        """Stop if it was the last one that is wanted."""
        return self.done == self.round


@dataclasses.dataclass(frozen=True)
class Played:
    """A run that was played anew, and what was heard of it."""

    run: Run
    ear: Ear

    @property
    def state(self) -> RunState:
        """All that the run was in the end."""
        return self.run.state()


def experiment_of(run: Run) -> Experiment:
    """Return a run's experiment with its data, starting as the run did, on the engine that plays one client a time."""
    try:
        experiment = run.experiment
    except (IntarsiaError, OSError) as error:
        raise DataError(
            f"an audit plays parts of {run.path} anew, and tries attacks on its clients' samples, so that it takes "
            f"the data, where the settings name it, or given (intarsia.open_run(folder, data=...)): {error}"
        ) from error
    absent = [name for name, client in experiment.setup.population.clients.items() if not client.data]
    if absent:
        raise DataError(
            f"client '{absent[0]}' of {run.path} has its data at a site of its own: audit a run of the same settings "
            "whose data is here"
        )
    settings = experiment.settings.model_copy(
        update={
            "engine": EngineSettings("debug", 0, "cpu"),
            "evaluation": dataclasses.replace(
                experiment.settings.evaluation, every=experiment.settings.rounds, baseline="none"
            ),
            "checkpoints": dataclasses.replace(
                experiment.settings.checkpoints, every=experiment.settings.rounds
            ),
        }
    )
    setup = experiment.setup.starting_from(run.initial_blocks())
    return dataclasses.replace(experiment, settings=settings, setup=setup)


@contextmanager
def played(experiment: Experiment, rounds: int | None = None) -> Iterator[Played]:
    """Play an experiment (or its first rounds) in a folder that is gone afterwards."""
    heard = Overheard(experiment.settings, experiment.setup)
    earlier = Earlier.of(experiment)
    with tempfile.TemporaryDirectory(prefix="intarsia-audit-") as place:
        folder = RunFolder.create(Path(place) / "run", experiment.settings.to_toml())
        try:
            heard.play(folder, earlier.start(folder) if earlier else None, _Until(rounds))
        finally:
            folder.close()
        yield Played(Run(folder, heard), heard.ear)
