"""Losses of scores against a known structure: values and gradients by enumeration, and what makes them Fenchel–Young losses."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from structgrad.estimators import (
    SUPERVISED_LOSSES,
    Gumbel,
    PerturbedFenchelYoung,
    crf_loss,
    fenchel_young,
    hamming,
    margin_perceptron,
    margin_sparsemap_loss,
    sparsemap_loss,
    structured_perceptron,
)
from structgrad.oracles import Alignment, Categorical, Constituency, LinearChain, ShiftReduce, Subset
from tests.catalogue.setting import enumerate_scores, nearest
from tests.estimator_cases import CASES, FixedNoise, numbers
from tests.helpers import (
    GENERIC_CASES,
    OracleCase,
    enumerate_truth,
    make_scores,
    natural_parameters,
    pulled_back,
    read_parts,
    seeded,
    structures,
)
from tests.laws.test_estimator_incompatibility import Three

NATURAL = tuple(case for case in CASES if case.potentials is None)
DETERMINISTIC = ("structured_perceptron", "margin_perceptron", "crf_loss", "sparsemap_loss", "margin_sparsemap_loss")
cases = pytest.mark.parametrize("case", CASES, ids=str)
natural = pytest.mark.parametrize("case", NATURAL, ids=str)
losses = pytest.mark.parametrize("name", DETERMINISTIC)
all_losses = pytest.mark.parametrize("name", SUPERVISED_LOSSES)


def value(name: str, case: OracleCase, scores: Tensor, target: Tensor, **named: Any) -> Tensor:
    """A loss by name; noise comes from the same seed."""
    if name == "perturbed_fenchel_young_loss":
        named["generator"] = seeded()
    result: Tensor = SUPERVISED_LOSSES[name](case.oracle, scores, target, **named)
    return result


def gradient(name: str, case: OracleCase, scores: Tensor, target: Tensor, **named: Any) -> Tensor:
    leaf = scores.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(value(name, case, leaf, target, **named).sum(), leaf)
    return found


def targets(case: OracleCase, rows: int, seed: int = 0) -> Tensor:
    space = structures(case)
    return space[torch.randint(len(space), (rows,), generator=seeded(seed))]


def predicted(name: str, case: OracleCase, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The value and the prediction ŷ by enumeration, for one row of scores: ``Ω*(θ) + Ω(y) − ⟨θ, y⟩``."""
    if name.startswith("margin"):
        return predicted({"margin_perceptron": "structured_perceptron"}.get(name, "sparsemap_loss"), case, scores + 1 - 2 * target, target)
    if name == "sparsemap_loss":
        mean, free = nearest(case, torch.where(read_parts(case), scores, 0)), torch.where(read_parts(case), scores, 0)
        finite = torch.where(free > -math.inf, free, 0)
        return (finite * (mean - target)).sum() - mean.square().sum() / 2 + target.square().sum() / 2, mean
    truth = enumerate_truth(case, scores)
    own = torch.where(target > 0, natural_parameters(case, scores), 0).sum()
    if name == "crf_loss":
        return truth.log_partition[0] - own, truth.marginals[0]
    best = int(truth.structure_scores[0].argmax())
    return truth.structure_scores[0, best] - own, structures(case)[best]


@losses
@cases
@pytest.mark.parametrize("regime", [0.3, 1.0, 5.0, 50.0], ids=str)
def test_the_value_and_the_gradient_by_enumeration(name: str, case: OracleCase, regime: float) -> None:
    """The gradient is ŷ − y; for the log-probabilities of a policy, that goes on to its scores."""
    scores, target = make_scores(case, regime, rows=4, seed=3), targets(case, 4)
    expected = [predicted(name, case, theta, y) for theta, y in zip(scores, target, strict=True)]
    torch.testing.assert_close(value(name, case, scores, target), torch.stack([v for v, _ in expected]), rtol=1e-9, atol=1e-9)
    residual = torch.stack([y_hat for _, y_hat in expected]) - target
    if "sparsemap" not in name:
        residual = pulled_back(case, scores + (1 - 2 * target if name.startswith("margin") else 0), residual)
    torch.testing.assert_close(gradient(name, case, scores, target), residual, rtol=1e-8, atol=1e-8)


@losses
@cases
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_the_gradient_by_finite_differences(name: str, case: OracleCase, scale: float) -> None:
    scores, target, step = scale * numbers(*case.event, seed=5), targets(case, 1, seed=1)[0], 1e-6
    steps = step * torch.eye(scores.numel(), dtype=torch.float64).reshape(-1, *case.event)
    difference = (value(name, case, scores + steps, target) - value(name, case, scores - steps, target)) / (2 * step)
    torch.testing.assert_close(gradient(name, case, scores, target), difference.reshape(case.event), rtol=1e-5, atol=1e-6)


@all_losses
@cases
def test_a_loss_is_never_negative(name: str, case: OracleCase) -> None:
    for scale in (0.05, 1.0, 50.0):
        assert bool((value(name, case, scale * numbers(60, *case.event), targets(case, 60)) >= -1e-10).all())


@natural
@losses
def test_the_inequality_of_fenchel_and_young(name: str, case: OracleCase) -> None:
    """``Ω*(θ) ≥ ⟨θ, y⟩ − Ω(y)`` for all structures at once, so that no target has a smaller loss than a solved one."""
    space, scores = structures(case), numbers(10, *case.event)
    table = value(name, case, scores.unsqueeze(1).expand(10, len(space), *case.event), space.expand(10, *space.shape))
    assert bool((table >= -1e-10).all())
    if not name.startswith("margin"):
        ranked = torch.stack([enumerate_scores(case, row) for row in scores])
        regulariser = space.flatten(1).sum(-1) / 2 if name == "sparsemap_loss" else 0
        constant = table + ranked - regulariser
        torch.testing.assert_close(constant, constant[:, :1].expand_as(constant), rtol=1e-9, atol=1e-9)


@cases
@losses
def test_a_loss_is_0_where_it_is_solved(name: str, case: OracleCase) -> None:
    """Where the target leads by far; the likelihood only tends to it."""
    target = targets(case, 8)
    scores = 40 * (2 * target - 1) + 0.1 * numbers(8, *case.event)
    found = value(name, case, scores, target)
    torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-9)
    assert float(gradient(name, case, scores, target).abs().max()) < 1e-9


@natural
def test_a_loss_is_not_0_before_it_is_solved(case: OracleCase) -> None:
    """Where the target is best by 0.2 only, the perceptron is content, and the others are not."""
    target = targets(case, 4)
    scores = 0.1 * (2 * target - 1)
    assert not value("structured_perceptron", case, scores, target).any()
    for name in ("margin_perceptron", "crf_loss", "sparsemap_loss", "margin_sparsemap_loss"):
        assert bool((value(name, case, scores, target) > 0.01).all())


@natural
@all_losses
def test_losses_are_convex(name: str, case: OracleCase) -> None:
    """Along random segments; the slope rises too."""
    start, end, target = 2 * numbers(100, *case.event), 2 * numbers(100, *case.event, seed=1), targets(case, 100)
    for share in (0.2, 0.5, 0.9):
        chord = share * value(name, case, start, target) + (1 - share) * value(name, case, end, target)
        assert bool((value(name, case, share * start + (1 - share) * end, target) <= chord + 1e-9).all())
    rise = (gradient(name, case, end, target) - gradient(name, case, start, target)) * (end - start)
    assert bool((rise.flatten(1).sum(-1) >= -1e-9).all())


@all_losses
@cases
def test_a_batch_is_a_loop(name: str, case: OracleCase) -> None:
    scores, target = numbers(2, 3, *case.event), targets(case, 6).reshape(2, 3, *case.event)
    together = gradient(name, case, scores, target)
    values = value(name, case, scores, target)
    assert values.shape == (2, 3)
    if name == "perturbed_fenchel_young_loss":
        return
    for index in np.ndindex(2, 3):
        torch.testing.assert_close(value(name, case, scores[index], target[index]), values[index], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(gradient(name, case, scores[index], target[index]), together[index], rtol=1e-10, atol=1e-10)


@all_losses
@cases
def test_a_target_may_be_shared(name: str, case: OracleCase) -> None:
    scores, target = numbers(3, *case.event), targets(case, 1)[0]
    torch.testing.assert_close(value(name, case, scores, target), value(name, case, scores, target.expand_as(scores)))


@all_losses
@cases
def test_forbidden_parts_have_no_gradient(name: str, case: OracleCase) -> None:
    """A row without a feasible structure has loss 0, a row with a forbidden target ``inf``; neither has a gradient."""
    scores = make_scores(case, "masked", rows=40)
    target = targets(case, 40)
    feasible = case.oracle.feasible(scores)
    target = torch.where(feasible.reshape(-1, *[1] * len(case.event)), case.oracle.argmax(scores), target)
    target[1::2] = targets(case, 20, seed=2)
    blocked = ((scores == -math.inf) & (target > 0)).flatten(1).any(-1)
    assert bool(blocked[feasible].any())
    found, slope = value(name, case, scores, target), gradient(name, case, scores, target)
    assert bool((found[~feasible] == 0).all())
    assert bool((found[feasible & blocked] == math.inf).all())
    assert bool(found[feasible & ~blocked].isfinite().all())
    assert bool(slope.isfinite().all())
    assert not slope[~feasible | blocked].any()
    assert not slope[scores == -math.inf].any()
    assert not slope[:, ~read_parts(case)].any()


@losses
@natural
def test_forbidden_parts_by_enumeration(name: str, case: OracleCase) -> None:
    scores = make_scores(case, "masked", rows=8)
    scores = scores[case.oracle.feasible(scores)]
    target = case.oracle.argmax(scores + numbers(*scores.shape))
    expected = [predicted(name, case, theta, y) for theta, y in zip(scores, target, strict=True)]
    torch.testing.assert_close(value(name, case, scores, target), torch.stack([v for v, _ in expected]), rtol=1e-9, atol=1e-9)
    residual = torch.stack([y_hat for _, y_hat in expected]) - target
    torch.testing.assert_close(gradient(name, case, scores, target), residual, rtol=1e-8, atol=1e-8)


@all_losses
@cases
def test_ignored_entries_are_never_read(name: str, case: OracleCase) -> None:
    scores, target, parts = numbers(3, *case.event), targets(case, 3), read_parts(case)
    garbled = torch.where(parts, scores, math.nan)
    torch.testing.assert_close(value(name, case, garbled, target), value(name, case, scores, target), rtol=1e-12, atol=1e-12)
    assert bool(gradient(name, case, garbled, target).isfinite().all())


@pytest.mark.parametrize(
    ("oracle", "event", "sizes"),
    [
        (LinearChain(), (4, 2, 2), [1, 3, 4]),
        (Constituency(), (4, 4), [1, 2, 4]),
        (Alignment(), (3, 3), [[1, 2], [3, 2], [3, 3]]),
        (ShiftReduce("local"), (5, 5, 2), [1, 2, 4]),
    ],
    ids=str,
)
@all_losses
def test_padded_items_have_the_losses_of_single_ones(name: str, oracle: Any, event: tuple[int, ...], sizes: list[Any]) -> None:
    if name == "perturbed_fenchel_young_loss":
        return
    scores, lengths = numbers(3, *event), torch.tensor(sizes)
    case = OracleCase(oracle, event, lambda *_: iter(()))
    target = oracle.argmax(numbers(3, *event, seed=1), lengths=lengths)
    found, slope = value(name, case, scores, target, lengths=lengths), gradient(name, case, scores, target, lengths=lengths)
    for row in range(3):
        inside = oracle._inside(event, lengths[row]).expand(event)
        span = tuple(slice(int(axis.max()) + 1) for axis in inside.nonzero().unbind(1))
        single = value(name, case, scores[row][span], target[row][span])
        torch.testing.assert_close(found[row], single, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(slope[row][span], gradient(name, case, scores[row][span], target[row][span]), rtol=1e-9, atol=1e-9)
        assert not slope[row][~inside].any()
    garbage = torch.stack([oracle._inside(event, size).expand(event) for size in lengths])
    torch.testing.assert_close(
        value(name, case, torch.where(garbage, scores, math.nan), torch.where(garbage, target, 7.0), lengths=lengths), found
    )


@pytest.mark.parametrize(("oracle", "event"), [(LinearChain(), (4, 2, 2)), (Alignment(), (2, 2))], ids=str)
def test_perturbed_losses_of_padded_items(oracle: Any, event: tuple[int, ...]) -> None:
    """Lengths of each item, and lengths that all share, with as many items as an item has lengths."""
    scores, loss = numbers(2, *event), PerturbedFenchelYoung(num_samples=5)
    shared = torch.tensor(2) if isinstance(oracle, LinearChain) else torch.tensor([2, 1])
    each = shared.expand(2, *shared.shape)
    target = oracle.argmax(scores, lengths=each)
    found = [loss(oracle, scores, target, generator=seeded(), lengths=lengths) for lengths in (shared, each)]
    assert torch.equal(*found)
    leaf = scores.clone().requires_grad_()
    loss(oracle, leaf, target, generator=seeded(), lengths=each).sum().backward()
    inside = oracle._inside(event, each).expand_as(scores)
    assert leaf.grad is not None
    assert not leaf.grad[~inside].any()
    single = loss(oracle, scores[0], target[0], generator=seeded(), lengths=shared)
    assert single.shape == ()


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_one_hot_targets_give_the_losses_everyone_knows(scale: float) -> None:
    """Cross-entropy; multiclass hinge with a margin of 2 between one-hots; the sparsemax loss of Martins & Astudillo 2016."""
    scores, labels = scale * numbers(40, 5), torch.arange(40) % 5
    target = torch.nn.functional.one_hot(labels, 5).double()
    cross_entropy = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    torch.testing.assert_close(crf_loss(Categorical(), scores, target), cross_entropy, rtol=1e-12, atol=1e-12)
    own = scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    hinge = (scores + 2 * (1 - target)).amax(-1) - own
    torch.testing.assert_close(margin_perceptron(Categorical(), scores, target), hinge, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(structured_perceptron(Categorical(), scores, target), scores.amax(-1) - own, rtol=1e-12, atol=1e-12)
    p = Categorical().project(scores).mean
    threshold = torch.where(p > 0, scores - p, -math.inf).amax(-1, keepdim=True)
    squares = torch.where(p > 0, scores.square() - threshold.square(), 0).sum(-1)
    torch.testing.assert_close(sparsemap_loss(Categorical(), scores, target), 0.5 * squares + 0.5 - own, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cost", [0.0, 0.3, 2.0])
@natural
def test_margins_are_the_hamming_distance(case: OracleCase, cost: float) -> None:
    """``max_z ⟨θ, z⟩ + c‖z − y‖² − ⟨θ, y⟩``, over all structures."""
    scores, target, space = numbers(6, *case.event), targets(case, 6), structures(case)
    distances = (space.unsqueeze(0) - target.unsqueeze(1)).square().flatten(2).sum(-1)
    totals = torch.stack([enumerate_scores(case, row) for row in scores])
    expected = (totals + cost * distances).amax(-1) - (scores * target).flatten(1).sum(-1)
    torch.testing.assert_close(margin_perceptron(case.oracle, scores, target, cost=cost), expected, rtol=1e-11, atol=1e-11)
    if cost == 0:
        torch.testing.assert_close(
            margin_sparsemap_loss(case.oracle, scores, target, cost=0.0), sparsemap_loss(case.oracle, scores, target)
        )
    product = (hamming(target, cost).unsqueeze(1) * space).flatten(2).sum(-1)
    torch.testing.assert_close(product, cost * (distances - target.square().flatten(1).sum(-1, keepdim=True)))


@natural
def test_the_losses_in_their_limits(case: OracleCase) -> None:
    """At low temperature, likelihood and SparseMAP losses are the perceptron: ``τ L(θ/τ) → max − ⟨θ, y⟩``."""
    scores, target, temperature = numbers(6, *case.event), targets(case, 6), 1e-6
    perceptron = structured_perceptron(case.oracle, scores, target)
    for loss in (crf_loss, sparsemap_loss):
        torch.testing.assert_close(temperature * loss(case.oracle, scores / temperature, target), perceptron, rtol=0, atol=2e-5)


@cases
def test_a_perturbed_loss_is_the_mean_of_perceptrons(case: OracleCase) -> None:
    noise, scores, target = numbers(*case.event, seed=9), numbers(4, *case.event), targets(case, 4)
    loss = PerturbedFenchelYoung(num_samples=3, noise=FixedNoise(noise))
    found = loss(case.oracle, scores, target, generator=seeded())
    torch.testing.assert_close(found, structured_perceptron(case.oracle, scores + noise, target), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_a_perturbed_loss_with_gumbel_noise_is_the_likelihood(scale: float) -> None:
    """On one-hot structures: value ``σ·CE(θ/σ)`` in the mean, gradient ``softmax(θ/σ) − y``."""
    scores, target = vector(0.3, -0.2, 0.5), vector(0.0, 1.0, 0.0)
    leaf = scores.expand(40_000, 3).clone().requires_grad_()
    values = PerturbedFenchelYoung(num_samples=5, noise=Gumbel(scale))(Categorical(), leaf, target, generator=seeded())
    values.sum().backward()
    assert leaf.grad is not None
    assert_mean(leaf.grad, (scores / scale).softmax(-1) - target)
    assert_mean(values, -scale * (scores / scale).log_softmax(-1)[1])


@pytest.mark.parametrize("gap", [-2.0, 0.0, 0.7])
def test_a_perturbed_loss_on_two_classes_by_quadrature(gap: float) -> None:
    """The difference of two Gumbel variables is logistic: the shipped code, averaged over a grid of it, is ``log(1 + e^(−gap))``."""
    x = np.linspace(-40, 40, 20_001)
    density = (x[1] - x[0]) * 0.25 / np.cosh(x / 2) ** 2
    noise = torch.from_numpy(np.stack([x, np.zeros_like(x)], -1))
    scores = vector(gap, 0.0).expand(20_001, 2).clone().requires_grad_()
    values = structured_perceptron(Categorical(), scores + noise, vector(1.0, 0.0))
    mean = float((values.detach() * torch.from_numpy(density)).sum())
    assert mean == pytest.approx(math.log1p(math.exp(-gap)), abs=1e-6)
    (slope,) = torch.autograd.grad(values, scores, torch.from_numpy(density))
    assert float(slope[:, 0].sum()) == pytest.approx(1 / (1 + math.exp(-gap)) - 1, abs=2e-3)
    exact = quad(lambda t: max(-(gap + t), 0.0) * 0.25 / math.cosh(t / 2) ** 2, -40, 40, points=[-gap], limit=200)[0]
    assert exact == pytest.approx(math.log1p(math.exp(-gap)), abs=1e-8)


def test_a_perturbed_gradient_is_the_mean_argmax_minus_the_target() -> None:
    scores, target = numbers(5), Subset(2).argmax(numbers(5, seed=3))
    leaf = scores.expand(20_000, 5).clone().requires_grad_()
    PerturbedFenchelYoung(num_samples=1)(Subset(2), leaf, target, generator=seeded(1)).sum().backward()
    other = Subset(2).argmax(Gumbel().perturb(Subset(2), scores.expand(20_000, 5), generator=seeded(2)))
    assert leaf.grad is not None
    difference = leaf.grad + target - other
    assert_mean(difference, 0.0)


def test_noise_is_drawn_from_the_generator_row_by_row() -> None:
    case, loss = CASES[0], PerturbedFenchelYoung(num_samples=2)
    scores, target = numbers(8, *case.event), targets(case, 8)
    first = loss(case.oracle, scores, target, generator=seeded(1))
    assert torch.equal(first, loss(case.oracle, scores, target, generator=seeded(1)))
    assert not torch.equal(first, loss(case.oracle, scores, target, generator=seeded(2)))


@all_losses
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_losses_keep_the_dtype_of_the_scores(name: str, dtype: torch.dtype) -> None:
    case = CASES[3]
    scores, target = numbers(4, *case.event), targets(case, 4)
    found = value(name, case, scores.to(dtype), target.to(dtype))
    assert found.dtype == dtype
    assert gradient(name, case, scores.to(dtype), target.to(dtype)).dtype == dtype
    torch.testing.assert_close(
        found.double(),
        value(name, case, scores, target),
        rtol=1e-4 if dtype == torch.float32 else 0.1,
        atol=1e-4 if dtype == torch.float32 else 0.1,
    )


@all_losses
@cases
def test_a_head_learns_its_targets(name: str, case: OracleCase) -> None:
    target = targets(case, 6)
    scores = (0.1 * numbers(6, *case.event)).requires_grad_()
    before = value(name, case, scores, target).mean().item()
    optimiser = torch.optim.Adam([scores], lr=0.2)
    for _ in range(40):
        optimiser.zero_grad()
        loss = value(name, case, scores, target).mean()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.35 * before
    learned = case.oracle.argmax(scores.detach())
    assert float((learned == target).double().mean()) > 0.95


def test_the_core_with_infinite_numbers() -> None:
    conjugate = torch.tensor([1.0, -math.inf, 2.0, -math.inf], requires_grad=True)
    score = torch.tensor([0.5, 0.5, -math.inf, -math.inf], requires_grad=True)
    found = fenchel_young(conjugate, 0.25, score)
    assert found.tolist() == [0.75, 0.0, math.inf, 0.0]
    found[:2].sum().backward()
    assert conjugate.grad is not None
    assert score.grad is not None
    assert conjugate.grad.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert score.grad.tolist() == [-1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: crf_loss(Three(), torch.zeros(3), torch.zeros(3)), "`crf_loss` needs MarginalOracle, which the oracle three"),
        (lambda: sparsemap_loss(Three(), torch.zeros(3), torch.zeros(3)), "`sparsemap_loss` needs ProjectionOracle, which the oracle"),
        (lambda: margin_sparsemap_loss(Three(), torch.zeros(3), torch.zeros(3)), "`margin_sparsemap_loss` needs ProjectionOracle, which"),
        (
            lambda: structured_perceptron(Subset(1), torch.zeros(3), torch.zeros(4)),
            "`structured_perceptron` got target of shape (4,) for scores of",
        ),
        (lambda: PerturbedFenchelYoung(num_samples=0), "`PerturbedFenchelYoung` got num_samples=0; expected an integer >= 1"),
    ],
)
def test_what_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_an_oracle_of_argmax_alone() -> None:
    scores, target = vector(1.0, 0.5, 0.0), vector(0.0, 1.0, 0.0)
    assert float(structured_perceptron(Three(), scores, target)) == 0.5
    assert float(margin_perceptron(Three(), scores, target)) == 2.5


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_mean(values: Tensor, expected: Tensor | float) -> None:
    """Within 5 standard errors, which are small."""
    error = values.std(0) / math.sqrt(len(values))
    assert bool((error < 0.02).all())
    assert bool(((values.mean(0) - torch.as_tensor(expected)).abs() <= 5 * error).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_half_precision_is_rounded_once(case: OracleCase, dtype: torch.dtype) -> None:
    """A loss is a small difference of large scores: 300 tags in bfloat16 gave 0.0 for 3.32."""
    scores, target = (50 + make_scores(case, 1.0)).to(dtype), case.oracle.argmax(make_scores(case, 1.0, seed=1))
    losses = SUPERVISED_LOSSES | {"cost": partial(margin_perceptron, cost=0.3)}
    for name, loss in losses.items():
        named = {"generator": seeded()} if name == "perturbed_fenchel_young_loss" else {}
        found = loss(case.oracle, scores=scores, target=target.to(dtype), **named)
        named = {"generator": seeded()} if named else {}
        assert torch.equal(found, loss(case.oracle, scores.float(), target.float(), **named).to(dtype)), name


@cases
@all_losses
@pytest.mark.parametrize("offset", [1e6, 1e7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_number_added_to_all_scores_takes_no_digits(name: str, case: OracleCase, dtype: torch.dtype, offset: float) -> None:
    if len({float(z.sum()) for z in structures(case)}) > 1:
        return  # the number counts then
    target = targets(case, 6).to(dtype)
    scores = (torch.randn(6, *case.event, dtype=torch.float64, generator=seeded()) + offset).to(dtype)
    found, expected = value(name, case, scores, target), value(name, case, scores.double() - offset, target.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-6 if dtype == torch.float32 else 1e-8, atol=2e-7)
