"""SparseMAP by the active set: its two loops against each other and closed forms, and where rounding bites."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import (
    Alignment,
    Categorical,
    Constituency,
    LinearChain,
    ProjectiveTree,
    ShiftReduce,
    SpanningTree,
    SparseSolution,
    Subset,
    TiedChain,
    kernels,
)
from structgrad.oracles.active_set.solver import solve
from tests.helpers import seeded
from tests.suites.audit.planted_oracle_faults import Apart

CASES: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (LinearChain(), (3, 3, 3)),
    (LinearChain(), (6, 4, 4)),
    (Constituency(), (5, 5)),
    (Constituency(), (8, 8)),
    (ProjectiveTree(), (7, 7)),
    (ProjectiveTree(single_root=False), (4, 4)),
    (SpanningTree(), (7, 7)),
    (SpanningTree(single_root=False), (4, 4)),
    (Alignment(), (6, 7)),
    (ShiftReduce(), (7, 7, 2)),
    (TiedChain(), (9, 3)),
)
REGIMES = {
    "plain": lambda z: z,
    "low": lambda z: 0.05 * z,
    "high": lambda z: 5.0 * z,
    "equal": lambda z: 0 * z,
    "integers": lambda z: z.round(),
    "rounded": lambda z: (0.3 * z).round(decimals=1),
    "nearly equal": lambda z: 1e-9 * z,
    "tiny": lambda z: 1e-6 * z,
    "within rounding": lambda z: 1e-14 * z,
    "large": lambda z: 1e6 * (0.5 * z).round(),
    "large thirds": lambda z: 1e6 / 3 * (0.5 * z).round(),
    "large near ties": lambda z: 1e6 * (0.5 * z).round() + z.flip(0),
}


def noise(event: tuple[int, ...], rows: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(rows, *event, dtype=torch.float64, generator=seeded(seed))


def assert_a_valid_decomposition(solution: SparseSolution) -> None:
    mixed = torch.einsum("bm,bm...->b...", solution.weights, solution.atoms)
    torch.testing.assert_close(mixed, solution.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(solution.weights.sum(-1), torch.ones_like(solution.gap), rtol=0, atol=1e-12)
    assert bool((solution.weights >= 0).all())
    for atoms, weights in zip(solution.atoms, solution.weights, strict=True):
        lifted = torch.nn.functional.pad(atoms[weights > 0].flatten(1), (0, 1), value=1.0)
        assert int(torch.linalg.matrix_rank(lifted)) == len(lifted)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("oracle", "event"), CASES, ids=str)
def test_any_argmax_from_outside_gives_the_mean_of_the_compiled_one(oracle: Any, event: tuple[int, ...], regime: str) -> None:
    scores = torch.where(oracle.read_mask(event), REGIMES[regime](noise(event)), math.nan).requires_grad_()
    solution, large = oracle.project(scores), regime.startswith("large")
    with kernels.disabled():
        expected = oracle.project(scores)
        assert bool((expected.gap <= (1e-8 * event[0] if large else 1e-9)).all())
    torch.testing.assert_close(solution.mean, expected.mean, rtol=0, atol=1e-7 if large else 1e-9 if regime in ("low", "high") else 1e-11)
    assert bool((solution.gap <= (1e-8 * event[0] if large else 1e-12)).all())
    of_all = ((solution.atoms == 1) | (solution.weights == 0).reshape(12, -1, *[1] * len(event))).all(1)
    assert bool((solution.mean[of_all] == 1).all())
    assert_a_valid_decomposition(solution)
    if regime in ("plain", "low", "high"):  # where no faces meet
        direction = noise(event, seed=1)
        ours, theirs = (torch.autograd.grad(each.mean, scores, direction)[0] for each in (solution, expected))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("oracle", "words", "scale"),
    [
        *((oracle, 20, scale) for oracle in (SpanningTree(), ProjectiveTree()) for scale in (0.05, 0.3, 1.0)),
        *((SpanningTree(single_root=False), 40, scale) for scale in (0.3, 1.0)),
    ],
    ids=str,
)
def test_trees_of_many_words_are_certified(oracle: Any, words: int, scale: float) -> None:
    solution = oracle.project(scale * noise((words + 1, words + 1), rows=4))
    assert bool((solution.gap <= 1e-11).all())
    assert bool((solution.support > 16).all()), "the workspace never had to grow"
    assert_a_valid_decomposition(solution)


def test_ill_conditioned_atoms_give_way() -> None:
    """In some of these items the atoms come close to affine dependence; without the exchange of atoms, gaps of 1e-9 remain."""
    assert float(SpanningTree().project(0.3 * noise((21, 21), rows=300, seed=3)).gap.max()) < 2e-12


def test_how_rows_are_split_over_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = noise((9, 9), rows=31).requires_grad_()
    with torch.no_grad():
        scores[5] = -math.inf

    def found() -> list[Tensor]:
        solution = SpanningTree().project(scores)
        return [solution.mean, solution.weights, solution.atoms, *torch.autograd.grad(solution.mean.square().sum(), scores)]

    alone = found()
    torch.set_num_threads(4)
    monkeypatch.setattr(kernels, "GRAIN", 1)
    assert all(map(torch.equal, found(), alone))


def test_atoms_take_no_memory_before_they_are_asked_for() -> None:
    solution = LinearChain().project(noise((24, 16, 16), rows=8))
    lists = solution.projection.lists
    assert lists is not None
    assert lists.parts.nbytes == 4 * 24 * int(solution.support.sum())
    assert lists.parts.nbytes + lists.sizes.nbytes < solution.atoms.numel() * 8 / 100


def test_a_structure_without_parts_is_a_vertex() -> None:
    """And no sign that nothing is feasible."""
    scores = torch.tensor([[0.0, -1.0, -2.0, -0.5], [0.0, 0.3, -1.0, 0.2], [0.0, -torch.inf, -torch.inf, -torch.inf]])
    solution = Apart().project(scores)
    assert torch.equal(solution.mean, torch.tensor([[0.0, 0, 0, 0], [0, 0.3, 0, 0.2], [0, 0, 0, 0]]))
    assert torch.equal(solution.weights.sum(-1), torch.ones(3))
    assert bool((solution.gap < 1e-12).all())


@pytest.mark.parametrize("regime", ["low", "plain", "high", "equal", "integers", "rounded", "nearly equal", "large near ties"])
@pytest.mark.parametrize(
    ("oracle", "size"),
    [(Categorical(), 1), (Categorical(), 30), (Subset(3), 8), (Subset(15), 30), (Subset(29), 30), (Subset(30), 30)],
    ids=str,
)
def test_the_active_set_agrees_with_closed_forms(oracle: Any, size: int, regime: str) -> None:
    """In few steps."""
    rows = REGIMES[regime](noise((size,)))
    rows[-3:] = rows[-3:].masked_fill(torch.rand(3, size, generator=seeded(1)) < 0.3, -math.inf)
    steps = list[int]()

    def argmax(directions: Tensor, items: Tensor) -> Tensor:
        steps.append(len(items))
        best: Tensor = oracle.argmax(directions)
        return best

    found, expected, large = solve(argmax, rows), oracle.project(rows), regime.startswith("large")
    assert found.mean is not None
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=1e-6 if large else 1e-9)
    assert torch.equal(found.gap == math.inf, expected.gap == math.inf)
    assert bool((found.gap[found.gap < math.inf] <= (1e-6 if large else 1e-9)).all())
    assert len(steps) < 10 * (size + 1)
