"""Model zoos and capacities through settings: who gets what, what is shown and recorded of it."""

from __future__ import annotations

from collections import Counter

import pytest

import intarsia
from intarsia.data import Images, deal_zoo
from intarsia.experiment import preview


def images(**changes):
    return Images(**{"dataset": "mnist", "clients": 10, "size": 32, "channels": 3, "limit": 400} | changes)


def settings(folder, **changes):
    population = {"name": "images", "dataset": "mnist", "clients": 5, "size": 32, "channels": 3, "limit": 60}
    return {
        "rounds": 1,
        "method": "local",
        "population": {**population, "zoo": "III", **changes},
        "training": {"batch_size": 16},
        "engine": {"name": "debug", "device": "cpu"},
        "data_folder": str(folder),
    }


def test_clients_get_the_models_that_the_zoo_deals(mnist_folder):
    places = intarsia.data.places(str(mnist_folder))
    infos = images(zoo="I").load(3, places).infos
    assert [info.model for info in infos] == deal_zoo("I", 10, 3)
    seven = images(zoo="I", clients=7).load(0, places).infos
    assert max(Counter(info.model for info in seven).values()) == 1


def test_capacities_go_round_and_samples_are_limited(mnist_folder):
    population = images(capacities=(1.0, 0.5, 0.25), public=0.1).load(
        0, intarsia.data.places(str(mnist_folder))
    )
    assert [info.capacity for info in population.infos][:5] == [1.0, 0.5, 0.25, 1.0, 0.5]
    held = sum(sum(info.samples.values()) for info in population.infos)
    assert held + len(population.public) == 400


def test_plan_population_and_settings_say_who_holds_what(mnist_folder, tmp_path):
    table = settings(mnist_folder)
    dealt = deal_zoo("III", 5, 0)
    assert [client["model"] for client in preview(table)["clients"]] == dealt
    sizes = {c["model"]: c["blocks"][0]["parameters"] for c in preview(table)["clients"]}
    assert sizes["cnn2"] == 591_018
    table["models"] = {"cnn4": {"name": "club_cnn", "number": 4, "width": 0.125}}
    run = intarsia.run(table, out=tmp_path / "run")
    assert [about["model"] for about in run.population["clients"].values()] == dealt
    assert run.settings.models["cnn1"]["number"] == 1
    assert run.settings.models["cnn4"]["width"] == 0.125
    again = intarsia.open_run(tmp_path / "run")
    own = again.client(again.clients[dealt.index("cnn4")]).model()
    assert own.conv1.out_channels == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zoo": "IV"}, r"population.zoo: there is no model zoo 'IV'"),
        ({"model": "cnn1"}, r"population.model: .* population.zoo"),
    ],
)
def test_what_cannot_be_is_refused(mnist_folder, changes, message):
    with pytest.raises(intarsia.IntarsiaError, match=message):
        preview(settings(mnist_folder, **changes))
