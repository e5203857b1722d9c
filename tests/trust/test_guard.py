"""Secure sums: what the server gets is the sum, and what clients refuse to give keeps it at that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from intarsia.core import CheckpointError, ClientError, IntarsiaError
from intarsia.trust.guard import Guard
from intarsia.trust.identities import Listed, OnOneMachine
from intarsia.trust.masks import fresh_key, public_of
from intarsia.trust.opening import take_off
from intarsia.trust.secure_sums import AGREE, KEYS, OPEN, SecureSums, to_text
from intarsia.trust.vault import Vault
from tests.trust.sessions import RULES, Play

TEN = [f"client-{i}" for i in range(10)]
TWO_BLOCKS = {"base@all": TEN, "head@a": TEN[:5], "head@b": TEN[5:]}


@pytest.fixture
def play(tmp_path):
    return Play(tmp_path / "vault", TWO_BLOCKS)


@pytest.mark.parametrize(
    ("gone", "silent"), [([], []), (TEN[:1], []), ([TEN[1], TEN[6], TEN[7]], []), (TEN[:1], TEN[5:7])]
)
def test_sums_are_exact_whoever_drops_out(play, gone, silent):
    end = play.to_the_end(gone, silent)
    for address in TWO_BLOCKS:
        assert end.sums[address].tolist() == end.exact(address)


def test_masked_sums_and_single_parts_say_nothing_before_they_are_opened(play):
    masked = play.until_masked()
    for address in TWO_BLOCKS:
        assert masked.sums[address].tolist() != masked.exact(address)


def test_the_same_part_goes_out_otherwise_every_time(play):
    lines = []
    for _ in range(2):
        session = play.keys()
        play.share(session)
        lines.append(play.mask(TEN[0], {"base@all": torch.zeros(50)})["base@all"])
    assert not (lines[0] == lines[1]).any()


def test_never_both_kinds_of_share_of_one_client(play):
    gone = [TEN[2], TEN[8]]
    end = play.to_the_end(gone)
    assert end.opened is not None
    assert list(end.opened.dropped) == gone
    assert not {name for _, name in end.opened.seeds} & set(gone)
    for shares in end.given.values():
        assert len(shares["keys"]) == 2
        assert len(shares["seeds"]) == 8 + 4 + 4


def test_who_signed_one_list_signs_no_other(play):
    play.until_masked()
    play.agree(TEN[:9])
    with pytest.raises(ClientError, match="used once"):
        play.agree(TEN[1:], who=[TEN[3]])


def test_shares_are_given_once(play):
    masked = play.until_masked()
    signatures = play.agree(TEN)
    play.open(masked.session, TEN[0], signatures)
    with pytest.raises(ClientError, match="used once"):
        play.open(masked.session, TEN[0], signatures)


def test_a_server_that_tells_clients_different_lists_gets_nothing(play):
    """Half of the clients is told that the last one came, the other half that it did not."""
    masked = play.until_masked()
    signatures = play.agree(TEN, who=TEN[:5]) | play.agree(TEN[:9], who=TEN[5:9])
    for name in (TEN[0], TEN[6]):
        with pytest.raises(ClientError, match="signed the same list of who came, 7 are needed"):
            play.open(masked.session, name, signatures)


def test_signatures_of_others_are_known(play):
    masked = play.until_masked()
    signatures = play.agree(TEN)
    swapped = dict(zip(signatures, [*list(signatures.values())[1:], signatures[TEN[0]]], strict=True))
    with pytest.raises(ClientError, match="0 clients signed"):
        play.open(masked.session, TEN[0], swapped)


def test_a_client_masks_once(play):
    play.until_masked()
    with pytest.raises(ClientError, match="used once"):
        play.mask(TEN[0], {"base@all": torch.ones(5)})


def test_swapped_keys_are_seen(play):
    """A server that puts keys of its own in a client's place could open everything."""
    session = play.keys()
    forged = session.members[TEN[4]].model_copy(update={"mask": to_text(public_of(fresh_key()))})
    swapped = replace(session, members={**session.members, TEN[4]: forged})
    with pytest.raises(ClientError, match=r"client 'client-4''s are not signed by it"):
        play.share(swapped)


def test_a_client_that_nobody_listed_is_not_masked_with(play):
    """Keys that a stranger signed with its own identity are not those of the list."""
    session = play.keys()
    stranger = Play(play.folder.parent / "other", TWO_BLOCKS).keys()
    mixed = replace(session, members={**session.members, TEN[4]: stranger.members[TEN[4]]})
    with pytest.raises(ClientError, match="not signed by it"):
        play.share(mixed)


def test_keys_of_an_earlier_round_are_not_taken_again(play):
    old = play.keys()
    play.round = 2
    new = play.keys()
    mixed = replace(new, members={**new.members, TEN[4]: old.members[TEN[4]]})
    with pytest.raises(ClientError, match="not signed by it"):
        play.share(mixed)


def test_a_server_that_tells_clients_different_sessions_gets_nothing(play):
    """One client believes that others hold its address; what is sealed under one session opens under no other."""
    session = play.keys()
    lie = replace(session, holders={**TWO_BLOCKS, "head@a": TEN[:6]})
    play.share(session, {TEN[0]: lie})
    for name in TEN:
        play.mask(name, {"base@all": torch.zeros(5)})
    signatures = play.agree(TEN)
    with pytest.raises(ClientError, match="client 'client-0' sealed for this one did not come"):
        play.open(session, TEN[1], signatures)


@pytest.mark.parametrize("change", [{"threshold": 2}, {"floor": 1}, {"round": 7}, {"exchange": "other"}])
def test_a_session_is_as_the_settings_say(play, change):
    with pytest.raises(ClientError, match="session"):
        play.share(replace(play.keys(), **change))


def test_an_address_of_too_few_is_not_sent(tmp_path):
    play = Play(tmp_path, {"base@all": TEN, "head@a": TEN[:2]})
    session = play.keys()
    play.share(session)
    with pytest.raises(ClientError, match="summed over 2 clients, at least 3"):
        play.mask(TEN[0], {"head@a": torch.zeros(3)})
    with pytest.raises(ClientError, match="summed over 0 clients"):
        play.mask(TEN[4], {"head@x": torch.zeros(3)})
    with pytest.raises(ClientError, match="6 clients are named"):
        play.mask(TEN[4], {"base@all": torch.zeros(3)}, TEN[:6])


def test_an_address_that_too_few_came_of_stays_closed(play):
    """Two of five holders of a head came: the base is opened, that head is not, nor can it be."""
    end = play.to_the_end(TEN[:3])
    assert end.opened is not None
    assert end.opened.closed == ["head@a"]
    assert set(end.opened.whole) == {"base@all", "head@b"}
    assert end.sums["base@all"].tolist() == end.exact("base@all")
    assert end.sums["head@a"].tolist() != end.exact("head@a")
    assert ("head@a", TEN[3]) not in end.opened.seeds


def test_too_few_shares_open_nothing(play):
    with pytest.raises(IntarsiaError, match="6 of 10 clients gave shares, 7 are needed"):
        play.to_the_end(TEN[:1], TEN[1:4])


def test_wrong_shares_are_seen(play):
    masked = play.until_masked(TEN[:1])
    signatures = play.agree(masked.survivors)
    given = {name: play.open(masked.session, name, signatures) for name in masked.survivors}
    given[TEN[3]]["keys"][0, 5] ^= 1
    opened = masked.session.opening(TEN, masked.survivors)
    with pytest.raises(IntarsiaError, match="do not fit each other"):
        take_off(masked.session, opened, given, masked.sums)


def test_the_same_work_is_not_summed_with_others_again(play):
    """A round that is played anew, with one client fewer, would give that client's update away."""
    play.to_the_end()
    play.to_the_end()  # with the same clients it says nothing new
    play.until_masked(TEN[9:])
    with pytest.raises(ClientError, match="difference would give single updates away"):
        play.agree(TEN[:9])
    play.to_the_end(TEN[9:], work="another model, another update")


def test_where_only_others_groups_differ_the_work_is_summed_again(play):
    """Clients of head@a and base@all alike: who is missing in base@all is missing for all of its holders."""
    play.holders = {"head@a": TEN[:5], "head@b": TEN[5:]}
    play.to_the_end()
    masked = play.until_masked(TEN[9:])
    play.agree(masked.survivors, who=TEN[:5])
    with pytest.raises(ClientError, match="difference"):
        play.agree(masked.survivors, who=TEN[5:6])


def test_steps_come_in_their_order(play):
    with pytest.raises(ClientError, match="not the client's next one"):
        play.ask(AGREE, TEN[0], survivors=TEN)
    session = play.keys()
    with pytest.raises(ClientError, match="not the client's next one"):
        play.mask(TEN[0], {"base@all": torch.zeros(2)})
    with pytest.raises(ClientError, match="not the client's next one"):
        play.ask(OPEN, TEN[0], signatures={}, sealed={}, rows=[0, 0])
    assert len(session.members) == 10


def test_a_vault_is_nobody_elses_and_forgets_secrets(play):
    play.to_the_end()
    files = list(play.folder.iterdir())
    assert len(files) == 10
    assert play.folder.stat().st_mode & 0o777 == 0o700
    assert all(b'"session": {}' in file.read_bytes() for file in files)
    files[0].write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        play.keys()


def test_thresholds_are_more_than_half():
    assert [SecureSums(on=True).needed(n) for n in (1, 3, 4, 5, 10, 50, 100)] == [1, 2, 3, 4, 7, 31, 61]
    assert SecureSums(threshold=0.5).needed(10) == 6


def test_sites_sign_with_listed_keys(tmp_path):
    """Elliptic curve keys, as SuperNodes have them; a list that lacks a client, or has another key of it, is no good."""
    pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")
    from intarsia.flower.operating.certs import make

    make(tmp_path, ["north", "south"])
    keys = {site: (tmp_path / "keys" / f"{site}.pub").read_bytes() for site in ("north", "south")}
    listed = {"a": keys["north"], "b": keys["south"]}
    north = Listed(tmp_path / "keys" / "north", listed)
    south = Listed(tmp_path / "keys" / "south", listed)
    signature = north.sign("a", b"text")
    assert south.signed("a", b"text", signature)
    assert not south.signed("b", b"text", signature)
    assert not south.signed("a", b"other", signature)
    assert not south.signed("c", b"text", signature)


def test_a_guard_of_another_place_has_other_secrets(tmp_path):
    one = Guard(Vault(tmp_path / "a"), OnOneMachine(), RULES)
    other = OnOneMachine()
    play = Play(tmp_path / "a", TWO_BLOCKS, guard=one)
    said, _ = play.ask(KEYS, TEN[0], **{"for": "train"})
    assert not other.signed(TEN[0], b"", said["signature"].encode())
