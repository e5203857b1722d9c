"""Audits of runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import intarsia
from intarsia.audit import AUDIT, Asked, audit
from intarsia.audit.labels import from_heads, score, true_shares
from intarsia.audit.membership import BY_LOT, UNTRAINED, row_of
from intarsia.audit.played import experiment_of, played
from intarsia.audit.shadows import Shadows, divided, with_noise_of_its_own
from intarsia.core import DataError, RunFolderError, SettingsError
from tests.conftest import NEEDS

Start = Callable[..., intarsia.Run]
QUICK = Asked(attacks=("labels",), shadows=0)


def _content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def overfitted(small_run: Start) -> intarsia.Run:
    """Few samples a client, a large network, many epochs on labels by lot: there is nothing to learn but by heart."""
    source = torch.Generator().manual_seed(0)

    def split() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(40, 20, generator=source), torch.randint(0, 4, (40,), generator=source)

    data = {f"client-{i}": {"train": split(), "test": split()} for i in range(4)}
    changes = [
        "sharing={}",
        "rounds=10",
        "training.epochs=10",
        "training.lr=0.3",
        "model={name='mlp', hidden=[128]}",
    ]
    settings = {"name": "heart", "engine": {"name": "debug", "device": "cpu"}, "method": "fedavg"}
    return intarsia.run(
        settings, data=data, changes=changes[1:], out=small_run("rounds=1").path.parent / "heart"
    )


def test_a_model_that_learnt_by_heart_tells_whom_and_an_untrained_one_does_not(
    overfitted: intarsia.Run,
) -> None:
    found = audit(overfitted, Asked(attacks=("membership",), shadows=4))
    rows = found["membership"]
    for target in ("own model", "shared blocks", "single update"):
        own = row_of(rows, "loss", target)
        assert own is not None
        assert own["auc_interval"][0] > 0.7, target
    by_shadows = row_of(rows, "LiRA offline", "own model")
    assert by_shadows is not None
    assert by_shadows["auc"] > 0.8
    for control in (UNTRAINED, BY_LOT):
        row = row_of(rows, "loss", control)
        assert row is not None
        assert row["auc_interval"][0] < 0.5 < row["auc_interval"][1], control


def test_shadow_runs_are_kept_and_those_of_another_run_refused(
    overfitted: intarsia.Run, tmp_path: Path
) -> None:
    asked = Asked(attacks=("membership",), shadows=2, work=tmp_path / "work")
    once = audit(overfitted, asked)
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "work").iterdir()}
    assert kept.keys() == {"shadow-0000.json", "shadow-0001.json"}
    assert audit(overfitted, asked) == once
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "work").iterdir()} == kept
    path = tmp_path / "work" / "shadow-0000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "of": "another"}))
    with pytest.raises(RunFolderError, match=r"shadow-0000.json is of another run"):
        audit(overfitted, asked)


def test_an_audit_changes_nothing_in_the_runs_folder_but_its_own_file(small_run: Start) -> None:
    run = small_run()
    before = _content(run.path)
    record = audit(intarsia.open_run(run.path), Asked(shadows=0, batches=(1,), steps=2))
    after = _content(run.path)
    assert after.pop(AUDIT)
    assert after == before
    assert json.loads((run.path / AUDIT).read_text()) == record
    assert record["replayed"] == "to the last bit"
    assert record["own_blocks_in_messages"] == []


@pytest.mark.parametrize("method", ["fedavg", "fedper", "modfl", "fedmn", "pfedclub", "fedem", "fedavg+"])
def test_playing_a_run_anew_is_the_run(small_run: Start, method: str) -> None:
    run = small_run(f"method={method}", "rounds=2", *NEEDS.get(method, ()))
    with played(experiment_of(intarsia.open_run(run.path))) as again:
        pools = [{str(a): s.pool.get(a).version for a in s.pool} for s in (run.state(), again.state)]
        assert pools[0] == pools[1]
        place = again.run.path
    assert not place.exists()


def test_a_shadow_population_keeps_clients_counts_and_samples(small_run: Start) -> None:
    population = small_run("rounds=1").experiment.setup.population
    other = divided(population, 0, 0)
    for name, client in population.clients.items():
        for split in ("train", "test"):
            assert len(other.clients[name].data[split]) == len(client.data[split])
        both = [torch.cat([c.data["train"].x, c.data["test"].x]).sum() for c in (client, other.clients[name])]
        assert both[0] == pytest.approx(float(both[1]), rel=1e-5)
        assert not torch.equal(other.clients[name].data["test"].x, client.data["test"].x)


def test_heads_tell_labels_and_sums_only_those_of_the_group(small_run: Start) -> None:
    run = small_run("sharing={}", "population.generations=['8x8']")
    rows = {view: audit(run, Asked(("labels",), view, 0))["labels"] for view in ("single", "sum")}
    single, summed = ({r["source"]: r for r in rows[view]}["head"] for view in ("single", "sum"))
    assert single["distance"] < 0.15 < 0.4 < single["control_distance"]
    assert single["correlation"] > 0.95
    assert summed["distance"] > 0.4


def test_counts_of_an_evaluation_tell_the_labels_exactly_unless_they_are_switched_off(
    small_run: Start,
) -> None:
    told = {r["source"]: r for r in audit(small_run(), QUICK)["labels"]}
    assert told["counts of the last evaluation"]["distance"] == 0
    silent = audit(small_run("evaluation.metrics=[]", out="silent"), QUICK)["labels"]
    assert "counts of the last evaluation" not in {r["source"] for r in silent}


def test_named_labels_are_found(small_run: Start) -> None:
    told = {r["source"]: r for r in audit(small_run("method=fedgh"), QUICK)["labels"]}
    assert told["labels named"]["correlation"] > 0.99


def test_what_a_step_gives_away_and_a_sum_less(small_run: Start) -> None:
    run = small_run("sharing={}", "population.generations=['8x8']", "rounds=1")
    rows = audit(run, Asked(("inversion",), "single", 0, None, (1,), 60))["inversion"]
    by = {(r["attack"], r["view"]): r for r in rows}
    assert by["exact", "single"]["recovered"] == 1
    assert by["exact", "single"]["psnr"] > 100
    assert by["search", "single"]["mse"] < by["search", "single"]["control_mse"]
    assert by["exact", "sum"]["mse"] > 1e6 * by["exact", "single"]["mse"]
    only = audit(run, Asked(("inversion",), "sum", 0, None, (1,), 2))["inversion"]
    assert {r["view"] for r in only} == {"sum"}


def test_missing_data_is_said(small_run: Start) -> None:
    data = {
        "a": {
            "train": (torch.rand(9, 3), torch.arange(9) % 2),
            "test": (torch.rand(4, 3), torch.arange(4) % 2),
        }
    }
    run = intarsia.run(
        {"rounds": 1, "engine": {"name": "debug"}}, data=data, out=small_run("rounds=1").path.parent / "own"
    )
    with pytest.raises(DataError, match=r"takes the data.*open_run\(folder, data=...\)"):
        audit(intarsia.open_run(run.path), QUICK)
    assert not (run.path / AUDIT).exists()
    assert audit(intarsia.open_run(run.path, data=data), QUICK)["method"] == "fedavg"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"attacks": ("lables",)}, "did you mean 'labels'"),
        ({"view": "all"}, "view: auto, single or sum"),
        ({"shadows": 1}, "ask for more, or none"),
        ({"shadows": -1}, "shadows: at least 0"),
        ({"batches": (0,)}, "at least 1"),
    ],
)
def test_what_cannot_be_asked(asked: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Asked(**asked)  # type: ignore[arg-type]


def test_under_secure_sums_the_view_is_the_sum_and_single_answers_tell_nothing(small_run: Start) -> None:
    run = small_run("sharing={}", "population.generations=['8x8']", "rounds=1", "secure_sums.on=true")
    record = audit(run, QUICK)
    assert record["view"] == "sum"
    assert record["replayed"] == "to the last bit"
    true = true_shares(run.experiment.setup.population)
    with played(experiment_of(run)) as play:
        masked = score(from_heads(play, true, True), true)
    assert masked["correlation"] < masked["control_correlation"]
    assert masked["distance"] > masked["control_distance"]


def test_shadow_runs_have_noise_of_their_own(small_run: Start, tmp_path: Path) -> None:
    """With the run's keyed noise an attacker would know it, and LiRA see through it."""
    run = small_run(
        "sharing={}", "population.generations=['8x8']", "rounds=1", "privacy.clip=1.0", "privacy.noise=1.0"
    )
    experiment = experiment_of(run)
    told = [
        Shadows(experiment, tmp_path / place, False).told(0)["shared blocks"] for place in ("one", "other")
    ]
    assert not np.array_equal(told[0]["client-00"], told[1]["client-00"])
    assert audit(run, QUICK)["replayed"] == "to the last bit"
    plain = experiment_of(small_run("rounds=1", out="plain"))
    assert with_noise_of_its_own(plain.setup) is plain.setup
