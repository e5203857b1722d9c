"""`intarsia flower up`: a whole federation on this machine, from settings to a normal run folder."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from intarsia.clients import State, state_version
from intarsia.core import IntarsiaError, SettingsError, write_atomically
from intarsia.data import Population
from intarsia.data.recorded import record_of
from intarsia.experiment import ENVIRONMENT, Settings, load, without_plugins
from intarsia.flower.operating.processes import Federation
from intarsia.flower.server.app import MARK
from intarsia.flower.site.site_store import SiteStore
from intarsia.runs import SETTINGS, ClientRecord, Records, RunFolder

DEADLINE = 3600.0


@dataclass(frozen=True)
class Plan:
    """What is run: settings, and how many sites share their population."""

    settings: Settings
    population: Population
    sites: int
    out: Path
    page: bool = True
    """Whether the run folder gets a page."""

    @property
    def names(self) -> list[str]:
        """The names of the sites."""
        return [f"site-{i}" for i in range(self.sites)]

    def site(self, number: int) -> dict[str, Any]:
        """Return what a site's file says."""
        engine = self.settings.engine
        return {
            "population": self.settings.population,
            "clients": list(self.population.clients)[number :: self.sites],
            "seed": self.settings.seed,
            "workers": engine.workers,
            "device": engine.device,
            "data_folder": self.settings.data_folder,
        }

    def signing(self, name: str, folder: Path) -> dict[str, str]:
        """Return what a site's file says of its key and those of others, where sums are to be secure."""
        if not self.settings.secure_sums.on:
            return {}
        return {"key": str(folder / "certs" / "keys" / name), "peers": str(folder / "roster.toml")}

    def roster(self, keys: Path) -> dict[str, Any]:
        """Return the register of the sites: their keys, and whose clients are whose."""
        sites = {}
        for number, name in enumerate(self.names):
            infos = [self.population.clients[client].info for client in self.site(number)["clients"]]
            owned = {i.name: {"device": i.device, "cohort": i.cohort} for i in infos}
            sites[name] = {"key": str(keys / f"{name}.pub"), "clients": owned}
        return {"sites": sites}


def up(plan: Plan) -> None:
    """Run a federation on this machine, each site with its share of the clients.

    The run folder is then as any other: the clients' own blocks are brought there from the sites, after Ctrl-C too.
    Keys, logs and the sites' folders are removed; after an error the logs stay.
    """
    if plan.sites > len(plan.population):
        raise SettingsError(
            f"--sites {plan.sites}: there are only {len(plan.population)} clients, and every site needs one"
        )
    folder = Path(tempfile.mkdtemp(prefix="intarsia-"))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Federation(folder, plan.names) as federation:
            _run(federation, plan)
    except (IntarsiaError, TimeoutError) as error:
        _settle(plan, folder)
        raise IntarsiaError(f"{error}\nLogs: {folder / 'logs'}") from error
    except KeyboardInterrupt:
        _settle(plan, folder)
        shutil.rmtree(folder)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    _settle(plan, folder)
    shutil.rmtree(folder)


def bring_home(run: Path, sites: Sequence[Path]) -> None:
    """Put what clients keep at these sites into the run folder, as a run on one machine has it."""
    folder = RunFolder(run)
    for round in folder.checkpoints:
        state = folder.state_at(round)
        stores = [SiteStore(site / "runs" / state.run) for site in sites]
        state.clients = Records(
            {name: _at_home(name, record, stores, folder) for name, record in state.clients.items()}
        )
        folder.rewrite(state)


def _at_home(name: str, record: ClientRecord, stores: Sequence[SiteStore], folder: RunFolder) -> ClientRecord:
    """Return a client's record with its state instead of the hash, its blocks copied to the folder."""
    for store in stores:
        state: State | None = store.find(name, state_version(record.state))
        if state:
            for version in state.get("private", {}).values():
                folder.store.put(store.blocks.get(version))
            return ClientRecord(record.held, state)
    return record


def _settle(plan: Plan, folder: Path) -> None:
    """Make the run folder whole, if there is one."""
    if (plan.out / SETTINGS).exists():
        bring_home(plan.out, [folder / f"{name}.state" for name in plan.names])
        RunFolder(plan.out).write_population(record_of(plan.population))
        _name_plugins(plan)


def _name_plugins(plan: Plan) -> None:
    """Let the run folder name the files of code that the run used; the app did not."""
    if plan.settings.plugins:
        path = plan.out / SETTINGS
        named = {key: getattr(plan.settings, key) for key in ("plugins", "plugin_hashes")}
        write_atomically(path, load(path).model_copy(update=named).to_toml().encode())


def _run(federation: Federation, plan: Plan) -> None:
    if plan.settings.plugins:
        named = (federation.environment.get(ENVIRONMENT, ""), *plan.settings.plugins)
        federation.environment[ENVIRONMENT] = os.pathsep.join(filter(None, named))
    federation.start_link()
    keys = str(federation.folder / "certs" / "keys")
    roster = federation.folder / "roster.toml"
    roster.write_text(tomli_w.dumps(plan.roster(Path(keys))))
    config = {"folder": str(plan.out.resolve()), "sites": plan.sites, "deadline": DEADLINE, "keys": keys}
    config |= {"roster": str(roster), "page": plan.page}
    federation.write_app(without_plugins(plan.settings).to_toml(), config)
    for number, site in enumerate(plan.names):
        print(f"starting site {number + 1} of {plan.sites}", flush=True)
        federation.write_site(site, plan.site(number) | plan.signing(site, federation.folder))
        federation.start_site(site, wait=False)
        federation.register(site)
        federation.start_node(site)
    for site in plan.names:
        federation.wait_for_site(site)
    federation.start_run()
    shown = 0
    while federation.processes["run"].poll() is None:
        shown = _show(federation, shown)
        federation.check("run")
        time.sleep(0.2)
    _show(federation, shown)
    federation.wait()


def _show(federation: Federation, shown: int) -> int:
    """Print what the ServerApp has said since; return how much that is in all."""
    lines = federation.log("run").splitlines()
    for line in lines[shown:]:
        if line.startswith(MARK):
            print(line.removeprefix(MARK), flush=True)
    return len(lines)
