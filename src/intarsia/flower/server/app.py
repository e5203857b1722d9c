"""The ServerApp: waits for the sites, then drives our own round loop over their messages."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import HttpGrid
from rich.console import Console

from intarsia.clients import state_version
from intarsia.core import (
    IntarsiaError,
    RunFolderError,
    SettingsError,
    build_part,
    differences,
    in_figures,
    indented,
    part,
    warnings_told,
)
from intarsia.data import Population
from intarsia.experiment import (
    ENVIRONMENT,
    GIVEN,
    Earlier,
    Experiment,
    Given,
    Settings,
    load,
    plug_in_named,
    plugins_of,
)
from intarsia.experiment.private import deployed
from intarsia.experiment.progress import Progress
from intarsia.federation import Clock, Federation, Observer, Planner, RoundReport, RunStopped, new_run_id
from intarsia.flower.server.channel import Channel
from intarsia.flower.server.flower_engine import FlowerEngine
from intarsia.flower.server.public_keys import public_keys
from intarsia.flower.server.register import Register
from intarsia.flower.server.roster import MOST_SAMPLES, Roster
from intarsia.report.live import PageFile
from intarsia.report.sections.privacy import privacy_line
from intarsia.report.verdict import verdict_lines
from intarsia.runs import SETTINGS, RunFolder, RunState

MARK = "[intarsia] "
"""What every line for the operator begins with."""
ENDED = f"{MARK}the run has ended"


@part
class Options:
    """What the app's configuration says (`[tool.flwr.app.config]`, or `flwr run --run-config`)."""

    settings: str = "settings.toml"
    """The settings of the run; relative to the app."""
    folder: str = "runs/federation"
    """The run folder on the server. One that holds a run is gone on with."""
    sites: int = 1
    """How many sites must be there before the first round."""
    wait: float = 600.0
    """How long to wait for them, in seconds."""
    deadline: float = 3600.0
    """How long an exchange may take, in seconds: then the round goes on with those who answered."""
    keys: str = ""
    """A folder of public keys (*.pub), or a file with one a line: no other node is used (empty: all are)."""
    roster: str = ""
    """The register: which key is which site, and whose clients are whose (empty: what a site says first counts)."""
    most_samples: int = MOST_SAMPLES
    """How many training samples a client may claim: a site with one that claims more is not used."""
    page: bool = True
    """Whether `page.html` in the run folder is drawn, every few rounds and at the end."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Options:
        """Read them from Flower's run configuration; an unknown or wrong one is an error."""
        return build_part({"": cls}, config, "run config", cls())


class Operator(Progress):
    """Tells the operator how the run goes; lets new sites in between rounds."""

    def __init__(self, roster: Roster) -> None:
        super().__init__(Console(file=sys.stdout, width=200, force_terminal=False))
        self.roster = roster

    def exchange_started(self, round: int, name: str, clients: int) -> None:
        """Say which exchange goes out."""
        super().exchange_started(round, name, clients)
        say(f"round {round}: {name}, {clients} clients")

    def round_done(self, report: RoundReport) -> None:
        """Say how the round ended."""
        super().round_done(report)
        say(f"round {report.round} of {report.rounds} done")

    def wants_stop(self) -> bool:
        """Return whether new sites are waiting."""
        return bool(self.roster.joining)


def make_app(home: Path) -> ServerApp:
    """Return the ServerApp of an app whose settings lie in this folder."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with warnings_told(say):
            run(grid, Options.read(context.run_config), home)

    return app


def run(grid: Grid, options: Options, home: Path) -> None:
    """Run a federation, or go on with the one in the folder."""
    if not isinstance(grid, HttpGrid):
        raise SettingsError("sites have data of their own: this app does not run in Flower's simulation")
    settings = load(home / options.settings)
    if settings.plugins:
        raise SettingsError(
            f"plugins: no code comes with an app: install the package where the SuperLink runs, or name the file there "
            f"({ENVIRONMENT}=FILE intarsia flower link ...); and so at every site (plugins in its file)"
        )
    plug_in_named()
    keys = public_keys(Path(options.keys).expanduser()) if options.keys else None
    register = Register.load(Path(options.roster).expanduser()) if options.roster else None
    roster = Roster(Channel(grid), keys, say, register, options.most_samples, plugins_of(settings))
    path = Path(options.folder).expanduser()
    again = (path / SETTINGS).exists()
    roster.load(path)
    say(f"waiting for {options.sites} sites")
    roster.wait(options.sites, options.wait)
    _, experiment = roster.admit(lambda population: _build(settings, population))
    folder, state = _reopen(experiment, path) if again else _create(experiment, path)
    try:
        with PageFile(path, Operator(roster), draws=options.page) as observer:
            _play(experiment, settings, roster, folder, state, options, observer)
    finally:
        folder.close()


def _play(
    experiment: Experiment,
    settings: Settings,
    roster: Roster,
    folder: RunFolder,
    state: RunState | None,
    options: Options,
    observer: Observer,
) -> None:
    """Play rounds; between two of them, let new sites in."""
    while True:
        roster.save(folder.path)
        experiment = _welcome(experiment, folder, state)
        engine = FlowerEngine(
            experiment.setup,
            experiment.settings,
            roster.channel,
            roster,
            options.deadline,
            lambda client: _states(folder, client),
        )
        federation = Federation(experiment.setup, engine, folder, experiment.rules, state, observer)
        try:
            if federation.run():
                _tell(folder.summary())
                print(ENDED, flush=True)
                return
        except RunStopped as error:
            saved = (
                f"the state after round {federation.state.round} is saved: the same flwr run goes on with it"
            )
            raise IntarsiaError(f"{error.__cause__ or error}\n{saved}") from error
        names, experiment = roster.admit(lambda population: _build(settings, population))
        say(f"joining: {', '.join(names) or 'nobody'}")
        state = federation.state


def _tell(summary: Mapping[str, Any]) -> None:
    """Tell the operator what the clients' models are worth, and what looks wrong."""
    for line in (*verdict_lines(summary), privacy_line(summary)):
        if line:
            say(line)
    for warned in summary.get("judged", {}).get("warnings", ()):
        say(f"Warning: {warned['message']}")


def _build(settings: Settings, population: Population) -> Experiment:
    """Build the server's side: the clients that sites told of, without data."""
    if settings.evaluation.baseline != "none":
        raise SettingsError(
            "evaluation.baseline: a federation of sites runs no baseline beside itself: leave it out, run method = "
            '"local" as a run of its own, and compare both (intarsia compare)'
        )
    given, settings = Given(data=population), deployed(settings)
    experiment = Experiment.build(settings.model_copy(update={"split_hash": ""}), given).check()
    if Clock.of(experiment.setup, settings.fleet, settings.sampling) is not None:
        raise SettingsError(
            f"fleet, method '{experiment.setup.method.name}': a fleet's clock plays devices that are not there, and a "
            "federation of sites has its own: leave out [fleet] and methods that need one"
        )
    named = "population" in settings.model_fields_set
    kept = {"population": settings.population if named else {"name": GIVEN}, "split_hash": ""}
    return Experiment(experiment.settings.model_copy(update=kept), experiment.setup)


def _create(experiment: Experiment, path: Path) -> tuple[RunFolder, RunState | None]:
    state = _start(experiment)
    return RunFolder.create(path, experiment.settings.to_toml()), state


def _start(experiment: Experiment) -> RunState | None:
    """Return the state before round 1; of an earlier run, the shared blocks go on."""
    earlier = Earlier.of(experiment)
    if earlier is None:
        return None
    if any(earlier.private.values()):
        say("start_from: clients' own blocks start afresh, they are not sent to the sites")
    return RunState(new_run_id(), earlier.pool)


def _reopen(experiment: Experiment, path: Path) -> tuple[RunFolder, RunState | None]:
    """Go on from the last checkpoint; a folder of other settings is refused."""
    folder = RunFolder.reopen(path)
    try:
        if folder.settings_text != experiment.settings.to_toml():
            found = differences(
                tomllib.loads(folder.settings_text), tomllib.loads(experiment.settings.to_toml())
            )
            raise RunFolderError(
                f"{path} holds a run with other settings than these ({in_figures(found)}): name another folder "
                "(--run-config 'folder=...')"
            )
        state = folder.restore()
        if state is None:
            return folder, _start(experiment)
        say(f"going on after round {state.round}")
        return folder, state
    except BaseException:
        folder.close()
        raise


def _welcome(experiment: Experiment, folder: RunFolder, state: RunState | None) -> Experiment:
    """Let models start as they did in this run, and give late comers' addresses their first blocks."""
    if state is None or not state.initial:
        return experiment
    experiment = experiment.beginning_as(folder, state)
    setup = experiment.setup
    planner, first = Planner(setup), setup.initial_pool()
    for name in planner.infos:
        for block, address in planner.addresses(state).of(name).items():
            if not address.private and address not in state.pool:
                start = first.get(address) if address in first else setup.template(name).initial[block]
                state.pool.put(address, start)
    state.initial = {
        key: {name: folder.store.put(block) for name, block in template.initial.items()}
        for key, template in setup.templates.items()
    }
    return experiment


def _states(folder: RunFolder, client: str) -> set[str]:
    """Return every state of a client that a checkpoint names: the run may come back to it."""
    return {state_version(state) for state in folder.named.states(client) if state}


def say(text: str) -> None:
    """Tell the operator; Flower carries what the ServerApp prints to `flwr run --stream` and `flwr log`."""
    print(f"{MARK}{indented(text)}", flush=True)
