"""Scores of edits and of labelled spans from their factors: sums by the definition, and gradients that reach every factor."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import CardinalitySubset, EditAlignment, Grammar, LabelledConstituency, Subset, TiedSemiMarkov


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


def test_sentences_have_the_probability_of_their_grammar() -> None:
    """The inside algorithm of Baker (1979) gives the same, for items of several lengths."""
    lengths = torch.tensor([5, 3, 1])
    lexical, rules, root = _normal(3, 5, 3), _normal(3, 3, 3), _normal(3)
    inside = {}
    for j in range(5):
        inside[j, j] = lexical[:, j].exp()
        for i in reversed(range(j)):
            inside[i, j] = sum(torch.einsum("abc,nb,nc->na", rules.exp(), inside[i, k], inside[k + 1, j]) for k in range(i, j))
    expected = torch.stack([(inside[0, length - 1][item] @ root.exp()).log() for item, length in enumerate(lengths.tolist())])
    found = Grammar().log_partition(Grammar.from_potentials(lexical, rules, root, lengths=lengths), lengths=lengths)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    several = Grammar.from_potentials(lexical[0].float(), rules.expand(3, 3, 3, 3))
    assert several.shape == (3, 24, 3)
    assert several.dtype == torch.float64
    for factor in (lexical, rules, root):
        ours, theirs = (torch.autograd.grad(each.sum(), factor, retain_graph=True)[0] for each in (found, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("most", [None, 3])
def test_every_row_has_its_own_number_of_parts(most: int | None) -> None:
    oracle, parts, sizes = CardinalitySubset(most), _normal(4, 6), torch.arange(4)
    scores, generator = CardinalitySubset.from_sizes(parts, sizes), torch.Generator().manual_seed(0)
    values, marginals, means = oracle.log_partition(scores), oracle.marginals(scores), oracle.project(scores).mean
    assert values[0] == 0
    assert (oracle.sample(scores, 20, generator=generator)[..., 0].sum(-1) == sizes).all()
    for k in range(1, 4):
        for found, expected in (
            (values[k], Subset(k).log_partition(parts[k])),
            (marginals[k, :-1, 0], Subset(k).marginals(parts[k])),
            (means[k, :-1, 0], Subset(k).project(parts[k]).mean),
        ):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weights = torch.stack([torch.zeros(()).double(), *(Subset(k).log_partition(parts[0]) for k in range(1, 4))])
    for least, greatest in ((0, 2), (1, 3)):
        torch.testing.assert_close(
            oracle.log_partition(CardinalitySubset.from_sizes(parts[0], least, greatest)), weights[least : greatest + 1].logsumexp(0)
        )
    potentials, shared = _normal(4), CardinalitySubset.from_sizes(parts[0], sizes)
    torch.testing.assert_close(oracle.log_partition(shared), weights)
    found, expected = oracle.log_partition(CardinalitySubset.from_potentials(parts[0], potentials)), (weights + potentials).logsumexp(0)
    for factor in (parts, potentials):
        ours, theirs = (torch.autograd.grad(value, factor, retain_graph=True)[0] for value in (found, expected))
        torch.testing.assert_close(ours, theirs)


EDITS, SPANS, SEGMENTS = EditAlignment.from_potentials, LabelledConstituency.from_potentials, TiedSemiMarkov.from_segments


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (EDITS, ((3,), (3,), (3,)), "got match of shape (3,)"),
        (EDITS, ((2, 3), (3,), (3,)), "got delete of shape (3,); expected (..., 2)"),
        (EDITS, ((2, 3), (2,), (2,)), "got insert of shape (2,); expected (..., 3)"),
        (SPANS, ((3, 2), (2,)), "got spans of shape (3, 2); expected [*batch, n, n]"),
        (SPANS, ((3, 3), (2, 2, 2)), "got labels of shape (2, 2, 2); expected (..., 3, 3, t) or (t,)"),
        (TiedSemiMarkov.from_potentials, ((3,), 2), "got unary of shape (3,); expected [*batch, n, t]"),
        (TiedSemiMarkov.from_potentials, ((3, 2), (2,)), "got length of shape (2,); expected (..., w, 2)"),
        (TiedSemiMarkov.from_potentials, ((3, 2), 0), "got length=0; expected scores [*batch?, w, 2], or an integer w >= 1"),
        (Grammar.from_potentials, ((3,), (1, 1, 1)), "got lexical of shape (3,); expected [*batch, n, t]"),
        (Grammar.from_potentials, ((3, 2), (2, 2)), "got rules of shape (2, 2); expected (..., 2, 2, 2)"),
        (CardinalitySubset.from_potentials, ((3,), (5,)), "got parts of shape (3,) and sizes of shape (5,); expected [*batch?, n]"),
        (SEGMENTS, ((3, 2),), "got segments of shape (3, 2); expected [*batch, n, w, t]"),
        (SEGMENTS, ((3, 2, 2), (3, 2)), "got a transition of shape (3, 2); expected (..., 2, 2)"),
        (SEGMENTS, ((3, 2, 2), (2, 2), (2,), (3,)), "got end of shape (3,); expected (..., 2)"),
    ],
)
def test_factors_that_do_not_fit(make: Any, given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(*(torch.zeros(each) if isinstance(each, tuple) else each for each in given))


def test_symbols_and_segments_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"got a substitution of shape \(3, 3\); expected \(3, 4\)"):
        EditAlignment.from_symbols((torch.zeros(1).long(),) * 2, torch.zeros(3, 3), torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match=r"expected \(first, last, label\) of neighbours from token 0 on"):
        TiedSemiMarkov.structure([(0, 0, 1), (2, 2, 0)], (4, 2, 2))
