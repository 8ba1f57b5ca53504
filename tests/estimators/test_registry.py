"""Names to estimators, and what is said about those that are none."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torch import Tensor

from structgrad.estimators import (
    ESTIMATORS,
    NOISES,
    SPIGOT,
    ConstantBaseline,
    Estimator,
    ExactMarginalisation,
    GreedyBaseline,
    Gumbel,
    ImplicitMLE,
    LeaveOneOut,
    PerturbAndMAP,
    PerturbAndParse,
    Reinforce,
    RunningMeanBaseline,
    StraightThroughGumbel,
    SumOfGamma,
    make_estimator,
)
from tests.estimator_cases import LOSSES, PATHWISE, a_case_for, numbers, pairs
from tests.helpers import OracleCase, seeded


def test_names_that_others_rely_on() -> None:
    """Stored results and command lines hold them."""
    first = "exact reinforce reinforce_constant reinforce_running_mean reinforce_greedy rloo ste ste_marginals ste_sample simple st_gumbel"
    then = "perturb_and_map perturb_and_parse spigot imle structured_attention sparsemap sparsemap_marginalisation"
    assert {*first.split(), *then.split()} <= set(ESTIMATORS)
    assert {name: kind.name for name, kind in NOISES.items()} == {name: name for name in ("gumbel", "normal", "sum_of_gamma")}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exact[chunk=10]", ExactMarginalisation(chunk=10)),
        ("reinforce[num_samples=4]", Reinforce(4)),
        (" reinforce_constant[ value = -0.5 ] ", ConstantBaseline(-0.5)),
        ("reinforce_running_mean[mean=1, decay=0.5, num_samples=2]", RunningMeanBaseline(1, 0.5, 2)),
        ("reinforce_greedy[]", GreedyBaseline()),
        ("rloo[num_samples=3]", LeaveOneOut(3)),
        ("st_gumbel[temperature=0.5]", StraightThroughGumbel(0.5)),
        ("perturb_and_map[noise=sum_of_gamma]", PerturbAndMAP(SumOfGamma())),
        ("perturb_and_parse[noise=gumbel/scale=2]", PerturbAndParse(Gumbel(2))),
        ("spigot[step_size=0.1, max_norm=1]", SPIGOT(0.1, 1)),
        ("imle[lambda=2.5]", ImplicitMLE(lambda_=2.5)),
        ("imle[lambda_=2.5,divide_by_lambda=True]", ImplicitMLE(lambda_=2.5, divide_by_lambda=True)),
        ("imle[noise=sum_of_gamma/k=5/scale=0.5/terms=20,num_samples=2]", ImplicitMLE(noise=SumOfGamma(5, 0.5, 20), num_samples=2)),
        ("structgrad.estimators:Reinforce", Reinforce()),
        ("structgrad.estimators:Reinforce[num_samples=2]", Reinforce(2)),
    ],
)
def test_a_name_with_options(name: str, expected: Estimator[Any]) -> None:
    assert make_estimator(name) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("reinfroce", "got the unknown estimator 'reinfroce'; did you mean reinforce"),
        ("imel[lambda=2]", "got the unknown estimator 'imel'; did you mean imle"),
        ("spygot", "got the unknown estimator 'spygot'; did you mean spigot"),
        ("qqqqqq", "got the unknown estimator 'qqqqqq'; expected one of exact, reinforce, "),
        ("", "got the name ''; expected `name` or `name[option=value,...]`"),
        ("imle[lambda=2", "got the name 'imle[lambda=2'; expected `name` or `name[option=value,...]`"),
        ("imle[2.5]", "got the option '2.5' in 'imle[2.5]'; expected `option=value`"),
        ("imle[steps=2]", "estimator 'imle[steps=2]': "),
        ("ste[temperature=2]", "estimator 'ste[temperature=2]': "),
        ("imle[noise=gumble]", "got the unknown noise 'gumble'; did you mean gumbel?"),
        ("imle[noise=gumbel/size=2]", "noise 'gumbel[size=2]': "),
        ("no_such_module:Thing", "got the estimator 'no_such_module:Thing'; could not import it: "),
        ("structgrad.estimators:Thing", "got the estimator 'structgrad.estimators:Thing'; could not import it: "),
        ("math:pi", "got 'math:pi', a float; expected a class of estimators"),
        ("structgrad.oracles:Categorical", "got 'structgrad.oracles:Categorical', a Categorical; expected a class of estimators"),
    ],
)
def test_a_name_that_is_none(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make_estimator(name)


@pairs
def test_a_loss_must_not_be_reduced(name: str, case: OracleCase) -> None:
    """A mean over the batch would mix the rows, and shrink the step of I-MLE and SPIGOT."""
    loss = LOSSES["smooth"](case)
    with pytest.raises(
        ValueError, match=r"the loss gave a tensor of shape \(\) for structures of shape \(.*\); expected one value per structure, "
    ):
        make_estimator(name).gradient(lambda z: loss(z).mean(), case.oracle, numbers(3, *case.event), generator=seeded())


def test_a_loss_must_be_real() -> None:
    """Its imaginary part would be left out."""
    with pytest.raises(ValueError, match=r"^the loss gave a tensor of dtype torch.complex64; expected a tensor of one real number per "):
        make_estimator("reinforce").gradient(
            lambda z: z.sum(-1) * 1j, a_case_for("reinforce").oracle, numbers(2, 5).float(), generator=seeded()
        )


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


@pytest.mark.parametrize("name", PATHWISE)
def test_a_layer_needs_a_loss_with_a_gradient(name: str) -> None:
    estimator, case = make_estimator(name), a_case_for(name)
    loss = lambda z: LOSSES["linear"](case)(z.detach())  # noqa: E731
    with pytest.raises(ValueError, match=rf"`{estimator.name}` got a loss without a gradient in the structure; .* such as rloo"):
        estimator.gradient(loss, case.oracle, numbers(2, *case.event), generator=seeded())
