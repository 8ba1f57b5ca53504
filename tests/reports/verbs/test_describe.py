from __future__ import annotations

import json
from typing import Any

import pytest

from structgrad.estimators import ESTIMATORS
from structgrad.oracles import ORACLES
from structgrad.reports.verbs.describe import facts
from structgrad.suites.measures import SUITES
from structgrad.suites.metrics import METRICS
from structgrad.suites.problems import BUILT_IN_PROBLEMS, LOSSES
from structgrad.suites.running.planning.presets import PRESETS
from structgrad.suites.tasks import TASKS
from tests.reports.calling import call, refused

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


def test_an_estimator_with_options() -> None:
    found = described("imle[lambda=2.5]")
    assert (found["kind"], found["objective"], found["unbiased"], found["scale"]) == ("estimator", "perturbed", False, 2.5)
    assert found["evaluations"] == {"losses": 1, "loss_gradients": 1, "argmax": 2, "perturbations": 1}
    assert found["options"][0] == {
        "name": "lambda",
        "default": "1.0",
        "required": False,
        "expected": "a finite number > 0",
    }
    assert found["references"] == ["niepert2021implicit"]
    assert found["example"] == "structgrad run bias -e 'imle[lambda=2.5]' -p categorical_regimes"


def test_a_task_with_sizes() -> None:
    found = described("clusters[heldout=300]")
    assert (found["kind"], found["structure"], found["structure_accuracy"]) == ("task", "Categorical()", "V-measure")
    assert found["items"] == {"train": 5000, "validation": 300, "test": 300}
    assert found["example"] == "structgrad learn clusters[heldout=300] --quick"


def test_why_an_estimator_does_not_fit() -> None:
    found = described("arm")
    assert found["fits"] == ["categories[n=4,t=2]"]
    assert found["does_not_fit"]["categorical_regimes"] == "arm needs bits, which are categories of two parts, and these have 10"
    assert "FactorisedOracle, which the oracle subset does not offer" in found["does_not_fit"]["subset_regimes"]


def test_training_that_is_told_true_structures() -> None:
    found = described("margin_sparsemap[cost=0.5]")
    assert (found["kind"], found["objective"], found["fits"]) == ("supervised", "supervised", [])
    assert found["does_not_fit"]["chain_regimes"].startswith("margin_sparsemap needs true structures, and the loss ")
    assert found["example"] == "structgrad learn parsing -e 'margin_sparsemap[cost=0.5]'"


def test_an_oracle_is_counted_at_a_size() -> None:
    assert described("subset")["at"] == {"problem": "subset[n=5,k=2]", "event_shape": [5], "structures": 10}
    found = described("subset[n=10,k=5]")
    assert found["at"] == {"problem": "subset[n=10,k=5]", "event_shape": [10], "structures": 252}
    assert {"argmax", "marginals", "sample", "project"} <= set(found["operations"])
    assert found["options"] == [{"name": "k", "default": None, "required": True, "expected": "an integer >= 1"}]


def test_lines_for_people_end_with_an_example() -> None:
    lines = call("describe", "rloo").stdout.splitlines()
    assert lines[0].startswith("estimator rloo: REINFORCE with a leave-one-out baseline")
    assert "    num_samples = 2  (an integer >= 2, the others are the baseline)" in lines
    assert lines[-2] == "  try: structgrad run bias -e rloo -p categorical_regimes"
    assert "event_shape 3 × 5 × 5" in call("describe", "chain_regimes").stdout


def test_a_class_of_ones_own() -> None:
    found = described("tests.suites.broken_estimators:Slow[seconds=0.1]")
    assert (found["kind"], found["class"]) == ("estimator", "tests.suites.broken_estimators.Slow")
    assert described("structgrad.oracles:Categorical")["kind"] == "oracle"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rlo", "`describe` got the unknown name 'rlo'; did you mean rloo or rho? `structgrad list` shows all names"),
        ("rlo[num_samples=2]", "`describe` got the unknown name 'rlo[num_samples=2]'; did you mean rloo"),
        ("Subset", "`describe` got the unknown name 'Subset'; did you mean subset or"),
        ("qqqq", "`describe` got the unknown name 'qqqq'; `structgrad list` shows all names"),
        ("", "`describe` got the unknown name ''; `structgrad list` shows all names"),
        ("relative_mze", "did you mean relative_mse"),
        ("zzzzz", "`describe` got the unknown name 'zzzzz'; `structgrad list` shows all names"),
        ("imle[x=2]", "estimator 'imle[x=2]': got the unknown option 'x'; expected one of lambda, noise"),
        ("subset[n=3,k=3]", "got the problem 'subset[n=3,k=3]' with 1 structures; expected at least 2, take other sizes"),
        ("nowhere:Mine", "got the class 'nowhere:Mine'; could not import it: No module named 'nowhere'"),
        ("./nowhere.py:Mine", "got the class './nowhere.py:Mine'; could not import it: ./nowhere.py: no such Python file"),
    ],
)
def test_an_unknown_name_gets_one_sentence(name: str, message: str) -> None:
    assert message in refused("describe", name)
