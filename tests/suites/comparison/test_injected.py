"""Changes that are planted into real estimators, measured by real small runs, are caught, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS
from structgrad.oracles import Categorical
from structgrad.suites.base import Row
from structgrad.suites.comparison import GateResult, gate
from structgrad.suites.comparison.pairs import items_of
from structgrad.suites.measures.suite import Effort
from structgrad.suites.running.planning.plan import Plan
from structgrad.suites.running.runner import run
from tests.suites.comparison.rows import Change, failing
from tests.suites.running_cases import HERE

NAMES = ("rloo", "ste", "arsm", "st_gumbel", "sparsemap_marginalisation")
"""Exact and unbiased, exact and biased, sampled and unbiased, sampled and biased, sparse."""

PLAN = Plan(
    suites=("bias", "sparsity"),
    problems=("categorical_regimes",),
    stages=("h=0.95",),
    estimators=NAMES,
    instances=1,
    effort=Effort(replicates=512, most_replicates=512, replay_cap=20_000),
)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return run(PLAN, tmp_path_factory.mktemp("base"), machine=HERE)


def planted(name: str, change: Change, base: list[Row], folder: Path, monkeypatch: pytest.MonkeyPatch) -> GateResult:
    """The gate between unchanged code and a change in one estimator."""
    original = ESTIMATORS[name]
    monkeypatch.setitem(ESTIMATORS, name, lambda **options: change.planted(original(**options), Categorical()))
    return gate(base, run(PLAN, folder, machine=HERE))


def test_unchanged_code_gives_identical_numbers(unchanged: list[Row], tmp_path: Path) -> None:
    result = gate(unchanged, run(PLAN, tmp_path, machine=HERE))
    assert result.outcome == "passed"
    assert set(result.comparisons["verdict"]) == {"identical"}


@pytest.mark.parametrize("name", NAMES[:4])
def test_a_mean_that_shrinks_by_2_percent_is_found(
    name: str, unchanged: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = planted(name, Change(scale=0.98), unchanged, tmp_path, monkeypatch)
    assert result.outcome == "failed"
    assert {estimator for estimator, _ in failing(result)} == {name}
    assert (name, "gain") in failing(result)
    assert result.claims["broken"].any() == (name == "rloo")


@pytest.mark.parametrize("name", ["rloo", "arsm", "st_gumbel"])
def test_a_variance_that_grows_by_20_percent_is_found(
    name: str, unchanged: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = planted(name, Change(spread=1.2), unchanged, tmp_path, monkeypatch)
    assert result.outcome == "failed"
    assert {estimator for estimator, _ in failing(result)} == {name}
    assert (name, "relative_variance") in failing(result)
    assert not result.claims["broken"].any()


class OneMore:
    """Evaluates the loss at one more structure, at a weight that changes nothing else visibly."""

    @staticmethod
    def of(kind: Any) -> Any:
        class Planted(kind):  # type: ignore[misc]
            def surrogate(self, loss: Any, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
                worst = oracle.argmax(-scores.detach())
                value: Tensor = super().surrogate(loss, oracle, scores, generator=generator) + 1e-12 * loss(worst)
                return value

        return Planted


def test_a_support_of_one_more_structure_is_found(unchanged: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "sparsemap_marginalisation"
    before = next(row.value for row in unchanged if row.estimator == name and row.metric == "support")
    monkeypatch.setitem(ESTIMATORS, name, OneMore.of(ESTIMATORS[name]))
    result = gate(unchanged, run(PLAN, tmp_path, machine=HERE))
    assert failing(result) == {(name, "support"), (name, "loss_evaluations")}  # of which there is one for every structure
    failures = result.comparisons[result.comparisons["reaction"] == "fail"]
    assert failures.set_index("metric").loc["support", "head"] == (before or 0) + 1


def test_an_estimator_that_breaks_or_disappears_fails(unchanged: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ESTIMATORS["ste"]):  # type: ignore[misc, name-defined]
        def surrogate(self, *_: Any, **__: Any) -> Tensor:
            raise RuntimeError("planted")

    monkeypatch.setitem(ESTIMATORS, "ste", Broken)
    result = gate(unchanged, run(PLAN, tmp_path, machine=HERE))
    assert result.outcome == "failed"
    fewer = gate(unchanged, [row for row in unchanged if row.estimator != "rloo"])
    found = [
        {(item.estimator, item.verdict) for item in items_of(gated.comparisons) if item.reaction == "fail"} for gated in (result, fewer)
    ]
    # Numbers derived from those of a failed cell are missing without a failure of their own.
    assert found == [{("ste", "broken"), ("ste", "missing")}, {("rloo", "missing")}]
