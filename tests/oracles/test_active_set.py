from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Categorical, LinearChain, Subset
from structgrad.oracles.active_set.solution import affine_solve
from structgrad.oracles.active_set.solver import _ActiveSet, solve

CLOSED_FORMS: tuple[tuple[Any, int], ...] = (
    (Categorical(), 1),
    (Categorical(), 2),
    (Categorical(), 30),
    (Subset(1), 30),
    (Subset(3), 8),
    (Subset(15), 30),
    (Subset(29), 30),
    (Subset(30), 30),
)


def row_argmax(oracle: Any) -> Any:
    return lambda direction, items: oracle._argmax(direction)


def weighted_mean(atoms: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("bm,bm...->b...", weights, atoms)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one per step of the solver."""
    taken: list[int] = []
    original = _ActiveSet.step

    def counted(self: _ActiveSet) -> bool:
        taken.append(1)
        return original(self)

    monkeypatch.setattr(_ActiveSet, "step", counted)
    return taken


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0, 50.0])
@pytest.mark.parametrize(("oracle", "n"), CLOSED_FORMS, ids=str)
def test_the_active_set_agrees_with_closed_forms(oracle: Any, n: int, scale: float, dtype: torch.dtype) -> None:
    rows = (scale * torch.randn(4, n)).to(dtype)
    found = solve(row_argmax(oracle), rows.double())
    mean = weighted_mean(*found.decompose())
    torch.testing.assert_close(mean, oracle.project(rows.double()).mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(mean.to(dtype), oracle.project(rows).mean, rtol=2e-2, atol=1e-6)
    assert bool((found.gap <= 1e-9 * max(1, scale)).all())


@pytest.mark.parametrize(("oracle", "n"), CLOSED_FORMS, ids=str)
def test_closed_forms_under_a_mask(oracle: Any, n: int) -> None:
    rows = torch.randn(12, n, dtype=torch.float64).masked_fill(torch.rand(12, n) < 0.3, -math.inf)
    found, expected = solve(row_argmax(oracle), rows), oracle.project(rows)
    torch.testing.assert_close(weighted_mean(*found.decompose()), expected.mean, rtol=0, atol=1e-9)
    assert torch.equal(found.gap == math.inf, expected.gap == math.inf)


STRESS: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (Categorical(), (12,)),
    (Subset(4), (9,)),
    (LinearChain(), (4, 3, 3)),
    (LinearChain(), (6, 2, 2)),
)


@pytest.mark.parametrize("regime", ["equal", "rounded", "nearly_equal", "integers", "large"])
@pytest.mark.parametrize(("oracle", "event"), STRESS, ids=str)
def test_near_ties_end_within_the_step_cap(oracle: Any, event: tuple[int, ...], regime: str, steps: list[int]) -> None:
    noise = torch.randn(24, *event, dtype=torch.float64)
    rows = {
        "equal": torch.zeros_like(noise),
        "rounded": (0.3 * noise).round(decimals=1),
        "nearly_equal": 1e-9 * noise,
        "integers": noise.round(),
        "large": 1e6 * noise.round() + noise,
    }[regime]
    rows = torch.where(oracle.read_mask(event), rows, 0)
    found = solve(row_argmax(oracle), rows)
    assert len(steps) < 20 * (noise[0].numel() + 1) / 2
    assert bool((found.gap <= (1e-7 if regime == "large" else 1e-10)).all())
    atoms, weights = found.decompose()
    torch.testing.assert_close(weights.sum(-1), torch.ones(24, dtype=torch.float64), rtol=0, atol=1e-12)
    assert bool((weights >= 0).all())
    for used, weight in zip(atoms.flatten(2), weights, strict=True):
        lifted = torch.nn.functional.pad(used[weight > 0], (0, 1), value=1.0)
        assert int(torch.linalg.matrix_rank(lifted)) == len(lifted)


@pytest.mark.parametrize(("oracle", "event"), [(LinearChain(), (4, 3, 3)), (Subset(5), (12,))], ids=str)
def test_a_capped_run_descends_and_certifies_how_far_it_is(oracle: Any, event: tuple[int, ...]) -> None:
    rows = torch.where(oracle.read_mask(event), 0.2 * torch.randn(16, *event, dtype=torch.float64), 0)
    exact = weighted_mean(*solve(row_argmax(oracle), rows).decompose())
    best = previous = (exact - rows).square().flatten(1).sum(-1) / 2
    for cap in range(1, 12):
        found = solve(row_argmax(oracle), rows, max_steps=cap)
        atoms, weights = found.decompose()
        value = (weighted_mean(atoms, weights) - rows).square().flatten(1).sum(-1) / 2
        assert bool((value - best <= found.gap + 1e-12).all())
        assert bool((value - best > 1e-9).any()) or cap > 3
        assert bool((value <= previous + 1e-12).all()) or cap == 1
        torch.testing.assert_close(weights.sum(-1), torch.ones(16, dtype=torch.float64))
        previous = value


def test_easy_items_do_not_wait_on_hard_ones() -> None:
    """An item is the same alone and next to items that need more steps."""
    oracle, event = LinearChain(), (3, 2, 2)
    scales = torch.tensor([9.0, 0.1] * 3, dtype=torch.float64).reshape(6, 1, 1, 1)
    rows = torch.where(oracle.read_mask(event), scales * torch.randn(6, *event, dtype=torch.float64), 0)
    together = weighted_mean(*solve(row_argmax(oracle), rows).decompose())
    alone = torch.cat([weighted_mean(*solve(row_argmax(oracle), row.unsqueeze(0)).decompose()) for row in rows])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


def test_an_atom_that_rounding_gives_no_weight_is_refused() -> None:
    """Its correlation is made too low here: then the weights are at their optimum already, and the item is done."""
    rows = torch.tensor([[0.5, 0.4, 0.0]], dtype=torch.float64)
    state = _ActiveSet(rows, lambda direction, items: Categorical()._argmax(direction).double())
    assert state.step()
    state.correlations[0, 1] = -5.0
    assert not state.step()
    torch.testing.assert_close(state.weights[0, state.active[0]], torch.ones(1, dtype=torch.float64))


def test_affine_solve_meets_its_constraint() -> None:
    gram = torch.eye(4, dtype=torch.float64).unsqueeze(0)
    active = torch.tensor([[True, True, False, True]])
    weights = affine_solve(gram, active, torch.tensor([[1.0, 0.5, 9.0, 0.0]], dtype=torch.float64), total=1.0)
    torch.testing.assert_close(weights, torch.tensor([[5 / 6, 1 / 3, 0.0, -1 / 6]], dtype=torch.float64))
    assert affine_solve(gram, torch.zeros_like(active), torch.ones(1, 4, dtype=torch.float64)).abs().max() == 0
