from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, kernels
from tests.helpers import refused_rows

ORACLE = Alignment()
SCALES = (0.05, 1.0, 10.0, 50.0, 300.0, 1000.0)
SHAPES = ((1, 1), (1, 6), (5, 1), (2, 2), (3, 7), (9, 20), (20, 9), (17, 16))

ROOT = Path(__file__).resolve().parents[2]
FILES = [folder / "dtw_speech.npz" for folder in (ROOT / "data/scores", ROOT.parent / "shared/data/scores")]
FILE = next((file for file in FILES if file.exists()), None)
needs_scores = pytest.mark.skipif(FILE is None, reason="the real score files are in neither data/scores nor ../shared/data/scores")


def random_scores(shape: tuple[int, ...], scale: float = 1.0, mask: float = 0.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return scores.masked_fill(torch.rand(shape, generator=generator) < mask, -math.inf)


def cells_of(structure: Tensor) -> list[tuple[int, int]]:
    return [(i, j) for i, j in structure.nonzero().tolist()]


def is_path(structure: Tensor) -> bool:
    """Sorted by row and column, the cells of a path are in its order."""
    cells = cells_of(structure)
    steps = {(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(cells)}
    ends = cells[0] == (0, 0) and cells[-1] == (structure.shape[0] - 1, structure.shape[1] - 1)
    return ends and steps <= {(0, 1), (1, 0), (1, 1)} and bool(((structure == 0) | (structure == 1)).all())


# Counts and the order of paths.


def delannoy(n: int, m: int) -> list[list[int]]:
    table = [[1] * m for _ in range(n)]
    for i in range(1, n):
        for j in range(1, m):
            table[i][j] = table[i - 1][j] + table[i][j - 1] + table[i - 1][j - 1]
    return table


def test_counts_are_delannoy_numbers() -> None:
    assert [ORACLE.count((n, n)) for n in range(1, 10)] == [1, 3, 13, 63, 321, 1683, 8989, 48639, 265729]
    assert [ORACLE.count((2, m)) for m in range(1, 6)] == [1, 3, 5, 7, 9]
    assert all(ORACLE.count((n + 1, m + 1)) == count for n, row in enumerate(delannoy(12, 40)) for m, count in enumerate(row))
    assert ORACLE.count((300, 200)) == delannoy(300, 200)[-1][-1]


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (4, 1), (3, 4), (5, 5)])
def test_enumerate_lists_each_path_once(shape: tuple[int, int]) -> None:
    listed = ORACLE.enumerate(shape)
    assert len(listed.flatten(1).unique(dim=0)) == len(listed) == ORACLE.count(shape)
    assert all(is_path(z) for z in listed)


def test_the_first_path_turns_last_and_the_last_goes_diagonally() -> None:
    first, last = ORACLE.enumerate((3, 4))[[0, -1]]
    assert cells_of(first) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (2, 3)]
    assert cells_of(last) == [(0, 0), (1, 1), (2, 2), (2, 3)]


def test_ranks_in_a_space_beyond_float64_are_exact() -> None:
    shape = (26, 26)
    count = ORACLE.count(shape)
    assert 2**58 < count < 2**62
    for start in (0, count // 3, count // 2 + 12345, count - 3):
        paths = ORACLE.enumerate(shape, start, start + 3)
        assert all(is_path(z) for z in paths)
        assert ORACLE.rank(paths).tolist() == [start, start + 1, start + 2]


# Larger sizes against an independent algorithm: plain loops over rows and columns.


def loop_tables(theta: Any, number: Callable[[float], Any], log_add: Callable[[list[Any]], Any]) -> tuple[list[list[Any]], list[list[Any]]]:
    """By cell: log-weight of the paths to it, the cell included, and of those from it on, without it."""
    n, m = theta.shape
    before: list[list[Any]] = [[None] * m for _ in range(n)]
    after: list[list[Any]] = [[None] * m for _ in range(n)]
    for i in range(n):
        for j in range(m):
            came = [before[p][q] for p, q in ((i - 1, j), (i, j - 1), (i - 1, j - 1)) if p >= 0 and q >= 0]
            before[i][j] = number(theta[i, j]) + (log_add(came) if came else number(0.0))
    for i in reversed(range(n)):
        for j in reversed(range(m)):
            goes = [number(theta[p, q]) + after[p][q] for p, q in ((i + 1, j), (i, j + 1), (i + 1, j + 1)) if p < n and q < m]
            after[i][j] = log_add(goes) if goes else number(0.0)
    return before, after


def test_larger_grids_equal_loops_in_log_space() -> None:
    scores = random_scores((2, 40, 55), 3.0)
    marginals, log_partition, best = ORACLE.marginals(scores), ORACLE.log_partition(scores), ORACLE.argmax(scores)
    for row in range(2):
        before, after = (np.array(table) for table in loop_tables(scores[row].numpy(), float, np.logaddexp.reduce))
        assert log_partition[row].item() == pytest.approx(before[-1, -1], rel=1e-13)
        assert before[-1, -1] == pytest.approx(scores[row, 0, 0].item() + after[0, 0], rel=1e-13)
        expected = np.exp(before + after - before[-1, -1])
        np.testing.assert_allclose(marginals[row].numpy(), expected, rtol=1e-10, atol=1e-13)
        assert is_path(best[row])
        assert (best[row] * scores[row]).sum().item() == pytest.approx(loop_tables(scores[row].numpy(), float, max)[0][-1][-1], rel=1e-13)


def precise_marginals(theta: Any) -> tuple[Any, Any]:
    def log_add(values: list[Any]) -> Any:
        return mpmath.log(mpmath.fsum(mpmath.exp(value) for value in values))

    before, after = loop_tables(theta, mpmath.mpf, log_add)
    total = before[-1][-1]
    cells = np.vectorize(lambda a, b: mpmath.exp(a + b - total), otypes=[object])
    return total, cells(np.array(before, dtype=object), np.array(after, dtype=object))


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_is_exact(scale: float) -> None:
    scores = random_scores((12, 9), scale).requires_grad_()
    direction = random_scores((12, 9), seed=1)
    marginals = ORACLE.marginals(scores)
    (product,) = torch.autograd.grad(marginals, scores, direction)
    theta, along = (np.array(x.detach().numpy(), dtype=object) for x in (scores, direction))
    with mpmath.workdps(80):
        total, expected = precise_marginals(theta)
        # The step is so small, and the precision so high, that the quotient is exact to some 40 digits.
        step = mpmath.mpf(10) ** -25
        upper, lower = (precise_marginals(theta + sign * step * along)[1] for sign in (1, -1))
        slope = (upper - lower) / (2 * step)
    assert ORACLE.log_partition(scores).item() == pytest.approx(float(total), rel=1e-14)
    np.testing.assert_allclose(marginals.detach().numpy(), expected.astype(float), rtol=1e-11, atol=1e-250)
    np.testing.assert_allclose(product.numpy(), slope.astype(float), rtol=1e-9, atol=2e-14)


def test_a_path_that_nearly_everything_is_better_than() -> None:
    """The corner of a large grid is e^2000 times less likely than its diagonal, and the only way where that is closed."""
    scores = random_scores((90, 90), 20.0)
    corner = torch.zeros(90, 90, dtype=torch.bool)
    corner[:, 0] = corner[-1] = True
    # What lies above the diagonal stays open, but nothing leads there.
    closed = torch.where(corner | (torch.ones(90, 90).triu(1) > 0), scores, -math.inf)
    closed[0, 1:] = -math.inf
    open_partition, partition = ORACLE.log_partition(scores), ORACLE.log_partition(closed)
    total = scores[corner].sum()
    turned = total - scores[-1, 0]
    torch.testing.assert_close(partition, torch.logaddexp(total, turned), rtol=1e-14, atol=0)
    assert open_partition - partition > 2000
    expected = corner.double()
    expected[-1, 0] = torch.sigmoid(total - turned)
    reachable = ORACLE.marginals(closed)
    torch.testing.assert_close(reachable, expected, rtol=1e-12, atol=0)


# Compiled kernels against the reference.


def operations(scores: Tensor) -> dict[str, Tensor]:
    leaf = scores.clone().requires_grad_()
    direction = random_scores(tuple(scores.shape), seed=7).to(scores.dtype)
    best = ORACLE.argmax(scores)
    (product,) = torch.autograd.grad(ORACLE.marginals(leaf), leaf, direction)
    return {
        "argmax": (best * torch.where(best > 0, scores, 0)).sum((-2, -1)),
        "log_partition": ORACLE.log_partition(scores),
        "marginals": ORACLE.marginals(scores),
        "covariance_product": product,
        "samples": ORACLE.sample(scores, 30, generator=torch.Generator().manual_seed(0)),
    }


def assert_kernels_agree(scores: Tensor, tolerance: float) -> None:
    found = operations(scores)
    with kernels.disabled():
        expected = operations(scores)
    for name, value in found.items():
        relative = 0.0 if name == "samples" else tolerance
        torch.testing.assert_close(value, expected[name], rtol=relative, atol=relative, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_agree_with_the_reference(shape: tuple[int, int], scale: float) -> None:
    assert_kernels_agree(random_scores((4, *shape), scale), 2e-12)


@pytest.mark.parametrize("scale", [1.0, 50.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_agree_with_the_twin_under_masks(shape: tuple[int, int], scale: float) -> None:
    scores = random_scores((12, *shape), scale, mask=0.12)
    scores[:10, 0, 0] = scores[:10, -1, -1] = 0.0
    scores[10] = -math.inf
    assert_kernels_agree(scores, 2e-12)


def test_kernels_agree_with_the_twin_in_single_precision() -> None:
    assert_kernels_agree(random_scores((4, 9, 20)).float(), 2e-5)


def test_kernels_give_the_path_that_ties_go_to() -> None:
    scores = random_scores((40, 6, 7)).round()
    found = ORACLE.argmax(scores)
    with kernels.disabled():
        assert torch.equal(found, ORACLE.argmax(scores))


@pytest.mark.parametrize(("size", "scale"), [(128, 1.0), (128, 1000.0), (512, 1.0), (40, 10.0)])
def test_every_usual_scale_is_certified(size: int, scale: float) -> None:
    rows = random_scores((2, size, size), scale)
    marginals, kernel = torch.zeros_like(rows), ORACLE._kernel("marginals", rows)
    assert isinstance(kernel, kernels.Kernel)
    assert refused_rows(kernel, (rows,), (marginals, torch.zeros(2, dtype=torch.float64))) is None
    np.testing.assert_allclose(marginals[:, [0, -1], [0, -1]], 1.0, atol=1e-10)


@pytest.mark.parametrize("closed", [0, 16], ids=["open", "skipped"])
def test_the_paths_of_a_large_grid_are_counted(closed: int) -> None:
    """Equal scores, where sums grow fastest; in the second grid every path jumps over each sixteenth antidiagonal."""
    size = 512
    counts = [[0] * (size + 1) for _ in range(size + 1)]
    counts[1][1] = 1
    scores = torch.zeros(size, size, dtype=torch.float64)
    for i in range(size):
        for j in range(size):
            if closed and i + j > 0 and (i + j) % closed == 0:
                scores[i, j] = -math.inf
            elif i + j > 0:
                counts[i + 1][j + 1] = counts[i][j + 1] + counts[i + 1][j] + counts[i][j]
    marginals = ORACLE.marginals(scores)
    assert ORACLE.log_partition(scores).item() == pytest.approx(math.log(counts[-1][-1]), rel=1e-14)
    assert marginals[0, 0].item() == pytest.approx(1.0, abs=1e-12)
    torch.testing.assert_close(marginals, marginals.mT, rtol=1e-10, atol=1e-14)


def test_scores_beyond_a_million_are_left_to_the_reference() -> None:
    rows = random_scores((3, 4, 5))
    rows[1] *= 1e8
    rows[2, 1, 1] = -math.inf
    log_partition = torch.zeros(3, dtype=torch.float64)
    for operation, inputs, results in (
        ("log_partition", (rows,), (log_partition,)),
        ("marginals", (rows,), (torch.zeros_like(rows), log_partition)),
        ("covariance_product", (rows, rows), (torch.zeros_like(rows),)),
        ("sample", (rows, rows.new_full((3, 1, 8), 0.5)), (rows.new_zeros(3, 1, 4, 5),)),
    ):
        kernel = ORACLE._kernel(operation, rows)
        assert isinstance(kernel, kernels.Kernel)
        failed = refused_rows(kernel, inputs, results)
        assert failed is not None
        assert failed.tolist() == [1]
    assert_kernels_agree(rows, 1e-11)


# Ties, forbidden cells and costs.


def test_ties_go_to_the_predecessor_of_lowest_index() -> None:
    assert cells_of(ORACLE.argmax(torch.zeros(3, 3))) == [(0, 0), (1, 1), (2, 2)]
    assert cells_of(ORACLE.argmax(torch.zeros(2, 4))) == [(0, 0), (0, 1), (0, 2), (1, 3)]
    # Straight steps alone are worth it; coming from above is preferred to coming from the left.
    assert cells_of(ORACLE.argmax(torch.ones(3, 3))) == [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)]


def test_a_wall_makes_an_item_infeasible() -> None:
    scores = torch.zeros(3, 4, 5)
    scores[1, :, 2] = -math.inf
    scores[2, 0, 0] = -math.inf
    assert ORACLE.feasible(scores).tolist() == [True, False, False]
    assert is_path(ORACLE.argmax(scores)[0])
    assert not ORACLE.argmax(scores)[1:].any()
    assert not ORACLE.marginals(scores)[1:].any()


def test_scores_of_costs() -> None:
    costs = torch.tensor([[0.0, 2.0], [math.inf, 1.0]], dtype=torch.float64, requires_grad=True)
    scores = Alignment.from_costs(costs, 0.5)
    assert scores.tolist() == [[0.0, -4.0], [-math.inf, -2.0]]
    value = -0.5 * ORACLE.log_partition(scores)
    assert value.item() == pytest.approx(-0.5 * math.log(math.exp(-2.0) + math.exp(-6.0)))
    (expected,) = torch.autograd.grad(value, costs)
    torch.testing.assert_close(expected, ORACLE.marginals(scores.detach()), rtol=1e-12, atol=1e-12)


# Samples.


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_samples_are_paths_of_the_right_frequencies(scale: float) -> None:
    scores = random_scores((9, 14), scale)
    samples = ORACLE.sample(scores, 20_000, generator=torch.Generator().manual_seed(0))
    assert all(is_path(z) for z in samples[:200])
    assert near(samples.mean(0), ORACLE.marginals(scores), len(samples))
    # Two cells at once, to see more than the marginals: those of the middle antidiagonal with those of one further on.
    pairs = torch.einsum("si,sj->ij", samples[:, 4, :], samples[:, 6, :]) / 20_000
    expected = torch.stack([pair_row(scores, 4, j, 6) for j in range(14)])
    assert near(pairs, expected, len(samples))


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53], ids=["lowest", "highest"])
@pytest.mark.parametrize("enabled", [True, False], ids=["kernel", "reference"])
def test_extreme_uniforms_give_feasible_paths(enabled: bool, uniform: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if not enabled:
        monkeypatch.setattr(Alignment, "kernel", None)
    scores = random_scores((3000, 5, 6), mask=0.25)
    scores = scores[ORACLE.feasible(scores)]
    drawn = ORACLE._draw(scores, torch.full((len(scores), 1, 10), uniform, dtype=torch.float64))[:, 0]
    assert len(scores) > 300
    assert bool((ORACLE.log_prob(drawn, scores) > -math.inf).all())
    assert all(is_path(z) for z in drawn)


def near(frequencies: Tensor, p: Tensor, samples: int) -> bool:
    """Within five standard deviations; where the probability is tiny, within six draws."""
    return bool(((frequencies - p).abs() <= 5 * ((p * (1 - p)).clamp(min=0) / samples).sqrt() + 6 * (p > 1e-9) / samples + 1e-9).all())


def pair_row(scores: Tensor, i: int, j: int, later: int) -> Tensor:
    """Probabilities of passing cell (i, j) and the cells of a later row: marginals that forbid to avoid (i, j)."""
    avoided = scores.clone()
    avoided[i, j] = -math.inf
    chance = 1 - (ORACLE.log_partition(avoided) - ORACLE.log_partition(scores)).exp()
    return ORACLE.marginals(scores)[later] - (1 - chance) * ORACLE.marginals(avoided)[later]


# The relaxed recursion.


def project_on_simplex(values: list[float]) -> np.ndarray:
    ordered = np.sort(values)[::-1]
    size = max(k for k in range(1, len(values) + 1) if 1 + k * ordered[k - 1] > ordered[:k].sum())
    return np.maximum(np.array(values) - (ordered[:size].sum() - 1) / size, 0)


def loop_relaxation(theta: np.ndarray) -> np.ndarray:
    """Expected visits of the walk back whose every step is a sparsemax over the values of the cells it may go to."""
    n, m = theta.shape
    value: dict[tuple[int, int], float] = {}
    steps: dict[tuple[int, int], list[tuple[tuple[int, int], float]]] = {}
    for cell in np.ndindex(n, m):
        came = [(cell[0] - a, cell[1] - b) for a, b in ((1, 1), (1, 0), (0, 1)) if cell[0] >= a and cell[1] >= b]
        values = [value[other] for other in came]
        p = project_on_simplex(values) if came else np.zeros(0)
        value[cell] = theta[cell] + float(p @ values - p @ p / 2)
        steps[cell] = list(zip(came, p.tolist(), strict=True))
    visits = np.zeros((n, m))
    visits[-1, -1] = 1
    for cell in sorted(steps, reverse=True):
        for other, p in steps[cell]:
            visits[other] += visits[cell] * p
    return visits


@pytest.mark.parametrize("scale", [0.05, 0.5, 2.0, 50.0])
def test_the_l2_relaxation_is_a_walk_of_sparse_steps(scale: float) -> None:
    scores = random_scores((5, 6, 8), scale)
    relaxed = ORACLE.relax(scores, "l2")
    for row in range(5):
        np.testing.assert_allclose(relaxed[row].numpy(), loop_relaxation(scores[row].numpy()), rtol=1e-11, atol=1e-12)


def test_the_l2_relaxation_has_a_gradient() -> None:
    scores = random_scores((2, 4, 5)).requires_grad_()
    assert torch.autograd.gradcheck(lambda theta: ORACLE.relax(theta, "l2"), (scores,))


# Lengths.

LENGTHS = torch.tensor([[5, 6], [1, 1], [5, 2], [2, 6], [3, 4], [1, 6], [5, 1], [4, 5]])
RESULTS: dict[str, Callable[..., Tensor]] = {
    "argmax": lambda scores, **kw: ORACLE.argmax(scores, **kw),
    "log_partition": lambda scores, **kw: ORACLE.log_partition(scores, **kw),
    "marginals": lambda scores, **kw: ORACLE.marginals(scores, **kw),
    "entropy": lambda scores, **kw: ORACLE.entropy(scores, **kw),
    "project": lambda scores, **kw: ORACLE.project(scores, **kw).mean,
    "gap": lambda scores, **kw: ORACLE.project(scores, **kw).gap,
    "relax": lambda scores, **kw: ORACLE.relax(scores, "l2", **kw),
    "kbest": lambda scores, **kw: ORACLE.kbest(scores, 1, **kw).movedim(0, -3).squeeze(-3),
}


def padded_scores(scale: float) -> Tensor:
    scores = random_scores((len(LENGTHS), 5, 6), scale)
    for row, (n, m) in enumerate(LENGTHS.tolist()):
        scores[row, n:] = math.nan
        scores[row, :, m:] = math.nan
    return scores


def nothing_outside(values: Tensor, n: int, m: int) -> bool:
    return not bool(values[..., n:, :].any() or values[..., m:].any())


@pytest.mark.parametrize("compile_", [True, False])
@pytest.mark.parametrize("scale", [0.05, 1.0, 50.0])
@pytest.mark.parametrize("name", RESULTS)
def test_an_item_with_lengths_is_the_item_alone(name: str, scale: float, compile_: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compile_:
        monkeypatch.setattr(Alignment, "kernel", None)
    scores = padded_scores(scale)
    together = RESULTS[name](scores, lengths=LENGTHS)
    assert together.shape in (scores.shape, scores.shape[:1])
    for row, (n, m) in enumerate(LENGTHS.tolist()):
        alone = RESULTS[name](scores[row, :n, :m])
        found = together[row, :n, :m] if alone.ndim else together[row]
        torch.testing.assert_close(found, alone, rtol=1e-11, atol=1e-12)
        if alone.ndim:
            assert nothing_outside(together[row], n, m)


def test_samples_of_an_item_with_lengths_follow_its_law() -> None:
    scores = padded_scores(1.0)
    samples = ORACLE.sample(scores, 20_000, generator=torch.Generator().manual_seed(0), lengths=LENGTHS)
    for row, (n, m) in enumerate(LENGTHS.tolist()):
        marginals = ORACLE.marginals(scores[row, :n, :m])
        assert is_path(samples[0, row, :n, :m])
        assert near(samples[:, row, :n, :m].mean(0), marginals, len(samples))
        assert nothing_outside(samples[:, row], n, m)


def test_gradients_of_an_item_with_lengths_are_its_own() -> None:
    scores = padded_scores(1.0).requires_grad_()
    weights = random_scores((5, 6), seed=3)
    (gradient,) = torch.autograd.grad((ORACLE.marginals(scores, lengths=LENGTHS) * weights).sum(), scores)
    for row, (n, m) in enumerate(LENGTHS.tolist()):
        leaf = scores.detach()[row, :n, :m].clone().requires_grad_()
        (expected,) = torch.autograd.grad((ORACLE.marginals(leaf) * weights[:n, :m]).sum(), leaf)
        torch.testing.assert_close(gradient[row, :n, :m], expected, rtol=1e-10, atol=1e-12)
        assert nothing_outside(gradient[row], n, m)


def test_every_pair_of_lengths_has_one_completion() -> None:
    lengths = torch.cartesian_prod(torch.arange(1, 6), torch.arange(1, 5))
    padded = ORACLE.pad(torch.zeros(len(lengths), 5, 4, dtype=torch.float64), lengths)
    assert padded.shape[1:] == (6, 5)
    every = ORACLE.enumerate((6, 5), dtype=torch.float64).flatten(1)
    possible = (every @ (padded == -math.inf).double().flatten(1).T == 0).sum(0)
    assert possible.tolist() == [ORACLE.count((n, m)) for n, m in lengths.tolist()]


# Shapes and messages.


def test_the_event_shape_by_name() -> None:
    assert Alignment.event_shape(rows=5, columns=3) == (5, 3)
    with pytest.raises(ValueError, match=r"`alignment.event_shape` got sizes length; expected rows, columns"):
        Alignment.event_shape(length=5)


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.nan])
def test_a_temperature_must_be_positive(gamma: float) -> None:
    with pytest.raises(ValueError, match=rf"`from_costs` got gamma={gamma}; expected a number above 0, for gamma -> 0 call argmax"):
        Alignment.from_costs(torch.zeros(2, 2), gamma)


def test_messages_of_shapes_and_lengths() -> None:
    with pytest.raises(ValueError, match=r"`enumerate` got event shape \(2, 3, 4\); expected \(rows, columns\)"):
        ORACLE.enumerate((2, 3, 4))
    with pytest.raises(
        ValueError, match=r"`argmax` got lengths: torch.int64 of shape \(3,\); expected an integer tensor of shape \(3, 2\)"
    ):
        ORACLE.argmax(torch.zeros(3, 4, 5), lengths=torch.tensor([4, 4, 4]))
    with pytest.raises(ValueError, match=r"`lengths` must be between \[1, 1\] and \[4, 5\] for scores"):
        ORACLE.argmax(torch.zeros(4, 5), lengths=torch.tensor([4, 6]))
    with pytest.raises(ValueError, match=r"`rank` got a space of [\d.e+]+ structures; expected at most 2\*\*62"):
        ORACLE.rank(torch.zeros(30, 30))


# Real costs.


def speech(kind: str) -> tuple[dict[str, np.ndarray], Tensor, Tensor]:
    assert FILE is not None
    with np.load(FILE, allow_pickle=False) as loaded:
        data = {name.removeprefix(f"{kind}_"): loaded[name] for name in loaded.files if name.startswith(kind)}
    return data, torch.from_numpy(data["cost"]).double(), torch.from_numpy(data["length"])


@needs_scores
@pytest.mark.parametrize("kind", ["small", "large"])
@pytest.mark.parametrize("gamma", [1.0, 0.1])
def test_no_known_path_of_speech_is_better(kind: str, gamma: float) -> None:
    data, costs, lengths = speech(kind)
    scores = Alignment.from_costs(costs, gamma)
    best = ORACLE.argmax(scores, lengths=lengths)
    total = (best * scores).sum((-2, -1))
    known = (torch.from_numpy(data["best_path"]) * scores).sum((-2, -1))
    gold = (torch.from_numpy(data["gold_path"]) * scores).sum((-2, -1))[torch.from_numpy(data["has_gold"])]
    torch.testing.assert_close(total, known, rtol=1e-6, atol=1e-6)
    assert bool((total >= known - 1e-9).all())
    assert bool((total[torch.from_numpy(data["has_gold"])] >= gold - 1e-9).all())
    assert all(is_path(z[:n, :m]) for z, (n, m) in zip(best, lengths.tolist(), strict=True))
    assert bool((ORACLE.log_partition(scores, lengths=lengths) >= total).all())


@needs_scores
def test_log_partitions_of_speech_are_those_of_all_paths() -> None:
    _, costs, lengths = speech("small")
    scores = Alignment.from_costs(costs, 0.1)
    found = ORACLE.log_partition(scores, lengths=lengths)
    for row in range(0, len(scores), 12):
        n, m = lengths[row].tolist()
        paths = ORACLE.enumerate((n, m), dtype=torch.float64).flatten(1)
        torch.testing.assert_close(found[row], (paths @ scores[row, :n, :m].flatten()).logsumexp(0), rtol=1e-12, atol=1e-12)
