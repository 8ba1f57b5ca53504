from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from typing import Any

import pytest
import torch

from structgrad.estimators import ESTIMATORS, make_estimator
from structgrad.oracles import LinearChain
from structgrad.suites import benchmarks
from structgrad.suites.benchmarks.bias import FLOOR, EstimatorBias, tracked
from structgrad.suites.benchmarks.estimators import EVENT, EstimatorMemory, EstimatorTime
from structgrad.suites.benchmarks.oracles import LARGEST, OracleMemory, OracleTime
from structgrad.suites.speed.cases import CASES, OPERATIONS

PREFIXES = ("time_", "track_", "peakmem_", "mem_")
NAMES = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_value_that_asv_would_overlook_is_refused(value: float | None) -> None:
    with pytest.raises(ValueError, match=r"`tracked` got (None|nan|inf); expected a finite value"):
        tracked(value)


@pytest.mark.parametrize(("value", "expected"), [(0.0, FLOOR), (-1e-17, FLOOR), (0.5, 0.5)])
def test_tracked_values_are_above_zero(value: float, expected: float) -> None:
    assert tracked(value) == expected


def test_a_biased_estimator_is_tracked_as_such() -> None:
    case = "categorical n=10"
    biases = {}
    for name in ("reinforce", "ste"):
        benchmark = EstimatorBias()
        benchmark.setup(name, case)
        biases[name] = benchmark.track_relative_bias(name, case)
    assert biases["reinforce"] < 1e-9
    assert biases["ste"] > 0.1


def fits(name: str) -> bool:
    return name != "exact" and make_estimator(name).incompatibility(LinearChain(), EVENT) is None


def test_what_does_not_fit_is_left_out_with_its_reason() -> None:
    with pytest.raises(NotImplementedError, match="reinmax needs FactorisedOracle, which the oracle linear_chain does not offer"):
        EstimatorTime().setup("reinmax", "cpu")
    with pytest.raises(NotImplementedError, match="disarm needs bits"):
        EstimatorBias().setup("disarm", "categorical n=10")


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if fits(name)])
def test_every_estimator_has_a_time_and_a_peak(name: str) -> None:
    timed, sized = EstimatorTime(), EstimatorMemory()
    timed.setup(name, "cpu")
    sized.setup(name, "cpu")
    timed.time_gradient(name, "cpu")
    assert sized.track_peak_memory(name, "cpu") > 0


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_has_a_peak(operation: str) -> None:
    benchmark = OracleMemory()
    benchmark.setup("shift_reduce 20", operation, "cpu")
    held = benchmark.scores.numel() * benchmark.scores.element_size()
    assert benchmark.track_peak_memory("shift_reduce 20", operation, "cpu") >= held / 1000


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize("kind", [OracleTime, EstimatorTime])
def test_cuda_is_skipped_where_there_is_none(kind: Any) -> None:
    parameters = [values[0] for values in kind.params[:-1]]
    with pytest.raises(NotImplementedError, match="no CUDA device"):
        kind().setup(*parameters, "cuda")


def test_what_is_out_of_reach_or_too_large_is_left_out() -> None:
    assert set(CASES) - set(OracleTime.params[0]) == LARGEST
    with pytest.raises(NotImplementedError, match="out of reach at this size"):
        OracleTime().setup("assignment 16", "marginals", "cpu")


@pytest.mark.parametrize("module", NAMES)
def test_benchmarks_are_thin_and_have_a_version(module: str) -> None:
    """A version keeps asv's history when the source of a benchmark changes; a thin body measures the suite and nothing else."""
    classes = [kind for _, kind in inspect.getmembers(importlib.import_module(f"{benchmarks.__name__}.{module}"), inspect.isclass)]
    measured = [kind for kind in classes if any(name.startswith(PREFIXES) for name in vars(kind))]
    assert measured
    for kind in measured:
        assert kind.version
        for name, function in vars(kind).items():
            if name.startswith(PREFIXES):
                assert len(inspect.getsource(function).splitlines()) <= 4, name
