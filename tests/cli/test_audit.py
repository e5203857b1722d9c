"""`intarsia audit` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import intarsia
from tests.cli.called import call


def test_an_audit_is_printed_and_kept(small_run: Callable[..., intarsia.Run], tmp_path: Path) -> None:
    path = small_run("rounds=1").path
    said = call("audit", str(path), "--attacks", "labels", "--json", cwd=tmp_path).stdout
    record = json.loads(said)
    assert record == json.loads((path / "audit.json").read_text())
    assert {row["source"] for row in record["labels"]} >= {"head", "counts of the last evaluation"}
    text = call("audit", str(path), "--attacks", "labels", "--view", "sum", cwd=tmp_path).stdout
    assert "sums alone" in text
    assert "Which labels clients have" in text
    assert "Who was trained on" not in text


def test_an_attack_that_is_none_is_refused(small_run: Callable[..., intarsia.Run], tmp_path: Path) -> None:
    done = call("audit", str(small_run("rounds=1").path), "--attacks", "membrship", cwd=tmp_path, code=2)
    assert "did you mean 'membership'" in done.stderr
