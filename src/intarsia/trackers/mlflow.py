"""MLflow: a run of its tracking store."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from intarsia.trackers.tracker import Begun, Result, Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "intarsia"
LONGEST, MOST = 500, 100
"""What every store takes: characters of a value, values at once."""


class MLflow(Tracker):
    """Writes to the store of `MLFLOW_TRACKING_URI`; without it, to MLflow's own: a file in the present folder."""

    title: ClassVar[str] = "MLflow"
    package: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"
    _client: MlflowClient
    _run: str

    def begin(self, run: Begun) -> str:
        """Make a run with the settings as parameters, or go on with it; MLflow's telemetry stays off."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient
        from mlflow.entities import Param

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._client = MlflowClient()
        if run.identity:
            self._run = run.identity
            self._client.update_run(self._run, status="RUNNING")
            return self._run
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        there = self._client.get_experiment_by_name(name)
        experiment = there.experiment_id if there else self._client.create_experiment(name)
        self._run = self._client.create_run(experiment, run_name=run.name).info.run_id
        params = [Param(key, str(value)[:LONGEST]) for key, value in run.settings.items()]
        for start in range(0, len(params), MOST):
            self._client.log_batch(self._run, params=params[start : start + MOST])
        return self._run

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Add a point to every curve."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        points = [Metric(name, value, now, round) for name, value in figures.items()]
        for start in range(0, len(points), MOST):
            self._client.log_batch(self._run, metrics=points[start : start + MOST])

    def end(self, result: Result) -> None:
        """Note the summary (figures; the whole as a file), the verdict and the warnings (as tags)."""
        if result.finished:
            self.log(int(result.summary["rounds"]), result.figures)
            self._client.log_text(self._run, json.dumps(dict(result.summary), indent=2), "summary.json")
        tags = {"verdict": result.verdict, "warnings": "\n".join(result.warnings)}
        for name, text in tags.items():
            if text:
                self._client.set_tag(self._run, name, text)
        self._client.set_terminated(self._run, "FINISHED" if result.finished else "KILLED")
