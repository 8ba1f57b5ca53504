"""Support and non-zeros of the forward pass."""

from __future__ import annotations

import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.oracles import Alignment, Categorical, IndependentCategoricals
from structgrad.suites.measures.draws import Draws
from structgrad.suites.measures.sparsity import Sparsity, forward
from structgrad.suites.truth import exact_truth
from tests.suites.planted import CONTEXT, Sparse, problem

SCORES = torch.tensor([1.0, 0.8, -1.0, 0.1], dtype=torch.float64)


def loss(z):
    return z.square().flatten(1).sum(-1)


def sizes(name, oracle, scores):
    """Support and non-zeros of the forward pass; its law does not depend on the loss."""
    support, nonzeros = forward(make_estimator(name), draws(oracle, scores), exact_truth(loss, oracle, scores), replicates=1)
    return support, nonzeros.value


@pytest.mark.parametrize(
    ("name", "support", "nonzeros"),
    [
        ("reinforce", 4, 1),
        ("ste", 1, 1),
        ("spigot", 1, 1),
        ("simple", 4, 1),
        ("imle", 4, 1),
        ("structured_attention", 4, 4),
        ("sparsemap", 2, 2),
        ("sparsemap_marginalisation", 2, 1),
        ("exact", 4, 1),
        ("sparsemax_marginalisation", 2, 1),
        ("top_k_sparsemax", 2, 1),
        ("spigot_ce", 1, 1),
        ("entmax", 3, 3),
    ],
)
def test_categorical(name, support, nonzeros):
    assert sizes(name, Categorical(), SCORES) == (support, nonzeros)


def draws(oracle, scores):
    return Draws(oracle, loss, scores, CONTEXT, ("test",))


def test_paths_of_several_lengths_have_the_expected_number_of_parts():
    """Paths through a grid have 3 to 5 parts: exact for samples, the mean of draws for noise."""
    scores = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = exact_truth(lambda z: z.sum((-1, -2)), Alignment(), scores)
    _, exact = forward(make_estimator("reinforce"), draws(Alignment(), scores), truth, replicates=1)
    _, drawn = forward(make_estimator("ste_sample"), draws(Alignment(), scores), truth, replicates=1024)
    assert (exact.value, exact.method) == (pytest.approx(float(truth.value), abs=1e-8), "")
    assert drawn.method == "t"
    assert drawn.low < exact.value < drawn.high


def test_a_product_law_holds_the_product_of_its_categories():
    scores = torch.tensor([[3.0, 0.0, 0.0], [0.1, 0.0, -3.0]], dtype=torch.float64)
    assert sizes("entmax[alpha=2.0]", IndependentCategoricals(), scores) == (2, 3)


def test_planted_zeros_are_found():
    table = {f.metric: f for f in Sparsity().findings(problem(), {"planted": Sparse(kept=2, vanishing=0.25)}, CONTEXT)}
    assert table["zero_gradient_rate"].low < 0.25 < table["zero_gradient_rate"].high
    assert table["gradient_nonzeros"].low < 1.5 < table["gradient_nonzeros"].high
    assert table["gradient_nonzeros"].value == pytest.approx(2 * (1 - table["zero_gradient_rate"].value))
    assert (table["support"].value, table["support"].tier) == (15, "exact")
