"""Bases trained centrally on public data, for federations to start from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor, nn

from intarsia._version import __version__
from intarsia.clients import resolve_device
from intarsia.core import (
    CheckpointError,
    DataError,
    SettingsError,
    build_part,
    chance,
    describe,
    explain,
    part,
    threads,
    write_atomically,
)
from intarsia.data import POPULATIONS, Examples, Population, places
from intarsia.experiment.arithmetic import check_precision
from intarsia.experiment.build import check_device
from intarsia.experiment.plugged import plug_in_named
from intarsia.experiment.run import path_of
from intarsia.experiment.settings import Choice, changed
from intarsia.models import MODELS, Base, Spec, base_bytes
from intarsia.models.bases import metadata_of
from intarsia.training import (
    Descent,
    Loss,
    Objective,
    Situation,
    Training,
    channels_last_layout,
    evaluate,
    loss_for,
    train,
    train_in,
    try_model,
    tune_allocator,
    usual_layout,
)

PROGRESS = "progress"
"""The entry of a checkpoint's metadata that says what it is and how far it is."""
DEFAULTS: Mapping[str, Any] = {
    "model": {"name": "resnet"},
    "population": {"name": "images", "dataset": "tinyimagenet32", "clients": 1, "split": "published"},
    "training": {
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "epochs": 10,
        "batch_size": 64,
        "schedule": {"name": "cosine"},
    },
}


@part
class Augment:
    """How training images are varied, anew in every epoch."""

    flip: bool = False
    """Whether half of them are mirrored."""
    crop: Annotated[int, Field(ge=0)] = 0
    """By how many pixels they are shifted at most, black where nothing is left."""

    def apply(self, x: Tensor, seed: int, epoch: int) -> Tensor:
        """Return images as an epoch sees them: the same for the same seed and epoch."""
        random = chance.numpy_generator(seed, "augment", epoch)
        if self.flip:
            mirrored = torch.from_numpy(random.random(len(x)) < 0.5)
            x = torch.where(mirrored.view(-1, 1, 1, 1), x.flip(-1), x)
        if self.crop:
            shifts = torch.from_numpy(random.integers(0, 2 * self.crop + 1, (len(x), 2)))
            x = _shifted(x, shifts, self.crop)
        return x


class Pretraining(BaseModel):
    """All settings of a base's training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Choice
    population: Choice
    """Whose data is used, all clients' together: their training data to train, their test data to validate."""
    training: Training
    augment: Augment = Field(default_factory=Augment)
    seed: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to."""

    number: int
    of: int
    loss: float
    accuracy: float
    """On the training images, while training."""
    validation: float
    seconds: float

    def scores(self) -> dict[str, float]:
        """Return what the same training always comes to."""
        return {"loss": self.loss, "accuracy": self.accuracy, "validation": self.validation}


@dataclass
class _Progress:
    """How far the training of a base is: what identifies it, and the epochs so far."""

    about: dict[str, Any]
    epochs: list[Epoch] = field(default_factory=list)


def pretrain(
    out: str | Path,
    *,
    changes: Iterable[str] = (),
    data_folder: str | Path = "",
    device: str = "cpu",
    cores: int = 1,
    observer: Callable[[Epoch], None] | None = None,
) -> Base:
    """Train a base on a public data set, write it with its card as a safetensors file, and return it.

    `changes` are put over the defaults: `model.blocks=2`, `population.dataset=cifar10`, `training.epochs=5`. A
    checkpoint beside `out` is written after each epoch; the same call goes on from it, and a base that is
    already there is returned. More cores are faster, but can change the last bits.
    """
    path = path_of(out, "out")
    if path.is_dir():
        raise SettingsError(f"out: {path} is a folder: name the file to write")
    if not isinstance(cores, int) or cores < 1:
        raise SettingsError(f"cores: give a whole number from 1 on, not {cores!r}")
    check_device(device, "device")
    plug_in_named()
    chosen = _settings(changes)
    check_precision(
        chosen.training.precision, resolve_device(device), "training.precision", "choose another --device"
    )
    population = build_part(POPULATIONS, chosen.population, "population").load(
        chosen.seed, places(data_folder)
    )
    work = _Work.of(chosen, population, device)
    if path.exists():
        return _already(path, work.about)
    with threads(cores):
        progress = _restored(_checkpoint(path), work)
        for epoch in _epochs_left(work, progress, chosen.training.epochs):
            _save(_checkpoint(path), work, progress)
            if observer is not None:
                observer(epoch)
    write_atomically(path, base_bytes(work.tensors(), work.card(progress)))
    _checkpoint(path).unlink(missing_ok=True)
    return Base.read(path)


def _epochs_left(work: _Work, progress: _Progress, epochs: int) -> Iterator[Epoch]:
    """Train epoch by epoch until there are as many; yield each when it is done."""
    while (done := len(progress.epochs)) < epochs:
        try:
            progress.epochs.append(work.epoch(done + 1))
        except KeyboardInterrupt:
            told = f"{done} of {epochs} epochs are done"
            raise KeyboardInterrupt(f"Stopped: {told}; the same command goes on.") from None
        yield progress.epochs[-1]


@dataclass(frozen=True)
class _Work:
    """A model, the data it is trained and validated on, and how."""

    settings: Pretraining
    spec: Spec
    model: nn.Module
    loss: Loss
    train: Examples
    test: Examples
    about: dict[str, Any]
    """What identifies the training: settings and split."""
    channels_last: bool

    @classmethod
    def of(cls, settings: Pretraining, population: Population, device: str) -> _Work:
        """Build what the settings name."""
        (goal, *others) = population.goals.values()
        if others or goal.problem != "classification":
            raise DataError("population: a base is trained on one task, and that to tell classes")
        learn, check = _pooled(population, "train"), _pooled(population, "test")
        if settings.augment != Augment() and learn.x.dim() != 4:
            raise SettingsError("augment: only images can be flipped and cropped")
        spec = Spec(build_part(MODELS, settings.model, "model"), tuple(learn.x.shape[1:]), goal.outputs)
        model, loss = spec.build(settings.seed), loss_for(settings.training.loss, goal.problem)
        channels_last = try_model(model, check, loss)
        train_in(model.to(resolve_device(device)), settings.training.precision)
        about = {"settings": _complete(settings, spec), "split": population.split_hash}
        return cls(settings, spec, model, loss, learn, check, about, channels_last)

    def epoch(self, number: int) -> Epoch:
        """Train for one epoch, with an optimiser of its own, and validate."""
        tune_allocator()
        start, seed, training = time.perf_counter(), self.settings.seed, self.settings.training
        if self.channels_last:
            channels_last_layout(self.model)
        x = self.settings.augment.apply(self.train.x, seed, number)
        with chance.torch_seeded(seed, "pretrain", number):
            trained = train(
                Situation(self.model, self.loss, {}, self.channels_last),
                Descent(Objective(), training, training.lr_in(number, training.epochs), epochs=1),
                Examples(x, self.train.y, self.train.scaling),
                chance.generator(seed, "pretrain batches", number),
            ).score
        found = evaluate(self.model, self.test, self.loss, self.channels_last)
        shares = (trained.correct / trained.n, found.correct / found.n)
        return Epoch(number, training.epochs, trained.loss, *shares, time.perf_counter() - start)

    def tensors(self) -> dict[str, Tensor]:
        """Return the model's tensors in the usual layout."""
        return usual_layout(self.model).state_dict()

    def card(self, progress: _Progress) -> dict[str, Any]:
        """Return what is known of the base that was trained."""
        options, chosen = self.spec.to_json(), self.settings
        source = chosen.population.get("dataset", chosen.population["name"])
        scaling = self.train.scaling
        return {
            "architecture": {"name": options["name"], "options": options["options"]},
            "shape": options["shape"],
            "classes": options["outputs"],
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "inputs": scaling.inputs if scaling is not None else "",
            "scaling": asdict(scaling) if scaling is not None else None,
            "trained_on": source,
            "images": len(self.train),
            "epochs": len(progress.epochs),
            "seed": chosen.seed,
            "validation": {"images": len(self.test), "accuracy": progress.epochs[-1].validation},
            "history": [epoch.scores() for epoch in progress.epochs],
            "written_by": f"intarsia {__version__}",
            **self.about,
        }


def _settings(changes: Iterable[str]) -> Pretraining:
    try:
        return Pretraining.model_validate(changed(DEFAULTS, changes))
    except ValidationError as error:
        raise SettingsError(explain(error, Pretraining)) from None


def _complete(settings: Pretraining, spec: Spec) -> dict[str, Any]:
    """Return the settings with every default written out, but for single precision: older bases say nothing of it."""
    table = settings.model_dump(mode="json")
    if settings.training.precision == "fp32":
        del table["training"]["precision"]
    table["model"] = describe(spec.architecture)
    table["population"] = describe(build_part(POPULATIONS, settings.population, "population"))
    return table


def _pooled(population: Population, split: str) -> Examples:
    """Return one split of all clients together."""
    every = [client.data[split] for client in population.clients.values() if split in client.data]
    if not every:
        raise DataError(
            f'population: there is no {split} data; let it be drawn (--set population.split="drawn")'
        )
    if len({(*e.x.shape[1:], e.x.dtype, e.scaling) for e in every}) > 1:
        raise DataError("population: the clients' inputs differ in shape or scale; a base needs one kind")
    if any(e.noise for e in every):
        raise DataError(
            "a base is trained on images as they are: leave out population.partition.redrawn, whose noise comes later"
        )
    return Examples(torch.cat([e.x for e in every]), torch.cat([e.y for e in every]), every[0].scaling)


def _shifted(x: Tensor, shifts: Tensor, most: int) -> Tensor:
    """Return every image moved by its own shift."""
    height, width = x.shape[-2:]
    padded = nn.functional.pad(x, (most, most, most, most))
    moved = torch.empty_like(x)
    for down, right in torch.unique(shifts, dim=0).tolist():
        rows = (shifts == torch.tensor([down, right])).all(1).nonzero().flatten()
        moved[rows] = padded[rows, :, down : down + height, right : right + width]
    return moved


def _checkpoint(path: Path) -> Path:
    return path.with_name(f"{path.name}.checkpoint")


def _save(path: Path, work: _Work, progress: _Progress) -> None:
    tensors = {name: t.detach().cpu().contiguous() for name, t in work.tensors().items()}
    text = json.dumps(asdict(progress))
    write_atomically(path, safetensors.torch.save(tensors, {PROGRESS: text}))


def _restored(path: Path, work: _Work) -> _Progress:
    """Put the state of a checkpoint into the model; return how far it is."""
    if not path.exists():
        return _Progress(work.about)
    data = path.read_bytes()
    try:
        tensors, found = safetensors.torch.load(data), json.loads(metadata_of(data)[PROGRESS])
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): remove it to start afresh") from error
    if found["about"] != work.about:
        raise CheckpointError(
            f"{path} belongs to a base with other settings or data{_difference(found['about'], work.about)}: "
            "give the same ones again, choose another --out, or remove it"
        )
    work.model.load_state_dict(tensors)
    return _Progress(work.about, [Epoch(**epoch) for epoch in found["epochs"]])


def _already(path: Path, about: Mapping[str, Any]) -> Base:
    base = Base.read(path)
    there = {key: base.card.get(key) for key in about}
    if there != about:
        raise SettingsError(
            f"{path} is already there and was made in another way{_difference(there, about)}: "
            "choose another --out, or remove it"
        )
    return base


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Name the first setting that is not the same, in brackets."""
    old, new = there.get("settings") or {}, here["settings"]
    for key in new:
        if old.get(key) != new[key]:
            return f" ({key}: {json.dumps(old.get(key))}, now {json.dumps(new[key])})"
    return " (the split of the data)"
