"""Structures from labels and back, and scores from the factors of models: by the definition, with gradients that reach every factor."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, LinearChain, ShiftReduce, SpanningTree, TiedChain
from tests.helpers import seeded

LENGTH, TAGS = 4, 3

both = pytest.mark.parametrize("chain", [LinearChain, TiedChain])


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(sum(shape)), dtype=torch.float64)


# Labels.


@pytest.mark.parametrize(
    ("oracle", "event", "labels"),
    [
        *((chain(), chain.event_shape(length=LENGTH, tags=TAGS), "tags") for chain in (LinearChain, TiedChain)),
        (SpanningTree(), (4, 4), "heads"),
        *((ShiftReduce(), (leaves + 1, leaves + 1, 2), "actions") for leaves in (1, 2, 5)),
    ],
    ids=str,
)
def test_labels_and_structures_are_inverse(oracle: Any, event: tuple[int, ...], labels: str) -> None:
    every = oracle.enumerate(event)
    read, more = getattr(oracle, labels), (TAGS,) if labels == "tags" else ()
    found = read(every)
    assert torch.equal(oracle.structure(found, *more), every)
    assert oracle.structure(found, *more).dtype == torch.get_default_dtype()
    assert torch.equal(read(oracle.structure(found, *more, dtype=torch.bool)), found)
    pairs = torch.stack([every, every.flip(0)])
    assert torch.equal(oracle.structure(read(pairs), *more), pairs)
    for structure, each in zip(every, found.tolist(), strict=True):
        parts = structure.nonzero().tolist()
        if labels == "heads":
            assert sorted(parts) == sorted([head, word] for word, head in enumerate(each, 1))
        if labels == "actions":
            shifts = [each[:step].count(0) for step in range(len(each))]
            assert parts == sorted([shifts[step], 2 * shifts[step] - step, action] for step, action in enumerate(each))
    if isinstance(oracle, TiedChain):
        edges = LinearChain().enumerate((LENGTH, TAGS, TAGS))
        assert torch.equal(every, torch.cat([edges.sum(-2), edges[:, 1:].sum(1)], 1))


@both
def test_tags_of_shorter_items(chain: type[Any]) -> None:
    tags, lengths = torch.randint(TAGS, (5, LENGTH), generator=seeded()), torch.tensor([4, 1, 2, 3, 1])
    for ragged, row, length in zip(chain.structure(tags, TAGS, lengths=lengths), tags, lengths.tolist(), strict=True):
        assert torch.equal(torch.cat([ragged[:length], ragged[LENGTH:]]), chain.structure(row[:length], TAGS))
        assert not ragged[length:LENGTH].any()


@pytest.mark.parametrize("actions", [[0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 2, 1], [0, 0, 1, 1, 0], [1]])
def test_actions_must_be_a_derivation(actions: list[int]) -> None:
    with pytest.raises(
        ValueError, match=r"`structure` got actions (that are no derivation; expected 0 or 1, from an|from 0 to 2; expected)"
    ):
        ShiftReduce.structure(torch.tensor([actions]))
    for shape in ((4,), (2, 6), (), (0,)):
        with pytest.raises(ValueError, match=r"`structure` got actions of shape \(.*\); expected \[\*batch, 2n - 1\] for n leaves"):
            ShiftReduce.structure(torch.zeros(shape, dtype=torch.int64))


# Factors.


@both
@pytest.mark.parametrize("lengths", [None, torch.tensor([LENGTH, 2])], ids=["whole", "ragged"])
@pytest.mark.parametrize("shared", [True, False])
def test_potentials_score_every_sequence(chain: type[Any], lengths: Tensor | None, shared: bool) -> None:
    """The end of a shorter item is where it ends. Each factor but the first may be left out."""
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
    assert chain is TiedChain or not scores[:, 0, 1:].any(), "ignored entries are 0"


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


def test_an_item_of_one_place_reads_no_transition() -> None:
    scores = torch.tensor([[0.0, 1.0], [0.5, 0.0], [math.nan, 0.0], [0.0, 0.0]])
    assert TiedChain().argmax(scores[[0, 2, 3]]).tolist() == [[0, 1], [0, 0], [0, 0]]
    clean = scores.nan_to_num(3.0)
    short = TiedChain().marginals(clean, lengths=torch.tensor(1))
    torch.testing.assert_close(short[[0, 2, 3]], TiedChain().marginals(clean[[0, 2, 3]]))
    assert not short[1:].any()


def test_many_places_use_a_transition_more_often_than_a_byte_counts() -> None:
    for structure in (TiedChain().argmax(torch.zeros(301, 1)), TiedChain().enumerate((301, 1))[0]):
        assert structure[300].item() == 299


def test_scores_of_costs() -> None:
    costs = torch.tensor([[0.0, 2.0], [math.inf, 1.0]], dtype=torch.float64, requires_grad=True)
    scores = Alignment.from_costs(costs, 0.5)
    assert scores.tolist() == [[0.0, -4.0], [-math.inf, -2.0]]
    value = -0.5 * Alignment().log_partition(scores)
    assert value.item() == pytest.approx(-0.5 * math.log(math.exp(-2.0) + math.exp(-6.0)))
    (expected,) = torch.autograd.grad(value, costs)
    torch.testing.assert_close(expected, Alignment().marginals(scores.detach()), rtol=1e-12, atol=1e-12)
