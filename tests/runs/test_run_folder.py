"""Run folders that are damaged, left half-made, of somebody else, or on a disk that is full."""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from intarsia.blocks import Block, BlockStore
from intarsia.core import CheckpointError, Refused, RunFolderError
from intarsia.methods import report
from intarsia.methods.fedper import FedPer
from intarsia.runs import ClientRecord, Journals, tables
from intarsia.runs import folder as runs
from tests.runs.test_resume import children, content_of, contents, newest, same_result, seal

OUTSIDE = ("../../../../victim", "../" * 12 + "etc/hostname", "/victim", "ab", "A" * 32, "0" * 32 + "\n")


@pytest.mark.parametrize("version", OUTSIDE)
def test_what_is_no_version_never_becomes_a_path(version, tmp_path):
    store = BlockStore(tmp_path / "store" / "blocks")
    for act in (store.get, lambda v: store.remove([v]), lambda v: store.sync([v])):
        with pytest.raises(CheckpointError, match="is no version of a block"):
            act(version)


def in_the_pool(manifest: dict[str, Any], folder: Path, version: str) -> None:
    manifest["pool"] = dict.fromkeys(manifest["pool"], version)


def in_the_start(manifest: dict[str, Any], folder: Path, version: str) -> None:
    manifest["initial"] = {key: dict.fromkeys(own, version) for key, own in manifest["initial"].items()}


def in_a_record(manifest: dict[str, Any], folder: Path, version: str) -> None:
    record = ClientRecord(state={"private": {"head": version}})
    manifest["clients"] = vars(Journals(folder / "state").begin({"client-00": record}).mark)


def in_the_run(manifest: dict[str, Any], folder: Path, version: str) -> None:
    manifest["run"] = version


@pytest.mark.parametrize("place", [in_the_pool, in_the_start, in_a_record, in_the_run])
def test_a_strangers_folder_reaches_nothing_outside(place: Callable[..., None], small_run, tmp_path):
    """All checkpoints are sealed and name a file outside, so that it would be removed as a damaged block."""
    run = small_run("method=fedper")
    victim = tmp_path / "victim.safetensors"
    victim.write_text("precious")
    version = os.path.relpath(tmp_path / "victim", run.path / "state" / "blocks" / "..")
    for path in (run.path / "state").glob("checkpoint-*.json"):
        manifest = content_of(path)
        place(manifest, run.path, version)
        seal(path, manifest)
    before = contents(run.path)
    with pytest.raises(CheckpointError, match="holds what Intarsia does not write"):
        intarsia.resume(run.path)
    assert victim.read_text() == "precious"
    assert contents(run.path) == before


@pytest.mark.parametrize("name", ["state/blocks/zz", "state", "metrics.jsonl", "state/clients-1.jsonl"])
def test_a_folder_that_leads_elsewhere_is_refused(name, small_run, tmp_path):
    run = small_run()
    outside = tmp_path / "outside"
    if (run.path / name).exists():
        shutil.move(run.path / name, outside)
    else:
        outside.mkdir()
        (outside / "precious").write_text("1")
    (run.path / name).symlink_to(outside)
    before = contents(outside) if outside.is_dir() else outside.read_bytes()
    with pytest.raises(RunFolderError, match="is a link"):
        intarsia.resume(run.path)
    assert before == (contents(outside) if outside.is_dir() else outside.read_bytes())


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\x00", None])
def test_a_run_without_a_whole_checkpoint_is_refused_again_and_again(damage, small_run):
    """Its tables stay as they are, however often one tries."""
    run = small_run()
    for path in (run.path / "state").glob("checkpoint-*.json"):
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
    before = contents(run.path)
    for _ in range(3):
        with pytest.raises(CheckpointError, match=r"no checkpoint can be used.*Nothing was changed"):
            intarsia.resume(run.path)
        assert contents(run.path) == before


def test_an_unusable_checkpoint_is_set_aside_not_removed(small_run, tmp_path):
    whole = small_run(out="whole")
    shutil.copytree(whole.path, tmp_path / "cut")
    for attempt in (1, 2):
        path = newest(intarsia.open_run(tmp_path / "cut"))
        path.write_bytes(b"damaged %d" % attempt)
        same_result(whole.path, intarsia.resume(tmp_path / "cut").path)
        assert path.with_name(f"{path.name}.unusable-{attempt}").read_bytes() == b"damaged %d" % attempt


@pytest.mark.parametrize("left", [0, 1, -1])
def test_lost_lines_of_times_do_not_block(left, small_run, tmp_path):
    """Nothing, a part of the first line, or all but a part of the last is left of `seconds.jsonl`."""
    whole = small_run(out="whole")

    class Stop(intarsia.Observer):
        def exchange_started(self, round: int, name: str, clients: int) -> None:
            if round == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run(out="cut", observer=Stop())
    path = tmp_path / "cut" / "seconds.jsonl"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(KeyboardInterrupt):
        intarsia.resume(tmp_path / "cut", observer=Stop())
    done = intarsia.resume(tmp_path / "cut")
    same_result(whole.path, done.path)
    assert [row["round"] for row in done.seconds] == ([1, 3] if left < 0 else [3])


def killed(program: Callable[[], None]) -> None:
    """Run a function in a process of its own, which kills itself."""
    pid = os.fork()
    if not pid:
        program()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize("moment", ["lock", "write_atomically"])
def test_a_folder_of_a_run_killed_before_its_settings_is_free(moment, small_run, tmp_path, monkeypatch):
    def begin() -> None:
        def die(*_: object) -> None:
            (tmp_path / "run" / ".settings.toml.1-1.draft").write_text("name =")
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(runs, moment, die)
        runs.RunFolder.create(tmp_path / "run", "")

    killed(begin)
    assert (tmp_path / "run" / "state").exists()
    with pytest.raises(RunFolderError, match=r"no settings\.toml"):
        intarsia.resume(tmp_path / "run")
    assert small_run().summary["finished"]
    assert not list((tmp_path / "run").rglob(".*.draft"))


@pytest.mark.parametrize("name", ["state/notes.txt", "letter.txt", "metrics.jsonl"])
def test_a_folder_with_anything_else_is_not_free(name, small_run, tmp_path):
    (tmp_path / "run" / "state").mkdir(parents=True)
    (tmp_path / "run" / name).write_text("x")
    with pytest.raises(RunFolderError, match="already used"):
        small_run()
    assert (tmp_path / "run" / name).read_text() == "x"


def test_drafts_that_a_killed_writer_left_are_cleared(small_run):
    run = small_run()
    blocks = run.path / "state" / "blocks"
    for folder in (run.path, run.path / "state", blocks):
        (folder / ".something.json.77-78.draft").write_bytes(b"half")
    (run.path / "state" / "clients-7.jsonl").write_bytes(b"begun by a checkpoint that never was")
    intarsia.resume(run.path)
    assert not list(run.path.rglob(".*.draft"))
    assert not (run.path / "state" / "clients-7.jsonl").exists()


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let the system refuse to write files that are larger, as it does when a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("size", "named"), [(12000, r"traffic\.jsonl"), (4200, r"state/blocks/\w{32}\.safetensors")]
)
def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(size, named, small_run, tmp_path):
    whole = small_run(out="whole")
    with (
        files_up_to(size),
        pytest.raises(intarsia.IntarsiaError, match=rf"cannot write into .*{named}: File too large.*resume"),
    ):
        small_run(out="full")
    assert not list((tmp_path / "full").rglob(".*.draft"))
    same_result(whole.path, intarsia.resume(tmp_path / "full").path)


NAN = Block({"w": torch.tensor([1.0, torch.nan])})
INFINITE = Block({"n": torch.tensor(3), "w": torch.tensor([1.0, -torch.inf], dtype=torch.float16)})


@pytest.mark.parametrize(("block", "kind"), [(NAN, "a NaN"), (INFINITE, "an infinity")])
def test_a_block_that_is_not_finite_is_not_kept(block, kind, tmp_path):
    store = BlockStore(tmp_path)
    with pytest.raises(Refused, match=f"tensor 'w' holds {kind}"):
        store.put(block)
    assert not list(tmp_path.rglob("*"))


@intarsia.part
class Spoiled(intarsia.Method):
    """FedAvg whose server spoils a block in round 2."""

    name = "spoiled"
    title = "Spoiled"

    def round(self, server: Any) -> Any:
        yield from super().round(server)
        if server.round == 2:
            address = next(iter(server.pool))
            block = server.pool.get(address)
            server.pool.restart(address, block.alike({n: t / 0 for n, t in block.tensors.items()}))


def test_a_block_that_would_not_be_finite_stays_as_it_was(small_run):
    run = small_run("sharing.by=device", method=Spoiled())
    told = [(e["round"], e["kind"], e["block"]) for e in run.events if e["kind"] != "warning"]
    assert told == [(2, "refused", "model")]
    assert "the present one stays" in run.events[0]["message"]
    assert run.summary["finished"]
    assert not any(block.flaw for block in run.state().pool.blocks())


@intarsia.part
class HeadLost(FedPer):
    """FedPer in which a client's own head becomes NaN."""

    name = "head-lost"
    title = "Head lost"

    def local_step(self, step: str, client: intarsia.LocalClient) -> dict[str, object]:
        values = report(client.train(self.objective))
        if client.info.name == "client-01" and client.round == 2:
            with torch.no_grad():
                list(client.model.parameters())[-1].fill_(torch.nan)
        return values


@pytest.mark.parametrize("engine", ["debug", "local"])
def test_a_client_whose_own_block_is_lost_keeps_the_one_before(engine, small_run):
    run = small_run(f"engine.name={engine}", "engine.workers=2", "sharing.by=device", method=HeadLost())
    assert [(e["round"], e["client"]) for e in run.events if e["kind"] != "warning"] == [(2, "client-01")]
    assert "holds a NaN: such a block is not kept" in run.events[0]["message"]
    assert all(torch.isfinite(t).all() for t in run.client("client-01").model().state_dict().values())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_workers_leave_it_to_the_run_to_end(small_run):
    """A service that is stopped sends SIGTERM to all: a worker that ended by it would be taken for a crash."""

    class Terminating(intarsia.Observer):
        workers: tuple[int, ...] = ()

        def exchange_started(self, round: int, name: str, clients: int) -> None:
            self.workers = tuple(children(os.getpid()))
            for worker in self.workers:
                os.kill(worker, signal.SIGTERM)

    observer = Terminating()
    run = small_run("engine.name=local", "engine.workers=2", observer=observer)
    assert len(observer.workers) >= 2
    assert run.summary["finished"]


def test_a_long_table_is_packed_at_the_end_and_unpacked_to_go_on(small_run, monkeypatch):
    plain = small_run("rounds=3", out="plain")
    short = small_run("rounds=2", out="short")
    monkeypatch.setattr(tables, "WORTH_PACKING", 1000)
    packed = small_run("rounds=2", out="packed")
    file, gz = packed.path / "traffic.jsonl", packed.path / "traffic.jsonl.gz"
    assert (file.exists(), gz.exists()) == (False, True)
    assert packed.traffic == short.traffic
    file.write_bytes(gzip.decompress(gz.read_bytes()))  # as a kill leaves it between the two
    assert intarsia.resume(packed.path, rounds=3).traffic == plain.traffic
    assert gz.stat().st_size < (plain.path / "traffic.jsonl").stat().st_size / 5
    assert not file.exists()
    gz.write_bytes(gz.read_bytes()[:-9])
    with pytest.raises(RunFolderError, match=r"traffic\.jsonl\.gz is damaged: put back a copy"):
        _ = packed.traffic
