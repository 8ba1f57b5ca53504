"""Antithetic pairs of structures: both of a pair are exact samples, and the plain average is unbiased; opposite uniforms are uniforms."""

from __future__ import annotations

import math

import pytest
import torch

from structgrad.estimators import AntitheticPairs
from structgrad.estimators.score_function import Opposite, Recorded
from structgrad.oracles import SeedBlocks
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import ALL_CASES, LOSSES, numbers
from tests.helpers import OracleCase, enumerate_truth, seeded, structures

CASES = [case for case in ALL_CASES if case.oracle.name in ("categorical", "subset", "linear_chain", "spanning_tree", "assignment")]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_mean_and_the_law_of_the_second(case: OracleCase) -> None:
    """Within 5 standard errors."""
    loss, scores, seen = LOSSES["smooth"](case), numbers(*case.event), []
    spied = lambda z: (seen.append(z), loss(z))[1]  # noqa: E731
    found = AntitheticPairs(1).gradient(spied, case.oracle, scores.expand(4000, *case.event), generator=seeded())
    error = found.std(0) / math.sqrt(len(found))
    assert bool(((found.mean(0) - exact_truth(loss, case.oracle, scores).gradient).abs() <= 5 * error + 1e-12).all())
    truth = enumerate_truth(case, scores)
    share = (seen[0][1].unsqueeze(1) == structures(case)).flatten(2).all(-1).double().mean(0)
    p = truth.probabilities[0]
    assert bool(((share - p).abs() <= 5 * (p * (1 - p) / 4000).sqrt() + 1e-12).all())


def test_opposite_uniforms_are_uniforms() -> None:
    """On the same lattice below 1, in the order of what was drawn, row by row from streams of their own."""
    recorded = Recorded(SeedBlocks((3, 4), 1))
    first = [recorded.uniforms(2, width, torch.device("cpu")) for width in (3, 1)]
    opposite = Opposite(recorded)
    for drawn in first:
        found = opposite.uniforms(*drawn.shape, torch.device("cpu"))
        assert torch.equal(found + drawn, torch.full_like(drawn, 1 - 2.0**-53))
        assert torch.equal(found * 2.0**53 % 1, torch.zeros_like(drawn))
    assert torch.equal(first[0], SeedBlocks((3, 4), 1).uniforms(2, 3, torch.device("cpu")))
    edges = Recorded(seeded())
    edges.drawn.append(torch.tensor([[0.0, 1 - 2.0**-53]], dtype=torch.float64))
    assert Opposite(edges).uniforms(1, 2, torch.device("cpu")).tolist() == [[1 - 2.0**-53, 0.0]]
