"""pFedClub and pFedHR: losses, teachers and sizes worked out again by plain torch; limits, errors, repeats."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intarsia
from intarsia.blocks import Address, Update
from intarsia.core import CutError, DataError, Refused, SettingsError, chance
from intarsia.data import Examples, Population, from_dict
from intarsia.data.sources.digits import Digits
from intarsia.engines.local import engine as local
from intarsia.engines.local.helpers import side_by_side
from intarsia.federation import Planner
from intarsia.methods import METHODS
from intarsia.methods.pfedclub import PFedClub, reassembly, round_models, stitch_tuning
from intarsia.methods.pfedclub.assembly import Assembly, rebuild
from intarsia.methods.pfedclub.decompose import block_of
from intarsia.methods.pfedclub.pfedhr import reassemble
from intarsia.methods.pfedclub.reassembly import ITSELF
from intarsia.methods.pfedclub.round_models import RoundModels
from intarsia.methods.pfedclub.stitch_tuning import StitchTuning, Tuned, choose
from intarsia.models import MODELS, Architecture, Spec
from intarsia.runs import RunState
from tests.conftest import failures
from tests.methods import slow
from tests.methods.slow import Stop

LR, LAM, SIZE = 0.05, 0.2, 8
MODELS_OF = {
    "cnn1": {"name": "club_cnn", "number": 1, "width": 0.2, "dropout": 0.0},
    "cnn2": {"name": "club_cnn", "number": 2, "width": 0.2, "dropout": 0.0},
    "mlp": {"name": "mlp", "hidden": [12]},
}
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "method": {"name": "pfedclub", "tailoring": {"epochs": 1, "batch_size": 16}, "search": {"most": 3}},
    "models": MODELS_OF,
    "training": {"lr": LR, "batch_size": SIZE, "epochs": 2},
    "checkpoints": {"keep": 9},
    "engine": {"name": "debug", "device": "cpu"},
}
TABLES = ("metrics", "traffic", "events", "notes")


def images(n: int, seed: int, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Noise with a bright row that tells the class."""
    source = torch.Generator().manual_seed(seed)
    x, y = 0.5 * torch.rand(n, 1, 8, 8, generator=source), torch.arange(n) % classes
    x[torch.arange(n), 0, 2 * y] += 0.5
    return x, y


def population(models: tuple[str, ...] = ("cnn1", "cnn2", "mlp", "cnn2")) -> Population:
    clients = {}
    for i, model in enumerate(models):
        x, y = images(24 + 4 * i, i)
        clients[f"c{i}"] = {
            "train": (x[8:], y[8:]),
            "test": (x[:8], y[:8]),
            "model": model,
            "capacity": 1.0 + i,
        }
    return dataclasses.replace(from_dict(clients), public=Examples(*images(30, 99)))


def play(tmp_path: Any, *changes: str, out: str = "run", **given: Any) -> intarsia.Run:
    given = {"data": population(), **given}
    return intarsia.run(SETTINGS, changes=changes, out=tmp_path / out, **given)


def tensors(run: intarsia.Run, address: str, round: int) -> Mapping[str, Tensor]:
    return run.state(round).pool.get(Address.parse(address)).tensors


def plan_of(run: intarsia.Run, client: str, round: int) -> Any:
    return run.state(round).server["teachers"][client]


def model_of(run: intarsia.Run, client: str, round: int) -> nn.Module:
    kind = MODELS_OF[run.experiment.setup.population.clients[client].info.model]
    options = {key: value for key, value in kind.items() if key != "name"}
    model = Spec(MODELS[kind["name"]](**options), (1, 8, 8), 4).build(0)
    model.load_state_dict(dict(tensors(run, f"model@{client}", round)))
    return model


def teacher_of(run: intarsia.Run, client: str, round: int) -> nn.Module:
    plan = plan_of(run, client, round)
    if plan == ITSELF:
        return model_of(run, client, round).eval()
    return rebuild(plan, tensors(run, f"teacher@{client}", round), MODELS)[0]


def teachers(run: intarsia.Run) -> list[dict[str, Any]]:
    return [note for note in run.notes if note["kind"] == "teacher"]


def tables(run: intarsia.Run) -> dict[str, bytes]:
    return {name: (run.path / f"{name}.jsonl").read_bytes() for name in TABLES}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return play(tmp_path_factory.mktemp("whole"))


def learn_by_hand(model: nn.Module, teacher: nn.Module, data: Any, name: str, kl: str) -> dict[str, Tensor]:
    """Cross-entropy + lambda KL, from its formula, with torch's own optimiser and the keyed order alone of ours."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    order = chance.generator(0, "batches", 2, name)
    for _ in range(2):
        picked = torch.randperm(len(data), generator=order)
        for start in range(0, len(data), SIZE):
            rows = picked[start : start + SIZE]
            x, y = data.x[rows].contiguous(), data.y[rows]
            p, q = teacher(x).detach().softmax(1), model(x).softmax(1)
            if kl == "student-teacher":
                p, q = q, p
            loss = -model(x).log_softmax(1)[torch.arange(len(y)), y].mean()
            loss = loss + LAM * (p * (p / q).log()).sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return dict(model.state_dict())


@pytest.mark.parametrize("kl", ["teacher-student", "student-teacher"])
def test_a_client_learns_from_its_labels_and_its_teacher(tmp_path, kl):
    run = play(tmp_path, f"method.kl={kl}", "rounds=2")
    assert any(plan_of(run, name, 1) != ITSELF for name in run.clients)
    for name, client in population().clients.items():
        by_hand = learn_by_hand(
            model_of(run, name, 1), teacher_of(run, name, 1), client.data["train"], name, kl
        )
        for key, tensor in tensors(run, f"model@{name}", 2).items():
            torch.testing.assert_close(tensor, by_hand[key], rtol=2e-4, atol=2e-5)


def test_without_a_teacher_round_one_is_plain_training(run, tmp_path):
    alone = play(tmp_path, "method={name='local'}", "rounds=1")
    one = [row for row in run.metrics if row["round"] == 1]
    assert [r["client"] for r in one] == [r["client"] for r in alone.metrics]
    # Shared models are scored in tiles, private ones are not: the last bits of a loss may differ.
    assert [r["loss"] for r in one] == pytest.approx([r["loss"] for r in alone.metrics], rel=1e-6)


def test_lambda_of_zero_is_local_training(tmp_path):
    taught = play(tmp_path, "method.lam=0", out="taught")
    alone = play(tmp_path, "method={name='local'}", out="alone")
    for name in taught.clients:
        for key, tensor in alone.client(name).model().state_dict().items():
            torch.testing.assert_close(
                taught.client(name).model().state_dict()[key], tensor, rtol=0, atol=1e-6
            )


def test_the_teacher_that_arrives_is_the_one_that_was_chosen(tmp_path, monkeypatch):
    chosen, arrived = {}, {}
    hand_over, teacher = reassembly._hand_over, reassembly.teacher_of

    def handing(models: RoundModels, client: str, made: Tuned) -> None:
        chosen[models.server.round, client] = made.logits.clone()
        hand_over(models, client, made)

    def arriving(client: Any) -> Any:
        arrived[client.round, client.info.name] = made = teacher(client)
        return made

    monkeypatch.setattr(reassembly, "_hand_over", handing)
    monkeypatch.setattr(reassembly, "teacher_of", arriving)
    run = play(tmp_path)
    x = images(30, 99)[0]
    for (round, name), logits in chosen.items():
        if round < 3:
            with torch.no_grad():
                torch.testing.assert_close(arrived[round + 1, name](x), logits, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(teacher_of(run, name, round)(x), logits, rtol=1e-4, atol=1e-5)
    assert [name for (round, name), made in arrived.items() if made is None] == ["c0", "c1", "c2", "c3"]


def test_teachers_travel_when_their_clients_next_take_part_and_itself_never(tmp_path):
    run = play(tmp_path, "sampling.clients=2", "rounds=6")
    trained = {
        name: sorted({r["round"] for r in run.metrics if r["client"] == name and r["split"] == "train"})
        for name in run.clients
    }
    itself = {(note["client"], note["round"]): note["itself"] for note in teachers(run)}
    wanted = {
        (name, after)
        for name, own in trained.items()
        for before, after in pairwise(own)
        if not itself[name, before]
    }
    rows = [row for row in run.traffic if row["block"] == "teacher"]
    assert {(row["client"], row["round"]) for row in rows} == wanted
    assert {(row["direction"], row["purpose"]) for row in rows} == {("down", "train")}
    assert wanted
    assert set(itself.values()) == {True, False}


@intarsia.part
class Once(PFedClub):
    """pFedClub whose server makes teachers in the first round alone."""

    name = "once"
    title = "Once"

    def candidates(self, models: RoundModels) -> Mapping[str, Sequence[Assembly]]:
        return super().candidates(models) if models.server.round == 1 else {}


def test_a_client_keeps_its_teacher_until_another_comes(tmp_path, monkeypatch):
    used = []
    teacher = reassembly.teacher_of
    monkeypatch.setattr(
        reassembly,
        "teacher_of",
        lambda client: used.append((client.round, client.info.name, teacher(client))) or used[-1][2],
    )
    run = play(tmp_path, method=Once())
    travelled = [(r["client"], r["round"]) for r in run.traffic if r["block"] == "teacher"]
    assert travelled == [(n["client"], 2) for n in teachers(run) if not n["itself"]]
    made = {(round, name): model for round, name, model in used}
    for name, _ in travelled:
        one, two = made[2, name].state_dict(), made[3, name].state_dict()
        assert all(torch.equal(tensor, two[key]) for key, tensor in one.items())


def test_who_is_not_in_a_round_keeps_its_model_bit_for_bit(tmp_path):
    run = play(tmp_path, "sampling.clients=2")
    for round in (2, 3):
        before, after = (run.state(r).pool for r in (round - 1, round))
        active = {r["client"] for r in run.metrics if r["round"] == round and r["split"] == "train"}
        for name in run.clients:
            same = before.version(Address("model", name)) == after.version(Address("model", name))
            assert same == (name not in active)


def test_every_client_has_a_model_of_its_own(run):
    pool = run.state().pool
    assert {str(a) for a in pool if a.block == "model"} == {f"model@c{i}" for i in range(4)}
    assert len({pool.version(a) for a in pool}) == len(pool)
    for name in run.clients:
        own = run.client(name).model().state_dict()
        assert all(torch.equal(t, own[key]) for key, t in tensors(run, f"model@{name}", 3).items())


def test_phi_by_hand(run):
    changes: dict[str, list[float]] = {}
    for note in teachers(run):
        name, round = note["client"], note["round"]
        own = sum(p.numel() for p in model_of(run, name, round).parameters())
        size = sum(p.numel() for p in teacher_of(run, name, round).parameters())
        assert (note["own_parameters"], note["parameters"]) == (own, size)
        changes.setdefault(name, []).append((size - own) / own)
        assert note["phi"] == pytest.approx(sum(changes[name]) / len(changes[name]))
    assert {len(c) for c in changes.values()} == {3}


def test_notes_tell_groups_and_assemblies(run):
    groups = [note for note in run.notes if note["kind"] == "functional groups"]
    assert [note["round"] for note in groups] == [1, 2, 3]
    lengths = {"c0": 4, "c1": 5, "c2": 2, "c3": 5}
    for note in groups:
        assert [(m, i) for m, i, _ in note["blocks"]] == [
            (m, i) for m, n in lengths.items() for i in range(n)
        ]
        assert {g for _, _, g in note["blocks"]} == {0, 1, 2, 3}
        assert len(note["similarity"]) == sum(lengths.values())
    for note in teachers(run):
        assert len(note["blocks"]) == lengths[note["client"]]
        own = [[note["client"], i] for i in range(lengths[note["client"]])]
        assert note["itself"] == (note["blocks"] == own)
        assert 1 <= len(note["scores"]) <= 3
        assert len(note["blocks"]) >= note["filled"]


def test_teacher_scores_tell_how_often_teachers_are_right(tmp_path):
    run = play(tmp_path, "rounds=2")
    scores_of = [note for note in run.notes if note["kind"] == "lesson"]
    assert [(note["round"], note["client"]) for note in scores_of] == [(2, name) for name in run.clients]
    for note in scores_of:
        data = population().clients[note["client"]].data["train"]
        scores = teacher_of(run, note["client"], 1)(data.x)
        right = sum(int(row.argmax()) == int(y) for row, y in zip(scores, data.y, strict=True))
        assert note["teacher_right"] == pytest.approx(right / len(data))
        held = sorted({int(y) for y in data.y})
        among = sum(max(held, key=row.__getitem__) == int(y) for row, y in zip(scores, data.y, strict=True))
        assert note["teacher_right_among_held"] == pytest.approx(among / len(data))


@pytest.mark.parametrize("mark", ["0.5", 1.5, float("nan"), None, -0.1, True, 10**400])
def test_marks_that_are_no_shares_are_refused(mark):
    values = {"n": 4, "correct": 1, "loss": 0.5, "steps": 1, "step_weight": 1.0, "teacher_right": mark}
    update = Update("run", 1, "train", "train", "c0", "", values=values)
    with pytest.raises(Refused, match="teacher_right = "):
        PFedClub().expects("train", slow.asked(nn.Identity())).check(update)


def test_seconds_are_kept_apart(run):
    assert [row["round"] for row in run.seconds] == [1, 2, 3]
    assert all(0 < row["server"] < row["total"] for row in run.seconds)
    assert run.summary["seconds"]["server"] == pytest.approx(sum(row["server"] for row in run.seconds))


@pytest.mark.parametrize("labelled", ["true", "false"])
def test_the_limit_of_pfedclub_plus_holds(tmp_path, labelled):
    run = play(tmp_path, "method.name=pfedclub+", "rounds=4", f"method.labelled={labelled}")
    assert run.settings.method["eta"] == 0.1
    for note in teachers(run):
        assert note["parameters"] <= 1.1 * note["own_parameters"]
        assert note["phi"] <= 0.1
    free = play(tmp_path, "rounds=4", f"method.labelled={labelled}", out="free")
    assert any(note["parameters"] > 1.1 * note["own_parameters"] for note in teachers(free))


def test_capacity_and_multiplications_can_limit_too(tmp_path):
    run = play(tmp_path, "method.capacity=500", out="capacity")
    capacity = {f"c{i}": 500 * (1 + i) for i in range(4)}
    assert all(n["itself"] or n["parameters"] <= capacity[n["client"]] for n in teachers(run))
    for limit in ("flops", "activations"):
        tight = play(tmp_path, f"method.{limit}=-0.99", "rounds=1", out=limit)
        assert all(note["itself"] for note in teachers(tight))


def test_an_eta_of_nothing_allows_no_larger_teacher(tmp_path):
    run = play(tmp_path, "method.eta=0", "rounds=2")
    assert all(note["parameters"] <= note["own_parameters"] for note in teachers(run))


def test_limits_of_ones_own(tmp_path, monkeypatch):
    class FewLayers(PFedClub):
        name = "few"

        def limits(self, models, client):
            return [*super().limits(models, client), lambda cost: cost.macs < 1]

    monkeypatch.setitem(METHODS, "few", intarsia.part(FewLayers))
    run = play(tmp_path, "method={name='few', tailoring={epochs=1}}", "rounds=1")
    assert all(note["itself"] for note in teachers(run))


def test_ablations(tmp_path):
    short = play(tmp_path, "method.search.nbc=true", out="nbc")
    assert all(n["itself"] or n["filled"] == len(n["blocks"]) for n in teachers(short))
    first = play(tmp_path, "method.search.anchor=min", out="min")
    assert all(note["blocks"][0][1] == 0 for note in teachers(first))
    loose = play(tmp_path, "method.search.noc=true", out="noc")
    rising = [all(a < b for (_, a), (_, b) in pairwise(note["blocks"])) for note in teachers(loose)]
    assert not all(rising)


@pytest.mark.parametrize("method", ["pfedclub", "pfedhr"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, method):
    named = f"method={{name='{method}', tailoring={{epochs=1}}}}"
    changes = [named, "sampling.clients=2", "rounds=5"]
    whole = play(tmp_path, *changes, out="whole")
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, *changes, out="cut", observer=Stop(4))
    with pytest.raises(DataError, match="the data is not the same"):
        intarsia.resume(tmp_path / "cut", data=dataclasses.replace(population(), public=None))
    again = intarsia.resume(tmp_path / "cut", data=population())
    assert tables(again) == tables(whole)
    one, two = (r.state() for r in (whole, again))
    assert {str(a): one.pool.version(a) for a in one.pool} == {str(a): two.pool.version(a) for a in two.pool}
    assert one.server == two.server


@pytest.mark.parametrize(("method", "labelled"), [("pfedclub", "false"), ("pfedhr", "true")])
def test_engines_agree(tmp_path, monkeypatch, method, labelled):
    forked = []

    def counted(function: Any, items: Any, processes: int, told: Any) -> Any:
        forked.append((len(items), processes))
        return side_by_side(function, items, processes, told)

    monkeypatch.setattr(local, "side_by_side", counted)
    named = f"method={{name='{method}', labelled={labelled}, tailoring={{epochs=1}}}}"
    runs = []
    for engine, workers in (("debug", 1), ("local", 1), ("local", 2)):
        changes = [named, f"engine.name={engine}", f"engine.workers={workers}"]
        assert not forked
        runs.append(play(tmp_path, *changes, out=f"{engine}{workers}"))
    if sys.platform.startswith("linux") and not torch.cuda.is_available():
        assert len(forked) == 6  # two in each of three rounds: models compared, candidates tuned
        assert {processes for _, processes in forked} == {2}
    assert tables(runs[0]) == tables(runs[1]) == tables(runs[2])
    pools = [run.state().pool for run in runs]
    versions = [{str(a): pool.version(a) for a in pool} for pool in pools]
    assert versions[0] == versions[1] == versions[2]
    assert any(address.startswith("teacher@") for address in versions[0])


def test_an_error_of_the_server_reaches_the_user(tmp_path, monkeypatch):
    def fails(*_: Any) -> None:
        raise DataError("public samples are odd")

    monkeypatch.setattr(stitch_tuning, "tune", fails)
    for engine in ("debug", "local"):
        changes = [f"engine.name={engine}", "engine.workers=2"]
        with pytest.raises(intarsia.RunStopped, match="public samples are odd\nThe state after round 0"):
            play(tmp_path, *changes, out=engine)


def test_the_servers_fast_layout_gives_the_same(tmp_path, monkeypatch):
    layouts = []
    decompose = round_models.decompose

    def watched(model: nn.Module, shape: Any) -> Any:
        maps = [p for p in model.parameters() if p.dim() == 4 and min(p.shape[1:]) > 1]
        layouts.append({p.is_contiguous(memory_format=torch.channels_last) for p in maps})
        return decompose(model, shape)

    def server_step(plain: bool) -> tuple[RoundModels, dict[str, Tuned]]:
        models = first_round(plain)
        found = PFedClub().candidates(models)
        return models, choose(found, models.prefixes, StitchTuning(epochs=2, batch_size=16), models.seed)

    monkeypatch.setattr(round_models, "decompose", watched)
    (plain, ours), (fast, theirs) = server_step(plain=True), server_step(plain=False)
    assert layouts[:4] == [{False}, {False}, set(), {False}]
    assert layouts[-4:] == [{True}, {True}, set(), {True}]
    assert fast.groups == plain.groups
    assert fast.similarity.values == pytest.approx(plain.similarity.values, abs=1e-4)
    for client, choice in ours.items():
        assert theirs[client].scores == {a: pytest.approx(s, abs=1e-4) for a, s in choice.scores.items()}
        torch.testing.assert_close(theirs[client].logits, choice.logits, rtol=1e-3, atol=1e-4)


class Viewed(nn.Module):
    """Flattens in a way that only the usual layout allows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8 * 8 * 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.view(len(x), -1))


@intarsia.part
class Viewing(Architecture):
    name = "viewing"

    def build(self, shape: Any, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), Viewed())


def test_models_that_do_not_take_the_fast_layout_keep_theirs():
    assert not round_models.takes_channels_last(Spec(Viewing(), (1, 8, 8), 4))
    assert round_models.takes_channels_last(Spec(MODELS["club_cnn"](number=1), (1, 8, 8), 4))
    assert round_models.takes_channels_last(Spec(MODELS["mlp"](), (5,), 4))


@pytest.mark.parametrize("method", ["pfedclub", "pfedhr"])
def test_teachers_of_blocks_that_need_the_usual_layout_reach_clients_with_the_other(
    tmp_path, monkeypatch, method
):
    monkeypatch.setitem(MODELS, "viewing", Viewing)
    many = population(("cnn1", "own", "cnn1", "own", "cnn2"))
    kinds = {"cnn1": MODELS_OF["cnn1"], "cnn2": MODELS_OF["cnn2"], "own": "viewing"}
    settings = {**SETTINGS, "models": kinds}
    changes = [f"method={{name='{method}', k=2, tailoring={{epochs=1}}}}", "rounds=4"]
    run = intarsia.run(settings, changes=changes, data=many, out=tmp_path / "run")
    own = {name for name, client in many.clients.items() if client.info.model == "own"}
    mixed = [
        note for note in teachers(run) if note["client"] not in own and own & {b[0] for b in note["blocks"]}
    ]
    assert mixed
    assert not failures(run)


def refused(tmp_path: Any, error: type[Exception], match: str, *changes: str, **given: Any) -> None:
    with pytest.raises(error, match=match):
        play(tmp_path, *changes, **given)
    assert not (tmp_path / "run").exists()


def test_a_recurrent_model_is_refused_before_anything_runs(tmp_path):
    text = (torch.randint(0, 4, (6, 5)), torch.arange(6) % 4)
    words = from_dict({"c0": {"train": text, "test": text, "model": "lstm"}})
    words = dataclasses.replace(words, public=Examples(torch.randint(10, 20, (4, 5)), torch.arange(4)))
    settings = {**SETTINGS, "models": {"lstm": "char_lstm"}}
    with pytest.raises(CutError, match=r"client 'c0'.*is recurrent"):
        intarsia.run(settings, data=words, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_or_unfit_public_data_is_refused_before_anything_runs(tmp_path):
    bare = dataclasses.replace(population(), public=None)
    refused(tmp_path, SettingsError, "needs public data", data=bare)
    other = dataclasses.replace(population(), public=Examples(torch.rand(4, 1, 6, 6), torch.arange(4)))
    refused(tmp_path, DataError, r"shape \[1, 6, 6\], client 'c0'", data=other)
    more = dataclasses.replace(population(), public=Examples(torch.rand(4, 1, 8, 8), torch.arange(4) + 1))
    refused(tmp_path, DataError, "labels that no client's model", data=more)
    flat = from_dict(
        {"c0": {"train": (torch.rand(5, 3), torch.arange(5) % 4), "test": (torch.rand(5, 3), [0] * 5)}}
    )
    flat = dataclasses.replace(flat, public=Examples(torch.rand(4, 3), torch.arange(4)))
    refused(tmp_path, DataError, "must be images", "method.labelled=false", "models={}", data=flat)
    single = dataclasses.replace(population(), public=Examples(torch.rand(1, 1, 8, 8), torch.zeros(1).long()))
    refused(tmp_path, DataError, "cannot be compared on one public sample", data=single)
    bytes_as_floats = Examples(255 * torch.rand(9, 1, 8, 8), torch.arange(9) % 4)
    pixels = dataclasses.replace(population(), public=bytes_as_floats)
    refused(
        tmp_path,
        DataError,
        r"numbers of 0 ... 1; these are .*divide by 255",
        "method.labelled=false",
        data=pixels,
    )


def test_models_that_cannot_be_put_together_are_refused_before_anything_runs(tmp_path):
    refused(tmp_path, SettingsError, "given in Python", model=nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))
    refused(tmp_path, SettingsError, "adapters", "adapters=parallel")
    same = population(("norm", "norm"))
    refused(
        tmp_path,
        SettingsError,
        "stays at home",
        "models={norm={name='club_cnn', number=4, width=0.05}}",
        "sharing.norms=statistics",
        data=same,
    )


def test_a_client_may_not_be_named_me(tmp_path):
    x, y = images(12, 0)
    data = dataclasses.replace(
        from_dict({"me": {"train": (x, y), "test": (x, y), "model": "mlp"}}), public=Examples(*images(9, 5))
    )
    settings = {**SETTINGS, "models": {"mlp": MODELS_OF["mlp"]}}
    with pytest.raises(SettingsError, match="rename it"):
        intarsia.run(settings, data=data, out=tmp_path / "run")


@pytest.mark.parametrize("method", ["pfedclub", "pfedclub+", "pfedhr"])
def test_it_learns(tmp_path, method):
    run = play(
        tmp_path,
        f"method={{name='{method}', most=2}}" if method == "pfedhr" else f"method.name={method}",
        "method.tailoring.epochs=1",
        "training={optimizer='adam', lr=0.01, epochs=6, batch_size=8}",
    )
    assert run.summary["accuracy"]["mean"] > 0.6
    assert METHODS[method].title.startswith("pFed")


def first_round(plain: bool = False) -> RoundModels:
    """The first round's models, taken to blocks."""
    experiment = intarsia.experiment.build.Experiment.build(
        intarsia.experiment.settings.load(SETTINGS, [f"training.plain={str(plain).lower()}"]),
        intarsia.experiment.given.Given(data=population()),
    )
    server = Planner(experiment.setup).server(RunState("0", experiment.setup.initial_pool(), 1))
    return PFedClub().models(server, list(server.clients))


@pytest.mark.parametrize("with_labels", [True, False])
def test_a_round_tunes_on_some_public_samples_others_the_next_time(with_labels: bool):
    server = first_round().server
    public = server.public
    assert public is not None

    def rows(seed: int, most: int) -> list[int]:
        club = PFedClub(labelled=with_labels, tailoring=StitchTuning(samples=most))
        used = club.models(dataclasses.replace(server, round=seed), ["c2"]).prefixes.public
        places = [int((public.x == x).flatten(1).all(1).nonzero()[0]) for x in used.views[0]]
        if used.y is not None:
            assert torch.equal(used.y, public.y[places])
        return places

    assert rows(1, 0) == rows(1, 30) == list(range(30))
    assert len(rows(1, 10)) == 10
    assert rows(1, 10) == rows(1, 10) != rows(2, 10)


def test_pfedhr_draws_layers_of_every_group_in_the_order_of_operations():
    models = first_round()
    ends = {(name, len(chain) - 1) for name, chain in models.chains.items()}
    sizes = set()
    for number in range(50):
        made = reassemble(models, chance.numpy_generator(0, "test", number))
        blocks = [(ref.model, ref.index) for ref in made.blocks]
        assert len(set(blocks)) == len(blocks)
        assert [block in ends for block in blocks] == [False] * (len(blocks) - 1) + [True]
        assert {models.groups[ref] for ref in made.blocks} == set(models.groups.values())
        kinds = [block_of(models.chains, ref).kind == "fc" for ref in made.blocks]
        assert kinds == sorted(kinds)
        for which in (True, False):
            own = [ref.index for ref, fc in zip(made.blocks[:-1], kinds, strict=False) if fc == which]
            assert own == sorted(own)
        sizes.add(len(blocks))
    assert sizes <= {4, 5}


def test_pfedhr_gives_each_client_the_closest_of_all_candidates(tmp_path):
    run = play(tmp_path, "method={name='pfedhr', most=2, tailoring={epochs=1}}")
    x = images(30, 99)[0]
    for note in teachers(run):
        assert len(note["scores"]) <= 8
        with torch.no_grad():
            own = model_of(run, note["client"], note["round"]).eval()(x)
            taught = teacher_of(run, note["client"], note["round"])(x)
        score = nn.functional.cosine_similarity(own, taught).mean()
        assert max(note["scores"]) == pytest.approx(float(score), abs=1e-4)


def test_digits_can_have_a_public_share_and_models_in_turns():
    plain = Digits(clients=4, cohorts=2).load(0)
    dealt = Digits(clients=4, cohorts=2, public=0.1, models=("a", "b"), generations=("8x8",)).load(0)
    assert plain.public is None
    assert dealt.public is not None
    assert dealt.public.x.shape == (len(dealt.public), 1, 8, 8)
    assert set(dealt.public.y.tolist()) == set(range(10))
    assert len(dealt.public) == pytest.approx(180, abs=5)
    assert [info.model for info in dealt.infos] == ["a", "b", "a", "b"]
