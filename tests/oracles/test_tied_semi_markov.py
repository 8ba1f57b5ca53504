"""Segmentations by their factors: scores and gradients of every factor, against the definition and against segments by pairs of labels."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from structgrad.oracles import SemiMarkov, TiedSemiMarkov

ORACLE = TiedSemiMarkov()
SIZES = ((1, 1, 1), (3, 2, 3), (4, 3, 2), (2, 5, 2))
each_size = pytest.mark.parametrize("size", SIZES, ids=str)


def drawn(size: tuple[int, int, int], scale: float = 1.0, batch: int = 3) -> dict[str, Tensor]:
    """Factors of a model; transitions, lengths and the last label's scores are shared."""
    length, width, tags = size
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "unary": normal(batch, length, tags),
        "length": normal(width, tags),
        "transition": normal(tags, tags),
        "start": normal(batch, tags),
        "end": normal(tags),
    }


def score_of(segments: list[tuple[int, int, int]], item: int, factors: dict[str, Tensor]) -> Tensor:
    """By the definition."""
    total = factors["start"][item, segments[0][2]] + factors["end"][segments[-1][2]]
    for first, last, label in segments:
        total = total + factors["unary"][item, first : last + 1, label].sum() + factors["length"][last - first, label]
    for (_, _, before), (_, _, label) in itertools.pairwise(segments):
        total = total + factors["transition"][before, label]
    return total


def test_gradients_reach_every_factor_also_with_lengths_and_forbidden_labels() -> None:
    factors, lengths = drawn((4, 2, 3)), torch.tensor([4, 1, 3])
    factors["unary"][0, 1, 2] = factors["transition"][0, 0] = -math.inf
    leaves = {name: factor.requires_grad_() for name, factor in factors.items()}
    scores = TiedSemiMarkov.from_potentials(**leaves, lengths=lengths)
    found = torch.autograd.grad(ORACLE.log_partition(scores, lengths=lengths).sum(), tuple(leaves.values()))
    totals = []
    for item, length in enumerate(lengths.tolist()):
        structures = ORACLE.enumerate(ORACLE.event_shape(length=length, width=2, tags=3))
        totals.append(torch.stack([score_of(ORACLE.segments(z), item, leaves) for z in structures]).logsumexp(0))
    expected = torch.autograd.grad(torch.stack(totals).sum(), tuple(leaves.values()))
    for name, one, other in zip(leaves, found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


@each_size
def test_it_is_the_chain_of_segments_by_pairs_of_labels(size: tuple[int, int, int]) -> None:
    """Order, best structures and their order among ties, and laws, of `SemiMarkov` with sums."""
    factors, (length, width, tags) = {name: factor.round() for name, factor in drawn(size).items()}, size
    scores = TiedSemiMarkov.from_potentials(**factors)
    token, longer = torch.arange(length).reshape(-1, 1, 1, 1), torch.arange(width).reshape(-1, 1, 1)
    pairs = scores[:, :length].unsqueeze(-2) + torch.where(token == longer, 0, factors["transition"])
    edges = SemiMarkov()
    ours, theirs = (oracle.kbest(found, 3 if length > 1 else 1) for oracle, found in ((ORACLE, scores), (edges, pairs)))
    for one, other in zip(ours.flatten(0, 1), theirs.flatten(0, 1), strict=True):
        assert ORACLE.segments(one) == SemiMarkov.segments(other)
    event = tuple(scores.shape[1:])
    everything = [SemiMarkov.segments(z) for z in edges.enumerate((length, width, tags, tags))]
    assert [ORACLE.segments(z) for z in ORACLE.enumerate(event)] == everything
    assert all(torch.equal(ORACLE.structure(ORACLE.segments(z), event), z) for z in ORACLE.enumerate(event))
    torch.testing.assert_close(ORACLE.entropy(scores), edges.entropy(pairs), rtol=1e-12, atol=1e-12)
