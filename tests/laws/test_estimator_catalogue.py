"""Every estimate is the formula of the catalogue, with the Jacobian, the best structures and the projections of an enumeration."""

import torch

from structgrad.estimators import ESTIMATORS, make_estimator
from structgrad.oracles import PolicyOracle
from tests.catalogue import categories, couplings, deterministic, policies, score_function, straight_through, taylor
from tests.catalogue.setting import Setting
from tests.estimator_cases import ALL_CASES, CASES, EACH_NAME, LOSSES, VARIANTS, pairs_of
from tests.helpers import OracleCase, make_scores, seeded

NATURAL = tuple(case for case in CASES if case.potentials is None)
"""Where scores are natural parameters: the formulas say so by z − μ."""

POLICIES = tuple(case for case in ALL_CASES if isinstance(case.oracle, PolicyOracle))
"""Under either normalisation, which formulas of policies tell apart."""

OF_POLICIES = tuple(name for name in EACH_NAME if PolicyOracle in make_estimator(name).needs)

FORMULAS = {
    **score_function.FORMULAS,
    **taylor.FORMULAS,
    **couplings.FORMULAS,
    **categories.FORMULAS,
    **straight_through.FORMULAS,
    **deterministic.FORMULAS,
    **policies.FORMULAS,
}


def test_every_estimator_has_a_formula() -> None:
    assert set(FORMULAS) == set(ESTIMATORS)
    assert {name.partition("[")[0] for name in VARIANTS} <= set(ESTIMATORS)


@pairs_of(EACH_NAME, NATURAL)
def test_the_estimate_is_the_formula(name: str, case: OracleCase) -> None:
    assert_the_estimate_is_the_formula(name, case)


@pairs_of(OF_POLICIES, POLICIES)
def test_the_estimate_of_a_policy_is_the_formula(name: str, case: OracleCase) -> None:
    assert_the_estimate_is_the_formula(name, case)


def assert_the_estimate_is_the_formula(name: str, case: OracleCase) -> None:
    estimator, loss = make_estimator(name), LOSSES["smooth"](case)
    for regime in (0.3, 5.0, "masked"):
        for row, scores in enumerate(make_scores(case, regime, rows=3, seed=5)[1:], 1):
            setting = Setting(estimator, case, loss, scores, seeded(row))
            found = estimator.gradient(loss, case.oracle, scores, generator=seeded(row))
            feasible = bool(case.oracle.feasible(scores))
            expected = torch.where(setting.free, FORMULAS[estimator.name](setting), 0) if feasible else torch.zeros_like(scores)
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
