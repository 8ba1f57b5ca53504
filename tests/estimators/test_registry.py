"""Names to estimators, and calls that every estimator refuses; a call like the last one is not checked again."""

import gc
import re
import weakref
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from structgrad.estimators import (
    ESTIMATORS,
    NOISES,
    ConstantBaseline,
    Estimator,
    Evaluations,
    GreedyBaseline,
    ImplicitMLE,
    Reinforce,
    StructuredLayer,
    SumOfGamma,
    make_estimator,
)
from structgrad.oracles import Categorical, EnumerableOracle, Subset
from tests.estimator_cases import LOSSES, PATHWISE, a_case_for, numbers, table_loss
from tests.helpers import seeded


def test_names_that_others_rely_on() -> None:
    """Stored results and command lines hold them."""
    first = "exact reinforce reinforce_constant reinforce_running_mean reinforce_greedy rloo ste ste_marginals ste_sample simple st_gumbel"
    then = "perturb_and_map perturb_and_parse spigot imle structured_attention sparsemap sparsemap_marginalisation"
    assert {*first.split(), *then.split()} <= set(ESTIMATORS)
    assert {name: kind.name for name, kind in NOISES.items()} == {name: name for name in ("gumbel", "normal", "sum_of_gamma")}


def test_names_with_options() -> None:
    for name, expected in {
        " reinforce_constant[ value = -0.5 ] ": ConstantBaseline(-0.5),
        "reinforce_greedy[]": GreedyBaseline(),
        "imle[lambda_=2.5,divide_by_lambda=True]": ImplicitMLE(lambda_=2.5, divide_by_lambda=True),
        "imle[noise=sum_of_gamma/k=5/scale=0.5/terms=20,num_samples=2]": ImplicitMLE(noise=SumOfGamma(5, 0.5, 20), num_samples=2),
        "structgrad.estimators:Reinforce": Reinforce(),
        "structgrad.estimators:Reinforce[num_samples=2]": Reinforce(2),
    }.items():
        assert make_estimator(name) == expected, name


def test_a_loss_must_not_be_reduced() -> None:
    """A mean over the batch would mix the rows, and shrink the step of I-MLE and SPIGOT."""
    for name in ESTIMATORS:
        case = a_case_for(name)
        loss = LOSSES["smooth"](case)
        message = r"the loss gave a tensor of shape \(\) for structures of shape \(.*\); expected one value per structure, "
        with pytest.raises(ValueError, match=message):
            make_estimator(name).gradient(lambda z, loss=loss: loss(z).mean(), case.oracle, numbers(3, *case.event), generator=seeded())


def test_a_loss_must_be_real() -> None:
    """Its imaginary part would be left out."""
    loss, oracle = lambda z: z.sum(-1) * 1j, a_case_for("reinforce").oracle
    with pytest.raises(ValueError, match=r"^the loss gave a tensor of dtype torch.complex64; expected a tensor of one real number per "):
        make_estimator("reinforce").gradient(loss, oracle, numbers(2, 5).float(), generator=seeded())


@pytest.mark.parametrize("name", ["reinforce", "muprop", "exact", "step_reinforce", "path_quadrature", "spigot_ce"])
def test_a_loss_must_not_write_into_its_structures(name: str) -> None:
    """One that does would get the log-probability of what it left there."""
    case = a_case_for(name)
    loss = LOSSES["linear"](case)

    def changing(z: Tensor) -> Tensor:
        values = loss(z)
        z.detach().zero_()
        return values

    with pytest.raises(ValueError, match=r"^the loss changed its structures in place; expected .*: change a copy, structures.clone\(\)$"):
        make_estimator(name).gradient(changing, case.oracle, numbers(2, *case.event), generator=seeded())
    make_estimator(name).gradient(lambda z: changing(z.clone()), case.oracle, numbers(2, *case.event), generator=seeded())


def test_a_layer_needs_a_loss_with_a_gradient() -> None:
    for name in (*PATHWISE, "rebar", "relax"):
        estimator, case = make_estimator(name), a_case_for(name)
        loss = lambda z, case=case: LOSSES["linear"](case)(z.detach())  # noqa: E731
        with pytest.raises(ValueError, match=rf"`{estimator.name}` got a loss without a gradient in the structure; .* such as rloo"):
            estimator.gradient(loss, case.oracle, numbers(2, *case.event), generator=seeded())


ORACLE = Categorical()


@pytest.mark.parametrize("name", ["exact", "imle", "spigot", "spigot_ce"])
def test_an_estimate_that_is_a_number_has_no_derivative(name: str) -> None:
    scores = numbers(6, 3).requires_grad_()
    value = make_estimator(name).surrogate(table_loss, ORACLE, scores, generator=torch.Generator()).sum()
    (plain,) = torch.autograd.grad(value, scores, retain_graph=True)
    (estimate,) = torch.autograd.grad(value, scores, create_graph=True)
    assert torch.equal(estimate.detach(), plain)
    with pytest.raises(RuntimeError, match=r"^the estimate of a gradient got differentiated, as by a gradient penalty; expected no more"):
        estimate.square().sum().backward()


def test_a_relaxation_has_derivatives() -> None:
    scores = numbers(6, 3).requires_grad_()
    penalty = lambda theta: torch.autograd.grad(  # noqa: E731
        make_estimator("structured_attention").surrogate(table_loss, ORACLE, theta, generator=torch.Generator()).sum(),
        theta,
        create_graph=True,
    )[0].square()
    assert torch.autograd.gradcheck(penalty, scores)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_around_random_numbers_is_refused(reentrant: bool) -> None:
    layer, scores = StructuredLayer(ORACLE, "simple"), numbers(6, 3).requires_grad_()
    structure = checkpoint(lambda theta: layer(theta).square(), scores, use_reentrant=reentrant)
    with pytest.raises(ValueError, match=r"^`StructuredLayer` got a call inside of a backward pass, .* where simple would draw other"):
        structure.sum().backward()


def test_a_checkpoint_around_a_relaxation_is_right() -> None:
    layer, scores = StructuredLayer(ORACLE, "structured_attention"), numbers(6, 3).requires_grad_()
    gradients = [
        torch.autograd.grad(call(lambda theta: layer(theta).square(), scores), scores, torch.ones_like(scores))[0]
        for call in (lambda function, theta: function(theta), lambda function, theta: checkpoint(function, theta, use_reentrant=False))
    ]
    assert torch.equal(*gradients)


def test_values_without_gradients_under_inference_mode() -> None:
    scores, generator = numbers(6, 3), torch.Generator()
    with torch.inference_mode():
        value = make_estimator("structured_attention").surrogate(table_loss, ORACLE, scores, generator=generator)
    assert torch.equal(value, table_loss(ORACLE.marginals(scores)))


@pytest.mark.parametrize(("name", "reason"), [("muprop", "where no loss has a gradient"), ("exact", "and failed there (Inference tensors")])
def test_what_asks_autograd_says_so_under_inference_mode(name: str, reason: str) -> None:
    sentence = f"`{name}` got its surrogate called under torch.inference_mode, {reason}"
    with torch.inference_mode(), pytest.raises(ValueError, match=f"^{re.escape(sentence)}.*; use torch.no_grad$"):
        make_estimator(name).surrogate(table_loss, ORACLE, torch.zeros(6, 3, dtype=torch.float64), generator=torch.Generator())


SCORES = torch.zeros(2, 4)


def loss(z: torch.Tensor) -> torch.Tensor:
    return z[..., 0]


def call(estimator: Estimator, oracle: object, scores: torch.Tensor = SCORES, **more: object) -> torch.Tensor:
    return estimator.surrogate(loss, oracle, scores, **{"generator": torch.Generator()} | more)


def test_what_was_checked_is_not_kept_alive() -> None:
    estimator, oracle = make_estimator("rloo"), Categorical()
    call(estimator, oracle)
    kept = weakref.ref(estimator), weakref.ref(oracle)
    del estimator, oracle
    gc.collect()
    assert [one() for one in kept] == [None, None]


def test_a_repeated_call_with_other_arguments_is_checked() -> None:
    estimator, oracle = make_estimator("rloo"), Subset(2)
    for _ in range(2):
        call(estimator, oracle)
    with pytest.raises(ValueError, match="got None as generator"):
        call(estimator, oracle, generator=None)
    with pytest.raises((TypeError, ValueError), match="generator"):
        estimator.surrogate(loss, oracle, SCORES)
    with pytest.raises(ValueError, match="got n=1 parts"):
        call(estimator, oracle, SCORES[:, :1])


def test_an_estimator_that_changes_is_checked_again() -> None:
    class Changing(Estimator[Categorical], name="changing"):
        objective = "expected"
        num_samples = 1

        def evaluations(self) -> Evaluations:
            return Evaluations()

        def surrogate(self, loss, oracle, scores, *, generator):
            return torch.zeros(len(scores)) if self.num_samples == 1 else torch.zeros(self.num_samples)

    estimator, oracle = Changing(), Categorical()
    call(estimator, oracle)
    estimator.num_samples = 10**13
    with pytest.raises(ValueError, match="choose a smaller num_samples"):
        call(estimator, oracle)


def test_an_option_of_the_name_limit_may_mean_something_else() -> None:
    @dataclass(frozen=True)
    class Clipped(Estimator[EnumerableOracle], name="clipped"):
        objective: ClassVar = "expected"
        limit: float = 0.5

        def evaluations(self) -> Evaluations:
            return Evaluations()

        def surrogate(self, loss, oracle, scores, *, generator):
            return scores.sum(-1).clamp(max=self.limit)

    assert call(Clipped(), Categorical()).tolist() == [0, 0]
