"""The active set in one program, on structures whose MAP is a few lines (tables with an entry of each line; vertices) and on real ones."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

triton = pytest.importorskip("triton", reason="Triton is offered for Linux alone")

import triton.language as tl  # noqa: E402

from structgrad.oracles import Alignment, Assignment, Constituency, LinearChain, ProjectiveTree, ShiftReduce, SpanningTree, SparseSolution  # noqa: E402
from structgrad.oracles.active_set import gpu as active_set  # noqa: E402
from structgrad.oracles.active_set import gpu_factor, gpu_moves  # noqa: E402
from structgrad.oracles.active_set.device_atoms import DeviceAtoms  # noqa: E402
from structgrad.oracles.active_set.gpu import Map, launcher  # noqa: E402
from structgrad.oracles.active_set.solver import solve, solve_on_device  # noqa: E402
from structgrad.oracles.kernels import disabled, find  # noqa: E402
from structgrad.oracles.kernels.gpu import DeviceKernel  # noqa: E402
from structgrad.oracles.kernels.gpu.launching import lanes  # noqa: E402
from structgrad.oracles.simplex import projection as simplex  # noqa: E402


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and workspaces hold what nobody can use before they are written."""
    empty = torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> Tensor:
        made: Tensor = empty(*args, **kwargs)
        return made.fill_(math.nan if made.is_floating_point() else 77)

    monkeypatch.setattr(torch, "empty", poisoned)


@triton.jit
def choose(scores, structure, workspace, lines, width, block: tl.constexpr):  # noqa: PLR0917
    """One entry of each line, the first of the best."""
    place = tl.arange(0, block)
    for line in range(0, lines):
        row = tl.load(scores + line * width + place, mask=place < width, other=-float("inf"))
        best = tl.argmax(row, 0)
        tl.store(structure + line * width + place, (place == best).to(structure.dtype.element_ty), mask=place < width)
    tl.debug_barrier()


@triton.jit
def list_vertices(scores, structure, vertices, size, count, block: tl.constexpr, many: tl.constexpr):  # noqa: PLR0917
    """The first of the best among vertices [count, size], which stand in the workspace."""
    place = tl.arange(0, block)
    vertex = tl.arange(0, many)
    row = tl.load(scores + place, mask=place < size, other=0.0)
    inside = (vertex < count)[:, None] & (place < size)[None, :]
    table = tl.load(vertices + vertex[:, None] * size + place[None, :], mask=inside, other=0.0)
    values = tl.where(vertex < count, tl.sum(tl.where(table > 0, row[None, :], 0.0), 1), -float("inf"))
    best = tl.argmax(values, 0)
    found = tl.sum(tl.where((vertex == best)[:, None], table, 0.0), 0)
    tl.store(structure + place, (found > 0).to(structure.dtype.element_ty), mask=place < size)
    tl.debug_barrier()


table = launcher(lambda event: Map(choose, 1, torch.float64, event, (lanes(event[1]),), (1, 1)))


def project(rows: Tensor, kernel: Any = table, inside: Tensor | None = None) -> SparseSolution:
    projection = solve_on_device(DeviceKernel(kernel, ()), rows.detach().double(), inside)
    return SparseSolution(projection, rows, tuple(rows.shape[:1]), 2)


def argmax(rows: Tensor, items: Tensor | None = None) -> Tensor:
    return torch.zeros_like(rows).scatter_(-1, rows.argmax(-1, keepdim=True), 1)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def closed_form(rows: Tensor) -> Tensor:
    """Each line is a point of a simplex of its own."""
    return simplex.project(rows.flatten(0, 1).cpu(), 1)[0].reshape(rows.shape)


def assert_a_valid_decomposition(solution: SparseSolution) -> None:
    mixed = torch.einsum("bm,bm...->b...", solution.weights, solution.atoms)
    torch.testing.assert_close(mixed, solution.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(solution.weights.sum(-1), torch.ones_like(solution.gap), rtol=0, atol=1e-12)
    assert bool((solution.weights >= 0).all())
    for atoms, weights in zip(solution.atoms, solution.weights, strict=True):
        lifted = torch.nn.functional.pad(atoms[weights > 0].flatten(1), (0, 1), value=1.0)
        assert int(torch.linalg.matrix_rank(lifted)) == len(lifted)


def test_means_are_those_of_the_closed_form(gpu_kernels: torch.device) -> None:
    scales = torch.tensor([0.0, 1e-9, 0.05, 1.0, 50.0, 1e6], dtype=torch.float64)
    rows = (scales.reshape(-1, 1, 1) * noise(6, 2, 3)).to(gpu_kernels)
    rows[3] = rows[3].round()
    rows[5] = (1e6 * (0.5 * noise(2, 3, seed=1)).round() + noise(2, 3)).to(gpu_kernels)
    solution = project(rows)
    torch.testing.assert_close(solution.mean[:5].cpu(), closed_form(rows)[:5], rtol=0, atol=1e-13)
    torch.testing.assert_close(solution.mean[5].cpu(), closed_form(rows)[5], rtol=0, atol=1e-8)
    assert bool((solution.gap[:5] <= 1e-13).all())
    assert bool((solution.gap >= 0).all())
    assert_a_valid_decomposition(solution)


def test_a_single_structure_is_the_mean(gpu_kernels: torch.device) -> None:
    rows = torch.tensor([1e6 / 3, -0.3], dtype=torch.float64).reshape(2, 1, 1).to(gpu_kernels)
    solution = project(rows)
    assert torch.equal(solution.mean, torch.ones_like(rows))
    assert torch.equal(solution.weights.sum(-1), torch.ones_like(solution.gap))
    assert torch.equal(solution.gap, torch.zeros_like(solution.gap))


def test_forbidden_parts_and_infeasible_rows(gpu_kernels: torch.device) -> None:
    rows = noise(4, 3, 4).to(gpu_kernels)
    rows[1, 0, :2] = -math.inf
    rows[2, 1] = -math.inf
    leaf = rows.clone().requires_grad_()
    solution = project(leaf)
    feasible = torch.tensor([True, True, False, True], device=gpu_kernels)
    assert torch.equal(solution.gap < math.inf, feasible)
    torch.testing.assert_close(solution.mean[feasible].cpu(), closed_form(rows[feasible]), rtol=0, atol=1e-13)
    assert bool((solution.mean[2] == 0).all())
    assert bool((solution.weights[2] == 0).all())
    assert bool((solution.atoms[2] == 0).all())
    assert torch.equal(solution.support > 0, feasible)
    (solution.mean * noise(4, 3, 4, seed=1).to(gpu_kernels)).sum().backward()
    assert leaf.grad is not None
    assert bool(leaf.grad.isfinite().all())
    assert bool((leaf.grad[rows == -math.inf] == 0).all())
    assert bool((leaf.grad[~feasible] == 0).all())


def test_what_completes_a_short_item_counts_for_map_alone(gpu_kernels: torch.device) -> None:
    rows, inside = noise(2, 4, 3).to(gpu_kernels), torch.ones(2, 3, 2, dtype=torch.bool, device=gpu_kernels)
    rows[:, :, 2] = -math.inf
    rows[:, 3] = torch.tensor([0.0, -math.inf, -math.inf])
    inside[1, 2] = False
    rows[1, 2] = torch.tensor([-math.inf, 0.0, -math.inf])
    leaf = rows[:, :3, :2].clone().requires_grad_()
    projection = solve_on_device(DeviceKernel(table, ()), rows, inside)
    solution = SparseSolution(projection, leaf, (2,), 2)
    expected = torch.where(inside, closed_form(rows)[:, :3, :2].to(gpu_kernels), 0)
    torch.testing.assert_close(solution.mean, expected, rtol=0, atol=1e-13)
    assert solution.atoms.shape[2:] == (3, 2)
    assert_a_valid_decomposition(solution)
    (solution.mean * noise(2, 3, 2, seed=1).to(gpu_kernels)).sum().backward()
    assert leaf.grad is not None
    assert bool((leaf.grad[~inside] == 0).all())
    assert bool((leaf.grad[0] != 0).any())


def test_more_atoms_than_a_word_has_bits(gpu_kernels: torch.device) -> None:
    """Enough for several words of bits and blocks of the factor."""
    rows = 0.01 * noise(1, 1, 34).to(gpu_kernels)
    solution = project(rows)
    assert int(solution.support) > 32
    torch.testing.assert_close(solution.mean.cpu(), closed_form(rows), rtol=0, atol=1e-12)
    assert float(solution.gap) < 1e-13
    assert_a_valid_decomposition(solution)


def test_a_row_alone_has_the_same_bits(gpu_kernels: torch.device) -> None:
    rows = 0.3 * noise(2, 3, 3).to(gpu_kernels)
    together, alone = project(rows), project(rows[1:2])
    assert torch.equal(together.mean[1:2], alone.mean)
    assert torch.equal(together.weights[1:2], alone.weights)
    assert torch.equal(together.atoms[1:2], alone.atoms)


def test_no_room_for_another_atom(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean that is reached by then is valid, and its gap is true."""
    monkeypatch.setattr(active_set, "MOST_ATOMS", 32)
    rows = 0.01 * noise(1, 1, 34).to(gpu_kernels)
    solution = project(rows)
    assert int(solution.support) <= 32
    residual = rows - solution.mean
    gap = ((argmax(residual) - solution.mean) * residual).sum((1, 2))
    torch.testing.assert_close(solution.gap, gap, rtol=0, atol=1e-14)
    assert float(gap) > 1e-9
    assert_a_valid_decomposition(solution)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 32 atoms at first, so that few parts suffice to be crowded; large blocks, for the interpreter's sake."""
    monkeypatch.setattr(active_set, "FEW_ATOMS", 32)
    monkeypatch.setattr(active_set, "CELLS", 64)
    monkeypatch.setattr(active_set, "TALL", 64)


def mixed(device: torch.device) -> Tensor:
    """A row of 34 atoms, one without a structure, one of few atoms with ties and forbidden parts, and one of 34 again."""
    rows = 0.01 * noise(4, 1, 34)
    rows[1] = -math.inf
    rows[2] = (50 * rows[2]).round()
    rows[2, :, ::2] = -math.inf
    return rows.to(device)


@pytest.mark.usefixtures("narrow")
def test_crowded_rows_are_taken_again_with_more_room(gpu_kernels: torch.device) -> None:
    rows = mixed(gpu_kernels)
    solution = project(rows)
    left, feasible = atoms_of(solution), torch.tensor([0, 2, 3], device=gpu_kernels)
    assert left.counts[:, 1].tolist() == [1, 0, 0, 1]
    assert int(left.crowded[0]) == 2
    assert sorted(left.crowded[1:3].tolist()) == [0, 3]
    assert solution.support.tolist()[::3] == [34, 34]
    torch.testing.assert_close(solution.mean[feasible].cpu(), closed_form(rows[feasible]), rtol=0, atol=1e-12)
    assert float(solution.gap[feasible].max()) < 1e-13
    assert solution.gap[1] == math.inf
    assert not solution.mean[1].any()
    assert not solution.weights[1].any()
    mean = torch.einsum("bm,bm...->b...", solution.weights, solution.atoms)
    torch.testing.assert_close(mean, solution.mean, rtol=0, atol=1e-12)
    tensors = [*left, solution.projection.gap, solution.mean]
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == len(rows) * active_set.kept(34) + 4


@pytest.mark.usefixtures("narrow")
def test_no_row_depends_on_the_others_or_on_the_programs(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weight = mixed(gpu_kernels), noise(4, 1, 34, seed=3).to(gpu_kernels)

    def results(items: slice) -> tuple[Tensor, ...]:
        leaf = rows[items].clone().requires_grad_()
        solution = project(leaf)
        (gradient,) = torch.autograd.grad((solution.mean * weight[items]).sum(), leaf)
        return solution.mean.detach(), solution.gap, solution.weights.detach(), solution.atoms, gradient

    together = results(slice(None))
    for module in (active_set, gpu_moves):
        monkeypatch.setattr(module, "rows_at_once", lambda needed: 1)
    for items in (slice(1, None), slice(1, 3)):
        for found, expected in zip(results(items), together, strict=True):
            assert torch.equal(found, expected[items])


@pytest.mark.usefixtures("narrow")
def test_gradients_of_crowded_rows_are_those_of_written_out_atoms(gpu_kernels: torch.device) -> None:
    leaf = mixed(gpu_kernels)[2:].requires_grad_()
    solution = project(leaf)
    assert_gradients_of_written_out_atoms(solution, leaf, 1e-10)
    lists, direction = solution.projection.lists, noise(2, 1, 1, 34).to(gpu_kernels)
    assert lists is not None
    of_weights = lists.move(direction, True, False)
    mixture = torch.einsum("brm,bm...->br...", of_weights, solution.atoms)
    torch.testing.assert_close(mixture, lists.move(direction, True, True), rtol=0, atol=1e-11)


def test_directions_are_divided_between_programs(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a row with several directions, each program takes some."""
    lists = project(noise(2, 2, 3).to(gpu_kernels)).projection.lists
    assert lists is not None
    direction = noise(2, 5, 2, 3, seed=1).to(gpu_kernels)
    expected = torch.cat([lists.move(direction[:, repeat : repeat + 1], True, True) for repeat in range(5)], 1)
    for programs in (1, 4, 1000):
        monkeypatch.setattr(gpu_moves, "rows_at_once", lambda needed, programs=programs: programs)
        assert torch.equal(lists.move(direction, True, True), expected)


def atoms_of(solution: SparseSolution) -> active_set.Atoms:
    lists = solution.projection.lists
    assert isinstance(lists, DeviceAtoms)
    return lists.atoms


def cliques(rows: Tensor) -> Any:
    """A projection on all pairs of 6 points: their polytope has dependent vertices in abundance."""
    pairs = torch.tensor(list(itertools.combinations(range(6), 2)), device=rows.device)
    vertices = torch.zeros(len(pairs), 6, dtype=torch.float64, device=rows.device).scatter_(1, pairs, 1)
    spaces = vertices.repeat(len(rows), 1, 1)

    def task(event: tuple[int, ...]) -> Map:
        return Map(list_vertices, vertices.numel(), torch.float64, (6, len(vertices)), (8, lanes(len(vertices))), (1, 1))

    return spaces, task, vertices


def test_ties_and_dependent_vertices(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    scales = torch.tensor([0.0, 1e-14, 1e-6, 0.3, 1.0], dtype=torch.float64)
    rows = (scales.reshape(-1, 1, 1) * noise(5, 6, 1)).to(gpu_kernels)
    rows[4] = rows[4].round()
    spaces, task, vertices = cliques(rows)
    empty = torch.empty

    def given(*shape: Any, **options: Any) -> Tensor:
        return spaces[: shape[0]].clone() if shape[1:] == (vertices.numel(),) else empty(*shape, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", given)
        solution = project(rows, launcher(task))
    expected = simplex.project(rows.flatten(1).cpu(), 2)[0]
    torch.testing.assert_close(solution.mean.flatten(1).cpu(), expected, rtol=0, atol=1e-13)
    assert bool((solution.gap <= 1e-13).all())
    assert_a_valid_decomposition(solution)


def test_gradients_by_finite_differences(gpu_kernels: torch.device) -> None:
    leaf = noise(1, 2, 3).to(gpu_kernels).requires_grad_()
    assert gradcheck(lambda theta: project(theta).mean, (leaf,), fast_mode=True)
    assert gradgradcheck(lambda theta: project(theta).mean * theta, (leaf,), fast_mode=True)


def test_gradients_are_those_of_written_out_atoms(gpu_kernels: torch.device) -> None:
    leaf = (0.3 * noise(2, 4, 4)).to(gpu_kernels).requires_grad_()
    assert_gradients_of_written_out_atoms(project(leaf), leaf, 1e-11)


def assert_gradients_of_written_out_atoms(solution: SparseSolution, leaf: Tensor, close: float) -> None:
    atoms, weights = solution.projection.decompose()
    dense = SparseSolution(type(solution.projection)(solution.gap, lambda: (atoms, weights)), leaf, (2,), 2)
    for found, expected in ((solution.mean, dense.mean), (solution.weights, dense.weights)):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        direction = torch.randn(found.shape, dtype=torch.float64).to(leaf.device)
        (gradient,) = torch.autograd.grad((found * direction).sum(), leaf)
        (reference,) = torch.autograd.grad((expected * direction).sum(), leaf)
        torch.testing.assert_close(gradient, reference, rtol=0, atol=close)


def test_items_that_share_scores_have_gradients_of_their_own(gpu_kernels: torch.device) -> None:
    rows = noise(2, 2, 3).to(gpu_kernels)
    leaf = rows.unsqueeze(1).expand(2, 2, 2, 3).clone().requires_grad_()
    together = SparseSolution(project(rows).projection, leaf, (2, 1), 2)
    direction = noise(2, 2, 2, 3, seed=1).to(gpu_kernels)
    (gradient,) = torch.autograd.grad((together.mean * direction).sum(), leaf)
    for repeat in range(2):
        alone = rows.clone().requires_grad_()
        (expected,) = torch.autograd.grad((project(alone).mean * direction[:, repeat]).sum(), alone)
        torch.testing.assert_close(gradient[:, repeat], expected, rtol=0, atol=1e-13)


def test_the_twin_finds_the_same(gpu_kernels: torch.device) -> None:
    rows = noise(2, 3, 3).to(gpu_kernels)
    reference = SparseSolution(solve(argmax, rows), rows, (2,), 2)
    solution = project(rows)
    torch.testing.assert_close(solution.mean, reference.mean, rtol=0, atol=1e-12)
    assert torch.equal(solution.support, reference.support)


def test_results_have_the_dtype_of_the_scores(gpu_kernels: torch.device) -> None:
    leaf = noise(1, 2, 3).float().to(gpu_kernels).requires_grad_()
    solution = project(leaf)
    solution.mean.sum().backward()
    assert solution.mean.dtype == solution.weights.dtype == solution.atoms.dtype == torch.float32
    assert leaf.grad is not None
    assert leaf.grad.dtype == torch.float32


def test_an_empty_batch(gpu_kernels: torch.device) -> None:
    leaf = torch.zeros(0, 3, 3, dtype=torch.float64, device=gpu_kernels, requires_grad=True)
    solution = project(leaf)
    solution.mean.sum().backward()
    assert solution.mean.shape == (0, 3, 3)
    assert solution.weights.shape[0] == solution.gap.shape[0] == 0


STRUCTURES: tuple[tuple[Any, tuple[int, ...], Any], ...] = (
    (LinearChain(), (3, 2, 2), 2),
    (Constituency(), (4, 4), 3),
    (ProjectiveTree(), (4, 4), 2),
    (SpanningTree(), (4, 4), 2),
    (SpanningTree(single_root=False), (4, 4), 2),
    (Alignment(), (3, 3), [2, 3]),
    (ShiftReduce(), (4, 4, 2), 3),
    (Assignment(), (3, 3), 2),
)


@pytest.mark.parametrize(("oracle", "event", "length"), STRUCTURES, ids=str)
def test_structures_give_the_means_of_the_references(oracle: Any, event: tuple[int, ...], length: Any, gpu_kernels: torch.device) -> None:
    scores = noise(2, *event).to(gpu_kernels)
    if find(oracle.kernel, "project", scores, oracle.kernel_options()) is None:
        pytest.skip("no MAP as a function of one problem")
    whole, part, lengths = scores[:1], scores[1:], torch.tensor(length).unsqueeze(0).to(gpu_kernels)
    found, short = oracle.project(whole), oracle.project(part, lengths=lengths)
    with disabled():
        expected, alone = oracle.project(whole), oracle.project(part, lengths=lengths)
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(short.mean, alone.mean, rtol=0, atol=1e-12)
    assert float(found.gap.max()) <= 1e-13
    assert float(short.gap.max()) <= 1e-13


@triton.jit
def _dropped(factor, leaving, rows, capacity: tl.constexpr, tall: tl.constexpr):
    gpu_factor.drop(factor, leaving, rows, tl.arange(0, capacity), capacity, tall)


@pytest.mark.parametrize("leaving", [0, 2, 4])
def test_dropping_an_atom_leaves_the_inverse_of_the_rest(leaving: int, gpu_kernels: torch.device) -> None:
    root = noise(5, 5)
    factor = torch.zeros(8, 8, dtype=torch.float64)
    factor[:5, :5] = root
    factor = factor.to(gpu_kernels)
    _dropped[(1,)](factor, leaving, 5, 8, 4, num_warps=1)
    left = factor[:4].cpu()
    rest = [s for s in range(5) if s != leaving]
    expected = torch.linalg.inv(torch.linalg.inv(root.T @ root)[rest][:, rest])
    torch.testing.assert_close((left.T @ left)[rest][:, rest], expected, rtol=1e-10, atol=1e-12)
    assert bool((left[:, leaving] == 0).all())


@triton.jit
def _appended(factor, bits, structure, part, places, size, capacity: tl.constexpr):  # noqa: PLR0917
    zero = tl.full((), 0, tl.int32)
    none = tl.zeros([capacity], tl.float64)
    gpu_factor.append(
        factor, bits, structure, part, none, 2.0 + none.sum(0), zero, places, size, zero, tl.arange(0, capacity), capacity, 32
    )


def test_a_lane_that_is_taken_again_forgets_its_atom(gpu_kernels: torch.device) -> None:
    bits = torch.tensor([5, 4, 1, 0], dtype=torch.int32, device=gpu_kernels)
    structure = torch.tensor([0, 1, 0, 1], dtype=torch.uint8, device=gpu_kernels)
    part = torch.arange(4, dtype=torch.int32, device=gpu_kernels)
    factor = torch.zeros(32, dtype=torch.float64, device=gpu_kernels)
    _appended[(1,)](factor, bits, structure, part, 4, 4, 32, num_warps=1)
    assert bits.tolist() == [4, 5, 0, 1]
