"""Joining late: a federation has ended, and a new client comes with a handful of samples.

It gets a model from the blocks that the run left: every assembly that fits is tried on rows that the newcomer holds
out, and the best is tuned at home. Nothing of the run changes, and nobody else is asked. The control is the same
network, trained by the newcomer alone.

Run it with: python examples/gallery/joining_late.py
"""

from __future__ import annotations

import _show

import intarsia

SEED, CLIENTS, COHORTS, EARLY, TESTS, COUNTS = 0, 10, 5, 600, 60, (10, 20, 40, 80)
SETTINGS = {
    "seed": SEED,
    "rounds": _show.rounds(30),
    "method": "modfl",
    "sharing": {"operation": "hidden2"},
    "model": {"name": "mlp", "hidden": [64, 32]},
    "training": {"lr": 0.1, "epochs": 3, "batch_size": 8},
}
STAGES = {"alone": "Local: alone", "new": "ModFL: blocks as they come", "tuned": "ModFL: tuned at home"}


def main() -> None:
    """Let a newcomer of every cohort, which sees four labels of ten, join with more and more samples."""
    (x, y), early = _show.digits(SEED), {}
    sees = [((y - 2 * cohort) % 10 < 4).nonzero().flatten() for cohort in range(COHORTS)]
    for i in range(CLIENTS):
        own = sees[i % COHORTS]
        own = own[own < EARLY][i // COHORTS :: CLIENTS // COHORTS]
        early[f"client-{i}"] = _show.share(x[own], y[own], len(own) - 20, cohort=f"cohort-{i % COHORTS}")
    run = intarsia.run(SETTINGS, data=early, out=_show.folder() / "run")
    found = {stage: [0.0] * len(COUNTS) for stage in STAGES}
    for cohort in range(COHORTS):
        new = sees[cohort][sees[cohort] >= EARLY]
        for at, count in enumerate(COUNTS):
            train, test = new[TESTS : TESTS + count], new[:TESTS]
            data = {"train": (x[train], y[train]), "test": (x[test], y[test])}
            joined = run.adapt(data, name=f"newcomer-{cohort}")
            for stage, means in found.items():
                means[at] += 100 * joined.row(stage)["metrics"]["accuracy"] / COHORTS
    print(f"Test accuracy, mean over {COHORTS} newcomers, by how many samples they bring to train on:")
    print(f"  {'':26}" + "".join(f"{count:9}" for count in COUNTS))
    for stage, name in STAGES.items():
        print(f"  {name:26}" + "".join(f"{mean:7.1f} %" for mean in found[stage]))
    lines = {name: found[stage] for stage, name in STAGES.items()}
    _show.save(
        _show.lines(COUNTS, lines, "Newcomers to a federation that has ended", "samples"), "joining_late"
    )


if __name__ == "__main__":
    main()
