"""Secure sums over real Flower processes: the same metrics as without masks; sites that insist, or cannot sign."""

from __future__ import annotations

from typing import Any

import pytest
import tomli_w

pytest.importorskip("flwr", reason="needs Flower: pip install 'intarsia[flower]'")

from intarsia.core import SettingsError
from intarsia.flower.operating import certs
from intarsia.flower.site.guarding import guard_at_site
from intarsia.flower.site.site_file import Site
from intarsia.trust import SecureSums
from intarsia.trust.secure_sums import OPEN
from tests.flower.conftest import NORTH, SOUTH, Trial, locally, same

ON = SecureSums(on=True)
MASKED = {"secure_sums": {"on": True}}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "modfl": {"method": "modfl", "sharing": {}, "rounds": 3},
}


def sign(trial: Trial) -> dict[str, str]:
    """Write the register of two sites beside their keys; return where it is."""
    keys = trial.folder / "certs" / "keys"
    sites = {
        name: {"key": str(keys / f"{name}.pub"), "clients": clients}
        for name, clients in {"north": NORTH, "south": SOUTH}.items()
    }
    (trial.folder / "roster.toml").write_text(tomli_w.dumps({"sites": sites}))
    return {"peers": str(trial.folder / "roster.toml")}


@pytest.mark.flower_slow
def test_a_federation_under_masks_gives_what_one_without_gives(trial):
    peers = sign(trial)
    for site, clients in (("north", NORTH), ("south", SOUTH)):
        key = str(trial.folder / "certs" / "keys" / site)
        trial.join(site, clients, key=key, **peers)
    for name, changes in CASES.items():
        plain = trial.play(f"plain-{name}", changes)
        masked = trial.play(f"masked-{name}", {**changes, **MASKED}, roster=peers["peers"])
        assert same(plain, masked)
        assert same(masked, locally(trial.folder / f"local-{name}", {**changes, **MASKED}))
        assert masked.summary["failed"] == masked.summary["refused"] == 0
        assert any(row["exchange"] == OPEN for row in masked.traffic)
        sent = {
            row["client"]
            for row in masked.traffic
            if row["exchange"] == "train" and row["bytes"] and row["direction"] == "up"
        }
        assert sent <= {"north", "south"}  # a site sends the masked sum of its clients


def site(tmp_path: Any, **more: Any) -> Site:
    path = tmp_path / "north.toml"
    path.write_text(tomli_w.dumps({"name": "north", "population": {"name": "digits"}, **more}))
    return Site.load(path)


@pytest.mark.parametrize(
    ("said", "rules", "message"),
    [
        ({}, ON, "has no key"),
        ({"key": "north"}, ON, "has no peers"),
        ({"secure_sums": {"on": True}}, SecureSums(), "takes part in secure sums alone"),
        (
            {"secure_sums": {"on": True, "floor": 5}},
            ON,
            "insists on secure_sums.floor = 5, and this run has 3",
        ),
        ({"secure_sums": {"on": True, "threshold": 0.8}}, ON, "insists on secure_sums.threshold = 0.8"),
        ({"key": "nowhere", "peers": "nothing.toml"}, ON, "nothing.toml"),
    ],
)
def test_a_site_that_cannot_sign_or_insists_on_more_is_named(tmp_path, said, rules, message):
    with pytest.raises(SettingsError, match=message):
        guard_at_site(site(tmp_path, **said), rules)


def test_a_site_signs_with_its_own_key_and_knows_others_by_the_register(tmp_path):
    certs.make(tmp_path, ["north", "south"])
    keys = tmp_path / "keys"
    sites = {
        "north": {"key": str(keys / "north.pub"), "clients": ["a"]},
        "south": {"key": "keys/south.pub", "clients": ["b"]},
    }
    (tmp_path / "roster.toml").write_text(tomli_w.dumps({"sites": sites}))
    guard = guard_at_site(site(tmp_path, key="keys/north", peers="roster.toml"), ON)
    assert guard is not None
    signature = guard.identities.sign("a", b"text")
    assert guard.identities.signed("a", b"text", signature)
    assert not guard.identities.signed("b", b"text", signature)
    assert guard_at_site(site(tmp_path), SecureSums()) is None


def test_a_key_that_cannot_sign_is_named(tmp_path):
    (tmp_path / "key").write_text("nothing")
    certs.make(tmp_path, ["north"])
    (tmp_path / "roster.toml").write_text(
        tomli_w.dumps({"sites": {"north": {"key": "keys/north.pub", "clients": ["a"]}}})
    )
    guard = guard_at_site(site(tmp_path, key="key", peers="roster.toml"), ON)
    assert guard is not None
    with pytest.raises(SettingsError, match="no private key that signs"):
        guard.identities.sign("a", b"text")
