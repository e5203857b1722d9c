"""Own files at a site: prepared by client or device there, and never in another way than at other sites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from intarsia.core import DataError
from intarsia.data.preparation import preparations_of
from intarsia.flower.site.agent import Agent
from intarsia.flower.site.site_file import Site


def site(home: Path, *settings: str, attributes: str = "") -> Site:
    rows = [
        f"{'ab'[i % 2]},{'old' if i % 2 else 'new'},{i},{'low' if i % 3 else 'high'},{i // 2 % 2}"
        for i in range(24)
    ]
    (home / "fleet.csv").write_text("\n".join(["client,device,heat,gear,label", *rows]))
    lines = ['name = "north"', attributes, "[population]", 'name = "files"', 'path = "fleet.csv"', *settings]
    (home / "site.toml").write_text("\n".join(lines))
    return Site.load(home / "site.toml")


GEARS = 'words = { gear = ["high", "low"] }'


@pytest.mark.parametrize("by", ["client", "device"])
def test_a_site_scales_by_client_and_by_device(by, tmp_path):
    here = site(tmp_path, GEARS, 'scale = "standard"', f'scale_by = "{by}"')
    population, _ = here.load_population()
    offsets = {name: made.columns[0].offset for name, made in population.preparations.items()}
    assert offsets["a"] != offsets["b"]
    for name, offset in offsets.items():
        x = population.clients[name].data["train"].x[:, 0]
        assert float(x.mean()) == pytest.approx(0, abs=1e-6)
        assert offset > 5
    Agent(here, lambda text: None).close()
    kept = json.loads((here.state / "population.json").read_text())
    assert preparations_of(kept) == population.preparations


def test_what_sites_must_agree_on_is_asked_for(tmp_path):
    with pytest.raises(
        DataError,
        match=r"'gear' holds words; sites must agree .*population\.words = \{ \"gear\" = \['high', 'low'\]",
    ):
        site(tmp_path).load_population()
    with pytest.raises(
        DataError,
        match=r'"all" would be this site.s clients alone: set it to "client" or "device", or give mean',
    ):
        site(tmp_path, GEARS, 'scale = "standard"').load_population()
    given = site(tmp_path, GEARS, 'scale = "standard"', "scales = { heat = [10, 2] }")
    population, _ = given.load_population()
    assert {made.columns[0].offset for made in population.preparations.values()} == {10}
    told = 'attributes = { a = { device = "x" } }'
    apart = site(tmp_path, GEARS, 'missing = "mean"', 'scale_by = "device"', attributes=told)
    with pytest.raises(DataError, match=r'"device" needs the devices in the files'):
        apart.load_population()


def test_a_part_of_one_population_is_prepared_like_the_whole(tmp_path):
    """As `flower up` divides a recipe's clients among sites: every site reads the same file."""
    scaled = 'scale = "standard"'
    parts = [site(tmp_path, scaled, attributes=f'clients = ["{name}"]').load_population()[0] for name in "ab"]
    assert [list(part.preparations) for part in parts] == [["a"], ["b"]]
    assert parts[0].preparations["a"] == parts[1].preparations["b"]


def test_targets_of_a_regression_are_agreed_on(tmp_path):
    numbers = [
        'target = "heat"',
        'problem = "regression"',
        'target_scale = "standard"',
        'features = ["label"]',
    ]
    with pytest.raises(
        DataError, match=r"target_scale: sites must agree on it: .*population\.scales = \{ \"heat\" = "
    ):
        site(tmp_path, *numbers).load_population()
    population, _ = site(tmp_path, *numbers, "scales = { heat = [10, 2] }").load_population()
    assert population.preparations["a"].targets[0].offset == 10


def test_a_site_counts_errors_in_units_of_the_target(tmp_path):
    loopback = pytest.importorskip("tests.flower.loopback", reason="needs Flower")
    rows = [f"{'ab'[i % 2]},{i % 12},{5000 + 300 * (i % 12)}" for i in range(48)]
    (tmp_path / "heat.csv").write_text("\n".join(["client,x,heat", *rows]))
    lines = ['name = "north"', "[population]", 'name = "files"', 'path = "heat.csv"', 'target = "heat"']
    scales = "scales = { x = [5.5, 3.5], heat = [6650, 1035] }"
    lines += ['problem = "regression"', 'target_scale = "standard"', 'scale = "standard"', scales]
    (tmp_path / "site.toml").write_text("\n".join(lines))
    agent = Agent(Site.load(tmp_path / "site.toml"), lambda text: None)
    loop = loopback.Loop()
    loop.add(agent)
    settings = {"rounds": 1, "model": {"name": "mlp", "hidden": [4]}, "training": {"loss": "mse"}}
    run = loopback.play(loop, tmp_path, settings)
    agent.close()
    assert not run.events or {e["kind"] for e in run.events} == {"warning"}
    for row in run.judged:
        assert 5000 < row["tally"]["mean"][0] < 8300
        assert 500 < row["usual"]["rmse"] < 2000
        loss = next(
            r["loss"] for r in run.metrics if (r["client"], r["split"]) == (row["client"], row["split"])
        )
        assert row["metrics"]["rmse"] == pytest.approx(1035 * loss**0.5, rel=1e-4)
    assert run.judged
