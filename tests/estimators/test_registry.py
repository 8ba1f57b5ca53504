"""Names to estimators, and what is said about those that are none."""

from __future__ import annotations

import re
from typing import Any

import pytest

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
    PathwiseEstimator,
    PerturbAndMAP,
    PerturbAndParse,
    Reinforce,
    RunningMeanBaseline,
    StraightThroughGumbel,
    SumOfGamma,
    make_estimator,
)
from tests.estimator_cases import LOSSES, NAMES, PATHWISE, a_case_for, numbers, pairs
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
        ("imle[noise=gumbel/scale=-1]", "`Gumbel` got scale=-1; expected a positive number"),
        ("no_such_module:Thing", "got the estimator 'no_such_module:Thing'; could not import it: "),
        ("structgrad.estimators:Thing", "got the estimator 'structgrad.estimators:Thing'; could not import it: "),
        ("math:pi", "got 'math:pi', a float; expected an estimator"),
        ("structgrad.oracles:Categorical", "got 'structgrad.oracles:Categorical', a Categorical; expected an estimator"),
    ],
)
def test_a_name_that_is_none(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make_estimator(name)


NAN = float("nan")
INFINITE = float("inf")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Reinforce(0), "`reinforce` got num_samples=0; expected at least 1"),
        (lambda: ConstantBaseline(1.0, num_samples=0), "`reinforce_constant` got num_samples=0; expected at least 1"),
        (lambda: RunningMeanBaseline(num_samples=-1), "`reinforce_running_mean` got num_samples=-1; expected at least 1"),
        (lambda: GreedyBaseline(num_samples=0), "`reinforce_greedy` got num_samples=0; expected at least 1"),
        (lambda: RunningMeanBaseline(decay=1.0), "`reinforce_running_mean` got decay=1.0; expected 0 <= decay < 1"),
        (lambda: RunningMeanBaseline(decay=-0.1), "`reinforce_running_mean` got decay=-0.1; expected 0 <= decay < 1"),
        (lambda: LeaveOneOut(1), "`rloo` got num_samples=1; expected at least 2, the others are the baseline"),
        (lambda: ExactMarginalisation(chunk=0), "`exact` got chunk=0; expected at least 1"),
        (lambda: ExactMarginalisation(chunk=-1), "`exact` got chunk=-1; expected at least 1"),
        (lambda: StraightThroughGumbel(0.0), "`st_gumbel` got temperature=0.0; expected a positive number"),
        (lambda: StraightThroughGumbel(NAN), "`st_gumbel` got temperature=nan; expected a positive number"),
        (lambda: SPIGOT(step_size=0.0), "`spigot` got step_size=0.0, max_norm=inf; expected positive numbers"),
        (lambda: SPIGOT(max_norm=-1.0), "`spigot` got step_size=1.0, max_norm=-1.0; expected positive numbers"),
        (lambda: ImplicitMLE(lambda_=0.0), "`imle` got lambda=0.0, num_samples=1; expected lambda > 0 and at least 1 sample"),
        (lambda: ImplicitMLE(num_samples=0), "`imle` got lambda=1.0, num_samples=0; expected lambda > 0 and at least 1 sample"),
        (lambda: Gumbel(0.0), "`Gumbel` got scale=0.0; expected a positive number"),
        (lambda: SumOfGamma(k=0), "`SumOfGamma` got SumOfGamma(k=0, scale=1.0, terms=10); expected k > 0, scale > 0 and 1 <= terms <= 200"),
        (lambda: SumOfGamma(scale=-1.0), "`SumOfGamma` got SumOfGamma(k=1.0, scale=-1.0, terms=10); expected k > 0, scale > 0"),
        (lambda: SumOfGamma(terms=0), "`SumOfGamma` got SumOfGamma(k=1.0, scale=1.0, terms=0); expected k > 0, scale > 0"),
    ],
)
def test_an_option_that_makes_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make()


@pairs
def test_a_loss_must_not_be_reduced(name: str, case: OracleCase) -> None:
    """A mean over the batch would mix the rows, and shrink the step of I-MLE and SPIGOT."""
    loss = LOSSES["smooth"](case)
    with pytest.raises(
        ValueError, match=r"the loss gave a tensor of shape \(\) for structures of shape \(.*\); expected one value per structure, "
    ):
        make_estimator(name).gradient(lambda z: loss(z).mean(), case.oracle, numbers(3, *case.event), generator=seeded())


@pytest.mark.parametrize("name", PATHWISE)
def test_a_layer_needs_a_loss_with_a_gradient(name: str) -> None:
    estimator, case = make_estimator(name), a_case_for(name)
    loss = lambda z: LOSSES["linear"](case)(z.detach())  # noqa: E731
    with pytest.raises(ValueError, match=rf"`{estimator.name}` got a loss without a gradient in the structure; .* such as rloo"):
        estimator.gradient(loss, case.oracle, numbers(2, *case.event), generator=seeded())


def test_layers_are_pathwise() -> None:
    assert {name for name in NAMES if isinstance(make_estimator(name), PathwiseEstimator)} == set(PATHWISE)
    assert not {"exact", "reinforce", "rloo", "sparsemap_marginalisation"} & set(PATHWISE)
