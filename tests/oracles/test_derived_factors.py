"""Scores of edits and of labelled spans from their factors: sums by the definition, and gradients that reach every factor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import EditAlignment, LabelledConstituency


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("lengths", [None, torch.tensor([[2, 3], [1, 2]])], ids=["whole", "lengths"])
def test_edits_have_the_scores_and_gradients_of_their_symbols(lengths: Tensor | None) -> None:
    substitution, deletion, insertion, opening = _normal(3, 4), _normal(3), _normal(4), torch.tensor(-0.7).double().requires_grad_()
    factors = (substitution, deletion, insertion, opening)
    first, second = torch.tensor([[0, 2], [1, 1]]), torch.tensor([[3, 3, 0], [1, 2, 3]])
    oracle, scores = EditAlignment(), EditAlignment.from_symbols((first, second), *factors)
    found = oracle.log_partition(scores, lengths=lengths)
    totals = []
    for item in range(2):
        n, m = (2, 3) if lengths is None else lengths[item].tolist()
        each = []
        for z in oracle.enumerate((n + 1, m + 1, 5)):
            total = torch.zeros((), dtype=torch.float64)
            for i, j, action in z.nonzero().tolist():
                one, two = first[item, i - 1], second[item, j - 1]
                total = total + (substitution[one, two], deletion[one], deletion[one], insertion[two], insertion[two])[action]
                total = total + opening * (action in (1, 3))
            each.append(total)
        totals.append(torch.stack(each).logsumexp(0))
    torch.testing.assert_close(found, torch.stack(totals), rtol=1e-12, atol=1e-12)
    expected = torch.autograd.grad(torch.stack(totals).sum(), factors)
    for ours, theirs in zip(torch.autograd.grad(found.sum(), factors), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(2,), (2, 3, 3, 2)], ids=str)
def test_labelled_spans_have_the_scores_and_gradients_of_both(shape: tuple[int, ...]) -> None:
    spans, labels = _normal(2, 3, 3), _normal(*shape)
    oracle, event = LabelledConstituency(), (3, 3, 2)
    found = oracle.log_partition(LabelledConstituency.from_potentials(spans, labels))
    each = labels.expand(2, *event)
    trees = [z.nonzero().tolist() for z in oracle.enumerate(event)]
    totals = [torch.stack([spans[:, i, j] + each[:, i, j, label] for i, j, label in tree]).sum(0) for tree in trees]
    expected = torch.stack(totals).logsumexp(0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(*(torch.autograd.grad(value.sum(), (spans, labels)) for value in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: EditAlignment.from_potentials(torch.zeros(3), torch.zeros(3), torch.zeros(3)), "got match of shape (3,)"),
        (
            lambda: EditAlignment.from_potentials(torch.zeros(2, 3), torch.zeros(3), torch.zeros(3)),
            "got delete of shape (3,); expected (..., 2)",
        ),
        (
            lambda: EditAlignment.from_potentials(torch.zeros(2, 3), torch.zeros(2), torch.zeros(2)),
            "got insert of shape (2,); expected (..., 3)",
        ),
        (
            lambda: EditAlignment.from_symbols((torch.zeros(1).long(),) * 2, torch.zeros(3, 3), torch.zeros(3), torch.zeros(4)),
            "got a substitution of shape (3, 3); expected (3, 4)",
        ),
        (
            lambda: LabelledConstituency.from_potentials(torch.zeros(3, 2), torch.zeros(2)),
            "got spans of shape (3, 2); expected [*batch, n, n]",
        ),
        (
            lambda: LabelledConstituency.from_potentials(torch.zeros(3, 3), torch.zeros(2, 2, 2)),
            "got labels of shape (2, 2, 2); expected (..., 3, 3, t) or (t,)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match="got") as refused:
        call()
    assert message in str(refused.value)
