"""The command line as a newcomer uses it, in processes of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import intarsia
from intarsia.cli.app import app
from intarsia.cli.catalogue import KINDS, explained
from intarsia.cli.shown import show_plan
from intarsia.cli.terminal import console
from tests.cli.called import call

QUICK = ["--set", "rounds=2", "--set", "population.clients=8", "--set", "model.hidden=[8]"]


def test_version_and_help(tmp_path):
    assert call("--version", cwd=tmp_path).stdout == f"intarsia {intarsia.__version__}\n"
    text = call("--help", cwd=tmp_path).stdout
    for command in ("run", "tune", "plan", "resume", "compare", "list", "demo"):
        assert command in text


HELP = [
    [],
    ["run"],
    ["compare"],
    ["explain"],
    ["data"],
    ["data", "partition"],
    ["papers", "run"],
    ["flower", "up"],
]


@pytest.mark.parametrize(
    "command", [[*words, option] for words in HELP for option in ("-h", "--help")] + [["--version"]]
)
def test_help_needs_no_torch(command):
    """It is there at once: torch, pydantic and numpy are imported by commands that run, not by their help."""
    code = (
        "import sys\nfrom intarsia.cli.app import app\n"
        f"app({command!r}, standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'sklearn', 'plotly', 'flwr'} & sys.modules.keys()\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Usage" in done.stdout or done.stdout.startswith("intarsia ")


def test_help_has_headings_and_examples():
    shown = CliRunner().invoke(app, ["-h"]).output
    assert re.findall(r"─ (\w[\w ]*) ─", shown) == [
        "Options",
        "Train",
        "Look",
        "Take home",
        "More",
        "On Flower",
    ]
    shown = CliRunner().invoke(app, ["run", "-h"]).output
    assert "Examples:" in shown
    assert "intarsia run quickstart --set method=modfl" in shown


def test_the_shell_completes_recipes(tmp_path):
    words = {"_INTARSIA_COMPLETE": "complete_bash", "COMP_WORDS": "intarsia run quick", "COMP_CWORD": "2"}
    code = "import sys; sys.argv = ['intarsia']; from intarsia.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **words}, timeout=60
    )
    assert done.stdout.split() == ["quickstart"]


def test_importing_intarsia_imports_torch_when_it_is_needed():
    code = (
        "import sys, intarsia\nassert 'torch' not in sys.modules\n"
        "from intarsia import Address, models\nimport intarsia.data\n"
        "assert intarsia.run and intarsia.data and 'torch' in sys.modules\n"
        "assert not [name for name in intarsia.__all__ if not hasattr(intarsia, name)]\n"
        "assert {'run', 'Run', '__version__'} <= set(dir(intarsia))\n"
        "assert not hasattr(intarsia, 'nothing') and not hasattr(intarsia, '_nothing')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_quiet_says_nothing_and_json_is_json_alone(tmp_path):
    done = call("run", "quickstart", *QUICK, "--out", "a", "--engine", "debug", "--quiet", cwd=tmp_path)
    assert done.stdout == done.stderr == ""
    done = call("run", "quickstart", *QUICK, "--engine", "debug", "--json", cwd=tmp_path)
    about = json.loads(done.stdout)
    assert (about["folder"], about["rounds"]) == ("runs/quickstart-1", 2)
    assert done.stderr.startswith("Run folder: runs/quickstart-1\nround 1/2")
    assert "about" in done.stderr
    assert json.loads(call("resume", "a", "--json", cwd=tmp_path).stdout)["folder"] == "a"
    assert call("resume", "a", "-q", cwd=tmp_path).stdout == ""
    assert call("compare", "a", "-q", "--out", "page.html", cwd=tmp_path).stdout == ""
    assert (tmp_path / "page.html").exists()


def test_eighty_columns_and_fewer_cut_no_address(monkeypatch):
    """Names too long for the terminal make a table wider, whatever else it has to fold."""
    long = "base@a-generation-of-devices-with-a-long-name-that-somebody-chose-for-a-purpose"
    block = {"block": "base", "address": long, "parameters": 1234567, "down": 123456, "up": 123456}
    client = {"device": "a-generation-of-devices-with-a-long-name", "model": "", "blocks": [block]}
    about = {"name": "n", "method": "m", "rounds": 1, "base": {}, "clients": [client], "cut_points": {}}
    plan = {**about, "clients_a_round": 1, "bytes_a_round": {"down": 1, "up": 1}}
    for columns in (80, 40):
        monkeypatch.setattr(console, "_width", columns)
        with console.capture() as captured:
            show_plan(plan)
        shown = captured.get()
        assert long in shown
        assert "…" not in shown
        assert "".join(re.findall(r"│ +1? +│ ([\w-]+) *│", shown)) == client["device"]
    monkeypatch.setattr(console, "_width", 80)
    shown = CliRunner().invoke(app, ["plan", "quickstart", "--set", "method=modfl"]).stdout
    for address in ("configuration@8x8", "configuration@4x4", "operation@cohort-0"):
        assert address in shown
    assert max(len(line) for line in shown.splitlines() if line[:1] in "┏┃│└") <= 80


def test_explain(tmp_path):
    (method, sharing) = json.loads(call("explain", "modfl", "--json", cwd=tmp_path).stdout)
    assert (method["kind"], sharing["kind"]) == ("method", "sharing")
    assert "Liang et al. 2022" in method["text"]
    settings = {row["setting"]: row for row in sharing["settings"]}
    assert settings["sharing.after"]["type"] == "int >= 1"
    assert settings["sharing.after"]["default"] == "1"
    assert settings["sharing.after"]["meaning"].startswith("The first round after which cohorts are found")
    parts = {row["setting"]: row["default"] for row in method["settings"]}
    assert parts == {"sharing": "modfl", "objective": "plain", "merge": "mean"}
    shown = call("explain", "modfl", cwd=tmp_path).stdout
    assert "sharing.compare" in shown
    assert [row["setting"] for about in explained("training.lr") for row in about["settings"]] == [
        "training.lr"
    ]
    assert "did you mean 'fedprox'" in call("explain", "fedprx", cwd=tmp_path, code=2).stderr
    assert "intarsia list methods|" in call("explain", "zzzzzz", cwd=tmp_path, code=2).stderr


def test_everything_that_settings_name_can_be_explained():
    """With a type and a default that people can read, whatever the class."""
    for kinds in (kinds for _, kinds in KINDS.values()):
        for name in kinds:
            for about in explained(name):
                assert about["text"], name
                for row in about["settings"]:
                    assert not re.search(
                        "[<(]|typing|Annotated|FieldInfo", row["type"].replace("< ", "").replace("<=", "")
                    )
                    assert "(" not in row["default"], row
    (training,) = explained("training")
    assert {"training.lr", "training.schedule"} <= {row["setting"] for row in training["settings"]}
    tuned = {row["setting"] for row in explained("pfedclub")[0]["settings"]}
    assert "method.search.most" in tuned


def test_run_resume_compare(tmp_path):
    done = call("run", "quickstart", *QUICK, "--out", "a", "--workers", "1", "--seed", "3", cwd=tmp_path)
    assert "FedPer" in done.stdout
    assert "Run folder: a" in done.stdout
    assert "a/page.html" in done.stdout
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert (summary["method"], summary["rounds"], summary["seed"]) == ("fedper", 2, 3)
    call(
        "run",
        "quickstart",
        *QUICK,
        "--out",
        "b",
        "--engine",
        "debug",
        "--seed",
        "3",
        "--profile",
        cwd=tmp_path,
    )
    profile = json.loads((tmp_path / "b" / "profile.json").read_text())
    stages = ("train", "merge", "evaluate", "save")
    assert all(0 < sum(own[s] for s in stages) <= own["total"] * 1.001 for own in profile.values())
    assert list(profile) == ["1", "2"]
    assert (tmp_path / "b" / "profile.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (tmp_path / "b" / "metrics.jsonl").read_bytes()
    call("resume", "a", cwd=tmp_path)
    shown = call("compare", "a", "b", "--out", "page.html", cwd=tmp_path).stdout
    assert "FedPer, a" in shown
    assert "FedPer, b" in shown
    assert (tmp_path / "page.html").stat().st_size > 1_000_000
    rows = json.loads(call("compare", "a", "b", "--json", cwd=tmp_path).stdout)["runs"]
    assert [row["folder"] for row in rows] == ["a", "b"]
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "settings.toml").write_bytes((tmp_path / "a" / "settings.toml").read_bytes())
    done = call("compare", ".", "--json", cwd=tmp_path)
    assert [row["folder"] for row in json.loads(done.stdout)["runs"]] == ["a", "b"]
    assert "left out, not ended: c" in done.stderr
    (tmp_path / "empty").mkdir()
    done = call("compare", "a", "empty", "page.html", "--json", cwd=tmp_path)
    assert [row["folder"] for row in json.loads(done.stdout)["runs"]] == ["a"]
    assert "left out, holds no run: empty" in done.stderr
    assert "left out, holds no run: page.html" in done.stderr
    done = call("compare", "a", "gone", "b", cwd=tmp_path, code=2)
    assert "not there: gone" in done.stderr
    assert "FedPer" not in done.stdout
    call("resume", "c", "--engine", "debug", "--device", "cpu", cwd=tmp_path)
    assert (tmp_path / "c" / "metrics.jsonl").read_bytes() == (tmp_path / "a" / "metrics.jsonl").read_bytes()


def test_plan(tmp_path):
    shown = call("plan", "quickstart", cwd=tmp_path).stdout
    for part in (
        "base@8x8",
        "base@4x4",
        "head@me",
        "40 of 40 clients a round",
        "hidden2 (16.64 kB | 9.64 kB)",
    ):
        assert part in shown
    plan = json.loads(call("plan", "quickstart", "--set", "method=fedavg", "--json", cwd=tmp_path).stdout)
    assert len(plan["clients"]) == 40
    assert plan["bytes_a_round"]["up"] == plan["bytes_a_round"]["down"] > 0
    assert not list(tmp_path.iterdir())


def test_a_doubt_is_told_beside_the_result(tmp_path):
    one = ["population.cohorts=1", 'population.generations=["8x8"]', "method=modfl"]
    done = call(
        "plan", "quickstart", *(w for change in one for w in ("--set", change)), "--json", cwd=tmp_path
    )
    assert json.loads(done.stdout)["method"] == "modfl"
    assert done.stderr.startswith("Warning: sharing 'modfl': all clients are in one cohort")


@pytest.mark.parametrize("what", ["methods", "merges", "datasets", "recipes"])
def test_list(what, tmp_path):
    rows = json.loads(call("list", what, "--json", cwd=tmp_path).stdout)
    shown = call("list", what, cwd=tmp_path).stdout
    assert rows
    for row in rows:
        assert row["summary"]
        assert row["name"] in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "quickstrt"], "did you mean 'quickstart'?"),
        (["run", "quickstart", "--set", "training.lrate=1"], "training.lrate: unknown setting"),
        (["run", "quickstart", "--set", "method=fedprx"], "did you mean 'fedprox'?"),
        (["plan", "quickstart", "--set", "rounds=-1"], "rounds: input should be greater"),
        (["run", "quickstart", "--set", 'sharing.by=""'], "share base@all, but their blocks differ"),
        (["resume", "nowhere"], "holds no run"),
        (["compare", "nowhere"], "not there: nowhere"),
        (["compare", "used", "nowhere", "elsewhere"], "not there: nowhere, elsewhere"),
        (["compare", "used"], "holds no run that has ended"),
        (["list", "method"], "did you mean 'methods'?"),
        (["run", "quickstart", "--out", "used"], "used is already used"),
        (["demo", "--out", "used"], "used, and not by a demo"),
    ],
)
def test_bad_input_ends_with_2_and_a_message(arguments, message, tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "letter.txt").write_text("dear")
    done = call(*arguments, cwd=tmp_path, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "used" / "letter.txt").read_text() == "dear"


def test_diverging_training_stops_with_1_and_can_be_resumed(tmp_path):
    done = call("run", "quickstart", *QUICK, "--set", "training.lr=1e30", "--out", "a", cwd=tmp_path, code=1)
    assert "0 of 8 updates were accepted" in done.stderr
    assert "intarsia resume a" in done.stderr
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["finished"] is False
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(number, tmp_path):
    """It goes to the workers too, as from a terminal or a service that is stopped."""
    command = [sys.executable, "-m", "intarsia", "run", "quickstart", "--set", "rounds=10000", "--out", "a"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    metrics = tmp_path / "a" / "metrics.jsonl"
    end = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert re.search(r"Stopped\. The state after round \d+ is saved: intarsia resume a", errors)
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["finished"] is False


def test_the_demo_twice(tmp_path, monkeypatch):
    """The demo itself, shortened: one table, one page, and a second call replaces the first."""
    import intarsia.cli.commands.train as cli

    monkeypatch.chdir(tmp_path)
    changes = cli.changes_of
    monkeypatch.setattr(cli, "changes_of", lambda c, *rest: [*changes(c, *rest), *QUICK[1::2]])
    for _ in range(2):
        with cli.console.capture() as captured:
            cli.demo_command(out=Path("runs/demo"), seed=None)
    shown = " ".join(captured.get().split())
    for word in (
        "Local",
        "FedAvg",
        "FedProx",
        "FedPer",
        "ModFL",
        "for each generation by itself",
        "index.html",
    ):
        assert word in shown
    assert (tmp_path / "runs/demo/index.html").exists()
    assert {p.name for p in (tmp_path / "runs/demo").iterdir() if p.is_dir()} == set(cli.DEMO_METHODS)


def test_data_commands_on_real_data(shared_data, tmp_path):
    rows = {r["name"]: r for r in json.loads(call("list", "datasets", "--json", cwd=tmp_path).stdout)}
    assert rows["digits"]["here"] == "embedded"
    data = ["--data", str(shared_data)]
    report = json.loads(call("data", "check", "svhn", *data, "--json", cwd=tmp_path).stdout)
    assert report["samples"] == 5000
    assert report["checksums"] == report["files"] == 11
    shown = call("data", "show", "chars74k", *data, cwd=tmp_path).stdout
    assert "chars74k.png" in shown
    assert (tmp_path / "chars74k.png").read_bytes().startswith(b"\x89PNG")
    call("data", "show", "motionsense", *data, "--out", "m.png", cwd=tmp_path)
    assert (tmp_path / "m.png").stat().st_size > 10_000
    call(
        "data",
        "partition",
        "svhn",
        "--partition",
        "dirichlet",
        "--clients",
        "5",
        "--plot",
        "p.png",
        "--set",
        "population.partition.beta=0.1",
        *data,
        cwd=tmp_path,
    )
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    about = json.loads(
        call("data", "partition", "svhn", "--clients", "5", *data, "--json", cwd=tmp_path).stdout
    )
    counts = [sum(map(sum, c["labels"].values())) for c in about["clients"].values()]
    assert sum(counts) == 5000


def test_data_partition_of_a_recipe(tmp_path):
    shown = call("data", "partition", "quickstart", "--plot", "p.png", cwd=tmp_path).stdout
    assert "client-39" in shown
    assert (tmp_path / "p.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "check", "cifr10"], "did you mean 'cifar10'?"),
        (["data", "check", "emnist"], "published at: https://www.nist.gov"),
        (["data", "get", "hapt"], "has no public address to fetch from"),
        (["data", "partition", "nothing"], "no data set, recipe or file 'nothing'"),
    ],
)
def test_bad_data_commands(arguments, message, tmp_path):
    assert message in call(*arguments, cwd=tmp_path, code=2).stderr


def test_failed_tasks_are_said_beside_the_results(tmp_path):
    class Failing(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and float(x.sum()) > 0:
                raise ZeroDivisionError("of the model's own")
            return super().forward(x)

    x, y = torch.ones(6, 3), torch.arange(6) % 3
    data = {name: {"train": (sign * x, y), "test": (x, y)} for name, sign in (("a", 1), ("b", -1))}
    settings = {"rounds": 2, "engine": {"name": "debug", "device": "cpu"}}
    run = intarsia.run(settings, data=data, model=Failing(3, 3), out=tmp_path / "run")
    shown = CliRunner().invoke(app, ["compare", str(run.path), "--out", str(tmp_path / "page.html")])
    assert "2 tasks of clients failed, see" in shown.output.replace("\n", " ")


def complaint(*arguments: object) -> str:
    """Return what a command complains of, in this process: whatever it is, it is one of our errors."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(done.exception, intarsia.IntarsiaError), done.output
    return str(done.exception)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("summary.json", "{", "summary.json is damaged"),
        ("summary.json", "{}", "summary.json is damaged: it does not name the method"),
        ("metrics.jsonl", "{}\n{", "metrics.jsonl, line 1 is damaged"),
        ("population.json", "[1]", "population.json is damaged"),
        ("settings.toml", "x = = 1", "settings.toml is not TOML"),
    ],
)
def test_a_damaged_run_is_named(small_run, tmp_path, file, text, message):
    (small_run("rounds=1").path / file).write_text(text)
    assert message in complaint("compare", tmp_path / "run", "--out", tmp_path / "page.html")


def test_a_page_is_not_a_folder(small_run, tmp_path):
    path = small_run("rounds=1").path
    assert "is a folder: name the page to write" in complaint("compare", path, "--out", tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_runs_have_pictures(small_run, tmp_path):
    page, pictures = tmp_path / "page.html", tmp_path / "pictures"
    done = CliRunner().invoke(
        app, ["compare", str(small_run("rounds=1").path), "--out", str(page), "--pictures", str(pictures)]
    )
    assert done.exit_code == 0
    assert sorted(path.name for path in pictures.iterdir()) == ["curves.png", "fedavg-mosaic.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures.iterdir())


def test_data_sets_are_suggested_and_the_digits_shown(tmp_path):
    assert "no data set, recipe or file 'cifar1'; did you mean 'cifar10'?" in complaint(
        "data", "partition", "cifar1"
    )
    assert "intarsia data partition digits" in complaint("data", "show", "digits")
    done = CliRunner().invoke(app, ["data", "partition", "digits", "--clients", "10", "--json"])
    assert len(json.loads(done.output)["clients"]) == 10


@pytest.mark.parametrize("seeds", [[], ["--seeds", "2"]])
@pytest.mark.parametrize("form", ["-q", "--json"])
def test_quiet_and_json_tell_warnings_apart_from_results(form, seeds, tmp_path):
    changes = ["method=local", "rounds=2", "population.clients=6", "population.generations=['8x8']"]
    changes += ["training.lr=5000", "engine.name=debug"]
    options = [word for change in changes for word in ("--set", change)]
    done = CliRunner().invoke(
        app, ["run", "quickstart", *options, form, *seeds, "--out", str(tmp_path / "r")]
    )
    assert done.exit_code == 0, done.output
    told = done.stderr.replace("\n", " ")
    folder = tmp_path / "r" / ("seed-0" if seeds else "")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["failed"] > 0
    assert f"{folder.name}: {summary['failed']} tasks of clients failed" in told
    for warned in summary["judged"]["warnings"]:
        assert told.count(warned["message"]) >= 1
    assert ("Warning (seeds 0, 1): " in told) == bool(seeds)
    assert "Warning" not in done.stdout
    if form == "-q":
        assert done.stdout == ""
    else:
        json.loads(done.stdout)
