"""What pages show of a fleet's clock."""

from __future__ import annotations

from intarsia.cli.shown import show_result
from intarsia.experiment import comparison
from intarsia.judging.comparing import to_csv
from intarsia.report import page, views_of
from intarsia.report.sections.fleet import FleetClock


def test_a_page_draws_accuracy_against_virtual_time_and_has_a_table_of_devices(small_run, capsys):
    fleet = "fleet={speed=1e6, dropout=0.3, deadline=0.4, devices={'8x8'={speed=5e5}}}"
    clocked = small_run(fleet, out="clocked")
    plain = small_run("method=local", out="plain")
    views = views_of([clocked, plain])
    assert views[0].virtual == [row["answered"] for row in clocked.clock if not row["client"]]
    assert views[1].virtual == []
    text = page("Both", "", views)
    assert "<h2" in text
    assert "Accuracy against virtual time" in text
    assert "Virtual hours" in text
    assert text.count("Fleet: ") == 1
    ((_, table),) = FleetClock.read(clocked).parts("FedAvg")
    own = [row for row in clocked.clock if row.get("device") == "8x8"]
    late = sum(row["outcome"] == "late" for row in own)
    assert late > 0
    assert f"<th scope='row'>8x8</th><td>{len(own)}</td>" in table
    assert f"<td>{late}</td>" in table
    assert "Accuracy against virtual time" not in page("One", "", views_of([plain]))
    show_result([clocked, plain])
    assert "virtual" in capsys.readouterr().out


def test_a_comparison_names_virtual_seconds_where_there_are_some(small_run):
    clocked = small_run("rounds=1", "fleet.speed=1e6", out="clocked")
    rows = comparison([clocked])
    assert rows[0]["virtual_seconds"] == clocked.summary["virtual_seconds"] > 0
    assert to_csv(rows).splitlines()[0].endswith(",virtual_seconds")
