"""What others may not read, write, or have shown: keys and folders, names as paths, answers that are too large."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from intarsia.core import DataError, SettingsError, WireError
from intarsia.flower.message_records import to_records
from intarsia.flower.messages import SiteMessage
from intarsia.flower.operating import certs
from intarsia.flower.server.app import say
from intarsia.flower.server.channel import Channel, NoAnswer, _open
from intarsia.flower.server.message_download import MessageDownload, TooMuch
from intarsia.flower.site.agent import HERE
from intarsia.flower.site.site_file import Site
from tests.flower.stranger import written

MEGABYTE = 1 << 20


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_keys_are_private_even_over_an_existing_file(tmp_path):
    before = os.umask(0o022)
    try:
        (tmp_path / "keys").mkdir()
        for path in (tmp_path / "server.key", tmp_path / "keys" / "north"):
            path.write_text("older")
            path.chmod(0o644)
        held = (tmp_path / "server.key").open()
        certs.make(tmp_path, ["north"])
    finally:
        os.umask(before)
    assert mode(tmp_path / "server.key") == mode(tmp_path / "keys" / "north") == 0o600
    with held:
        assert held.read() == "older"  # whoever had it open does not see the new key


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", "x\0"])
def test_names_of_keys_stay_in_their_folder(tmp_path, name):
    with pytest.raises(SettingsError, match="choose one without"):
        certs.make(tmp_path / "certs", ["north", name])
    assert not (tmp_path / "certs").exists()


def site(home: Path, **more: object) -> Site:
    return Site(**{"name": "x", "population": {"name": "digits", "clients": 2}, "home": home, **more})


def test_a_sites_name_stays_in_its_folder(tmp_path):
    there = site(tmp_path / "a" / "b", name="../../x")
    assert there.state.resolve().parent == tmp_path / "a" / "b"
    assert there.open_state().is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_sites_folder_is_closed_even_if_it_was_open(tmp_path):
    (tmp_path / "x.state").mkdir(mode=0o755)
    assert mode(site(tmp_path).open_state()) == 0o700


def test_names_that_a_terminal_would_obey_are_refused_at_the_site(tmp_path):
    for more in ({"name": "\x1b[2J"}, {"attributes": {"client-00": {"cohort": "\x1b[2J"}}}):
        with pytest.raises(DataError, match=r"'\\x1b\[2J'"):
            site(tmp_path, **more).load_population()


def test_what_a_site_says_comes_out_plain(capsys):
    evil = SiteMessage({"kind": HERE, "site": "\x1b[2J", "clients": [{"name": "\r\x9b"}]})
    opened = _open(written(to_records(evil)), MEGABYTE)
    assert opened.header["site"] == "\\x1b[2J"
    assert opened.header["clients"] == [{"name": "\\r\\x9b"}]
    say("site '\x1b[2J' says\n[intarsia] the run has ended")
    assert capsys.readouterr().out == "[intarsia] site '\\x1b[2J' says\n  [intarsia] the run has ended\n"


class Store:
    """The SuperLink's objects, as the grid's client gives them; counts what was fetched."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects, self.fetched = objects, 0
        self.forgotten: list[str] = []
        forget = lambda request: self.forgotten.append(request.message_object_id)  # noqa: E731
        self._runtime_client = SimpleNamespace(PullObject=self.pull, ConfirmMessageReceived=forget)
        self.node, self.run = None, SimpleNamespace(run_id=1)

    def pull(self, request):
        data = self.objects[request.object_id]
        self.fetched += len(data)
        return PullObjectResponse(object_found=True, object_available=True, object_content=data)


def sent(content: RecordDict) -> tuple[Store, ObjectTree]:
    made = written(content)
    objects = {name: part.deflate() for name, part in get_all_nested_objects(made).items()}
    return Store(objects), get_object_tree(made)


def arrays(data: bytes) -> RecordDict:
    return RecordDict({"a": ArrayRecord({"safetensors": Array("uint8", (len(data),), "safetensors", data)})})


def test_a_message_arrives_whole():
    data = os.urandom(12 * MEGABYTE)
    store, tree = sent(arrays(data))
    arrived = MessageDownload(store, tree, 0.01).message(13 * MEGABYTE)
    assert arrived.content.array_records["a"]["safetensors"].data == data


def test_what_is_too_large_is_not_fetched_to_its_end():
    store, tree = sent(arrays(os.urandom(100 * MEGABYTE)))
    with pytest.raises(TooMuch):
        MessageDownload(store, tree, 0.01).message(MEGABYTE)
    assert store.fetched < 80 * MEGABYTE


def test_a_small_message_that_unfolds_into_a_large_one_is_not_unfolded():
    """One piece of 5 MB, named twelve times: 60 MB in memory for 5 MB on the wire."""
    store, tree = sent(arrays(bytes(60 * MEGABYTE)))
    assert sum(map(len, store.objects.values())) < 6 * MEGABYTE
    with pytest.raises(TooMuch, match="629"):
        MessageDownload(store, tree, 0.01).message(6 * MEGABYTE)


def test_a_message_of_countless_objects_is_not_fetched():
    store, tree = sent(arrays(b"x"))
    tree.children.extend(ObjectTree(object_id=f"{i:064x}") for i in range(10_000))
    with pytest.raises(TooMuch):
        MessageDownload(store, tree, 0.01).message(MEGABYTE)
    assert store.fetched == 0


def test_what_flower_cannot_read_is_refused_and_nothing_else_happens():
    store, tree = sent(arrays(b"x"))
    del tree.children[:]
    with pytest.raises(WireError, match="Flower cannot read what it sent"):
        MessageDownload(store, tree, 0.01).message(MEGABYTE)


def test_whatever_cannot_be_taken_is_refused_and_forgotten():
    deep: list[object] = []
    for _ in range(600):
        deep = [deep]
    contents = [
        arrays(b"x"),
        to_records(SiteMessage({"kind": deep})),
        to_records(SiteMessage({"kind": "x" * 300_000})),
    ]
    for content in contents:
        store, tree = sent(content)
        no_answer = Channel(store)._take(MessageDownload(store, tree, 0.01), 100_000)
        assert isinstance(no_answer, NoAnswer)
        assert no_answer.refused
        assert store.forgotten == [tree.object_id]


def test_a_reason_that_a_node_gives_comes_out_plain():
    from flwr.app import Error

    failed = Message(Error(0, "\x1b[2J"), reply_to=written(arrays(b"x")))
    no_answer = _open(failed, MEGABYTE)
    assert isinstance(no_answer, NoAnswer)
    assert "\\x1b[2J" in no_answer.reason
