"""Ignored entries are never read, forbidden parts have neither mass nor gradient, and nothing is NaN; infeasible items give zeros."""

import math

import pytest
import torch
from torch import Tensor

from tests.helpers import ORACLE_CASES, OracleCase, make_scores, read_parts, seeded, structures
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, operations_of

cases = pytest.mark.parametrize("case", ORACLE_CASES, ids=str)

SHAPED = {"argmax", "marginals", "sample", "project", "relax", "relaxed_sample", "relaxed_sample_hard"}
"""Results that are structures or points between them."""

INFEASIBLE = {
    "max_marginals": -math.inf,
    "log_partition": -math.inf,
    "log_prob": -math.inf,
    "relaxed_value": -math.inf,
    "project_gap": math.inf,
}
"""Results for an infeasible item that are not 0."""

UNWEIGHTED = {"free_parts", "feasible", "step_log_probs"}
"""Results that say what is possible, or are no sums over structures."""


def forbidding_scores(case: OracleCase) -> Tensor:
    """Random masks; one structure left; all but one part forbidden; the parts of the first or last structure forbidden."""
    first, last, finite = structures(case)[0], structures(case)[-1], make_scores(case, 1.0, rows=5, seed=1)
    one = torch.arange(first.numel()).reshape(case.event) == 0
    keep = torch.stack([last > 0, first > 0, one, first == 0, last == 0])
    return torch.cat([make_scores(case, "masked", rows=8), finite.masked_fill(~keep, -math.inf)])


def derivatives(result: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
    """The first and, if there is one, the second derivative of squares."""
    (first,) = torch.autograd.grad(result.square().sum(), scores, create_graph=True)
    return (first, torch.autograd.grad(first.square().sum(), scores)[0]) if first.requires_grad else (first,)


@cases
def test_ignored_entries_are_never_read(case: OracleCase, device: torch.device) -> None:
    used = read_parts(case)
    assert torch.equal(case.oracle.read_mask(case.event, device).cpu(), used)
    if bool(used.all()):
        return
    masked, plain = make_scores(case, "masked", rows=6), make_scores(case, 1.0, rows=4)
    # Each ignored entry has another kind of junk in each of four rows.
    kinds = torch.tensor([math.nan, math.inf, -math.inf, 1e30], dtype=torch.float64)
    junk = kinds[torch.arange(masked.numel()).reshape(masked.shape).add(torch.arange(6).reshape(-1, *[1] * len(case.event))) % 4]
    for operation in operations_of(case.oracle):
        compute = lambda scores, operation=operation: OPERATIONS[operation](case.oracle, scores)  # noqa: E731
        for scores in (masked, 1e17 * masked):  # large scores are computed in another way
            assert torch.equal(compute(torch.where(used, scores, junk)), compute(scores.masked_fill(~used, 0))), operation
        if operation in SHAPED:
            assert not compute(plain.masked_fill(~used, math.nan))[:, ~used].any(), operation
        if operation in DIFFERENTIABLE:
            leaf = plain.masked_fill(~used, math.nan).requires_grad_()
            for gradient in derivatives(compute(leaf), leaf):
                assert gradient.isfinite().all(), operation
                assert not gradient[:, ~used].any(), operation
    assert not case.oracle.project(0.05 * plain).atoms[..., ~used].any()


@cases
def test_forbidden_parts_have_neither_mass_nor_gradient(case: OracleCase) -> None:
    scores = forbidding_scores(case)
    forbidden, feasible = scores == -math.inf, case.oracle.feasible(scores)
    assert not feasible.all()
    assert torch.equal(case.oracle.free_parts(scores), ~forbidden & read_parts(case))
    for operation in operations_of(case.oracle):
        leaf = scores.clone().requires_grad_(operation in DIFFERENTIABLE)
        result = OPERATIONS[operation](case.oracle, leaf)
        assert not result.isnan().any(), operation
        if operation in SHAPED:
            assert not result[forbidden].any(), operation
        if operation not in UNWEIGHTED:
            assert bool((result[~feasible] == INFEASIBLE.get(operation, 0)).all()), operation
        if operation in DIFFERENTIABLE:
            (gradient,) = torch.autograd.grad(result.sum(), leaf, create_graph=True)  # of infeasible rows too
            assert operation in UNWEIGHTED or not gradient[~feasible].any(), operation
            for gradient in derivatives(OPERATIONS[operation](case.oracle, leaf)[feasible], leaf):
                assert gradient.isfinite().all(), operation
                assert not gradient[forbidden].any(), operation
                assert not gradient[~feasible].any(), operation
    solution, samples = case.oracle.project(scores), case.oracle.sample(scores, 50, generator=seeded())
    used = (solution.weights > 0).reshape(*solution.weights.shape, *[1] * len(case.event)) * solution.atoms
    assert not (used * forbidden.unsqueeze(1)).any()
    assert not (samples * forbidden).any()
    assert bool((case.oracle.log_prob(samples, scores)[:, feasible] > -math.inf).all())
    structure = structures(case)[-1]
    impossible = torch.where(structure > 0, -math.inf, scores[1].nan_to_num(neginf=0.0))
    assert case.oracle.log_prob(structure, impossible) == case.oracle.score(structure, impossible) == -math.inf
