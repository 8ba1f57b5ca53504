from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from structgrad.oracles import LinearChain
from tests.helpers import seeded

BATCH, LENGTH, TAGS = 2, 4, 3


def potentials(batched: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch = (BATCH,) if batched else ()
    return (
        torch.randn(BATCH, LENGTH, TAGS, dtype=torch.float64),
        torch.randn(*batch, TAGS, TAGS, dtype=torch.float64),
        torch.randn(*batch, TAGS, dtype=torch.float64),
        torch.randn(*batch, TAGS, dtype=torch.float64),
    )


def loop_score(unary: Tensor, transition: Tensor, start: Tensor, end: Tensor, tags: tuple[int, ...]) -> float:
    total = start[tags[0]] + end[tags[-1]]
    for i, tag in enumerate(tags):
        total = total + unary[i, tag]
    for previous, current in itertools.pairwise(tags):
        total = total + transition[previous, current]
    return total.item()


@pytest.mark.parametrize("batched", [True, False])
def test_from_potentials_scores_every_sequence(batched: bool) -> None:
    unary, transition, start, end = potentials(batched)
    scores = LinearChain.from_potentials(unary, transition, start=start, end=end)
    shared = [value.expand(BATCH, *value.shape[int(batched) :]) for value in (transition, start, end)]
    for tags in itertools.product(range(TAGS), repeat=LENGTH):
        structure = LinearChain.structure(torch.tensor(tags), TAGS, torch.float64)
        found = (structure * scores).sum((-3, -2, -1))
        for b in range(BATCH):
            assert found[b].item() == pytest.approx(loop_score(unary[b], shared[0][b], shared[1][b], shared[2][b], tags), abs=1e-12)


def test_the_end_of_a_shorter_item_is_where_it_ends() -> None:
    unary, transition, start, end = potentials(batched=False)
    lengths = torch.tensor([LENGTH, 2])
    scores = LinearChain.from_potentials(unary, transition, start, end, lengths)
    found = LinearChain().log_partition(scores, lengths=lengths)
    alone = (LinearChain.from_potentials(row[:n], transition, start, end) for row, n in zip(unary, lengths.tolist(), strict=True))
    torch.testing.assert_close(found, torch.stack([LinearChain().log_partition(row) for row in alone]))


def test_potentials_are_optional() -> None:
    unary, *_ = potentials()
    zero = torch.zeros(TAGS, dtype=torch.float64)
    expected = LinearChain.from_potentials(unary, zero.expand(TAGS, TAGS), start=zero, end=zero)
    assert torch.equal(LinearChain.from_potentials(unary), expected)


def test_potentials_of_a_chain_of_one() -> None:
    unary, _, start, end = (value[..., :1, :] if value.ndim == 3 else value for value in potentials())
    scores = LinearChain.from_potentials(unary, start=start, end=end)
    torch.testing.assert_close(scores[:, 0, 0], unary[:, 0] + start + end)


def test_ignored_entries_of_potentials_are_zero() -> None:
    unary, transition, start, end = potentials()
    assert bool((LinearChain.from_potentials(unary, transition, start=start, end=end)[:, 0, 1:] == 0).all())


def test_from_potentials_is_differentiable() -> None:
    inputs = [value.requires_grad_() for value in potentials(batched=False)]

    def log_partition(unary: Tensor, transition: Tensor, start: Tensor, end: Tensor) -> Tensor:
        return LinearChain().log_partition(LinearChain.from_potentials(unary, transition, start=start, end=end))

    assert torch.autograd.gradcheck(log_partition, inputs)
    assert torch.autograd.gradgradcheck(log_partition, inputs)


def test_forbidden_potentials_give_no_nan() -> None:
    unary, transition, start, end = (value.requires_grad_() for value in potentials(batched=False))
    forbidden = torch.eye(TAGS, dtype=torch.bool)
    scores = LinearChain.from_potentials(unary, transition.masked_fill(forbidden, -math.inf), start=start, end=end)
    gradients = torch.autograd.grad(LinearChain().entropy(scores).sum(), (unary, transition, start, end))
    assert all(gradient.isfinite().all() for gradient in gradients)
    tags = LinearChain.tags(LinearChain().argmax(scores))
    assert bool((tags[:, 1:] != tags[:, :-1]).all())


def test_tags_and_structure_are_inverse() -> None:
    tags = torch.randint(TAGS, (5, 2, LENGTH))
    structure = LinearChain.structure(tags, TAGS)
    assert structure.shape == (5, 2, LENGTH, TAGS, TAGS)
    assert structure.dtype == torch.get_default_dtype()
    assert LinearChain.structure(tags, TAGS, torch.bool).dtype == torch.bool
    assert torch.equal(LinearChain.tags(structure), tags)
    every = LinearChain().enumerate((LENGTH, TAGS, TAGS))
    assert torch.equal(LinearChain.structure(LinearChain.tags(every), TAGS), every)


def test_a_long_chain_of_large_scores_stays_finite() -> None:
    scores = (1000 * torch.randn(400, 4, 4, dtype=torch.float64)).requires_grad_()
    entropy = LinearChain().entropy(scores)
    (gradient,) = torch.autograd.grad(entropy, scores)
    assert entropy.isfinite()
    assert gradient.isfinite().all()
    torch.testing.assert_close(LinearChain().marginals(scores.detach()).sum((-2, -1)), torch.ones(400, dtype=torch.float64))


def test_a_tag_that_comes_back_from_below_normal_numbers_keeps_its_digits() -> None:
    """Tag 1 falls to 1e-320 of a weight that no item reaches, where it leads by e^600 in the end."""
    scores = torch.full((4, 3, 3), -math.inf, dtype=torch.float64)
    scores[0, 0, :2] = torch.tensor([0.0, -655.0])
    for i, (first, second) in enumerate(((-690.0, -82.0), (-690.0, 0.0), (0.0, 0.0)), start=1):
        scores[i, 0, 0], scores[i, 1, 1], scores[i, 2, 2] = first, second, 0.0
    expected = torch.tensor(-655.0 - 82.0, dtype=torch.float64)
    torch.testing.assert_close(LinearChain().log_partition(scores), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(LinearChain().marginals(scores)[3].diagonal()[:2], torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_the_event_shape_by_name() -> None:
    assert LinearChain.event_shape(length=5, tags=3) == (5, 3, 3)


@pytest.mark.parametrize("shape", [(4, 3, 2), (2, 5, 2, 3)])
def test_scores_must_be_square_in_the_tags(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"`argmax` got event shape \(.*\); expected \(n, t, t\), build it with LinearChain.from_potentials"
    ):
        LinearChain().argmax(torch.zeros(shape))


def test_messages_of_from_potentials() -> None:
    unary = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"`from_potentials` got unary of shape \(3,\); expected \[\*batch, n, t\]"):
        LinearChain.from_potentials(torch.zeros(3))
    with pytest.raises(ValueError, match=r"`from_potentials` got a transition of shape \(3, 2\); expected \(..., 3, 3\)"):
        LinearChain.from_potentials(unary, torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"`from_potentials` got start of shape \(2,\); expected \(..., 3\)"):
        LinearChain.from_potentials(unary, start=torch.zeros(2))
    with pytest.raises(ValueError, match=r"`from_potentials` got end of shape \(\); expected \(..., 3\)"):
        LinearChain.from_potentials(unary, end=torch.tensor(1.0))


@pytest.mark.parametrize("tags", [2, 5, 8, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_item_leaves_nothing_behind_for_the_next(tags: int, dtype: torch.dtype) -> None:
    """Not even where tags do not fill a vector and scores are far from 0."""
    scores = torch.randn(4, 6, tags, tags, generator=seeded(), dtype=torch.float64).to(dtype) - 1000
    scores.requires_grad_()
    direction = torch.randn(scores.shape, generator=seeded(1), dtype=torch.float64).to(dtype)
    together = torch.autograd.grad(LinearChain().marginals(scores), scores, direction)[0]
    for row in range(4):
        assert torch.equal(LinearChain().marginals(scores)[row], LinearChain().marginals(scores[row]))
        copies = scores.detach()[row].repeat(4, 1, 1, 1).requires_grad_()  # items of as many are computed side by side
        (alone,) = torch.autograd.grad(LinearChain().marginals(copies), copies, direction[row].repeat(4, 1, 1, 1))
        assert torch.equal(together[row], alone[0])
