"""Work: break-even budgets against closed forms and against a direct comparison of the errors."""

from __future__ import annotations

import math

import pytest
import torch

from structgrad.estimators import ESTIMATORS, Evaluations, Reinforce, make_estimator
from structgrad.suites.statistics.intervals import Interval
from structgrad.suites.statistics.work import Curve, Uncertain, break_even, error_curve, loss_evaluations, variance_seconds


def metrics(bias: float, variance: float, gain: float, cosine: float) -> dict[str, Interval]:
    values = {"relative_bias_squared": bias**2, "relative_variance": variance, "gain": gain, "cosine": cosine}
    return {name: Interval(value) for name, value in values.items()}


REINFORCE = metrics(0.0, 26.8, 1.0, 1.0)
STRAIGHT_THROUGH = metrics(7.8, 34.0, 7.0, 0.68)
ONE = Interval(1.0)


def squared_error(found: dict[str, Interval], samples: float) -> float:
    return found["relative_bias_squared"].value + found["relative_variance"].value / samples


def rho(found: dict[str, Interval], samples: float) -> float:
    """rho by its definition, with ``‖m‖ = gain ‖g‖ / cosine``."""
    gain = found["gain"].value
    return gain / math.sqrt((gain / found["cosine"].value) ** 2 + found["relative_variance"].value / samples)


@pytest.mark.parametrize(("criterion", "error"), [("mse", squared_error), ("rho", lambda found, samples: -rho(found, samples))])
def test_the_errors_cross_at_break_even(criterion, error):
    biased = metrics(0.2, 0.8, 1.0, 0.98)
    budget = break_even(error_curve(biased, ONE, criterion), error_curve(REINFORCE, ONE, criterion)).value
    assert error(biased, budget) == pytest.approx(error(REINFORCE, budget))
    assert error(biased, 0.9 * budget) < error(REINFORCE, 0.9 * budget)
    assert error(biased, 1.1 * budget) > error(REINFORCE, 1.1 * budget)


def test_costs_scale_the_budget():
    """Both estimators ten times as slow break even at ten times the budget; only the biased one, earlier."""
    biased = metrics(0.2, 0.8, 1.0, 0.98)

    def budget(own: float, other: float) -> float:
        curves = error_curve(biased, Interval(own), "mse"), error_curve(REINFORCE, Interval(other), "mse")
        return break_even(*curves).value

    assert budget(10, 10) == pytest.approx(10 * budget(1, 1))
    assert budget(10, 1) < budget(1, 1)


def test_the_squared_error_slanders_what_rho_does_not():
    """A scale of 7 loses at once by squared error; by rho there are budgets at which it wins."""
    by = {c: break_even(error_curve(STRAIGHT_THROUGH, ONE, c), error_curve(REINFORCE, ONE, c)).value for c in ("mse", "rho")}
    assert by["mse"] == 0
    assert by["rho"] > 10


def test_an_estimator_that_is_as_unbiased_and_less_variable_is_never_overtaken():
    better = metrics(0.0, 3.0, 1.0, 1.0)
    for criterion in ("mse", "rho"):
        assert break_even(error_curve(better, ONE, criterion), error_curve(REINFORCE, ONE, criterion)).value is None


def test_what_ascends_has_no_rho_curve():
    assert error_curve(metrics(2.0, 1.0, -1.0, -1.0), ONE, "rho") is None
    assert break_even(None, error_curve(REINFORCE, ONE, "rho")) == Interval(None)
    undefined = {**REINFORCE, "cosine": Interval(None)}
    assert error_curve(undefined, ONE, "mse") is None


def test_an_interval_covers_the_true_budget():
    """Both floors and slopes are estimated with normal errors; 300 simulations."""
    generator = torch.Generator().manual_seed(0)
    true = Curve(Uncertain(0.04), Uncertain(0.8)), Curve(Uncertain(0.0), Uncertain(26.8))
    value, hits = break_even(*true).value, 0
    errors = (0.004, 0.05, 0.002, 1.5)
    for _ in range(300):
        drawn = torch.randn(4, generator=generator, dtype=torch.float64).tolist()
        parts = zip((curve_part for curve in true for curve_part in (curve.floor, curve.slope)), errors, drawn, strict=True)
        numbers = [Uncertain(part.value + error * z, error) for part, error, z in parts]
        found = break_even(Curve(*numbers[:2]), Curve(*numbers[2:]))
        hits += found.low <= value <= found.high
    assert 0.90 <= hits / 300 <= 0.99


def test_an_uncertain_gap_has_no_upper_bound():
    found = break_even(Curve(Uncertain(0.04, 0.05), Uncertain(1.0)), Curve(Uncertain(0.0), Uncertain(10.0, 1.0)))
    assert found.value == pytest.approx(225)
    assert 0 < found.low < found.value
    assert found.high is None


def test_variance_times_seconds():
    found = variance_seconds({"relative_variance": Interval(2.0, 1.8, 2.2, "jackknife")}, Interval(0.5))
    assert found.value == 1.0
    assert math.log(found.high) == pytest.approx(0.1)
    assert found.low == pytest.approx(1 / found.high)
    assert variance_seconds({"relative_variance": Interval(None)}, ONE) == Interval(None)


def test_loss_evaluations_of_what_estimators_declare():
    sizes = {"enumerations": 15, "support_losses": 3, "completions": 4, "swap_losses": 16, "alternatives": 5}
    assert loss_evaluations(Reinforce(3).evaluations()) == 3
    assert all(loss_evaluations(make_estimator(name).evaluations(), **sizes) > 0 for name in ESTIMATORS)


def test_a_pass_of_unknown_size_is_refused():
    with pytest.raises(ValueError, match="got no enumerations=; expected how many losses one of the 1 declared takes"):
        loss_evaluations(Evaluations(enumerations=1))
