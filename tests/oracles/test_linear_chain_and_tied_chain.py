"""Chains of tags: by the edges of every place, and by factors that places share, which are the chain of their edges."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import LinearChain, TiedChain, kernels
from tests.helpers import seeded

EDGES, TIED = LinearChain(), TiedChain()
LENGTH, TAGS = 4, 3

sizes = pytest.mark.parametrize(("length", "tags"), [(1, 1), (1, 3), (2, 2), (3, 8), (6, 9), (5, 16), (4, 17), (40, 5), (7, 33)])
"""On both sides of what a vector holds."""
both = pytest.mark.parametrize("chain", [LinearChain, TiedChain])


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(sum(shape)), dtype=torch.float64)


def potentials(length: int, tags: int, scale: float = 1.0, items: int = 4) -> tuple[Tensor, Tensor]:
    """With a forbidden tag in item 1, and a forbidden transition in item 2."""
    unary, transition = scale * normal(items, length, tags), scale * normal(items, tags, tags)
    if tags > 1:
        unary[1, 0, 1], transition[2, 0, 1] = -math.inf, -math.inf
    return unary, transition


def tied(edges: Tensor) -> Tensor:
    """Of edges [..., n, t, t] the sum at every place, and of every transition."""
    return torch.cat([edges.sum(-2), edges[..., 1:, :, :].sum(-3)], -2)


# A chain by its factors.


@sizes
@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0, 50.0, 400.0])
def test_it_is_the_chain_of_its_edges(length: int, tags: int, scale: float) -> None:
    unary, transition = potentials(length, tags, scale)
    scores, edges = TiedChain.from_potentials(unary, transition), LinearChain.from_potentials(unary, transition)
    with kernels.recorded() as functions:
        best = TIED.argmax(scores)
    assert functions
    assert torch.equal(best, tied(EDGES.argmax(edges)))
    torch.testing.assert_close(TIED.log_partition(scores), EDGES.log_partition(edges), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(TIED.marginals(scores), tied(EDGES.marginals(edges)), rtol=1e-9, atol=1e-12)
    samples = (each.sample(given, 5, generator=seeded()) for each, given in ((TIED, scores), (EDGES, edges)))
    assert torch.equal(next(samples), tied(next(samples)))


@pytest.mark.parametrize("unary", [[[0, -600], [0, 0], [-math.inf, 0]], [[-math.inf, 0], [0, 0], [0, -600]]], ids=["prefix", "suffix"])
def test_a_tag_whose_weight_underflows_is_not_lost(unary: list[list[float]]) -> None:
    """No tag may follow another one: what is left is 1, 1, 1 of score -1800, beside tags of weight 1 that lead nowhere."""
    transition = torch.tensor([[0, -math.inf], [-math.inf, -600]], dtype=torch.float64)
    scores = TiedChain.from_potentials(torch.tensor([unary], dtype=torch.float64), transition)
    torch.testing.assert_close(TIED.log_partition(scores), torch.tensor([-1800.0], dtype=torch.float64))
    expected = TiedChain.structure(torch.tensor([[1, 1, 1]]), 2, torch.float64)
    torch.testing.assert_close(TIED.marginals(scores), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("turned", [False, True], ids=["suffixes", "prefixes"])
def test_two_ways_of_the_same_score_share_the_law_where_each_underflows(turned: bool) -> None:
    """One tag has large transitions, the other one large scores: products of both lie below the range of normal numbers."""
    length = 7
    transition = torch.tensor([[-690, -math.inf], [-math.inf, 0]], dtype=torch.float64)
    unary = torch.tensor([[0.0, -699.0]] * length, dtype=torch.float64)
    unary[-1 if turned else 0] = torch.tensor([-9.0 * (length - 1), 0.0])
    scores = TiedChain.from_potentials(unary.unsqueeze(0), transition)
    expected = torch.full((1, length, 2), 0.5, dtype=torch.float64)
    torch.testing.assert_close(TIED.marginals(scores)[:, :length], expected, rtol=1e-9, atol=1e-9)


def test_many_places_use_a_transition_more_often_than_a_byte_counts() -> None:
    for structure in (TIED.argmax(torch.zeros(301, 1)), TIED.enumerate((301, 1))[0]):
        assert structure[300].item() == 299


def test_an_item_of_one_place_reads_no_transition() -> None:
    scores = torch.tensor([[0.0, 1.0], [0.5, 0.0], [math.nan, 0.0], [0.0, 0.0]])
    assert TIED.argmax(scores[[0, 2, 3]]).tolist() == [[0, 1], [0, 0], [0, 0]]
    clean = scores.nan_to_num(3.0)
    short = TIED.marginals(clean, lengths=torch.tensor(1))
    torch.testing.assert_close(short[[0, 2, 3]], TIED.marginals(clean[[0, 2, 3]]))
    assert not short[1:].any()


def test_which_parts_are_counted() -> None:
    assert TIED.binary_mask((5, 2)).tolist() == [[True, True]] * 3 + [[False, False]] * 2
    assert EDGES.binary_mask((3, 2, 2)).all()


# A chain by its edges.


def test_a_tag_that_comes_back_from_below_normal_numbers_keeps_its_digits() -> None:
    """Tag 1 falls to 1e-320 of a weight that no item reaches, where it leads by e^600 in the end."""
    scores = torch.full((4, 3, 3), -math.inf, dtype=torch.float64)
    scores[0, 0, :2] = torch.tensor([0.0, -655.0])
    for i, (first, second) in enumerate(((-690.0, -82.0), (-690.0, 0.0), (0.0, 0.0)), start=1):
        scores[i, 0, 0], scores[i, 1, 1], scores[i, 2, 2] = first, second, 0.0
    expected = torch.tensor(-655.0 - 82.0, dtype=torch.float64)
    torch.testing.assert_close(EDGES.log_partition(scores), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(EDGES.marginals(scores)[3].diagonal()[:2], torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_ignored_entries_of_potentials_are_zero() -> None:
    scores = LinearChain.from_potentials(normal(2, LENGTH, TAGS), normal(TAGS, TAGS), normal(TAGS), normal(TAGS))
    assert bool((scores[:, 0, 1:] == 0).all())


# Both: conversions.


@both
def test_a_long_chain_of_large_scores_stays_finite(chain: type[Any]) -> None:
    scores = (1000 * normal(*(chain.event_shape(length=400, tags=4)))).requires_grad_()
    (gradient,) = torch.autograd.grad(entropy := chain().entropy(scores), scores)
    assert entropy.isfinite()
    assert gradient.isfinite().all()
    places = chain().marginals(scores.detach()).reshape(-1, 4)
    torch.testing.assert_close(places[:400].sum(-1) if chain is TiedChain else places.reshape(400, -1).sum(-1), torch.ones(400).double())


@both
@pytest.mark.parametrize("lengths", [None, torch.tensor([LENGTH, 2])], ids=["whole", "ragged"])
@pytest.mark.parametrize("shared", [True, False])
def test_potentials_score_every_sequence(chain: type[Any], lengths: Tensor | None, shared: bool) -> None:
    """By the definition; the end of a shorter item is where it ends. Each but the first may be left out."""
    batch = () if shared else (2,)
    unary, *others = (normal(2, LENGTH, TAGS), normal(*batch, TAGS, TAGS), normal(*batch, TAGS), normal(*batch, TAGS) + 1)
    leaves = [value.requires_grad_() for value in (unary, *others)]
    for given in (leaves, [unary]):
        found = chain().log_partition(chain.from_potentials(*given, lengths=lengths), lengths=lengths)
        expected = []
        for item, length in enumerate([LENGTH, LENGTH] if lengths is None else lengths.tolist()):
            values = [value.expand(2, *value.shape[-dims:])[item] for value, dims in zip(given[1:], (2, 1, 1), strict=False)]
            transition, start, end = values or (torch.zeros(TAGS, TAGS), torch.zeros(TAGS), torch.zeros(TAGS))
            totals = []
            for tags in itertools.product(range(TAGS), repeat=length):
                total = start[tags[0]] + end[tags[-1]] + torch.stack([unary[item, i, tag] for i, tag in enumerate(tags)]).sum()
                totals.append(total + sum(transition[pair] for pair in itertools.pairwise(tags)))
            expected.append(torch.stack(totals).logsumexp(0))
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-12, atol=1e-12)
        gradients = (torch.autograd.grad(value.sum(), given) for value in (found, torch.stack(expected)))
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@both
def test_forbidden_potentials_give_no_nan(chain: type[Any]) -> None:
    leaves = [value.requires_grad_() for value in (normal(2, LENGTH, TAGS), normal(TAGS, TAGS), normal(TAGS), normal(TAGS))]
    masked = leaves[1].masked_fill(torch.eye(TAGS, dtype=torch.bool), -math.inf)
    scores = chain.from_potentials(leaves[0], masked, *leaves[2:])
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(chain().entropy(scores).sum(), leaves))
    tags = chain.tags(chain().argmax(scores))
    assert bool((tags[:, 1:] != tags[:, :-1]).all())


@both
def test_tags_and_structure_are_inverse(chain: type[Any]) -> None:
    tags = torch.randint(TAGS, (5, 2, LENGTH), generator=seeded())
    structure, event = chain.structure(tags, TAGS), chain.event_shape(length=LENGTH, tags=TAGS)
    assert structure.shape == (5, 2, *event)
    assert structure.dtype == torch.get_default_dtype()
    assert torch.equal(chain.tags(structure), tags)
    assert torch.equal(chain.tags(chain.structure(tags, TAGS, torch.bool)), tags)
    every = chain().enumerate(event)
    assert torch.equal(chain.structure(chain.tags(every), TAGS), every)
    if chain is TiedChain:
        assert torch.equal(every, tied(EDGES.enumerate((LENGTH, TAGS, TAGS))))
    lengths = torch.tensor([[4, 1], [2, 3], [1, 1], [3, 4], [2, 2]])
    ragged = chain.structure(tags, TAGS, lengths=lengths)
    for item, length in zip(itertools.product(range(5), range(2)), lengths.flatten().tolist(), strict=True):
        alone = chain.structure(tags[item][:length], TAGS)
        assert torch.equal(torch.cat([ragged[item][:length], ragged[item][LENGTH:]]), alone)
        assert not ragged[item][length:LENGTH].any()


@both
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"unary": torch.zeros(3)}, r"unary of shape \(3,\); expected \[\*batch, n, t\]"),
        ({"transition": torch.zeros(3, 2)}, r"a transition of shape \(3, 2\); expected \(..., 3, 3\)"),
        ({"start": torch.zeros(2)}, r"start of shape \(2,\); expected \(..., 3\)"),
        ({"end": torch.tensor(1.0)}, r"end of shape \(\); expected \(..., 3\)"),
    ],
)
def test_potentials_that_do_not_fit(chain: type[Any], given: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"`from_potentials` got {message}"):
        chain.from_potentials(**{"unary": torch.zeros(4, 3)} | given)
