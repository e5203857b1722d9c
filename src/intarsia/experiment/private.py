"""Privacy before a run: the noise that an epsilon asks for, and what cannot be protected, said by name."""

from __future__ import annotations

import copy
from dataclasses import replace

from intarsia.core import SettingsError, warn
from intarsia.experiment.settings import Settings
from intarsia.federation import Sampling
from intarsia.methods import Method, Server
from intarsia.setup import Setup
from intarsia.training import Situation
from intarsia.training.private import check_gradients, check_model
from intarsia.trust import Privacy
from intarsia.trust.accounting import Release, epsilon_of_fixed, noise_for, rounds_within, usual_delta

POISSON = 'let each have a chance of its own (sampling.kind = "poisson"), or let all take part (sampling.fraction = 1)'


def with_noise(settings: Settings, clients: int) -> Settings:
    """Return the settings with the noise that privacy is to have, if an epsilon is given, and where it comes from."""
    privacy, sampling = settings.privacy, settings.sampling
    if not privacy.on:
        if privacy != Privacy():
            raise SettingsError(
                "privacy.clip: say how far an update may go, for example 1.0: nothing is private without"
            )
        return settings
    _check_numbers(privacy)
    kind = "keyed" if privacy.randomness == "auto" else privacy.randomness
    settings = settings.model_copy(update={"privacy": replace(privacy, randomness=kind)})
    if not privacy.epsilon or settings.noise_multiplier or privacy.of_examples:
        return settings
    chance, delta = sampling.chance(clients), privacy.delta or usual_delta(clients)
    _check_sampling(sampling, clients, 1.0, settings.rounds, delta)
    found = noise_for(privacy.epsilon, delta, chance, settings.rounds)
    return settings.model_copy(update={"noise_multiplier": found})


def privacy_of(settings: Settings) -> Privacy:
    """Return the privacy of a run with the noise that it has."""
    return replace(settings.privacy, noise=settings.noise_multiplier or settings.privacy.noise)


def deployed(settings: Settings) -> Settings:
    """Return settings for a real federation: noise from the operating system; nothing that no noise covers, unasked."""
    privacy = settings.privacy
    if not privacy.on:
        return settings
    if privacy.randomness == "keyed":
        raise SettingsError(
            'privacy.randomness: "keyed" is for simulations: the seed is known to every site, and with it the noise. '
            'Leave it out, or write "system"'
        )
    if not privacy.tells_scores:
        raise SettingsError(
            "privacy.tells_scores: clients tell the server how well models do on their own data, in training and in "
            "evaluations, and no noise covers these figures: set it to true if the server's operator may know them "
            "(they stay in its run folder)"
        )
    return settings.model_copy(update={"privacy": replace(privacy, randomness="system")})


def check_private(setup: Setup, settings: Settings, server: Server) -> None:
    """Refuse what privacy does not cover; warn where the budget ends before the run does."""
    privacy = setup.privacy
    if not privacy.on:
        return
    if privacy.of_examples:
        _check_examples(setup)
        return
    if setup.secure_sums.on:
        raise SettingsError(
            "privacy, secure_sums: the server itself holds single updates to their bound, and masks hide these: leave "
            'one of them out, or protect samples where they are (privacy.level = "example")'
        )
    if setup.gathers:
        raise SettingsError(
            "privacy, merge, defence: noise covers a sum of bounded updates, and a merge or a defence that compares "
            "single ones releases more. Leave one of them out: privacy.clip bounds every update already"
        )
    clients = len(server.residents)
    delta = privacy.delta or usual_delta(clients)
    _check_sampling(settings.sampling, clients, privacy.noise, setup.rounds, delta)
    _check_method(setup.method)
    if not any(not address.private for address in setup.initial_pool()):
        raise SettingsError(
            f"privacy: method '{setup.method.name}' shares nothing, so that there is nothing to protect: leave "
            "[privacy] out"
        )
    if settings.start_from:
        warn("start_from: what the earlier run learned of its clients is not in the epsilon of this one")
    if privacy.most:
        release = Release(settings.sampling.chance(clients), privacy.noise)
        rounds = rounds_within(privacy.most, delta, {}, release, setup.rounds)
        if rounds < setup.rounds:
            warn(
                f"privacy: an epsilon of {privacy.most:.3g} is enough for {rounds} of {setup.rounds} rounds: the run "
                "will stop there"
            )


def _check_examples(setup: Setup) -> None:
    """Refuse what DP-SGD at the clients does not cover."""
    method, what = setup.method, f"privacy.level = \"example\": method '{setup.method.name}'"
    if not method.side_by_side or method.objective.form == "own":
        raise SettingsError(
            f"{what} looks at samples in steps of its own, which no noise covers: choose one whose clients only "
            "minimise their loss (fedavg, fedprox, fedper, modfl, fednova, ...)"
        )
    if setup.training.class_weights != "none":
        raise SettingsError(
            f"{what}: training.class_weights tell which labels a client has, and no noise covers that: leave them out"
        )
    if setup.noisy:
        raise SettingsError(
            f"{what}: batches with noise of their own are drawn otherwise: leave out partition.redrawn"
        )
    tried: set[tuple[str, str]] = set()
    for client in setup.population.clients.values():
        key = (setup.model_of[client.info.name], client.info.task)
        if key not in tried:
            tried.add(key)
            model = copy.deepcopy(setup.template(client.info.name).model)
            check_model(model)
            if "train" in client.data:
                check_gradients(Situation(model, setup.loss(client.info), {}), client.data["train"])


def _check_numbers(privacy: Privacy) -> None:
    if privacy.level == "example" and (privacy.adaptive or privacy.epsilon):
        raise SettingsError(
            'privacy.level = "example": clients of different sizes spend differently, so give the noise '
            "(privacy.noise) and, if you like, a budget that ends a client's training (privacy.budget); the bound "
            "stays as it is"
        )
    if bool(privacy.noise) == bool(privacy.epsilon):
        raise SettingsError(
            "privacy: give either the noise (privacy.noise, for example 1.0) or what the run may cost "
            "(privacy.epsilon, for example 4), from which the noise follows"
        )


def _check_sampling(sampling: Sampling, clients: int, noise: float, rounds: int, delta: float) -> None:
    if sampling.replacement:
        raise SettingsError(f"sampling.replacement: under privacy a client counts once a round; {POISSON}")
    drawn = sampling.count(clients)
    if sampling.kind == "fixed" and drawn < clients:
        cost = epsilon_of_fixed(clients, drawn, noise, rounds, delta)
        raise SettingsError(
            f"sampling: {drawn} of {clients} clients, exactly, cost an epsilon of {cost:.3g} with noise {noise:.3g} "
            f"(delta {delta:.1e}, one client replaced by another): {POISSON}"
        )


def _check_method(method: Method) -> None:
    """Refuse a method that gives away more than merged blocks."""
    what, cure = f"privacy: method '{method.name}'", "choose another method (fedavg, fedper, modfl, ...)"
    if method.gives_away is None:
        raise SettingsError(
            f"{what} has a step of its own and does not say what becomes known of single clients "
            f"(Method.gives_away): say it, or {cure}"
        )
    if method.gives_away:
        raise SettingsError(f"{what} gives away {method.gives_away}, which no noise covers: {cure}")
    if method.sharing.gives_away:
        raise SettingsError(
            f"{what}, sharing '{method.sharing.name}', gives away {method.sharing.gives_away}, which no noise covers: "
            'let groups be given (sharing.cohorts = "given"), or choose another sharing'
        )
    if method.sees_updates:
        raise SettingsError(f"{what} reads single updates, which no noise covers: {cure}")
    if not method.merge.of_sums:
        raise SettingsError(
            f"privacy: merge '{method.merge.name}' reads more of single updates than their sum, which no noise covers: "
            "leave `merge` out, or choose another method"
        )
