"""Runs under masks: the same results as without, to the last bit, whoever drops out; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import intarsia
from intarsia.blocks import Address, Merge, Update
from intarsia.core import ClientError, SettingsError, part
from intarsia.engines import engine as carrying
from intarsia.federation import RunStopped
from intarsia.methods import METHODS, Sharing
from intarsia.methods.fedavg import FedAvg
from intarsia.setup import obstacle
from intarsia.trust.guard import Guard
from intarsia.trust.secure_sums import AGREE, KEYS, OPEN, SHARES
from tests.conftest import failures

BASE: dict[str, Any] = {
    "name": "masked",
    "rounds": 2,
    "sharing": {"by": "device"},
    "population": {"name": "digits", "clients": 10, "cohorts": 2},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"lr": 0.1, "batch_size": 16},
    "engine": {"name": "debug", "device": "cpu", "workers": 2},
}
ONE = {"sharing": {}, "population": {**BASE["population"], "generations": ["8x8"]}}
"""All clients have the same device, and share one block."""
BY_DEVICE = Sharing(by="device")
ON = {"secure_sums": {"on": True}}
CNN = {"name": "cnn", "channels": [4, 6], "hidden": 8}
METHODS_TRIED: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedper": {"method": "fedper"},
    "modfl": {"method": "modfl", "sharing": {}},
    "adapters": {"adapters": "parallel", "model": CNN},
    "fednova": {**ONE, "method": "fednova", "sampling": {"clients": 8}},
    "pfedme": {"method": "pfedme"},
}


def play(out: Path, changes: dict[str, Any], **given: Any) -> intarsia.Run:
    return intarsia.run({**BASE, **changes}, out=out, **given)


def pool(run: intarsia.Run) -> dict[str, str]:
    blocks = run.state().pool
    return {str(address): blocks.get(address).version for address in blocks}


def same(one: intarsia.Run, other: intarsia.Run) -> bool:
    """Return whether two runs have the same metrics, shared blocks and clients' states."""
    mine, yours = (
        [(run.path / f"{table}.jsonl").read_bytes() for table in ("metrics", "judged")]
        + [pool(run)]
        + [{name: record.state for name, record in run.state().clients.items()}]
        for run in (one, other)
    )
    return mine == yours


@pytest.mark.parametrize("engine", ["debug", "local"])
@pytest.mark.parametrize("name", METHODS_TRIED)
def test_results_are_those_without_masks(tmp_path, engine, name):
    changes = {**METHODS_TRIED[name], "engine": {**BASE["engine"], "name": engine}}
    plain, masked = play(tmp_path / "plain", changes), play(tmp_path / "masked", {**changes, **ON})
    assert same(plain, masked)
    assert failures(masked) == []
    assert {row["exchange"] for row in masked.traffic} >= {KEYS, SHARES, AGREE, OPEN}


@pytest.mark.parametrize(
    "name", sorted(n for n in METHODS if n not in METHODS_TRIED and not obstacle(METHODS[n]()))
)
def test_every_other_method_that_can_gives_the_same_too(tmp_path, name):
    plain, masked = (play(tmp_path / str(i), {"method": name, **on}) for i, on in enumerate(({}, ON)))
    assert same(plain, masked)
    assert failures(masked) == []


@part
class Leaving(FedAvg):
    """Some clients' training fails, in every round others."""

    name: ClassVar[str] = "leaving"
    title: ClassVar[str] = "Leaving"

    share: float = 0.0

    def train(self, client: Any) -> Any:
        number = int(client.info.name.split("-")[1])
        if (number + client.round) % 10 < round(10 * self.share):
            raise ValueError("no power")
        return client.train(self.objective)


@pytest.mark.parametrize("engine", ["debug", "local"])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_who_drops_out_changes_nothing_for_the_others(tmp_path, engine, share):
    changes = {**ONE, "rounds": 3, "engine": {**BASE["engine"], "name": engine}}
    runs = [
        play(tmp_path / str(i), {**changes, **more}, method=Leaving(share=share))
        for i, more in enumerate(({}, ON))
    ]
    assert same(*runs)
    gone = [[(e["round"], e["client"], e["kind"]) for e in failures(run)] for run in runs]
    assert sorted(gone[0]) == sorted(gone[1])
    assert len(gone[0]) == 3 * round(10 * share)


@pytest.mark.parametrize("step", [KEYS, SHARES, AGREE, OPEN])
def test_who_drops_out_at_any_step_is_left_out_alone(tmp_path, monkeypatch, step):
    """Before it masks, a client is as one that never trained; after that, its update counts."""
    usual = Guard.answer

    def answer(self: Guard, task: Any) -> Any:
        if task.exchange == step and task.client == "client-04":
            raise ClientError("gone")
        return usual(self, task)

    monkeypatch.setattr(Guard, "answer", answer)
    masked = play(tmp_path / "masked", ON)
    assert {e["client"] for e in failures(masked)} == {"client-04"}
    plain = play(
        tmp_path / "plain", {}, **({} if step in (AGREE, OPEN) else {"method": OneGone(sharing=BY_DEVICE)})
    )
    assert pool(masked) == pool(plain)


@part
class OneGone(FedAvg):
    """One client's training fails."""

    name: ClassVar[str] = "one_gone"
    title: ClassVar[str] = "One gone"

    def train(self, client: Any) -> Any:
        if client.info.name == "client-04":
            raise ValueError("gone")
        return client.train(self.objective)


def test_too_few_stop_the_run_with_its_state_saved(tmp_path, monkeypatch):
    """Four of ten cannot be reached once they sent their part: what came cannot be opened, and nothing is merged."""
    usual, out = Guard.answer, tmp_path / "run"

    def answer(self: Guard, task: Any) -> Any:
        if task.round == 2 and task.exchange == OPEN and task.client < "client-04":
            raise ClientError("gone")
        return usual(self, task)

    changes = {**ON, **ONE}
    with monkeypatch.context() as patch:
        patch.setattr(Guard, "answer", answer)
        with pytest.raises(
            RunStopped, match=r"6 of 10 clients gave shares, 7 are needed(.|\n)*after round 1 is saved"
        ):
            play(out, changes)
    assert same(intarsia.resume(out), play(tmp_path / "plain", ONE))


def test_a_group_that_too_few_came_of_keeps_its_block(tmp_path):
    """Three of the five holders of one device's block fail: it stays as it was, the other device's goes on."""

    @part
    class OneDevice(FedAvg):
        name: ClassVar[str] = "one_device"
        title: ClassVar[str] = "One device"

        def train(self, client: Any) -> Any:
            if client.info.device == "4x4" and client.info.name not in kept:
                raise ValueError("no power")
            return client.train(self.objective)

    kept = ("client-02", "client-03")
    run = play(
        tmp_path / "run",
        {**ON, "rounds": 1, "secure_sums": {"on": True, "threshold": 0.5}},
        method=OneDevice(sharing=BY_DEVICE),
    )
    notes = [e for e in failures(run) if not e["client"]]
    assert len(notes) == 1
    assert "model@4x4: fewer clients than secure_sums.floor (3)" in notes[0]["message"]
    start = run.state(0).pool
    changed = {a for a, version in pool(run).items() if start.get(Address.parse(a)).version != version}
    assert changed == {"model@8x8"}


def test_what_a_single_client_sends_looks_like_noise(tmp_path, monkeypatch):
    """All 64 bits of what the server is sent are as often on as off, and nothing is sent twice alike."""
    sent: list[torch.Tensor] = []
    usual = carrying._accept

    def accept(setup: Any, fold: Any, job: Any, update: Update) -> Update:
        sent.extend(t for b in update.blocks.values() for t in b.tensors.values())
        return usual(setup, fold, job, update)

    monkeypatch.setattr(carrying, "_accept", accept)
    play(tmp_path / "run", {**ON, **ONE, "rounds": 1})
    numbers = torch.cat([t.reshape(-1) for t in sent]).numpy()
    assert numbers.dtype == np.int64
    assert len(np.unique(numbers)) == len(numbers) > 10_000
    bits = np.unpackbits(numbers.view(np.uint8)).reshape(-1, 64).mean(0)
    assert np.abs(bits - 0.5).max() < 6 * 0.5 / len(numbers) ** 0.5


def test_a_run_that_is_killed_goes_on_with_fresh_keys(tmp_path):
    """A round is played anew from the checkpoint: other masks, the same results."""

    class Stop(intarsia.Observer):
        def replied(self, reply: Any) -> None:
            self.count = getattr(self, "count", 0) + 1
            if self.count == 87:  # in the midst of a round
                raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        play(out, ON, observer=Stop())
    assert same(intarsia.resume(out), play(tmp_path / "plain", {}))


def test_no_secret_of_a_session_outlives_it(tmp_path):
    run = play(tmp_path / "run", ON)
    kept = sorted((run.path / "state" / "secure").iterdir())
    assert len(kept) == 10
    assert all(json.loads(path.read_bytes())["session"] == {} for path in kept)


def test_counters_of_batch_norms_travel_openly_and_all_else_is_masked(tmp_path):
    def network(client: intarsia.ClientInfo) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))

    changes = ONE
    plain = play(tmp_path / "plain", changes, model=network)
    masked = play(tmp_path / "masked", {**changes, **ON}, model=network)
    assert same(plain, masked)


REFUSED = {
    "clustered_fl": "compares single updates",
    "fedmn": "values or tensors of their own",
    "pfedclub": "values or tensors of their own",
    "heterofl": "sums over other clients in every part",
    "fedmd": "values or tensors of their own",
    "fedgh": "values or tensors of their own",
}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_can_or_says_why_not(name):
    reason = obstacle(METHODS[name]())
    if name in REFUSED:
        assert REFUSED[name] in reason
    if name in (
        "fedavg",
        "fedprox",
        "fedper",
        "modfl",
        "fednova",
        "pfedme",
        "per_fedavg",
        "local",
        "fedavg+",
    ):
        assert reason == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": "clustered_fl"},
            r"method 'clustered_fl' cannot use it: its sharing .* compares single updates",
        ),
        ({"method": "modfl", "sharing": {"cohorts": "found", "number": 2}}, "compares single updates"),
        ({"codec": "int8"}, "a code saves nothing"),
        (
            {"privacy": {"clip": 1.0, "noise": 1.0}},
            "privacy, secure_sums: the server itself holds single updates",
        ),
        ({"population": {"name": "digits", "clients": 4, "cohorts": 2}}, r"has 2 holders, .* at least 3"),
        ({"secure_sums": {"on": True, "floor": 1}}, "secure_sums.floor"),
        ({"secure_sums": {"on": True, "threshold": 0.4}}, "secure_sums.threshold"),
        ({"secure_sums": {"on": True, "flor": 4}}, "secure_sums"),
    ],
)
def test_what_cannot_be_masked_is_refused_before_the_run(tmp_path, changes, message):
    with pytest.raises(SettingsError, match=message):
        play(tmp_path / "run", {**ON, **changes})
    assert not (tmp_path / "run").exists()


def test_whole_numbers_that_count_no_steps_are_refused(tmp_path):
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.flatten(1))

    changes = {**ONE, **ON}
    with pytest.raises(
        SettingsError, match=r"tensor 'seen' of block 'model' holds whole numbers.*persistent=False"
    ):
        play(tmp_path / "run", changes, model=lambda _: Counting())


def test_a_merge_of_ones_own_is_not_trusted_to_add(tmp_path):
    @part
    class Odd(Merge):
        name: ClassVar[str] = "odd"

        def add(self, *args: Any) -> None:
            super().add(*args)

    @part
    class Sure(Odd):
        name: ClassVar[str] = "sure"
        adds_up: ClassVar[bool] = True

    assert "merge 'odd' reads single updates" in obstacle(FedAvg(merge=Odd()))
    assert obstacle(FedAvg(merge=Sure())) == ""


def test_sums_that_no_updates_have_are_not_merged(tmp_path, monkeypatch):
    """A client that adds whatever it likes under its masks is not known by name; but nothing is merged."""
    usual = Guard.mask

    def mask(self: Guard, task: Any, part: Any, work: str) -> Any:
        if task.client == "client-02":
            part = {a: {n: t + 2**60 for n, t in own.items()} for a, own in part.items()}
        return usual(self, task, part, work)

    monkeypatch.setattr(Guard, "mask", mask)
    with pytest.raises(RunStopped, match="larger than any update that could be merged"):
        play(tmp_path / "run", ON)


def test_a_client_that_was_not_told_of_masks_sends_nothing(tmp_path):
    """What the server asks for counts only if the client's own settings ask for it too."""
    from intarsia.clients.masking import Masking

    with pytest.raises(ClientError, match="the settings here do not"):
        Masking.masked(Masking(_setup(tmp_path), None), *_task_and_update(tmp_path))


def _setup(tmp_path: Path) -> Any:
    from intarsia.experiment import Experiment, load

    return Experiment.build(load(BASE)).setup


def _task_and_update(tmp_path: Path) -> tuple[Any, ...]:
    from intarsia.blocks import Task

    task = Task("r", 1, "train", "train", "client-00", "")
    return task, Update("r", 1, "train", "train", "client-00", ""), {}.__getitem__


def test_settings_that_are_off_are_not_written(tmp_path):
    assert "secure_sums" not in (play(tmp_path / "off", {"rounds": 1}).path / "settings.toml").read_text()
    text = (play(tmp_path / "on", {"rounds": 1, **ON}).path / "settings.toml").read_text()
    assert "[secure_sums]\non = true\nfloor = 3\nthreshold = 0.6\n" in text
