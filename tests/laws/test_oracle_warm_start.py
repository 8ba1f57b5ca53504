"""`project(…, start=…)` gives what it gives without one: the atoms of an earlier solution are where it begins, not what it finds."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Constituency, LinearChain, ProjectionOracle, SparseSolution, Subset, WarmStart
from structgrad.oracles.active_set.solver import solve
from structgrad.oracles.active_set.start import Start
from structgrad.oracles.capabilities.ragged import of_lengths
from tests.helpers import ORACLE_CASES, REGIMES, SCALES, OracleCase, make_scores, structures
from tests.laws.test_oracle_lengths import CASES as RAGGED_CASES
from tests.laws.test_oracle_lengths import lengths_of, padded_scores

CASES = tuple(case for case in ORACLE_CASES if isinstance(case.oracle, ProjectionOracle))
cases = pytest.mark.parametrize("case", CASES, ids=str)
regimes = pytest.mark.parametrize("regime", REGIMES, ids=str)


def moved(scores: Tensor, by: float, seed: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scores + by * torch.randn(scores.shape, generator=generator, dtype=scores.dtype)


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


@regimes
@cases
@pytest.mark.parametrize("by", [0.0, 0.01, 1.0])
def test_a_start_changes_nothing(case: OracleCase, regime: float | str, by: float) -> None:
    scores = make_scores(case, regime)
    start, after = case.oracle.project(scores), moved(scores, by)
    assert_the_same(case.oracle.project(after, start=start), case.oracle.project(after))


@pytest.mark.parametrize("scale", SCALES)
@cases
def test_a_start_that_has_become_infeasible_is_left(case: OracleCase, scale: float) -> None:
    """The parts of the heaviest atom are forbidden now, all but those that every structure uses; in row 0 all parts are."""
    scores = make_scores(case, scale)
    start = case.oracle.project(scores)
    heaviest = start.atoms[torch.arange(len(scores)), start.weights.argmax(-1)] > 0
    after = scores.masked_fill(heaviest & ~(structures(case) > 0).all(0), -math.inf)
    after[0] = -math.inf
    cold = case.oracle.project(after)
    warm = case.oracle.project(after, start=start)
    assert_the_same(warm, cold)
    assert_the_same(case.oracle.project(scores, start=warm), start)


@pytest.mark.parametrize("scale", SCALES)
@cases
def test_the_solver_in_torch_takes_a_start_too(case: OracleCase, scale: float) -> None:
    before = torch.where(case.oracle.read_mask(case.event), make_scores(case, scale), 0)
    rows = torch.where(case.oracle.read_mask(case.event), moved(before, 0.01), 0)
    forbidden = make_scores(case, "masked") == -math.inf
    start = Start(case.oracle.project(before), torch.arange(len(rows)))
    for given in (rows, rows.masked_fill(forbidden, -math.inf)):
        calls = []

        def argmax(directions: Tensor, items: Tensor, calls: list[int] = calls) -> Tensor:
            calls.append(len(items))
            return case.oracle.argmax(directions)

        expected = case.oracle.project(given)
        found = solve(argmax, given, start=start)
        atoms, weights = found.decompose()
        mean = torch.einsum("bm,bm...->b...", weights, atoms)
        torch.testing.assert_close(mean, expected.mean, rtol=0, atol=1e-9 * (1 + 5 * scale))
        torch.testing.assert_close(found.gap, expected.gap, rtol=0, atol=1e-9 * (1 + 5 * scale))


@cases
def test_gradients_are_those_without_a_start(case: OracleCase) -> None:
    scores = make_scores(case, 1.0)
    start = case.oracle.project(scores.clone().requires_grad_())
    towards = torch.linspace(-1, 1, scores.numel(), dtype=scores.dtype).sin().reshape(scores.shape)
    gradients = []
    for given in (None, start):
        leaf = moved(scores, 0.01).requires_grad_()
        (gradient,) = torch.autograd.grad(case.oracle.project(leaf, start=given).mean, leaf, towards)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-7)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("case", [case for case in RAGGED_CASES if isinstance(case.oracle, ProjectionOracle)], ids=str)
def test_a_start_of_shorter_items(case: OracleCase, scale: float) -> None:
    scores, lengths = padded_scores(case, scale), lengths_of(case)
    start, after = case.oracle.project(scores, lengths=lengths), moved(scores, 0.01)
    warm, cold = case.oracle.project(after, lengths=lengths, start=start), case.oracle.project(after, lengths=lengths)
    assert_the_same(warm, cold)
    twin = of_lengths(case.oracle, lengths)
    assert_the_same(twin.project(after, start=twin.project(scores)), cold)


@cases
def test_batches_of_every_shape(case: OracleCase) -> None:
    scores = make_scores(case, 1.0)
    shared, batch = scores[:2].unsqueeze(1).expand(2, 3, *case.event), scores.reshape(2, 3, *case.event)
    expected = case.oracle.project(moved(batch, 0.01)).mean
    for before in (shared, batch):  # from rows that are shared, and from others
        start = case.oracle.project(before)
        found = case.oracle.project(moved(batch, 0.01), start=start)
        torch.testing.assert_close(found.mean, expected, rtol=0, atol=1e-9)
        again = case.oracle.project(shared, start=found)  # to rows that are shared
        torch.testing.assert_close(again.mean, case.oracle.project(shared).mean, rtol=0, atol=1e-9)
    for some in (scores[0], scores[:0]):
        assert case.oracle.project(some, start=case.oracle.project(some)).mean.shape == some.shape


def test_half_the_way_at_least_is_saved() -> None:
    """Counted in MAP calls of the solver in torch; times are the benchmarks'."""
    oracle = Constituency()
    scores = torch.where(oracle.read_mask((12, 12)), torch.randn(1, 12, 12, dtype=torch.float64), 0)
    after, calls = torch.where(oracle.read_mask((12, 12)), moved(scores, 0.01), 0), []

    def argmax(directions: Tensor, items: Tensor) -> Tensor:
        calls.append(1)
        return oracle.argmax(directions)

    solve(argmax, after)
    cold = len(calls)
    solve(argmax, after, start=Start(oracle.project(scores), torch.zeros(1, dtype=torch.int64)))
    assert len(calls) - cold <= cold / 2


def test_a_start_of_another_problem_is_refused() -> None:
    oracle, scores, lengths = LinearChain(), torch.zeros(2, 4, 3, 3), torch.tensor([3, 4])
    start = oracle.project(scores)
    ragged = oracle.project(scores, lengths=lengths)
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


def test_lengths_that_change_in_place_are_other_lengths() -> None:
    oracle, scores, lengths = LinearChain(), torch.zeros(2, 4, 3, 3), torch.tensor([3, 4])
    start = oracle.project(scores, lengths=lengths)
    lengths -= 1
    with pytest.raises(ValueError, match="other lengths"):
        oracle.project(scores, lengths=lengths, start=start)


@cases
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
    memory, scores = WarmStart(), torch.randn(2, 4, 3, 3)
    memory(LinearChain()).project(scores)
    first = memory.solution
    memory(LinearChain()).project(scores)
    assert began[0] is None
    assert began[1] is not None
    assert began[1].solution is first
    of_lengths(memory(LinearChain()), torch.tensor([3, 4])).project(scores)
    of_lengths(memory(LinearChain()), torch.tensor([3, 4])).project(scores)
    assert [start is None for start in began[2:]] == [True, False]
    memory(LinearChain()).project(scores[:1])
    assert began[4] is None


def test_a_warm_start_without_projections_is_refused() -> None:
    with pytest.raises(ValueError, match="got an oracle of type object; expected an oracle with projections"):
        WarmStart()(object())  # type: ignore[type-var]
