"""Losses of scores against known structures, and training by them."""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import (
    ESTIMATORS,
    SUPERVISED,
    SUPERVISED_LOSSES,
    PerturbedFenchelYoung,
    Supervised,
    crf_loss,
    fenchel_young,
    make_estimator,
    margin_perceptron,
    margin_sparsemap_loss,
    smoothed_maximum,
    sparsemap_loss,
    spo_plus_loss,
    structured_perceptron,
)
from structgrad.oracles import Alignment, Categorical, Constituency, LinearChain, ShiftReduce, TiedChain
from structgrad.suites.base import pairing
from structgrad.suites.tasks import TaskLoss
from tests.catalogue.setting import nearest
from tests.estimator_cases import CASES, FixedNoise, numbers
from tests.helpers import (
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

DETERMINISTIC = ("structured_perceptron", "margin_perceptron", "crf_loss", "sparsemap_loss", "margin_sparsemap_loss")
cases = pytest.mark.parametrize("case", CASES, ids=str)
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
        plain = {"margin_perceptron": "structured_perceptron"}.get(name, "sparsemap_loss")
        return predicted(plain, case, scores + margins(case, target), target)
    if name == "sparsemap_loss":
        mean, free = nearest(case, torch.where(read_parts(case), scores, 0)), torch.where(read_parts(case), scores, 0)
        finite = torch.where(free > -math.inf, free, 0)
        return (finite * (mean - target)).sum() - mean.square().sum() / 2 + target.square().sum() / 2, mean
    truth = enumerate_truth(case, scores)
    own = (torch.where(target > 0, natural_parameters(case, scores), 0) * target).sum()
    if name == "crf_loss":
        return truth.log_partition[0] - own, truth.marginals[0]
    best = int(truth.structure_scores[0].argmax())
    return truth.structure_scores[0, best] - own, structures(case)[best]


COST = 0.3


def margins(case: OracleCase, target: Tensor) -> Tensor:
    """``c (1 − 2y)``, of parts that are used at most once."""
    return torch.where(case.oracle.binary_mask(case.event, target.device), COST * (1 - 2 * target), 0)


@losses
@pytest.mark.parametrize("case", [*CASES, OracleCase(TiedChain(), (5, 2))], ids=str)
def test_the_value_and_the_gradient_by_enumeration(name: str, case: OracleCase) -> None:
    """The gradient is ŷ − y; for the log-probabilities of a policy, that goes on to its scores."""
    for regime in (1.0, 50.0, "masked"):
        scores, target = make_scores(case, regime, rows=4, seed=3), targets(case, 4)
        if regime == "masked":
            scores = scores[case.oracle.feasible(scores)]
            target = case.oracle.argmax(scores)
        named = {"cost": COST} if name.startswith("margin") else {}
        expected = [predicted(name, case, theta, y) for theta, y in zip(scores, target, strict=True)]
        torch.testing.assert_close(value(name, case, scores, target, **named), torch.stack([v for v, _ in expected]), rtol=1e-9, atol=1e-9)
        residual = torch.stack([y_hat for _, y_hat in expected]) - target
        if "sparsemap" not in name:
            residual = pulled_back(case, scores + (margins(case, target) if named else 0), residual)
        torch.testing.assert_close(gradient(name, case, scores, target, **named), residual, rtol=1e-8, atol=1e-8)


@all_losses
@cases
def test_rows_and_entries(name: str, case: OracleCase) -> None:
    """A batch is its rows; ignored entries are not read; what cannot be chosen, or not as the target says, has no gradient.

    A row without a feasible structure has loss 0, a row with a forbidden target ``inf``.
    """
    scores, target, parts = numbers(2, 3, *case.event), targets(case, 6).reshape(2, 3, *case.event), read_parts(case)
    values, slopes = value(name, case, scores, target), gradient(name, case, scores, target)
    assert values.shape == (2, 3)
    garbled = torch.where(parts, scores, math.nan)
    torch.testing.assert_close(value(name, case, garbled, target), values, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient(name, case, garbled, target), slopes, rtol=1e-11, atol=1e-12)
    for index in np.ndindex(2, 3) if name in DETERMINISTIC else ():
        torch.testing.assert_close(value(name, case, scores[index], target[index]), values[index], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(gradient(name, case, scores[index], target[index]), slopes[index], rtol=1e-10, atol=1e-10)

    scores, target = make_scores(case, "masked", rows=40), targets(case, 40)
    feasible = case.oracle.feasible(scores)
    target = torch.where(feasible.reshape(-1, *[1] * len(case.event)), case.oracle.argmax(scores), target)
    target[1::2] = targets(case, 20, seed=2)
    blocked = ((scores == -math.inf) & (target > 0)).flatten(1).any(-1)
    assert bool(blocked[feasible].any())
    found, slope = value(name, case, scores, target), gradient(name, case, scores, target)
    assert not found[~feasible].any()
    assert bool((found[feasible & blocked] == math.inf).all())
    assert bool(found[feasible & ~blocked].isfinite().all())
    assert bool(slope.isfinite().all())
    assert not slope[(~feasible | blocked).reshape(-1, *[1] * len(case.event)) | (scores == -math.inf) | ~parts].any()


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
    case = OracleCase(oracle, event)
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
    noise, lengths = numbers(*event, seed=9), torch.stack([shared, torch.ones_like(shared)])
    target = oracle.argmax(scores, lengths=lengths)
    of_each = PerturbedFenchelYoung(3, FixedNoise(noise))(oracle, scores, target, generator=seeded(), lengths=lengths)
    torch.testing.assert_close(of_each, structured_perceptron(oracle, scores + noise, target, lengths=lengths))


@cases
def test_a_perturbed_loss_is_the_mean_of_perceptrons(case: OracleCase) -> None:
    noise, scores, target = numbers(*case.event, seed=9), numbers(4, *case.event), targets(case, 4)
    loss = PerturbedFenchelYoung(num_samples=3, noise=FixedNoise(noise))
    found = loss(case.oracle, scores, target, generator=seeded())
    torch.testing.assert_close(found, structured_perceptron(case.oracle, scores + noise, target), rtol=1e-11, atol=1e-11)


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


@cases
def test_half_precision_is_rounded_once(case: OracleCase) -> None:
    """A loss is a small difference of large scores: 300 tags in bfloat16 gave 0.0 for 3.32."""
    for name, dtype in itertools.product(SUPERVISED_LOSSES, (torch.bfloat16, torch.float16)):
        scores, target = (50 + numbers(6, *case.event)).to(dtype), targets(case, 6).to(dtype)
        assert torch.equal(value(name, case, scores, target), value(name, case, scores.float(), target.float()).to(dtype))


@cases
def test_a_number_added_to_all_scores_takes_no_digits(case: OracleCase) -> None:
    if len({float(z.sum()) for z in structures(case)}) > 1:
        return  # the number counts then
    for name, (dtype, tolerance) in itertools.product(SUPERVISED_LOSSES, ((torch.float32, 1e-6), (torch.float64, 1e-8))):
        scores, target = (numbers(6, *case.event) + 1e7).to(dtype), targets(case, 6).to(dtype)
        found, expected = value(name, case, scores, target), value(name, case, scores.double() - 1e7, target.double())
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=2e-7)


ORACLE = LinearChain()
GOLD = LinearChain.structure(torch.tensor([[0, 1, 1], [2, 0, 1]]), 3, torch.float64)
LOSSES: dict[str, Any] = {
    "crf": crf_loss,
    "perceptron": structured_perceptron,
    "margin_perceptron[cost=0.5]": lambda *told: margin_perceptron(*told, cost=0.5),
    "sparsemap_loss": sparsemap_loss,
    "margin_sparsemap[cost=0.5]": lambda *told: margin_sparsemap_loss(*told, cost=0.5),
    "perturbed_fenchel_young[num_samples=3]": lambda *told: PerturbedFenchelYoung(num_samples=3)(*told, generator=seeded(1)),
    "differentiable_dp_loss": lambda oracle, theta, y: smoothed_maximum(oracle, theta) - oracle.score(y, theta),
    "differentiable_dp_loss[omega=entropy]": crf_loss,
}


@dataclass
class Decoder:
    """A loss with a parameter."""

    weight: Tensor
    gold: Tensor | None = None

    def __call__(self, z: Tensor) -> Tensor:
        return (z * self.weight).sum((-1, -2, -3)).square()


def drawn() -> tuple[Tensor, Decoder]:
    scores = 2 * torch.randn(2, 3, 3, 3, generator=seeded(2), dtype=torch.float64)
    scores[:, 0, 1:] = 0
    return scores.requires_grad_(), Decoder(torch.randn(3, 3, 3, generator=seeded(3), dtype=torch.float64).requires_grad_(), GOLD)


def test_the_registry():
    assert {name.partition("[")[0] for name in LOSSES} == set(SUPERVISED) - {"frozen"}
    assert not set(SUPERVISED) & set(ESTIMATORS)
    for name, kind in SUPERVISED.items():
        assert kind.name == name
        assert make_estimator(name) == kind()
        assert kind.needs_gold == issubclass(kind, Supervised) == (name != "frozen")


@pytest.mark.parametrize("name", LOSSES)
def test_encoder_follows_the_loss_and_decoder_the_true_structure(name: str):
    scores, loss = drawn()
    value = make_estimator(name).surrogate(loss, ORACLE, scores, generator=seeded(1))
    of_scores, of_decoder = torch.autograd.grad(value.sum(), [scores, loss.weight])
    against = LOSSES[name](ORACLE, scores, GOLD)
    torch.testing.assert_close(value, against + loss(GOLD))
    torch.testing.assert_close(of_scores, *torch.autograd.grad(against.sum(), scores))
    torch.testing.assert_close(of_decoder, *torch.autograd.grad(loss(GOLD).sum(), loss.weight))


def test_training_that_draws_numbers_declares_it() -> None:
    scores, loss = drawn()
    for name in SUPERVISED:
        estimator = make_estimator(name)
        first, second = (estimator.gradient(loss, ORACLE, scores.detach(), generator=seeded(seed)) for seed in (1, 2))
        assert torch.equal(first, second) == estimator.deterministic, name


def test_replicates_share_the_true_structures():
    scores, loss = drawn()
    estimator = make_estimator("crf")
    several = estimator.gradient(loss, ORACLE, scores.expand(4, *scores.shape), generator=seeded(1))
    torch.testing.assert_close(several[3], estimator.gradient(loss, ORACLE, scores, generator=seeded(1)))


def test_frozen_encoders_get_no_gradient_and_their_decoders_do():
    scores, loss = drawn()
    loss.gold = None
    value = make_estimator("frozen").surrogate(loss, ORACLE, scores, generator=seeded(1))
    of_scores, of_decoder = torch.autograd.grad(value.sum(), [scores, loss.weight])
    best = ORACLE.argmax(scores.detach())
    torch.testing.assert_close(value, loss(best))
    assert not of_scores.any()
    torch.testing.assert_close(of_decoder, *torch.autograd.grad(loss(best).sum(), loss.weight))


@pytest.mark.parametrize("name", [name for name in SUPERVISED if name != "frozen"])
def test_without_true_structures(name: str):
    scores, loss = drawn()
    loss.gold = None
    said = f"`{name}` got a loss without true structures; expected one with `gold`, as that of the task parsing has"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        make_estimator(name).surrogate(loss, ORACLE, scores, generator=seeded(1))
    claims = TaskLoss(loss, "squared")
    assert pairing(make_estimator(name), ORACLE, claims) == f"{name} needs true structures, and the loss squared holds none"
    assert pairing(make_estimator(name), ORACLE, TaskLoss(loss, "squared", gold=GOLD)) is None
    assert pairing(make_estimator("frozen"), ORACLE, claims) is None


def test_an_oracle_that_cannot_serve():
    with pytest.raises(ValueError, match=r"^differentiable_dp_loss needs RelaxedOracle, which the oracle categorical does not offer"):
        make_estimator("differentiable_dp_loss").surrogate(drawn()[1], Categorical(), torch.zeros(2, 3), generator=seeded(1))


def test_spo_plus_bounds_the_lost_reward() -> None:
    """With the gradient of Elmachtoub & Grigas 2022, proposition 3, and 0 at the true rewards."""
    oracle, generator = LinearChain(), torch.Generator().manual_seed(0)
    rewards, scores = torch.randn(2, 64, 4, 2, 2, generator=generator, dtype=torch.float64).unbind(0)
    lengths, leaf = torch.randint(1, 5, (64,), generator=generator), scores.clone().requires_grad_()
    loss = spo_plus_loss(oracle, leaf, rewards, lengths=lengths)
    loss.sum().backward()
    best, decided = (oracle.argmax(each, lengths=lengths) for each in (rewards, scores))
    lost = oracle.score(best, rewards, lengths=lengths) - oracle.score(decided, rewards, lengths=lengths)
    assert bool((loss >= lost - 1e-12).all())
    assert bool((lost > 0).any())
    torch.testing.assert_close(leaf.grad, 2 * (oracle.argmax(2 * scores - rewards, lengths=lengths) - best), rtol=0, atol=1e-12)
    assert bool((spo_plus_loss(oracle, rewards, rewards) == 0).all())
    forbidden = torch.tensor([-math.inf, 0.0, 1.0])
    assert spo_plus_loss("subset[k=1]", forbidden, forbidden) == 0
    with pytest.raises(ValueError, match=r"`spo_plus_loss` got rewards of shape \(2,\) for scores of shape \(3,\)"):
        spo_plus_loss("subset[k=1]", torch.zeros(3), torch.zeros(2))
