"""Support and non-zeros of the forward pass."""

from __future__ import annotations

import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.oracles import Categorical, Subset
from structgrad.suites.measures.sparsity import forward_sparsity
from structgrad.suites.truth import exact_truth

SCORES = torch.tensor([1.0, 0.8, -1.0, 0.1], dtype=torch.float64)


def loss(z):
    return z.square().sum(-1)


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
    ],
)
def test_categorical(name, support, nonzeros):
    truth = exact_truth(loss, Categorical(), SCORES)
    assert forward_sparsity(make_estimator(name), Categorical(), SCORES, truth=truth) == {"support": support, "forward_nonzeros": nonzeros}


def test_forbidden_structures_do_not_count():
    scores = torch.tensor([1.0, -torch.inf, 0.0, 0.5], dtype=torch.float64)
    truth = exact_truth(loss, Subset(2), scores)
    found = forward_sparsity(make_estimator("reinforce"), Subset(2), scores, truth=truth)
    assert found == {"support": 3, "forward_nonzeros": 2}
