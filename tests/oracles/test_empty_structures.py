"""A hull that holds the structure without parts: it is no sign that nothing is feasible."""

from __future__ import annotations

import torch

from tests.suites.audit.planted_oracle_faults import Apart


def test_what_is_best_without_any_part_is_projected_on_it() -> None:
    scores = torch.tensor([[0.0, -1.0, -2.0, -0.5], [0.0, 0.3, -1.0, 0.2], [0.0, -torch.inf, -torch.inf, -torch.inf]])
    solution = Apart().project(scores)
    assert torch.equal(solution.mean, torch.tensor([[0.0, 0, 0, 0], [0, 0.3, 0, 0.2], [0, 0, 0, 0]]))
    assert torch.equal(solution.weights.sum(-1), torch.ones(3))
    assert bool((solution.gap < 1e-12).all())
