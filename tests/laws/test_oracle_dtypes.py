"""Every floating dtype is accepted and preserved; half precision is computed in float32; structures and labels may be any integers."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import SUPERVISED_LOSSES
from structgrad.oracles import CTC, EditAlignment, LinearChain, ProjectiveTree, ShiftReduce, TiedChain
from structgrad.oracles.capabilities import RelaxedOracle
from tests.covering import sampled
from tests.estimator_cases import numbers
from tests.helpers import GENERIC_CASES, ORACLE_CASES, OracleCase, make_scores, seeded, structures
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, operations_of

INTEGERS = (torch.int8, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
HALF = (torch.float16, torch.bfloat16)
PRECISE = {
    *("log_partition", "marginals", "entropy", "log_prob", "project", "project_weights"),
    *("marginals gradient", "project gradient"),
}
"""Results whose error in single precision is a few units in the last place of the scores."""

cases = pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
generic = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)


def results(case: OracleCase, scores: Tensor) -> dict[str, Tensor]:
    """Results of operations, and gradients along directions that do not depend on the results: half precision leaves no digits."""
    found, feasible = {}, case.oracle.feasible(scores)
    # Sums of what is rounded are rounded again.
    for name in [name for name in operations_of(case.oracle) if not name.startswith(("samples", "project_", "kbest", "step"))]:
        leaf = scores.detach().clone().requires_grad_()
        value = OPERATIONS[name](case.oracle, leaf)
        found[name] = value.detach()
        if name in DIFFERENTIABLE:
            chosen = value[feasible]
            along = torch.linspace(-1, 1, chosen.numel()).sin().reshape(chosen.shape).to(chosen.dtype)
            found[f"{name} gradient"] = torch.autograd.grad(chosen, leaf, along)[0]
    return found


@cases
def test_results_keep_the_dtype_of_the_scores(case: OracleCase) -> None:
    """And those of float32 are close to those of float64."""
    for regime in (1.0, 50.0, "masked"):
        scores = make_scores(case, regime).float()
        single, double = results(case, scores), results(case, scores.double())
        size = scores[scores > -math.inf].abs().max().item()
        for name, value in single.items():
            assert value.dtype == torch.float32, name
            assert not value.isnan().any(), name
            if name in PRECISE or regime == 1.0:
                error = {"rtol": 1e-5, "atol": (4e-6 if name in PRECISE else 1e-4) * max(size, 1)}
                torch.testing.assert_close(value.double(), double[name], **error, msg=lambda text, name=name: f"{name}: {text}")


@generic
def test_half_precision_is_computed_in_float32(case: OracleCase) -> None:
    for dtype in sampled(HALF, 1):
        near = 20 + 0.3 * make_scores(case, 1.0)  # where half precision has few numbers
        for scores in (make_scores(case, 1.0), make_scores(case, 5.0), make_scores(case, "masked"), near):
            half, single = results(case, scores.to(dtype)), results(case, scores.to(dtype).float())
            for name, value in half.items():
                assert value.dtype == dtype, name
                assert not value.isnan().any(), name
                if not name.endswith("gradient"):
                    assert torch.equal(value, single[name].to(dtype)), name
                elif scores is not near:
                    error = {"rtol": 0.05, "atol": 0.03 * float(structures(case).max())}
                    torch.testing.assert_close(value.float(), single[name], **error, msg=lambda text, name=name: f"{name}: {text}")
            for name in [name for name in half if not name.endswith("gradient")]:  # and without a gradient
                found, single = (OPERATIONS[name](case.oracle, rows) for rows in (scores.to(dtype), scores.to(dtype).float()))
                assert torch.equal(found, single.to(found.dtype)), name
        solution = case.oracle.project(scores.to(dtype))
        assert solution.weights.dtype == solution.atoms.dtype == solution.gap.dtype == dtype
        assert torch.equal(case.oracle.argmax_of(scores.to(dtype)), case.oracle.argmax_of(scores.to(dtype).float()).to(dtype))
        if isinstance(case.oracle, RelaxedOracle):
            both = (scores.to(dtype), scores.to(dtype).float())
            cold, expected = (case.oracle.relaxed_sample(rows, 1e-3, generator=seeded()) for rows in both)
            assert torch.equal(cold, expected.to(dtype))
        for operation in ("marginals", "log_partition"):  # under a transform too
            compute = getattr(case.oracle, operation)
            assert torch.equal(torch.func.vmap(compute)(scores.to(dtype)), compute(scores.to(dtype)))


@generic
def test_a_view_that_negates_is_read_as_what_it_is(case: OracleCase) -> None:
    """As `.conj().imag` gives it."""
    scores = make_scores(case, 1.0).requires_grad_()
    view = torch.complex(torch.zeros_like(scores), -scores).conj().imag
    assert view.is_neg()
    assert torch.equal(case.oracle.argmax(view), case.oracle.argmax(scores))
    found, expected = (torch.autograd.grad(case.oracle.log_partition(theta).sum(), scores)[0] for theta in (view, scores))
    assert torch.equal(found, expected)
    along = make_scores(case, 1.0, seed=1)
    negated = (torch.autograd.grad(case.oracle.marginals(scores), scores, each)[0] for each in (torch._neg_view(along), -along))
    assert torch.equal(next(negated), next(negated))


@generic
def test_structures_of_every_integer_dtype(case: OracleCase) -> None:
    oracle, scores, gold = case.oracle, make_scores(case, 1.0, rows=2), structures(case)[:2].expand(2, *case.event)
    indices = oracle.indices(gold)
    for dtype in INTEGERS:
        odd = gold.to(dtype)
        for compute in (partial(oracle.score, scores=scores), partial(oracle.log_prob, scores=scores), oracle.rank, oracle.indices):
            assert torch.equal(compute(odd), compute(gold))
        if int(indices.min()) >= 0:
            assert torch.equal(oracle.score(indices.to(dtype), scores, as_indices=True), oracle.score(indices, scores, as_indices=True))
            assert torch.equal(oracle.dense(indices.to(dtype), case.event), oracle.dense(indices, case.event))
        for name, loss in SUPERVISED_LOSSES.items():
            try:
                expected, found = (
                    loss(oracle, scores, z, **({"generator": seeded()} if name.startswith("perturbed") else {})) for z in (gold, odd)
                )
            except ValueError:  # another pair
                continue
            torch.testing.assert_close(found, expected, msg=name)


# Labels.

LABELLED: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "tags": lambda labels, lengths: LinearChain.structure(labels, 3, lengths=lengths),
    "tags of a tied chain": lambda labels, lengths: TiedChain.structure(labels, 3, lengths=lengths),
    "heads": lambda labels, lengths: ProjectiveTree.structure(labels, lengths=lengths),
    "targets": lambda labels, lengths: CTC.from_log_probs(
        numbers(len(labels), 4, 3), labels, lengths=None if lengths is None else torch.stack([lengths + 1, lengths], -1)
    ),
    "strings": lambda labels, lengths: EditAlignment.from_symbols(
        (labels, labels), numbers(3, 3), numbers(3), numbers(3), lengths=None if lengths is None else torch.stack([lengths, lengths], -1)
    ),
}


@pytest.mark.parametrize("what", LABELLED)
def test_labels_of_every_integer_dtype_and_their_padding(what: str) -> None:
    call, labels, lengths = LABELLED[what], torch.tensor([[2, 0, 1], [0, 2, 0]]), torch.tensor([3, 2])
    padded = labels.clone()
    padded[1, 2] = -100
    for dtype in INTEGERS:
        torch.testing.assert_close(call(labels.to(dtype), None), call(labels, None), rtol=0, atol=0)
        if dtype.is_signed:
            assert torch.equal(call(padded.to(dtype), lengths.to(dtype)), call(labels, lengths))
            message = r"got \w+ from -100 to 2; expected 0 to \d, and lengths= for items whose padding is -100$"
            with pytest.raises(ValueError, match=message):
                call(padded.to(dtype), None)
        with pytest.raises(ValueError, match=r"got \w+ from \d to 7; expected 0 to \d$"):
            call((labels.clone() + 5).to(dtype), None)
    for odd in (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 3, dtype=torch.int64).to_sparse()):
        with pytest.raises(ValueError, match=r"^`\w+` got \w+ of torch.*; expected a dense tensor of integers from 0 to"):
            call(odd, None)


def test_a_structure_of_tags_within_lengths_is_that_of_the_operations() -> None:
    lengths, scores = torch.tensor([3, 1]), numbers(2, 3, 2, 2)
    best = LinearChain().argmax(scores, lengths=lengths)
    tags = torch.where(torch.arange(3) < lengths.unsqueeze(-1), LinearChain.tags(best), -100)
    assert torch.equal(LinearChain.structure(tags, 2, best.dtype, lengths), best)
    heads = torch.tensor([[0, 1, 2], [0, 1, -100]])
    assert not ProjectiveTree.structure(heads, lengths=torch.tensor([3, 2]))[1, :, 3].any()
    with pytest.raises(ValueError, match="got actions from -100 to 1; expected 0 to 1"):
        ShiftReduce.structure(torch.tensor([0, 0, 1, -100, -100]))
    assert torch.equal(ShiftReduce.structure(torch.tensor([0, 0, 1], dtype=torch.uint16)), ShiftReduce.structure(torch.tensor([0, 0, 1])))
