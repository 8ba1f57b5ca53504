"""The compiled active set, through the structures that use it: against every vertex, against the reference, and where rounding bites."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from structgrad.oracles import (
    Alignment,
    Constituency,
    LinearChain,
    ProjectiveTree,
    ShiftReduce,
    SpanningTree,
    SparseSolution,
    TiedChain,
    kernels,
)
from structgrad.oracles.active_set import cpu as active_set
from structgrad.oracles.active_set import cpu_factor
from structgrad.oracles.active_set.solver import solve, solve_compiled

SMALL: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (LinearChain(), (3, 3, 3)),
    (Constituency(), (5, 5)),
    (ProjectiveTree(), (4, 4)),
    (ProjectiveTree(single_root=False), (4, 4)),
    (SpanningTree(), (4, 4)),
    (SpanningTree(single_root=False), (4, 4)),
    (Alignment(), (3, 4)),
    (ShiftReduce(), (5, 5, 2)),
    (TiedChain(), (7, 3)),
)
LARGER: tuple[Any, ...] = (
    (LinearChain(), (6, 4, 4)),
    (Constituency(), (8, 8)),
    (ProjectiveTree(), (7, 7)),
    (SpanningTree(), (7, 7)),
    (Alignment(), (6, 7)),
    (ShiftReduce(), (7, 7, 2)),
    (TiedChain(), (9, 3)),
    *(
        pytest.param(oracle, event, marks=pytest.mark.sweep)
        for oracle, event in (
            (LinearChain(), (12, 5, 5)),
            (Constituency(), (12, 12)),
            (ProjectiveTree(), (11, 11)),
            (SpanningTree(), (11, 11)),
            (Alignment(), (9, 12)),
            (ShiftReduce(), (10, 10, 2)),
        )
    ),
)
SINGLE: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (LinearChain(), (4, 1, 1)),
    (Constituency(), (2, 2)),
    (ProjectiveTree(), (2, 2)),
    (SpanningTree(), (2, 2)),
    (Alignment(), (1, 4)),
    (ShiftReduce(), (2, 2, 2)),
    (TiedChain(), (5, 1)),
)


def compiled(oracle: Any, scores: Tensor, lengths: Tensor | None = None) -> SparseSolution:
    """The projection of scores [b, *event] by the kernel; what is ignored is NaN to it."""
    event = tuple(scores.shape[1:])
    rows = torch.where(oracle.read_mask(event), scores.detach().double(), math.nan)
    completed = rows if lengths is None else oracle._complete(rows, lengths)
    kernel = oracle._kernel("project", completed)
    assert isinstance(kernel, kernels.Kernel)
    projection = solve_compiled(kernel, completed, None if lengths is None else oracle._inside(event, lengths).expand_as(rows))
    return SparseSolution(projection, scores, tuple(scores.shape[:1]), oracle.event_ndim)


def reference(oracle: Any, scores: Tensor) -> SparseSolution:
    rows = torch.where(oracle.read_mask(tuple(scores.shape[1:])), scores.detach(), 0)
    with kernels.disabled():
        projection = solve(lambda direction, items: oracle._argmax(direction), rows)
    return SparseSolution(projection, scores, tuple(scores.shape[:1]), oracle.event_ndim)


def noise(event: tuple[int, ...], rows: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(rows, *event, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def nothing_to_begin_with() -> tuple[Any, Any]:
    return np.zeros(3, np.int64), (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0))


def assert_a_valid_decomposition(solution: SparseSolution) -> None:
    mixed = torch.einsum("bm,bm...->b...", solution.weights, solution.atoms)
    torch.testing.assert_close(mixed, solution.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(solution.weights.sum(-1), torch.ones_like(solution.gap), rtol=0, atol=1e-12)
    assert bool((solution.weights >= 0).all())
    for atoms, weights in zip(solution.atoms, solution.weights, strict=True):
        lifted = torch.nn.functional.pad(atoms[weights > 0].flatten(1), (0, 1), value=1.0)
        assert int(torch.linalg.matrix_rank(lifted)) == len(lifted)


@pytest.mark.parametrize("scale", [1e-6, 0.05, 1.0, 5.0, 50.0])
@pytest.mark.parametrize(("oracle", "event"), SMALL, ids=str)
def test_no_vertex_is_nearer(oracle: Any, event: tuple[int, ...], scale: float) -> None:
    scores = torch.where(oracle.read_mask(event), scale * noise(event), 0)
    solution = compiled(oracle, scores)
    residual = (scores - solution.mean).flatten(1)
    excess = residual @ oracle.enumerate(event, dtype=torch.float64).flatten(1).T - (residual * solution.mean.flatten(1)).sum(
        -1, keepdim=True
    )
    assert bool((excess <= 1e-13 * max(1, scale)).all())
    assert bool((solution.gap <= 1e-13 * max(1, scale)).all())
    assert bool((solution.gap >= 0).all())
    assert_a_valid_decomposition(solution)


REGIMES = {
    "equal": lambda z: 0 * z,
    "integers": lambda z: z.round(),
    "rounded": lambda z: (0.3 * z).round(decimals=1),
    "nearly_equal": lambda z: 1e-9 * z,
    "tiny": lambda z: 1e-6 * z,
    "within_rounding": lambda z: 1e-14 * z,
}


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("oracle", "event"), SMALL + LARGER, ids=str)
def test_ties_give_the_mean_of_the_reference(oracle: Any, event: tuple[int, ...], regime: str) -> None:
    scores = REGIMES[regime](noise(event))
    solution = compiled(oracle, scores)
    torch.testing.assert_close(solution.mean, reference(oracle, scores).mean, rtol=0, atol=1e-11)
    assert bool((solution.gap <= 1e-12).all())
    assert_a_valid_decomposition(solution)


@pytest.mark.parametrize("offset", [0.0, 1.0], ids=["ties", "near_ties"])
@pytest.mark.parametrize("scale", [1e6, 1e6 / 3], ids=str)
@pytest.mark.parametrize(("oracle", "event"), SMALL + LARGER, ids=str)
def test_large_scores_with_ties(oracle: Any, event: tuple[int, ...], scale: float, offset: float) -> None:
    z = noise(event)
    scores = scale * (0.5 * z).round() + offset * noise(event, seed=1)
    solution, expected = compiled(oracle, scores), reference(oracle, scores)
    torch.testing.assert_close(solution.mean, expected.mean, rtol=0, atol=1e-7)
    of_all = ((solution.atoms == 1) | (solution.weights == 0).reshape(12, -1, *[1] * len(event))).all(1)
    assert bool((solution.mean[of_all] == 1).all())
    assert bool((solution.gap <= 1e-14 * scale * event[0]).all())
    assert bool((expected.gap <= 1e-14 * scale * event[0]).all())
    assert_a_valid_decomposition(solution)


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 5.0])
@pytest.mark.parametrize(("oracle", "event"), LARGER, ids=str)
def test_larger_sizes_agree_with_the_reference(oracle: Any, event: tuple[int, ...], scale: float) -> None:
    scores = scale * noise(event, rows=4)
    solution = compiled(oracle, scores)
    torch.testing.assert_close(solution.mean, reference(oracle, scores).mean, rtol=0, atol=1e-9)
    assert bool((solution.gap <= 1e-12).all())
    assert_a_valid_decomposition(solution)


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0])
@pytest.mark.parametrize(
    ("oracle", "words"), [(SpanningTree(), 20), (ProjectiveTree(), 20), (SpanningTree(single_root=False), 40)], ids=str
)
def test_trees_of_many_words_are_certified(oracle: Any, words: int, scale: float) -> None:
    if words == 40 and scale < 0.3:
        pytest.skip("more than a thousand atoms")
    solution = compiled(oracle, scale * noise((words + 1, words + 1), rows=4))
    assert bool((solution.gap <= 1e-11).all())
    assert bool((solution.support > 16).all()), "the workspace never had to grow"
    assert_a_valid_decomposition(solution)


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 1e6, 1e6 / 3], ids=str)
def test_items_end_soon_after_the_last_atom_is_found(scale: float) -> None:
    """Driven from here over a list of vertices, with ties and near ties: what rounding lets through must not go on and on."""
    vertices = SpanningTree().enumerate((5, 5), dtype=torch.float64).flatten(1).numpy()
    space, everything = active_set.workspace(25, 4), np.zeros(0, bool)
    for row in (scale * noise((5, 5), rows=20).round() + 0.3 * noise((5, 5), rows=20, seed=1)).flatten(1).numpy():
        active_set.start(space, row, everything, *nothing_to_begin_with())
        while True:
            best = vertices[(vertices @ space.residual).argmax()].nonzero()[0]
            space.parts[: len(best)] = best
            if not active_set.advance(space, everything, len(best)):
                break
            space = active_set.with_room(space)
        atoms, _, steps = space.counters[:3]
        assert atoms <= steps < 2 * atoms + 8


@pytest.mark.parametrize(("oracle", "event"), [(SpanningTree(), (5, 5)), (TiedChain(), (7, 3))], ids=str)
def test_what_is_kept_of_the_atoms_is_theirs(oracle: Any, event: tuple[int, ...]) -> None:
    """How often each has each slot, and the factor of their overlaps, when others have left and new ones have come into their homes."""
    vertices, again = oracle.enumerate(event, dtype=torch.float64).flatten(1).numpy(), 0
    size, everything = vertices.shape[1], np.zeros(0, bool)
    space = active_set.workspace(size, int(vertices.sum(1).max()))
    for row in noise(event, rows=10).flatten(1).numpy():
        space = active_set.start(space, row, everything, *nothing_to_begin_with())
        while True:
            best = np.repeat(np.arange(size), vertices[(vertices @ space.residual).argmax()].astype(int))
            space.parts[: len(best)] = best
            if not active_set.advance(space, everything, len(best)):
                break
            count, slots = space.counters[:2]
            homes = space.home[:count]
            atoms = np.stack([np.bincount(space.atoms[home, : space.sizes[home]], minlength=slots) for home in homes])
            assert (space.incidence[:slots, homes] == atoms.T).all()
            factor = np.triu(space.factor[:count, :count], 1) + np.diag(1 / np.diag(space.factor)[:count])
            np.testing.assert_allclose(factor.T @ factor, atoms @ atoms.T + 1, rtol=0, atol=1e-10)
            space = active_set.with_room(space)
        again += space.counters[cpu_factor.STEPS] > space.counters[cpu_factor.HOMES]
    assert again > 0, "no atom came into the home of another"


def test_an_atom_that_rounding_gives_no_weight_is_refused() -> None:
    """Its correlation is made too low here: then the weights are at their optimum already, and it must leave them so."""
    space, everything = active_set.workspace(4, 1), np.zeros(0, bool)
    active_set.start(space, np.array([0.5, 0.4, 0.0, 0.0]), everything, *nothing_to_begin_with())
    for part in (0, 1):
        space.parts[0] = part
        assert active_set.advance(space, everything, 1)
    before = space.weights[:2].copy()
    space.parts[0] = 2
    assert active_set._to_slots(space, everything, 1) == 1
    assert cpu_factor.append(space, space.parts, 1, -5.0)
    assert not active_set._descend(space)
    assert space.counters[0] == 2
    assert (space.weights[:2] == before).all()


def test_ill_conditioned_atoms_give_way() -> None:
    """In some of these items the atoms come close to affine dependence; without the exchange of atoms, gaps of 1e-9 remain."""
    scores = 0.3 * noise((21, 21), rows=300, seed=3)
    assert float(compiled(SpanningTree(), scores).gap.max()) < 2e-12


@pytest.mark.parametrize(("oracle", "event"), SINGLE, ids=str)
def test_a_single_structure_is_the_mean_at_any_scale(oracle: Any, event: tuple[int, ...]) -> None:
    only = oracle.enumerate(event, dtype=torch.float64)
    for scale in (1e-6, 1.0, 1e6):
        solution = compiled(oracle, scale * noise(event))
        assert torch.equal(solution.mean, only.expand_as(solution.mean))
        assert torch.equal(solution.weights, torch.ones(12, 1, dtype=torch.float64))
        assert float(solution.gap.max()) == 0


@pytest.mark.parametrize(("oracle", "event"), SMALL, ids=str)
def test_forbidden_parts_stay_out_and_infeasible_rows_are_empty(oracle: Any, event: tuple[int, ...]) -> None:
    scores = noise(event, rows=40).masked_fill(torch.rand(40, *event, generator=torch.Generator().manual_seed(2)) < 0.2, -math.inf)
    scores[0] = -math.inf
    feasible = oracle.feasible(scores)
    assert 5 < int(feasible.sum()) < 40
    leaf = scores.clone().requires_grad_()
    solution, expected = compiled(oracle, leaf), reference(oracle, scores)
    assert torch.equal(solution.gap < math.inf, feasible)
    torch.testing.assert_close(solution.mean, expected.mean, rtol=0, atol=1e-12)
    assert bool((solution.mean[~feasible] == 0).all())
    assert bool((solution.weights[~feasible] == 0).all())
    assert bool((solution.support[~feasible] == 0).all())
    assert bool((solution.atoms[:, :, scores[0] == 0] == 0).all())
    assert not bool((solution.atoms * (scores == -math.inf).unsqueeze(1)).any())
    assert_a_valid_decomposition(compiled(oracle, scores[feasible]))
    (solution.mean * noise(event, rows=40)).sum().backward()
    assert leaf.grad is not None
    assert bool(leaf.grad.isfinite().all())
    assert bool((leaf.grad[scores == -math.inf] == 0).all())
    assert bool((leaf.grad[~feasible] == 0).all())


LENGTHS: tuple[tuple[Any, tuple[int, ...], Any, Any], ...] = (
    (LinearChain(), (6, 3, 3), 4, (4, 3, 3)),
    (Constituency(), (7, 7), 5, (5, 5)),
    (ProjectiveTree(), (7, 7), 4, (5, 5)),
    (SpanningTree(), (7, 7), 4, (5, 5)),
    (Alignment(), (5, 6), [3, 4], (3, 4)),
    (ShiftReduce(), (7, 7, 2), 4, (5, 5, 2)),
)


@pytest.mark.parametrize(("oracle", "event", "length", "short"), LENGTHS, ids=str)
def test_a_short_item_is_that_item_alone(oracle: Any, event: tuple[int, ...], length: Any, short: tuple[int, ...]) -> None:
    scores = noise(event, rows=6)
    lengths = torch.tensor(length).expand(6, *torch.tensor(length).shape)
    inside = oracle._inside(event, lengths).expand_as(scores)
    leaf = scores.clone().requires_grad_()
    padded = compiled(oracle, leaf, lengths)
    own = (slice(None), *(slice(size) for size in short))
    alone_leaf = scores[own].clone().requires_grad_()
    alone = compiled(oracle, alone_leaf)
    torch.testing.assert_close(padded.mean[own], alone.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(padded.gap, alone.gap, rtol=0, atol=1e-12)
    assert bool((padded.mean[~inside] == 0).all())
    assert bool((padded.atoms.sum(1)[~inside] == 0).all())
    assert_a_valid_decomposition(padded)
    direction = noise(event, rows=6, seed=4)
    (padded.mean * direction).sum().backward()
    (alone.mean * direction[own]).sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad[own], alone_leaf.grad, rtol=0, atol=1e-10)
    assert bool((leaf.grad[~inside] == 0).all())


@pytest.mark.parametrize(("oracle", "event"), SMALL, ids=str)
def test_gradients_by_finite_differences(oracle: Any, event: tuple[int, ...]) -> None:
    leaf = torch.where(oracle.read_mask(event), noise(event, rows=3), 0).requires_grad_()
    assert gradcheck(lambda theta: compiled(oracle, theta).mean, (leaf,), fast_mode=True)
    assert gradgradcheck(lambda theta: compiled(oracle, theta).mean * theta, (leaf,), fast_mode=True)


@pytest.mark.parametrize("of", ["mean", "weights"])
@pytest.mark.parametrize(("oracle", "event"), SMALL + LARGER, ids=str)
def test_gradients_are_those_of_the_reference(oracle: Any, event: tuple[int, ...], of: str) -> None:
    leaf = noise(event, rows=3).requires_grad_()
    solution = compiled(oracle, leaf)
    # The same atoms as written-out tensors: what the reference would differentiate.
    atoms, weights = solution.projection.decompose()
    dense = SparseSolution(type(solution.projection)(solution.gap, lambda: (atoms, weights)), leaf, (3,), oracle.event_ndim)
    found, expected = getattr(solution, of), getattr(dense, of)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    direction = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((found * direction).sum(), leaf)
    (reference,) = torch.autograd.grad((expected * direction).sum(), leaf)
    torch.testing.assert_close(gradient, reference, rtol=0, atol=1e-9)


def test_the_gradient_of_weights_is_differentiable_in_its_direction() -> None:
    oracle, leaf = SpanningTree(), noise((4, 4), rows=2).requires_grad_()
    weights = compiled(oracle, leaf).weights

    def backward(direction: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(weights, leaf, direction, create_graph=True)
        return gradient

    assert gradcheck(backward, (torch.randn(weights.shape, dtype=torch.float64).requires_grad_(),))


def test_the_gradient_keeps_the_dtype_of_the_scores() -> None:
    leaf = noise((4, 4)).float().requires_grad_()
    solution = compiled(SpanningTree(), leaf)
    solution.mean.sum().backward()
    assert solution.mean.dtype == solution.weights.dtype == solution.atoms.dtype == torch.float32
    assert leaf.grad is not None
    assert leaf.grad.dtype == torch.float32


@pytest.mark.parametrize("shared", [(2, 1, 3), (1, 4, 1)], ids=str)
def test_items_that_share_scores_have_gradients_of_their_own(shared: tuple[int, ...]) -> None:
    oracle, event, batch = SpanningTree(), (4, 4), (2, 4, 3)
    rows = noise(event, rows=math.prod(shared))
    leaf = rows.reshape(*shared, *event).expand(*batch, *event).clone().requires_grad_()
    projection = compiled(oracle, rows).projection
    together = SparseSolution(projection, leaf, shared, 2)
    other = rows.reshape(*shared, *event).expand(*batch, *event).clone().requires_grad_()
    apart = SparseSolution(compiled(oracle, other.detach().reshape(-1, *event)).projection, other, batch, 2)
    for name in ("mean", "weights"):
        found, expected = getattr(together, name), getattr(apart, name)
        torch.testing.assert_close(found, expected)
        direction = torch.randn(found.shape, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((found * direction).sum(), leaf)
        (reference,) = torch.autograd.grad((expected * direction).sum(), other)
        torch.testing.assert_close(gradient, reference)


def test_how_rows_are_split_over_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, scores = SpanningTree(), noise((9, 9), rows=31)
    scores[5] = -math.inf
    alone = compiled(oracle, scores)
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr(kernels, "GRAIN", 1)
    try:
        split = compiled(oracle, scores.requires_grad_())
        (gradient,) = torch.autograd.grad(split.mean.square().sum(), scores)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(split.mean, alone.mean)
    assert torch.equal(split.weights, alone.weights)
    assert torch.equal(split.atoms, alone.atoms)
    assert torch.equal(gradient, torch.autograd.grad(compiled(oracle, scores).mean.square().sum(), scores)[0])


def test_an_empty_batch_has_an_empty_projection() -> None:
    leaf = torch.zeros(0, 4, 4, dtype=torch.float64, requires_grad=True)
    solution = compiled(SpanningTree(), leaf)
    solution.mean.sum().backward()
    assert solution.mean.shape == (0, 4, 4)
    assert solution.weights.shape[0] == solution.atoms.shape[0] == solution.gap.shape[0] == 0


def test_atoms_take_no_memory_before_they_are_asked_for() -> None:
    solution = compiled(LinearChain(), noise((24, 16, 16), rows=8))
    lists = solution.projection.lists
    assert lists is not None
    written = lists.parts.nbytes + lists.sizes.nbytes
    assert written < solution.atoms.numel() * 8 / 100
    assert lists.parts.nbytes == 4 * 24 * int(solution.support.sum())
