from __future__ import annotations

import json
from typing import Any

from structgrad.estimators import ESTIMATORS
from structgrad.oracles import ORACLES
from structgrad.reports.verbs.describe import facts
from structgrad.suites.measures import SUITES
from structgrad.suites.metrics import METRICS
from structgrad.suites.problems import BUILT_IN_PROBLEMS, LOSSES
from structgrad.suites.running.planning.presets import PRESETS
from structgrad.suites.tasks import TASKS
from tests.reports.calling import call

EVERYTHING = [*ESTIMATORS, *ORACLES, *BUILT_IN_PROBLEMS, *TASKS, "task:clusters", "learnt:clusters", *SUITES, *METRICS, *LOSSES, *PRESETS]


def described(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("describe", name, "--json").stdout)
    return found


def test_everything_that_has_a_name_is_described() -> None:
    for name in EVERYTHING:
        for record in facts(name):
            assert record["kind"]
            assert record["name"] == name
            json.dumps(record, allow_nan=False)


def test_a_class_of_ones_own() -> None:
    found = described("tests.suites.broken_estimators:Slow[seconds=0.1]")
    assert (found["kind"], found["class"]) == ("estimator", "tests.suites.broken_estimators.Slow")
    assert described("structgrad.oracles:Categorical")["kind"] == "oracle"
