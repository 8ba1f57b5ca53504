"""Exact gradients far beyond enumeration, one thread."""

from __future__ import annotations

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from structgrad.oracles import Alignment, LinearChain, SpanningTree
from structgrad.suites.benchmarks.tasks import structure as of_case
from structgrad.suites.problems.forms import CountForm, LossForm
from structgrad.suites.problems.losses import F1, ExactMatch, Hamming, LowRankQuadratic
from structgrad.suites.truth.closed_form import analytic_truth

pytestmark = pytest.mark.benchmark

STRUCTURES = {
    "spanning trees of 80 words": (SpanningTree(), (81, 81)),
    "projective trees of 40 words": of_case("projective_tree 40"),
    "binary trees over 40 leaves": of_case("constituency 40"),
    "alignments of 16 and 16": (Alignment(), (16, 16)),
    "chains of 80 with 5 tags": (LinearChain(), (80, 5, 5)),
    "permutations of 16": of_case("assignment 16"),
}
LOSSES = ("hamming", "exact match", "f1", "quadratic", "threshold")


class Threshold:
    """Whether more than half of the gold parts are missed: a function of a count that is no straight line."""

    def __init__(self, gold: torch.Tensor) -> None:
        half = int(gold.sum()) // 2
        self.form: LossForm = CountForm((gold,), lambda correct: (correct < half).double())


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("structure", list(STRUCTURES))
def test_truth(benchmark: BenchmarkFixture, structure: str, kind: str) -> None:
    torch.set_num_threads(1)
    oracle, event = STRUCTURES[structure]
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(event, generator=random, dtype=torch.float64)
    gold = oracle.sample(scores, generator=random)
    matrix = torch.randn((8, *event), generator=random, dtype=torch.float64)
    losses = {
        "hamming": Hamming(gold),
        "exact match": ExactMatch(gold),
        "f1": F1(gold, oracle.read_mask(event)),
        "quadratic": LowRankQuadratic(matrix, gold),
        "threshold": Threshold(gold),
    }
    benchmark.group = f"exact truth: {structure}"
    truth = benchmark(analytic_truth, losses[kind], oracle, scores)
    assert truth is not None
    assert torch.isfinite(truth.gradient).all()
