"""Scores that were made to mislead an algorithm, and closed forms and published numbers of single structures."""

import itertools
import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import (
    Alignment,
    Categorical,
    Constituency,
    LinearChain,
    ProjectiveTree,
    ShiftReduce,
    SpanningTree,
    Subset,
    TiedChain,
    kernels,
)
from structgrad.oracles.categorical import softmax

INF = math.inf


def filled(*shape: int, fill: float = -INF, **entries: float) -> Tensor:
    """Float64 scores [1, *shape] with these entries, named by their digits, such as ``_01``."""
    scores = torch.full((1, *shape), fill, dtype=torch.float64)
    for name, value in entries.items():
        scores[(0, *map(int, name[1:]))] = value
    return scores


def tied(unary: list[list[float]], transition: list[list[float]]) -> Tensor:
    return TiedChain.from_potentials(torch.tensor([unary], dtype=torch.float64), torch.tensor(transition, dtype=torch.float64))


def branching(far: float) -> Tensor:
    """Only the tree whose spans all begin at the first token: the product of the first two does not fit, or with few digits."""
    spans = {f"_0{j}": 0.0 for j in range(9)} | {f"_{i}{i}": 0.0 for i in range(9)}
    return filled(9, 9, **spans | {"_01": far, "_02": far, "_03": -far, "_04": -far + 1 / 3})


LOST: dict[str, tuple[Any, Tensor]] = {
    **{f"products of spans, {far}": (Constituency(), branching(far)) for far in (-500.0, -365.0, -330.0, 330.0, 500.0)},
    "heads that no tree can have": (ProjectiveTree(), filled(5, 5, fill=0.0, _13=700.0, _24=700.0, _31=700.0, _42=700.0)),
    # Two trees of almost the same score; the second has an arc whose weight relative to the first does not fit.
    "an arc beyond all exponents": (
        ProjectiveTree(),
        filled(4, 4, fill=-100.0, _01=0.0, _12=0.0, _13=0.0, _02=900.0, _21=-450.0, _23=-450.1),
    ),
    # No tag may follow another one: 1, 1, 1 of score -1800 is left, next to tags of weight 1 that lead nowhere.
    "a prefix that leads nowhere": (TiedChain(), tied([[0, -600], [0, 0], [-INF, 0]], [[0, -INF], [-INF, -600]])),
    "a suffix that leads nowhere": (TiedChain(), tied([[-INF, 0], [0, 0], [0, -600]], [[0, -INF], [-INF, -600]])),
    # One tag has large transitions, the other one large scores: products of both lie below the range of normal numbers.
    **{
        f"two ways that underflow, {at}": (
            TiedChain(),
            tied([[-54.0, 0.0] if i == at else [0.0, -699.0] for i in range(7)], [[-690, -INF], [-INF, 0]]),
        )
        for at in (0, 6)
    },
    # Tag 1 falls to 1e-320 of a weight that no item reaches, and leads by e^600 in the end.
    "a tag that comes back": (
        LinearChain(),
        filled(
            4, 3, 3, _000=0.0, _001=-655.0, _100=-690.0, _111=-82.0, _122=0.0, _200=-690.0, _211=0.0, _222=0.0, _300=0.0, _311=0.0, _322=0.0
        ),
    ),
    # Words 2 to 4 head each other with ease, and the way from the root to them, over 4, is a product of two small weights.
    **{
        f"a way to a cycle, single_root={one}": (
            SpanningTree(one),
            filled(5, 5, _01=0.0, _34=0.0, _23=0.0, _32=0.0, _14=-500.0, _43=-500.0, _42=-500.0),
        )
        for one in (True, False)
    },
}
"""Each weight fits, and a product on the way does not, or with few digits."""


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("name", LOST)
def test_no_product_on_the_way_gets_lost(name: str, rows: int) -> None:
    """Sums over all structures agree, for single rows and for rows in vectors."""
    oracle, scores = LOST[name]
    every = oracle.enumerate(tuple(scores.shape[1:]), dtype=torch.float64)
    totals = oracle.score(every, scores[0])
    expected = torch.einsum("n,n...->...", totals.softmax(0), every)
    given = scores.repeat(rows, *[1] * len(every[0].shape)).requires_grad_()
    torch.testing.assert_close(oracle.log_partition(given), totals.logsumexp(0).expand(rows), rtol=1e-12, atol=1e-11)
    found = oracle.marginals(given)
    torch.testing.assert_close(found[-1], expected, rtol=1e-9, atol=1e-9)
    slopes = (totals.softmax(0) * (every * expected).flatten(1).sum(1)) @ (every - expected).flatten(1)
    torch.testing.assert_close(torch.autograd.grad(found, given, found.detach())[0][-1].flatten(), slopes, rtol=1e-8, atol=1e-8)
    drawn = oracle.sample(scores, 500, generator=torch.Generator().manual_seed(0)).mean((0, 1))
    torch.testing.assert_close(drawn.double(), expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("compiled", [True, False])
def test_ties_that_follow_no_list(compiled: bool) -> None:
    """Laws compare the other structures with the order in which they are listed."""
    with nullcontext() if compiled else kernels.disabled():
        for shape, fill, path in (((2, 4), 0.0, [0, 1, 2, 7]), ((3, 3), 0.0, [0, 4, 8]), ((3, 3), 1.0, [0, 1, 2, 5, 8])):
            assert Alignment().argmax(torch.full(shape, fill)).flatten().nonzero().flatten().tolist() == path
        for one, heads in ((True, [0, 1, 1]), (False, [0, 0, 0])):
            assert SpanningTree.heads(SpanningTree(one).argmax(torch.zeros(4, 4))).tolist() == heads


def test_softmax_of_extreme_rows() -> None:
    rows = torch.tensor([[-INF, -INF], [-INF, -3e38], [3e38, -3e38], [-200.0, -200.0]])
    assert softmax(rows).tolist() == [[0, 0], [0, 1], [1, 0], [0.5, 0.5]]
    torch.testing.assert_close(Categorical().log_partition(rows), torch.tensor([-INF, -3e38, 3e38, math.log(2) - 200]))
    # As two items of two categories each: the first has one without a part.
    assert softmax(rows.reshape(2, 2, 2), 2).tolist() == [[[0, 0], [0, 0]], [[1, 0], [0.5, 0.5]]]


def test_one_tiny_score_beside_huge_ones_decides() -> None:
    """A penalty for root words of the size of the scores would swallow it, in float32 at once."""
    for dtype, where in itertools.product((torch.float32, torch.float64), (nullcontext, kernels.disabled)):
        scores = filled(3, 3, fill=-1e6, _01=1e6, _02=1e6, _21=0.0, _12=1e-3).to(dtype)
        with where():
            assert SpanningTree.heads(SpanningTree().argmax(scores)).tolist() == [[0, 1]]


# Subsets.


@pytest.mark.parametrize("compiled", [True, False])
def test_subsets_of_many_parts(compiled: bool) -> None:
    """Among 10**329 of them; samples have their marginals, also for extreme uniforms."""
    scores, generator = torch.zeros(2, 1100, dtype=torch.float64), torch.Generator().manual_seed(0)
    scores[1, :549] = 1000.0
    rows = torch.randn(4, 257, dtype=torch.float64, generator=generator)
    rows[1], rows[2, 7], rows[3, 4:] = 1e5 * rows[1].round(), -INF, -INF
    uniforms = torch.rand(4, 6, 257, dtype=torch.float64, generator=generator)
    uniforms[:, 1], uniforms[:, 2] = 0.0, 1 - 2**-53
    with nullcontext() if compiled else kernels.disabled():
        found = Subset(550).log_partition(scores)
        # The first 549 are certain, and one of the other 551.
        assert found.tolist() == pytest.approx([math.lgamma(1101) - 2 * math.lgamma(551), 549e3 + math.log(551)], rel=1e-12)
        torch.testing.assert_close(Subset(550).marginals(scores[0]), torch.full_like(scores[0], 0.5), rtol=0, atol=1e-11)
        drawn = Subset(5).sample(rows[0], 4000, generator=generator)
        chosen = Subset(5)._chosen("sample", rows, Subset(5)._reference_draw, uniforms, output=((6,), None))
    p = Subset(5).marginals(rows[0])
    assert ((drawn.mean(0) - p) / (p * (1 - p) / 4000).sqrt()).square().mean() == pytest.approx(1, abs=0.5)
    assert torch.equal(chosen.sum(-1), torch.tensor([5.0, 5, 5, 0], dtype=chosen.dtype).unsqueeze(1).expand(4, 6))
    assert not chosen[2, :, 7].any()


def test_the_k_best_of_many_parts() -> None:
    scores = torch.randn(2, 400, dtype=torch.float64)
    # Two parts are in all of them, and every other one in turn: the worst case for leaving parts out beforehand.
    scores[1] = -torch.arange(400.0)
    scores[1, [7, 300]] = 1000.0
    best = Subset(3).kbest(scores, 50)
    for row in range(2):
        top = scores[row].sort(descending=True).values[:60]
        expected = sorted((sum(chosen) for chosen in itertools.combinations(top.tolist(), 3)), reverse=True)[:50]
        np.testing.assert_allclose((best[:, row] @ scores[row]).numpy(), expected, rtol=1e-12)
        assert len(best[:, row].unique(dim=0)) == 50
    assert bool((best.sum(-1) == 3).all())


# The probabilities of single actions.


@pytest.mark.parametrize("normalization", ["global", "local"])
def test_steps_multiply_to_the_probability(normalization: Any) -> None:
    oracle, generator = ShiftReduce(normalization), torch.Generator().manual_seed(1)
    read = oracle.read_mask((6, 6, 2))
    scores = 2 * torch.randn(12, 6, 6, 2, generator=generator, dtype=torch.float64)
    scores[3:] = scores[3:].masked_fill(torch.rand(scores[3:].shape, generator=generator) < 0.2, -INF)
    scores = torch.where(read, scores, math.nan)
    every, steps, feasible = (
        oracle.enumerate((6, 6, 2), dtype=torch.float64).unsqueeze(1),
        oracle.step_log_probs(scores),
        oracle.feasible(scores),
    )
    assert 3 < feasible.sum() < 12
    assert bool((steps[:, ~read] == -INF).all())
    total = torch.where(every != 0, steps, 0).flatten(2).sum(-1)
    torch.testing.assert_close(total[:, feasible], oracle.log_prob(every, scores)[:, feasible], rtol=1e-12, atol=1e-12)
    assert bool((steps[~feasible][:, 0, 0] == -INF).all())
    sums = steps.exp().sum(-1)
    assert bool(((sums - 1).abs() < 1e-14).logical_or(sums == 0).all())
    leaf = scores[0].nan_to_num(0).requires_grad_()
    finite = steps[0] > -INF
    assert torch.autograd.gradcheck(lambda row: oracle.step_log_probs(row)[finite], leaf, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda row: oracle.step_log_probs(row)[finite], leaf, fast_mode=True)


def test_a_policy_avoids_dead_ends() -> None:
    """With no REDUCE from three trees, shifting twice must be followed by a reduction."""
    scores, structure = torch.randn(4, 4, 2, dtype=torch.float64), ShiftReduce.structure(torch.tensor([0, 0, 1, 0, 1]), torch.float64)
    scores[3, 3, 1] = -INF
    for oracle in (ShiftReduce(), ShiftReduce("local")):
        assert oracle.step_log_probs(scores)[2, 2].tolist() == [-INF, 0.0]
    assert oracle.log_prob(structure, scores).item() == pytest.approx(0, abs=1e-15)
    assert oracle.step_log_probs(scores)[3, 3].tolist() == [-INF, -INF]
    torch.testing.assert_close(oracle.marginals(scores), structure, rtol=0, atol=1e-15)
