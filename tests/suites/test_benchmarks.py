import inspect
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from structgrad.estimators import ESTIMATORS
from structgrad.oracles import ORACLES, capabilities
from structgrad.suites.tasks import TASKS
from tests.asv_benchmarks import cases, tasks
from tests.asv_benchmarks.estimators import EstimatorMemory, EstimatorTime
from tests.asv_benchmarks.learning import TrainingStep
from tests.asv_benchmarks.oracles import OracleMemory, OracleTime
from tests.asv_benchmarks.tasks import OPERATIONS, home, left_out, method_of

CLASSES = (EstimatorTime, EstimatorMemory, OracleTime, OracleMemory)
EVERY = (*CLASSES, TrainingStep)
FOLDER = Path(__file__).parents[2] / "tests" / "asv_benchmarks"

NOT_MEASURED = """
    event_shape count read_mask pad forbids_nothing free_parts feasible steps sums_in_reach check_lengths check_scores dense
    index_shape indices all_free length_limits length_mask parts_within binary_mask unpadded check_event check_marginals
    natural_parameters kernel_options argmax_of unrank masked
"""
"""Methods about sizes, and parts of other operations."""


# Names and parameters.


def test_every_estimator_oracle_task_and_operation_is_measured() -> None:
    assert tuple(ESTIMATORS) == cases.ESTIMATORS
    assert set(TASKS) <= set(cases.TASKS), "add a new task to tests/asv_benchmarks/cases.py"
    for names in (cases.SMALL, cases.MIDDLE):
        assert {cases.CASES[name][0].partition("[")[0] for name in names} == set(ORACLES)
    assert Counter((*cases.SMALL, *cases.MIDDLE, *cases.BETWEEN, *cases.LARGE)) == Counter(list(cases.CASES))
    kinds = [kind for _, kind in inspect.getmembers(capabilities, inspect.isclass) if issubclass(kind, capabilities.Oracle)]
    offered = {name for kind in kinds for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}
    assert {method_of(operation) for operation in OPERATIONS} == offered - set(NOT_MEASURED.split())


def test_the_default_is_a_part_of_the_full_grid_under_the_same_names() -> None:
    """Both as asv discovers them, in a process that has imported all that each of a thousand forks would import again."""
    code = (
        "import json, sys; from asv_runner.discovery import disc_benchmarks; from asv_runner._aux import update_sys_path;"
        "update_sys_path(sys.argv[1]); found = {found.name: found.params for found in disc_benchmarks(sys.argv[1])};"
        "print(json.dumps([found, list(sys.modules)]))"
    )
    command, environment = [sys.executable, "-c", code, str(FOLDER)], os.environ | {"STRUCTGRAD_ASV": "full"}
    full, imported = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert {"torch._dynamo", "structgrad.suites.measures.cost.steps"} <= set(imported)
    default = {f"{kind.__module__.split('.')[-1]}.{kind.__name__}": kind.params for kind in EVERY}
    assert {name.rpartition(".")[0] for name in full} == set(default)
    for name, lists in full.items():
        pairs = [(list(map(repr, few)), many) for few, many in zip(default[name.rpartition(".")[0]], lists, strict=True)]
        assert all(many[: len(few)] == few for few, many in pairs), name
        assert any(len(few) < len(many) for few, many in pairs), name
    for kind in (EstimatorTime, EstimatorMemory):  # asv shows each missing pair by a line that ends in n/a
        assert kind.params[1] == [cases.HOME]
    with pytest.raises(ValueError, match="STRUCTGRAD_ASV is 'all'; expected 'full', or nothing for the default"):
        cases.chosen(("a",), ("b",), "all")


# Measured values.


@pytest.mark.parametrize("name", ["rloo", "sparsemap", "reinmax", "step_ppo"])
def test_estimators_have_a_time_and_a_peak(name: str) -> None:
    case = home(name)
    timed, sized = EstimatorTime(), EstimatorMemory()
    timed.setup(name, case, 64, "cpu")
    sized.setup(name, case, 64, "cpu")
    timed.time_gradient(name, case, 64, "cpu")
    assert sized.track_peak_memory(name, case, 64, "cpu") >= 64 * math.prod(cases.CASES[case][1])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_has_a_time_and_a_peak(operation: str) -> None:
    case = next(case for case in ("policy 5", *cases.SMALL) if not left_out(operation, *tasks.structure(case), 64))
    timed, sized = OracleTime(), OracleMemory()
    timed.setup(case, operation, 64, "cpu")
    timed.time_operation(case, operation, 64, "cpu")
    sized.setup(case, operation, 64, "cpu")
    assert sized.track_peak_memory(case, operation, 64, "cpu") >= 1


def test_a_step_of_training_is_timed() -> None:
    benchmark = TrainingStep()
    benchmark.setup("rloo", "clusters")
    benchmark.time_step("rloo", "clusters")


# Parts that are left out.


@pytest.mark.parametrize(
    ("kind", "parameters", "reason"),
    [
        (
            EstimatorTime,
            ("reinmax", "linear_chain 5x3", 64, "cpu"),
            "reinmax needs FactorisedOracle, which the oracle linear_chain does not",
        ),
        (OracleTime, ("spanning_tree 10", "relax", 64, "cpu"), "the oracle spanning_tree has no relax"),
        (TrainingStep, ("arm", "clusters"), "arm needs bits"),
        *((kind, (*(values[0] for values in kind.params[:-1]), "cuda"), "no CUDA device") for kind in CLASSES),
    ],
)
def test_what_does_not_fit_is_left_out_with_its_reason(kind: Any, parameters: tuple[Any, ...], reason: str) -> None:
    if reason == "no CUDA device" and torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    with pytest.raises(NotImplementedError, match=reason):
        kind().setup(*parameters)
