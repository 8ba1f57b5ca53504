from __future__ import annotations

import ast
import importlib
import inspect
import json
import math
import os
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from structgrad.estimators import ESTIMATORS
from structgrad.oracles import ORACLES, Assignment, Categorical, Constituency, LinearChain, capabilities
from structgrad.suites import benchmarks
from structgrad.suites.benchmarks import cases, commit, console, grid, tasks
from structgrad.suites.benchmarks.bias import EstimatorBias
from structgrad.suites.benchmarks.estimators import EstimatorMemory, EstimatorTime
from structgrad.suites.benchmarks.learning import Learning, TrainingStep
from structgrad.suites.benchmarks.operations import OPERATIONS, left_out, method_of
from structgrad.suites.benchmarks.oracles import OracleMemory, OracleTime
from structgrad.suites.benchmarks.tasks import FLOOR, home, tracked
from structgrad.suites.tasks import TASKS

PREFIXES = ("time_", "track_", "peakmem_", "mem_")
CLASSES = (EstimatorBias, EstimatorTime, EstimatorMemory, OracleTime, OracleMemory)
EVERY = (*CLASSES, Learning, TrainingStep)
NAMES = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
TRACKED = ("relative_bias", "relative_variance", "support")
FOLDER = Path(__file__).parents[2] / "suites" / "benchmarks"


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -0.5])
def test_a_value_that_asv_would_overlook_is_refused(value: float | None) -> None:
    with pytest.raises(ValueError, match=r"`tracked` got (None|nan|inf|-0.5); expected a finite value, at least 0"):
        tracked(value)


@pytest.mark.parametrize(("value", "expected"), [(0.0, FLOOR), (-1e-17, FLOOR), (0.5, 0.5)])
def test_tracked_values_are_above_zero(value: float, expected: float) -> None:
    assert tracked(value) == expected
    assert tracked(value, floor=1.0) == 1.0


def test_every_estimator_and_oracle_is_measured() -> None:
    assert tuple(ESTIMATORS) == grid.ESTIMATORS
    for names in (cases.SMALL, cases.MIDDLE):
        assert {cases.CASES[name][0].partition("[")[0] for name in names} == set(ORACLES)
    assert Counter((*cases.SMALL, *cases.MIDDLE, *cases.BETWEEN, *cases.LARGE, *cases.HUGE)) == Counter(list(cases.CASES))


def test_every_task_has_a_step_that_is_timed() -> None:
    assert set(TASKS) <= set(grid.TASKS), "a task that comes is written into suites/benchmarks/grid.py"
    benchmark = TrainingStep()
    benchmark.setup("rloo", "clusters")
    benchmark.time_step("rloo", "clusters")
    tasks.training_step.cache_clear()


def test_what_cannot_be_learnt_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotImplementedError, match="this commit has no task parsnips"):
        TrainingStep().setup("rloo", "parsnips")
    with pytest.raises(NotImplementedError, match="arm needs bits"):
        TrainingStep().setup("arm", "clusters")
    monkeypatch.setattr("structgrad.suites.tasks.clusters.Clusters.unavailable", lambda self: "its data are not here")
    with pytest.raises(NotImplementedError, match="its data are not here"):
        TrainingStep().setup("rloo", "clusters")


def test_what_rloo_learns_repeats_to_the_bit() -> None:
    errors = [Learning().track_error("rloo", "clusters[steps=20,train=500,heldout=200]") for _ in range(2)]
    assert errors[0] == errors[1]
    assert 0 < errors[0] < 0.5


def test_parameters_do_not_follow_the_measured_commit() -> None:
    """asv hands old commits the place of a parameter: a list taken from their registries would be another one."""
    trees = [ast.parse((FOLDER / name).read_text()) for name in ("grid.py", "cases.py")]
    imported = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {ast.unparse(node).split()[1] for node in imported} == {"__future__", "ast", "os", "pathlib", ".cases"}


def test_every_operation_of_every_capability_is_measured() -> None:
    about_sizes = {"event_shape", "count", "read_mask", "pad", "forbids_nothing", "free_parts", "feasible", "steps", "sums_in_reach"}
    about_sizes |= {"check_lengths", "check_scores", "reach"}
    about_sizes |= {
        "dense",
        "index_shape",
        "indices",
        "all_free",
        "length_limits",
        "length_mask",
        "parts_within",
        "binary_mask",
        "unpadded",
        "check_event",
        "check_marginals",
    }
    parts = {"natural_parameters", "kernel_options", "argmax_of", "unrank", "reference_argmax", "reference_log_partition"}
    kinds = [kind for _, kind in inspect.getmembers(capabilities, inspect.isclass)]
    offered = {name for kind in kinds if issubclass(kind, capabilities.Oracle) for name, _ in inspect.getmembers(kind, callable)}
    methods = {name for name in offered if not name.startswith("_")} - about_sizes - parts
    assert {method_of(operation) for operation in OPERATIONS} == methods


def test_the_default_is_a_part_of_the_full_grid_under_the_same_names() -> None:
    """Both as asv discovers them."""
    default = {f"{kind.__module__.split('.')[-1]}.{kind.__name__}": kind.params for kind in EVERY}
    full, imported = discovered_in_full()
    assert {"numba", "sympy", "torch._dynamo", "structgrad.suites.measures.bias"} <= imported, (
        "each of a thousand forks would import it again"
    )
    assert {name.rpartition(".")[0] for name in full} == set(default)
    assert [name.rpartition(".")[2] for name in full if name.startswith("bias.")] == [f"track_{what}" for what in TRACKED]
    for name, lists in full.items():
        pairs = [(list(map(repr, few)), many) for few, many in zip(default[name.rpartition(".")[0]], lists, strict=True)]
        assert all(many[: len(few)] == few for few, many in pairs), name
        assert any(len(few) < len(many) for few, many in pairs), name


def discovered_in_full() -> tuple[dict[str, Any], set[str]]:
    """Names and parameters, and the modules that are in memory then."""
    code = (
        "import json, sys; from asv_runner.discovery import disc_benchmarks; from asv_runner._aux import update_sys_path;"
        "update_sys_path(sys.argv[1]); found = {found.name: found.params for found in disc_benchmarks(sys.argv[1])};"
        "print(json.dumps([found, list(sys.modules)]))"
    )
    command, environment = [sys.executable, "-c", code, str(FOLDER)], os.environ | {"STRUCTGRAD_ASV": "full"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found, imported = json.loads(done.stdout)
    return found, set(imported)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="STRUCTGRAD_ASV is 'all'; expected 'full', or nothing for the default"):
        grid.chosen(("a",), ("b",), "all")


def test_a_biased_estimator_is_tracked_as_such() -> None:
    biases = {}
    for name in ("reinforce", "ste"):
        benchmark = EstimatorBias()
        benchmark.setup(name, "subset 10/5", "cpu")
        biases[name] = benchmark.track_relative_bias(name, "subset 10/5", "cpu")
    assert biases["reinforce"] < 1e-9
    assert biases["ste"] > 0.1


@pytest.mark.parametrize("name", ["ste", "imle", "sparsemap", "rebar", "gumbel_crf", "step_reinforce"])
def test_what_is_tracked_repeats_to_the_bit(name: str) -> None:
    case, found = home(name), []
    for _ in range(2):
        benchmark = EstimatorBias()
        benchmark.setup(name, case, "cpu")
        values = (benchmark.track_relative_bias, benchmark.track_relative_variance, benchmark.track_support)
        found.append([track(name, case, "cpu") for track in values])
    assert found[0] == found[1]
    assert all(value >= FLOOR for value in found[0])


def test_supports_are_counted() -> None:
    supports = {}
    for name in ("ste", "reinforce", "sparsemap"):
        benchmark = EstimatorBias()
        benchmark.setup(name, "subset 10/5", "cpu")
        supports[name] = benchmark.track_support(name, "subset 10/5", "cpu")
    assert supports["ste"] == 1
    assert supports["reinforce"] == math.comb(10, 5)
    assert 1 < supports["sparsemap"] < math.comb(10, 5)


@pytest.mark.parametrize("name", grid.ESTIMATORS)
def test_every_estimator_has_a_time_and_a_peak(name: str) -> None:
    case = home(name)
    timed, sized = EstimatorTime(), EstimatorMemory()
    timed.setup(name, case, 64, "cpu")
    sized.setup(name, case, 64, "cpu")
    timed.time_gradient(name, case, 64, "cpu")
    assert sized.track_peak_memory(name, case, 64, "cpu") >= 64 * math.prod(cases.CASES[case][1])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_has_a_time_and_a_peak(operation: str) -> None:
    served = [case for case in cases.SMALL if not reason_of(case, operation)]
    case = {"step_log_probs": "policy 5"}.get(operation, served[0])
    timed, sized = OracleTime(), OracleMemory()
    timed.setup(case, operation, 64, "cpu")
    timed.time_operation(case, operation, 64, "cpu")
    sized.setup(case, operation, 64, "cpu")
    assert sized.track_peak_memory(case, operation, 64, "cpu") >= 1


def reason_of(case: str, operation: str) -> str | None:
    return left_out(operation, *tasks.structure(case), 64)


def test_random_numbers_are_the_same_for_every_timed_call() -> None:
    benchmark, states = OracleTime(), []
    for _ in range(2):
        benchmark.setup("subset 20/5", "sample", 64, "cpu")
        states.append(benchmark.task.generator.get_state())
        benchmark.time_operation("subset 20/5", "sample", 64, "cpu")
    assert torch.equal(*states)
    assert not torch.equal(states[0], benchmark.task.generator.get_state())


def test_setup_prepares_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """asv runs it before every timed call."""
    first, second = OracleTime(), OracleTime()
    first.setup("subset 20/5", "argmax", 64, "cpu")
    monkeypatch.setattr(commit, "make_oracle", lambda text: pytest.fail("was made again"))
    second.setup("subset 20/5", "argmax", 64, "cpu")
    assert second.task is first.task


def test_what_does_not_fit_is_left_out_with_its_reason() -> None:
    with pytest.raises(NotImplementedError, match="reinmax needs FactorisedOracle, which the oracle linear_chain does not offer"):
        EstimatorTime().setup("reinmax", "linear_chain 5x3", 64, "cpu")
    assert tasks.pair("reinforce", "categories 10x2")[2] == (10, 2)
    with pytest.raises(NotImplementedError, match="the oracle spanning_tree has no relax"):
        OracleTime().setup("spanning_tree 10", "relax", 64, "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("kind", CLASSES)
def test_cuda_is_skipped_where_there_is_none(kind: Any) -> None:
    parameters = [values[0] for values in kind.params[:-1]]
    with pytest.raises(NotImplementedError, match="no CUDA device"):
        kind().setup(*parameters, "cuda")


def test_what_is_out_of_reach_or_too_large_is_left_out() -> None:
    assert left_out("marginals", Assignment(), (64, 64), 1) == "sums over so many permutations are out of reach"
    assert left_out("argmax", Assignment(), (64, 64), 1) is None
    assert left_out("rank", Constituency(), (40, 40), 1) == "more structures than there are ranks"
    assert left_out("sample", LinearChain(), (128, 32, 32), 64) is None
    assert left_out("sample_64", LinearChain(), (128, 32, 32), 64) == "too large for memory"


@pytest.mark.parametrize(("name", "case"), [("rloo", "subset 10/5"), ("reinmax", "categories 10x2"), ("step_ppo", "policy 5")])
def test_an_estimator_is_at_home_where_it_is_served_first(name: str, case: str) -> None:
    assert home(name) == case
    assert tasks.pair(name, grid.HOME)[2] == cases.CASES[case][1]


@pytest.mark.parametrize("kind", [EstimatorBias, EstimatorTime, EstimatorMemory])
def test_by_default_every_pair_of_an_estimator_and_a_case_is_measured(kind: Any) -> None:
    """asv shows a missing pair by a line that ends in n/a, of which there were 213 in each of these."""
    assert kind.params[1] == [grid.HOME]


def test_nothing_that_was_not_measured_has_a_line_on_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and short parameters, which asv would fold into columns."""
    results = importlib.import_module("asv.results")
    monkeypatch.setattr(results, "_format_benchmark_result", results._format_benchmark_result)
    benchmark = {"name": "b", "params": [["'n/a'", "'c'"], ["1", "2"]], "param_names": ["name", "size"], "unit": "seconds"}
    values = [(0.5, None), (math.nan, None), (math.nan, None), (None, None)]
    assert "n/a" in "".join(results._format_benchmark_result(values, benchmark)[3:])
    console.setup()
    lines = [line.split() for line in results._format_benchmark_result(values, benchmark)]
    assert ["n/a", "1", "500±0ms"] in lines or ["n/a", "1", "500ms"] in lines
    assert ["c", "2", "failed"] in lines
    assert not [line for line in lines if line[-1:] == ["n/a"]]


def test_this_commit_lacks_nothing() -> None:
    """A skip because of a rename would look like a skip for an old commit."""
    for name in grid.ESTIMATORS:
        assert home(name) in grid.HOMES
    for oracle, event in map(tasks.structure, cases.CASES):
        assert oracle.count(event) >= 1
    used = {("suites.tasks", "make_task"), *(("suites.tasks.training", name) for name in ("Training", "Job", "train", "event_shape"))}
    used |= {("suites.measures.bias", "measure"), ("suites.measures.bias", "Sampling"), ("suites.measures.memory", "peak_memory")}
    for module, name in used | {("suites.truth", "exact_truth"), ("suites.measures.sparsity", "forward_sparsity")}:
        assert callable(commit.of_commit(module, name))
    for module in commit.MODULES:
        importlib.import_module(f"structgrad.{module}")


def test_what_an_old_commit_lacks_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotImplementedError, match=r"this commit has no structgrad\.suites\.nothing"):
        commit.of_commit("suites.nothing.at_all", "name")
    with pytest.raises(NotImplementedError, match=r"this commit has no structgrad\.estimators\.nothing"):
        commit.of_commit("estimators", "nothing")
    monkeypatch.setattr("structgrad.estimators.ESTIMATORS", {})  # not delitem, which puts the entry back at the end
    with pytest.raises(NotImplementedError, match="this commit has no estimator rloo"):
        EstimatorTime().setup("rloo", "categories 10x2", 64, "cpu")
    monkeypatch.setattr("structgrad.oracles.ORACLES", {})
    with pytest.raises(NotImplementedError, match=r"this commit has no oracle subset\[k=10\]"):
        OracleTime().setup("subset 1000/10", "argmax", 64, "cpu")


def test_a_library_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: str) -> Any:
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="scipy"):
        commit.of_commit("suites.truth", "exact_truth")


def test_estimators_that_ask_for_no_sizes_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it was before there were categories and policies."""

    class Old:
        def incompatibility(self, oracle: Any) -> str | None:
            return None if isinstance(oracle, Categorical) else "not served"

    monkeypatch.setitem(ESTIMATORS, "old", Old)
    monkeypatch.setattr("structgrad.estimators.make_estimator", lambda name: ESTIMATORS[name]())
    assert isinstance(commit.make_estimator("old", Categorical(), (3,)), Old)
    with pytest.raises(NotImplementedError, match="not served"):
        commit.make_estimator("old", LinearChain(), (3, 2, 2))


@pytest.mark.parametrize("module", NAMES)
def test_benchmarks_are_thin_and_have_a_version(module: str) -> None:
    """A version keeps asv's history when the source of a benchmark changes; a thin body measures the suite and nothing else."""
    classes = [kind for _, kind in inspect.getmembers(importlib.import_module(f"{benchmarks.__name__}.{module}"), inspect.isclass)]
    measured = [kind for kind in classes if any(name.startswith(PREFIXES) for name in vars(kind))]
    assert set(measured) == {kind for kind in EVERY if kind.__module__.endswith(f".{module}")}
    for kind in measured:
        assert kind.version
        for name, function in vars(kind).items():
            if name.startswith(PREFIXES):
                assert len(inspect.getsource(function).splitlines()) <= 4, name
