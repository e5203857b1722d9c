"""What a round costs does not grow with the clients that sit it out: counted, not timed."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import intarsia
from intarsia.data.on_demand import ClientsOnDemand
from intarsia.federation import Planner, Sampling
from intarsia.report.live import write_page
from intarsia.runs import RunFolder

SETTINGS = {
    "rounds": 7,
    "model": {"name": "mlp", "hidden": [8]},
    "sampling": {"clients": 5},
    "evaluation": {"every": 3, "clients": 7, "metrics": []},
    "engine": {"name": "debug", "device": "cpu"},
}
SIZES = (300, 3000)


class Counted(intarsia.Observer):
    """Notes, round by round, what was asked of the population, and what the checkpoints wrote."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.rounds: list[Counter[str]] = []
        self.start: Counter[str] = Counter()
        self.written: list[int] = []
        for name in ("info", "data_of", "__iter__"):
            self._count(monkeypatch, name)
        begun = RunFolder._begin

        def begin(folder, state, keep):
            begun(folder, state, keep)
            folder.written()
            self.written.append(sum(path.stat().st_size for path in folder._state.glob("clients-*")))

        monkeypatch.setattr(RunFolder, "_begin", begin)

    def _count(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        usual = getattr(ClientsOnDemand, name)

        def counted(*arguments):
            self.calls[name] += 1
            return usual(*arguments)

        monkeypatch.setattr(ClientsOnDemand, name, counted)

    def started(self, rounds: int, done: int, clients: int) -> None:
        self.start, self.calls = self.calls, Counter()

    def round_done(self, report: intarsia.RoundReport) -> None:
        self.rounds.append(self.calls)
        self.calls = Counter()


@pytest.fixture(scope="module", params=["fedavg", "fedper"])
def pair(request, tmp_path_factory):
    """Runs with few and with many clients, and what they asked for."""
    found = []
    for size in SIZES:
        with pytest.MonkeyPatch.context() as patch:
            seen = Counted(patch)
            settings = {
                **SETTINGS,
                "method": request.param,
                "population": {"name": "synthetic", "clients": size},
            }
            run = intarsia.run(settings, out=tmp_path_factory.mktemp("many") / "run", observer=seen)
        found.append((run, seen))
    return found


def test_a_round_asks_for_those_who_take_part(pair):
    (_, few), (_, many) = pair
    for one, other in zip(few.rounds[:-1], many.rounds[:-1], strict=True):
        assert one == other, "what a round asks of the population grows with it"
        assert not other["__iter__"]
    assert few.rounds[0]["data_of"] == 5
    assert few.rounds[5]["data_of"] == 5 + 7
    assert few.start["data_of"] == many.start["data_of"], "data of all clients is made at the start"
    last = many.rounds[-1]
    assert last["info"] <= 2 * SIZES[1], "the end of a run looks at what is known of all more than twice"
    assert last["data_of"] == few.rounds[-1]["data_of"]


def test_the_start_looks_at_what_is_known_of_all_a_few_times(pair):
    (_, few), (_, many) = pair
    assert many.start["info"] - few.start["info"] <= 3 * (SIZES[1] - SIZES[0])


def test_a_checkpoint_writes_who_changed(pair):
    (_, few), (_, many) = pair
    for before, after in zip(many.written, many.written[1:], strict=False):
        assert after - before <= 2 * 5 * 400, "more is written than the records of five clients, twice"
    assert many.written[-1] <= 1.1 * few.written[-1]


def test_records_and_pages_tell_of_those_who_are_evaluated(pair):
    for run, _ in pair:
        everyone = run.summary["clients"]
        tested = {row["client"] for row in run.metrics if row["split"] == "test"}
        assert len(tested) == 7 == run.summary["evaluated"]
        assert set(run.population["clients"]) == tested
        assert run.population["everyone"]["clients"] == everyone
        by_round = Counter(row["round"] for row in run.metrics if row["split"] == "test")
        assert by_round == {3: 7, 6: 7, 7: 7}


def test_a_page_shows_those_who_are_evaluated(pair):
    run = pair[1][0]
    page = write_page(run, out=run.path / "about.html").read_text()
    assert "7 of 3,000 clients" in page
    named = {f"client-{i:04d}" for i in range(SIZES[1])} & set(re.findall(r"client-\d{4}", page))
    assert named == set(run.population["clients"])


def test_a_run_of_many_is_opened_and_its_clients_have_models(pair):
    run = intarsia.open_run(pair[1][0].path)
    assert len(run.clients) == SIZES[1]
    for name in (run.metrics[0]["client"], "client-2999"):
        assert run.client(name).model() is not None
        assert run.client(name).data["test"].x.shape[1] == 60
    assert Path(run.path).exists()


def test_who_is_evaluated_does_not_change_training(small_run):
    """Any population can be evaluated in part: the same clients each time; training stays as it is."""
    whole, few = small_run(), small_run("evaluation.clients=3", out="few")
    training = [[row for row in run.metrics if row["split"] == "train"] for run in (whole, few)]
    assert training[0] == training[1]
    by_round = {}
    for row in few.metrics:
        if row["split"] == "test":
            by_round.setdefault(row["round"], set()).add(row["client"])
    assert len(by_round) == 3
    assert len({frozenset(own) for own in by_round.values()}) == 1
    assert all(len(own) == 3 for own in by_round.values())
    rows = [row for row in whole.metrics if row["split"] == "test" and row["client"] in by_round[1]]
    assert [row for row in few.metrics if row["split"] == "test"] == rows
    assert len(few.population["clients"]) == 8


def test_newcomers_are_drawn_beside_those_who_train(pair):
    setup = pair[0][0].setup
    planners = [Planner(setup, Sampling(newcomers=30)) for _ in range(2)]
    chosen, again = (planner.evaluated(20) for planner in planners)
    assert chosen == again == sorted(chosen)
    assert len(chosen) == 40
    assert len(planners[0].newcomers & set(chosen)) == 20
    assert planners[0].evaluated() == planners[0].names == planners[0].evaluated(500)
