"""`project` finds the nearest point of the marginal polytope; gradients are those of fixed atoms, and a start changes nothing.

That no structure lies beyond the supporting hyperplane is a law of `test_oracle_laws`.
"""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from structgrad.oracles import Constituency, LinearChain, ProjectionOracle, SparseSolution, Subset, WarmStart
from structgrad.oracles.active_set.solution import Start
from structgrad.oracles.active_set.solver import solve
from structgrad.oracles.capabilities.ragged import of_lengths
from tests.covering import sampled
from tests.helpers import (
    GENERIC_CASES,
    ORACLE_CASES,
    RAGGED_CASES,
    REGIMES,
    SCALES,
    OracleCase,
    binary_parts,
    enumerate_truth,
    make_scores,
    read_parts,
    structure_indices,
    structures,
)
from tests.laws.test_oracle_lengths import lengths_of, padded_scores

CASES = tuple(case for case in ORACLE_CASES if isinstance(case.oracle, ProjectionOracle))
cases = pytest.mark.parametrize("case", CASES, ids=str)
generic = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)


@cases
def test_atoms_are_affinely_independent_structures(case: OracleCase) -> None:
    dimension = int(torch.linalg.matrix_rank(structures(case).flatten(1) - structures(case)[0].flatten()))
    for regime in sampled(REGIMES, 4):
        scores = make_scores(case, regime, rows=12)
        truth = enumerate_truth(case, scores)
        solution, possible = case.oracle.project(scores[truth.feasible]), truth.structure_scores[truth.feasible] > -math.inf
        for weights, atoms, allowed, support in zip(solution.weights, solution.atoms, possible, solution.support, strict=True):
            used = atoms[weights > 0]
            indices = structure_indices(case, used)
            assert int(support) == len(used) == len(indices.unique()) <= dimension + 1
            assert bool(allowed[indices].all())
            assert int(torch.linalg.matrix_rank(torch.nn.functional.pad(used.flatten(1), (0, 1), value=1.0))) == len(used)


@cases
def test_a_point_of_the_polytope_is_its_own_projection(case: OracleCase) -> None:
    inside = case.oracle.marginals(make_scores(case, 1.0))
    torch.testing.assert_close(case.oracle.project(inside).mean, inside, rtol=0, atol=1e-9)
    # Where parts are counted, the best structure may be another one than the point itself, which then comes out as a mean.
    own = 0.0 if bool(binary_parts(case).all()) else 1e-12
    torch.testing.assert_close(case.oracle.project(structures(case)).mean, structures(case), rtol=0, atol=own)


# Gradients.


def weights_jacobian(atoms: np.ndarray) -> np.ndarray:
    """d weights / d scores [m, d] for fixed atoms [m, d], from the optimality system [[MMᵀ, 1], [1ᵀ, 0]] [w, τ] = [Mθ, 1]."""
    size = len(atoms)
    system = np.block([[atoms @ atoms.T, np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
    return np.linalg.solve(system, np.vstack([atoms, np.zeros((1, atoms.shape[1]))]))[:size]


@cases
def test_jacobians_are_those_of_fixed_atoms(case: OracleCase) -> None:
    """Of weights; that of the mean is an orthogonal projector, by finite differences too."""
    for regime in sampled((0.05, 1.0, 5.0, 50.0, "ties", "equal"), 2):
        for row in make_scores(case, regime, rows=2):
            leaf = row.clone().requires_grad_()
            solution = case.oracle.project(leaf)
            used = solution.weights > 0
            jacobian = torch.stack([torch.autograd.grad(weight, leaf, retain_graph=True)[0].flatten() for weight in solution.weights])
            expected = torch.from_numpy(weights_jacobian(solution.atoms[used].flatten(1).numpy())) * read_parts(case).flatten()
            torch.testing.assert_close(jacobian[used], expected, rtol=1e-8, atol=1e-9)
            assert not jacobian[~used].any()
            mean = torch.autograd.functional.jacobian(lambda theta: case.oracle.project(theta).mean, row).reshape(row.numel(), -1)
            torch.testing.assert_close(mean, mean.T, rtol=0, atol=1e-9)
            torch.testing.assert_close(mean @ mean, mean, rtol=0, atol=1e-9)
    for scale in (0.3, 3.0):
        leaf = make_scores(case, scale, rows=3).requires_grad_()
        assert gradcheck(lambda theta: case.oracle.project(theta).mean, (leaf,), fast_mode=True)
    assert not case.oracle.project(leaf.detach()).mean.requires_grad
    assert not case.oracle.project(leaf).gap.requires_grad


@generic
def test_gradients_next_to_forbidden_parts(case: OracleCase) -> None:
    forbidden = make_scores(case, "masked", rows=5) == -math.inf
    leaf = make_scores(case, 1.0, rows=5).requires_grad_()
    assert gradcheck(lambda theta: case.oracle.project(theta.masked_fill(forbidden, -math.inf)).mean, (leaf,), fast_mode=True)


# A start: atoms of an earlier solution, from which the search begins.


def moved(scores: Tensor, by: float) -> Tensor:
    return scores + by * torch.randn(scores.shape, generator=torch.Generator().manual_seed(5), dtype=scores.dtype)


def assert_the_same(warm: SparseSolution, cold: SparseSolution) -> None:
    finite = cold.scores.detach()[cold.scores > -math.inf]
    scale = 1 + (float(finite.nan_to_num().abs().max()) if finite.numel() else 0)
    torch.testing.assert_close(warm.mean, cold.mean, rtol=0, atol=1e-9 * scale)
    torch.testing.assert_close(warm.gap, cold.gap, rtol=0, atol=1e-9 * scale)
    flat = warm.atoms.flatten(len(cold.shared) + 1)
    torch.testing.assert_close(torch.einsum("bm,bmd->bd", warm.weights, flat), warm.mean.flatten(1), rtol=0, atol=1e-10)
    assert torch.equal(warm.support, (warm.weights > 0).sum(-1))
    for atoms, weights in zip(flat, warm.weights, strict=True):
        lifted = torch.nn.functional.pad(atoms[weights > 0], (0, 1), value=1.0)
        assert int(torch.linalg.matrix_rank(lifted)) == len(lifted) if len(lifted) else True


@cases
def test_a_start_changes_nothing(case: OracleCase) -> None:
    """At any distance; also where its heaviest atom is forbidden now, and in row 0 everything."""
    for regime in sampled(REGIMES, 4):
        scores = make_scores(case, regime)
        start = case.oracle.project(scores)
        for by in (0.0, 0.01, 1.0):
            assert_the_same(case.oracle.project(moved(scores, by), start=start), case.oracle.project(moved(scores, by)))
        if isinstance(regime, float):
            heaviest = start.atoms[torch.arange(len(scores)), start.weights.argmax(-1)] > 0
            after = scores.masked_fill(heaviest & ~(structures(case) > 0).all(0), -math.inf)
            after[0] = -math.inf
            warm = case.oracle.project(after, start=start)
            assert_the_same(warm, case.oracle.project(after))
            assert_the_same(case.oracle.project(scores, start=warm), start)
    scores = make_scores(case, 1.0)
    start, towards = case.oracle.project(scores.clone().requires_grad_()), torch.linspace(-1, 1, scores.numel(), dtype=scores.dtype)
    gradients = []
    for given in (None, start):
        leaf = moved(scores, 0.01).requires_grad_()
        gradients += torch.autograd.grad(case.oracle.project(leaf, start=given).mean, leaf, towards.sin().reshape(scores.shape))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-7)


@generic
def test_the_solver_of_any_argmax_takes_a_start_too(case: OracleCase) -> None:
    forbidden = make_scores(case, "masked") == -math.inf
    for scale in SCALES:
        before = torch.where(case.oracle.read_mask(case.event), make_scores(case, scale), 0)
        rows = torch.where(case.oracle.read_mask(case.event), moved(before, 0.01), 0)
        start = Start(case.oracle.project(before), torch.arange(len(rows)))
        for given in (rows, rows.masked_fill(forbidden, -math.inf)):
            expected, found = case.oracle.project(given), solve(lambda directions, _: case.oracle.argmax(directions), given, start=start)
            assert found.mean is not None
            torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=1e-9 * (1 + 5 * scale))
            torch.testing.assert_close(found.gap, expected.gap, rtol=0, atol=1e-9 * (1 + 5 * scale))


@pytest.mark.parametrize("case", [case for case in RAGGED_CASES if isinstance(case.oracle, ProjectionOracle)], ids=str)
def test_a_start_of_shorter_items(case: OracleCase) -> None:
    for scale in SCALES:
        scores, lengths = padded_scores(case, scale), lengths_of(case)
        start, after = case.oracle.project(scores, lengths=lengths), moved(scores, 0.01)
        cold = case.oracle.project(after, lengths=lengths)
        assert_the_same(case.oracle.project(after, lengths=lengths, start=start), cold)
        twin = of_lengths(case.oracle, lengths)
        assert_the_same(twin.project(after, start=twin.project(scores)), cold)


@generic
def test_a_start_of_batches_of_every_shape(case: OracleCase) -> None:
    scores = make_scores(case, 1.0)
    shared, batch = scores[:2].unsqueeze(1).expand(2, 3, *case.event), scores.reshape(2, 3, *case.event)
    expected = case.oracle.project(moved(batch, 0.01)).mean
    for before in (shared, batch):  # from rows that are shared, and from others
        found = case.oracle.project(moved(batch, 0.01), start=case.oracle.project(before))
        torch.testing.assert_close(found.mean, expected, rtol=0, atol=1e-9)
        again = case.oracle.project(shared, start=found)  # to rows that are shared
        torch.testing.assert_close(again.mean, case.oracle.project(shared).mean, rtol=0, atol=1e-9)
    for some in (scores[0], scores[:0]):
        assert case.oracle.project(some, start=case.oracle.project(some)).mean.shape == some.shape


def test_half_the_way_at_least_is_saved() -> None:
    """Counted in MAP calls; times are the benchmarks'."""
    oracle, calls = Constituency(), []
    scores = torch.where(oracle.read_mask((12, 12)), torch.randn(1, 12, 12, dtype=torch.float64), 0)
    after = torch.where(oracle.read_mask((12, 12)), moved(scores, 0.01), 0)

    def argmax(directions: Tensor, items: Tensor) -> Tensor:
        calls.append(1)
        return oracle.argmax(directions)

    solve(argmax, after)
    cold = len(calls)
    solve(argmax, after, start=Start(oracle.project(scores), torch.zeros(1, dtype=torch.int64)))
    assert len(calls) - cold <= cold / 2


def test_a_start_of_another_problem_is_refused() -> None:
    oracle, scores, lengths = LinearChain(), torch.zeros(2, 4, 3, 3), torch.tensor([3, 4])
    start, ragged = oracle.project(scores), oracle.project(scores, lengths=lengths)
    for given, sizes, message in (
        (start.mean, None, r"got a start of type Tensor; expected a solution"),
        (Subset(2).project(torch.zeros(2, 4)), None, r"got a start of the oracle Subset\(k=2\); expected one of LinearChain"),
        (dataclasses.replace(start, oracle=None), None, "got a start of no oracle; expected one of"),
        (oracle.project(scores[:1]), None, r"got a start of shape \(1, 4, 3, 3\); expected that of the scores, \(2, 4, 3, 3\)"),
        (oracle.project(scores[:, :3]), None, r"got a start of shape \(2, 3, 3, 3\); expected"),
        (ragged, None, "got a start of other lengths; expected those of the scores"),
        (start, lengths, "got a start of other lengths; expected those of the scores"),
        (ragged, lengths - 1, "got a start of other lengths; expected those of the scores"),
    ):
        with pytest.raises(ValueError, match=message):
            oracle.project(scores, lengths=sizes, start=given)
    with pytest.raises(ValueError, match=r"got a start under torch\.func; expected none"):
        torch.func.vmap(lambda row: oracle.project(row, start=start).mean)(scores)
    lengths -= 1  # in place
    with pytest.raises(ValueError, match="other lengths"):
        oracle.project(scores, lengths=lengths, start=ragged)
    with pytest.raises(ValueError, match="got an oracle of type object; expected an oracle with projections"):
        WarmStart()(object())  # type: ignore[type-var]


@generic
def test_a_warm_start_keeps_the_last_solution(case: OracleCase) -> None:
    memory, scores = WarmStart(), make_scores(case, 1.0)
    oracle = memory(case.oracle)
    assert isinstance(oracle, type(case.oracle))
    for step in range(3):
        after = moved(scores, 0.01 * step).requires_grad_()
        warm = oracle.project(after)
        assert_the_same(warm, case.oracle.project(after))
        assert memory.solution is not None
        assert torch.equal(memory.solution.mean, warm.mean)
        assert not memory.solution.scores.requires_grad, "what is kept holds no graph"
    other = moved(scores[:2], 0.01)
    assert_the_same(oracle.project(other), case.oracle.project(other))
    assert len(memory.solution.scores) == 2


def test_a_warm_start_begins_with_what_it_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[Start | None] = []
    original = LinearChain._project_rows

    def recorded(self: LinearChain, rows: Tensor, lengths: Tensor | None, start: Start | None) -> object:
        began.append(start)
        return original(self, rows, lengths, start)

    monkeypatch.setattr(LinearChain, "_project_rows", recorded)
    memory, scores, lengths = WarmStart(), torch.randn(2, 4, 3, 3), torch.tensor([3, 4])
    memory(LinearChain()).project(scores)
    first = memory.solution
    memory(LinearChain()).project(scores)
    assert began[1] is not None
    assert began[1].solution is first
    for _ in range(2):
        of_lengths(memory(LinearChain()), lengths).project(scores)
    memory(LinearChain()).project(scores[:1])
    assert [start is None for start in began] == [True, False, True, False, True]
