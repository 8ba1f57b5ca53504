"""Names to estimators, and the losses that every estimator refuses."""

from __future__ import annotations

import pytest
from torch import Tensor

from structgrad.estimators import ESTIMATORS, NOISES, ConstantBaseline, GreedyBaseline, ImplicitMLE, Reinforce, SumOfGamma, make_estimator
from tests.estimator_cases import LOSSES, PATHWISE, a_case_for, numbers
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
