"""A chain by its factors is the chain of its edges."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from structgrad.oracles import LinearChain, TiedChain, kernels
from structgrad.oracles.capabilities.ragged import of_lengths
from tests.helpers import seeded

ORACLE, EDGES = TiedChain(), LinearChain()
SIZES = ((1, 1), (1, 3), (2, 2), (3, 8), (6, 9), (4, 17), (40, 5), (7, 33))
"""Places and tags: on both sides of what a vector holds."""

sizes = pytest.mark.parametrize(("length", "tags"), SIZES)


def potentials(length: int, tags: int, scale: float = 1.0, items: int = 4) -> tuple[Tensor, Tensor]:
    """With a forbidden tag in item 1, and a forbidden transition in item 2."""
    stream = torch.Generator().manual_seed(length + tags)
    unary = scale * torch.randn(items, length, tags, generator=stream, dtype=torch.float64)
    transition = scale * torch.randn(items, tags, tags, generator=stream, dtype=torch.float64)
    if tags > 1:
        unary[1, 0, 1], transition[2, 0, 1] = -math.inf, -math.inf
    return unary, transition


def tied(edges: Tensor) -> Tensor:
    """Of edges [..., n, t, t] the sum at every place, and of every transition."""
    return torch.cat([edges.sum(-2), edges[..., 1:, :, :].sum(-3)], -2)


@sizes
@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0, 50.0])
def test_it_is_the_chain_of_its_edges(length: int, tags: int, scale: float) -> None:
    unary, transition = potentials(length, tags, scale)
    factors, edges = TiedChain.from_potentials(unary, transition), LinearChain.from_potentials(unary, transition)
    assert torch.equal(ORACLE.argmax(factors), tied(EDGES.argmax(edges)))
    torch.testing.assert_close(ORACLE.log_partition(factors), EDGES.log_partition(edges), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ORACLE.marginals(factors), tied(EDGES.marginals(edges)), rtol=1e-9, atol=1e-12)
    samples = (oracle.sample(scores, 5, generator=seeded()) for oracle, scores in ((ORACLE, factors), (EDGES, edges)))
    mine, theirs = samples
    assert torch.equal(mine, tied(theirs))


@sizes
@pytest.mark.parametrize("operation", ["argmax", "log_partition", "marginals"])
def test_kernels_agree_with_the_reference(length: int, tags: int, operation: str) -> None:
    for scale in (0.05, 1.0, 50.0):
        scores = TiedChain.from_potentials(*potentials(length, tags, scale))
        found = getattr(ORACLE, operation)(scores)
        with kernels.disabled():
            expected = getattr(ORACLE, operation)(scores)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@sizes
def test_the_covariance_is_that_of_the_edges(length: int, tags: int) -> None:
    unary, transition = potentials(length, tags)
    direction = torch.randn(len(unary), length + tags, tags, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def gradients(marginals: Tensor, leaves: tuple[Tensor, ...]) -> Tensor:
        return torch.cat(torch.autograd.grad((marginals * direction).sum(), leaves, materialize_grads=True), -2)

    mine = tuple(value.clone().requires_grad_() for value in (unary, transition))
    theirs = tuple(value.clone().requires_grad_() for value in (unary, transition))
    found = gradients(ORACLE.marginals(TiedChain.from_potentials(*mine)), mine)
    expected = gradients(tied(EDGES.marginals(LinearChain.from_potentials(*theirs))), theirs)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@dataclass(frozen=True)
class WithoutKernels(TiedChain):
    """As on a device that has kernels of edges alone."""

    kernel: ClassVar[str | None] = None


@sizes
def test_where_it_has_no_kernel_those_of_the_edges_serve(length: int, tags: int) -> None:
    scores = TiedChain.from_potentials(*potentials(length, tags)).requires_grad_()
    direction = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def results(oracle: TiedChain) -> list[Tensor]:
        marginals = oracle.marginals(scores)
        (product,) = torch.autograd.grad((marginals * direction).sum(), scores)
        (gradient,) = torch.autograd.grad(oracle.log_partition(scores).sum(), scores)
        plain = scores.detach()
        samples = oracle.sample(plain, 3, generator=seeded())
        return [
            oracle.argmax(plain),
            oracle.log_partition(plain),
            marginals.detach(),
            gradient,
            product,
            samples,
            oracle.project(plain).mean,
        ]

    expected = results(ORACLE)
    with kernels.recorded() as functions:
        second = results(WithoutKernels())
    for found, wanted in zip(second, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    assert {"argmax", "log_partition", "marginals", "covariance_product", "sample"} <= {function.__name__ for function in functions}


@pytest.mark.parametrize("operation", ["log_partition", "marginals"])
def test_what_the_range_cannot_hold_is_found_elsewhere(operation: str) -> None:
    """Suffixes and prefixes that meet at weights which no exponential holds."""
    unary, transition = potentials(6, 3, 400.0)
    factors, edges = TiedChain.from_potentials(unary, transition), LinearChain.from_potentials(unary, transition)
    found, expected = getattr(ORACLE, operation)(factors), getattr(EDGES, operation)(edges)
    torch.testing.assert_close(found, expected if operation == "log_partition" else tied(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("unary", [[[0, -600], [0, 0], [-math.inf, 0]], [[-math.inf, 0], [0, 0], [0, -600]]], ids=["prefix", "suffix"])
def test_a_tag_whose_weight_underflows_is_not_lost(unary: list[list[float]]) -> None:
    """No tag may follow another one: what is left is 1, 1, 1 of score -1800, beside tags of weight 1 that lead nowhere."""
    transition = torch.tensor([[0, -math.inf], [-math.inf, -600]], dtype=torch.float64)
    scores = TiedChain.from_potentials(torch.tensor([unary], dtype=torch.float64), transition)
    torch.testing.assert_close(ORACLE.log_partition(scores), torch.tensor([-1800.0], dtype=torch.float64))
    assert torch.equal(ORACLE.marginals(scores), TiedChain.structure(torch.tensor([[1, 1, 1]]), 2, torch.float64))


@pytest.mark.parametrize("turned", [False, True], ids=["suffixes", "prefixes"])
def test_two_ways_of_the_same_score_share_the_law_where_each_underflows(turned: bool) -> None:
    """One tag has large transitions, the other one large scores: products of both lie below the range of normal numbers."""
    length = 7
    transition = torch.tensor([[-690, -math.inf], [-math.inf, 0]], dtype=torch.float64)
    unary = torch.tensor([[0.0, -699.0]] * length, dtype=torch.float64)
    unary[-1 if turned else 0] = torch.tensor([-9.0 * (length - 1), 0.0])
    scores = TiedChain.from_potentials(unary.unsqueeze(0), transition)
    expected = torch.full((1, length, 2), 0.5, dtype=torch.float64)
    torch.testing.assert_close(ORACLE.marginals(scores)[:, :length], expected, rtol=1e-9, atol=1e-9)


def test_what_padding_adds_is_no_part_of_an_item() -> None:
    """The tag that ends an item, and the ways to it, carry no noise."""
    scores, lengths = torch.zeros(2, 5, 2), torch.tensor([3, 2])
    padded = ORACLE.pad(scores, lengths)
    ragged = of_lengths(ORACLE, lengths)
    within = ragged.parts_within(ragged.free_parts(padded), padded)
    assert torch.equal(within[:, :5, :2], ORACLE.free_parts(scores, lengths=lengths))
    assert not within[:, 5:].any()
    assert not within[:, :, 2:].any()


def test_single_precision_is_close_to_double() -> None:
    scores = TiedChain.from_potentials(*potentials(50, 16))
    for operation in (ORACLE.log_partition, ORACLE.marginals):
        torch.testing.assert_close(operation(scores.float()).double(), operation(scores), rtol=1e-5, atol=1e-5)


def test_gradients_reach_every_potential() -> None:
    stream = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 3), (3, 3), (3,), (2, 3))
    inputs = [torch.randn(shape, generator=stream, dtype=torch.float64).requires_grad_() for shape in shapes]

    def log_partition(unary: Tensor, transition: Tensor, start: Tensor, end: Tensor) -> Tensor:
        return ORACLE.log_partition(TiedChain.from_potentials(unary, transition, start=start, end=end))

    assert torch.autograd.gradcheck(log_partition, inputs)
    assert torch.autograd.gradgradcheck(log_partition, inputs)


@pytest.mark.parametrize("lengths", [None, torch.tensor([4, 2])], ids=["whole", "ragged"])
def test_from_potentials_scores_every_sequence(lengths: Tensor | None) -> None:
    stream = torch.Generator().manual_seed(0)
    unary, transition, start, end = (torch.randn(shape, generator=stream, dtype=torch.float64) for shape in ((2, 4, 3), (3, 3), (3,), (3,)))
    scores = TiedChain.from_potentials(unary, transition, start, end, lengths=lengths)
    for item, length in enumerate([4, 4] if lengths is None else lengths.tolist()):
        totals = []
        for tags in itertools.product(range(3), repeat=length):
            told = start[tags[0]] + end[tags[-1]] + sum(unary[item, i, tag] for i, tag in enumerate(tags))
            totals.append(told + sum(transition[pair] for pair in itertools.pairwise(tags)))
        found = ORACLE.log_partition(scores, lengths=lengths)[item]
        torch.testing.assert_close(found, torch.stack(totals).logsumexp(0), rtol=1e-12, atol=1e-12)


def test_tags_and_structure_are_inverse() -> None:
    tags = torch.randint(3, (5, 2, 4), generator=torch.Generator().manual_seed(0))
    structure = TiedChain.structure(tags, 3)
    assert structure.shape == (5, 2, 7, 3)
    assert torch.equal(TiedChain.tags(structure), tags)
    assert torch.equal(structure, tied(LinearChain.structure(tags, 3)))
    assert torch.equal(TiedChain.tags(TiedChain.structure(tags, 3, torch.bool)), tags)
    lengths = torch.tensor([[4, 1], [2, 3], [1, 1], [3, 4], [2, 2]])
    ragged = TiedChain.structure(tags, 3, lengths=lengths)
    for item, length in zip(itertools.product(range(5), range(2)), lengths.flatten().tolist(), strict=True):
        alone = TiedChain.structure(tags[item][:length], 3)
        assert torch.equal(torch.cat([ragged[item][:length], ragged[item][4:]]), alone)
        assert not ragged[item][length:4].any()
    every = ORACLE.enumerate((7, 3))
    assert torch.equal(TiedChain.structure(TiedChain.tags(every), 3), every)
    assert torch.equal(every, tied(EDGES.enumerate((4, 3, 3))))


def test_many_places_use_a_transition_more_often_than_a_byte_counts() -> None:
    structure = ORACLE.argmax(torch.zeros(301, 1))
    assert structure[300].item() == 299
    assert ORACLE.enumerate((301, 1))[0, 300].item() == 299


def test_a_long_chain_of_large_scores_stays_finite() -> None:
    scores = (1000 * torch.randn(404, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).requires_grad_()
    entropy = ORACLE.entropy(scores)
    (gradient,) = torch.autograd.grad(entropy, scores)
    assert entropy.isfinite()
    assert gradient.isfinite().all()
    marginals = ORACLE.marginals(scores.detach())
    torch.testing.assert_close(marginals[:400].sum(-1), torch.ones(400, dtype=torch.float64))
    torch.testing.assert_close(marginals[400:].sum(), torch.tensor(399.0, dtype=torch.float64))


def test_an_item_of_one_place_reads_no_transition() -> None:
    scores = torch.tensor([[0.0, 1.0], [0.5, 0.0], [math.nan, 0.0], [0.0, 0.0]])
    assert ORACLE.argmax(scores[[0, 2, 3]]).tolist() == [[0, 1], [0, 0], [0, 0]]
    clean = scores.nan_to_num(3.0)
    alone, short = ORACLE.marginals(clean[[0, 2, 3]]), ORACLE.marginals(clean, lengths=torch.tensor(1))
    torch.testing.assert_close(short[[0, 2, 3]], alone)
    assert not short[1:].any()
    assert not ORACLE.free_parts(clean, lengths=torch.tensor(1))[1:].any()


def test_which_parts_are_counted() -> None:
    assert ORACLE.binary_mask((5, 2)).tolist() == [[True, True]] * 3 + [[False, False]] * 2
    assert EDGES.binary_mask((3, 2, 2)).all()


@pytest.mark.parametrize("shape", [(3, 3), (2, 3), (2, 2, 4)])
def test_scores_must_have_a_line_for_a_place(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"`argmax` got event shape \(.*\); expected \(n \+ t, t\), build it with TiedChain.from_potentials"
    ):
        ORACLE.argmax(torch.zeros(shape))


def test_messages_of_from_potentials() -> None:
    unary = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"`from_potentials` got unary of shape \(3,\); expected \[\*batch, n, t\]"):
        TiedChain.from_potentials(torch.zeros(3))
    with pytest.raises(ValueError, match=r"`from_potentials` got a transition of shape \(2, 2\); expected \(..., 3, 3\)"):
        TiedChain.from_potentials(unary, torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"`from_potentials` got start of shape \(2,\); expected \(..., 3\)"):
        TiedChain.from_potentials(unary, start=torch.zeros(2))
