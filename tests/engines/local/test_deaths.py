"""Workers that are killed: their clients are done by others, the run goes on, and not a bit of it changes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

import intarsia
from intarsia.engines.local import engine as local
from intarsia.methods import Method, report
from tests.conftest import failures

TWO = ("engine.name=local", "engine.workers=2", "sampling.clients=6")


def tables(run: intarsia.Run) -> list[bytes]:
    return [(run.path / f"{name}.jsonl").read_bytes() for name in ("metrics", "traffic", "groups", "notes")]


def end_a_worker(number: int) -> None:
    there = [p for p in multiprocessing.active_children() if p.name == "intarsia-worker"]
    workers = sorted(there, key=lambda process: process.pid)
    os.kill(workers[number % len(workers)].pid, signal.SIGKILL)
    workers[number % len(workers)].join()


class Killing(intarsia.Observer):
    """Kills a worker after so many replies of every exchange, and one that has nothing to do after every round."""

    def __init__(self, after: int) -> None:
        self.after, self.replies, self.killed = after, 0, 0

    def exchange_started(self, round: int, name: str, clients: int) -> None:
        self.replies = 0

    def replied(self, reply: object) -> None:
        self.replies += 1
        if self.replies == self.after:
            self._kill()

    def round_done(self, report: object) -> None:
        self._kill()

    def _kill(self) -> None:
        end_a_worker(self.killed)
        self.killed += 1


@pytest.mark.parametrize(
    ("after", "changes"),
    [
        (1, ["method=fedavg"]),
        (2, ["method=fedper", "training.batched=false"]),
        (4, ["method=modfl", "training.batched=false", "engine.workers=1"]),
        (3, ["method=fedper", "codec=int8", "training.batched=false", "merge=median", "sampling.clients=8"]),
    ],
)
def test_a_run_whose_workers_are_killed_all_the_time_is_the_same(after, changes, small_run):
    whole = small_run(*TWO, *changes, out="whole")
    observer = Killing(after)
    run = small_run(*TWO, *changes, out="killed", observer=observer)
    assert tables(run) == tables(whole)
    died = failures(run)
    assert {event["kind"] for event in died} == {"died"}
    assert all("ended by signal 9; often: out of memory" in event["message"] for event in died)
    assert len(died) >= 3  # a worker that is killed after its last answer is not missed any more
    assert observer.killed == 9
    assert not [p for p in multiprocessing.active_children() if p.name == "intarsia-worker"]


@intarsia.part
class Dying(Method):
    """A method whose client takes its process down, in the second round, so many times."""

    name = "dying"
    title = "Dying"

    folder: str = ""
    times: int = 99

    def local_step(self, step: str, client: intarsia.LocalClient) -> dict[str, object]:
        trained = client.train(self.objective)
        if client.info.name == "client-02" and client.round == 2:
            marks = sorted(Path(self.folder).glob("mark-*"))
            if len(marks) < self.times:
                (Path(self.folder) / f"mark-{len(marks)}").touch()
                os._exit(7)
        return report(trained)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_ends_two_workers_is_named_and_left_out(workers, small_run, tmp_path):
    same = ("sharing={}", "population.generations=['8x8']")
    changes = (*same, "engine.name=local", f"engine.workers={workers}")
    run = small_run(*changes, method=Dying(folder=str(tmp_path)))
    assert [event["kind"] for event in failures(run)] == ["died", "died", "failed"]
    last = failures(run)[-1]
    assert (last["round"], last["exchange"], last["client"]) == (2, "train", "client-02")
    assert (
        "2 workers ended while they ran it, the last: a worker process ended by exit code 7"
        in last["message"]
    )
    assert (run.summary["finished"], run.summary["failed"]) == (True, 1)
    trained = {(row["round"], row["client"]) for row in run.metrics if row["stage"] == "training"}
    assert len(trained) == 3 * 8 - 1


def test_a_client_that_ends_one_worker_is_done_by_another(small_run, tmp_path):
    changes = ("sharing={}", "population.generations=['8x8']", *TWO)
    whole = small_run(*changes, method=Dying(folder=str(tmp_path), times=0), out="whole")
    run = small_run(*changes, method=Dying(folder=str(tmp_path), times=1), out="run")
    assert tables(run) == tables(whole)
    (event,) = failures(run)
    assert (event["round"], event["exchange"], event["stage"]) == (2, "train", "worker")
    assert "at client 'client-02'; its clients are done by others" in event["message"]


def test_workers_that_never_answer_stop_the_run(small_run, monkeypatch):
    monkeypatch.setattr(local, "_work", lambda *_: os._exit(3))
    changes = ("population.clients=30", "engine.name=local", "engine.workers=2", "training.batched=false")
    with pytest.raises(intarsia.RunStopped, match=r"21 workers ended one after the other; .* exit code 3"):
        small_run(*changes)
