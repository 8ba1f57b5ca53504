"""Selection of the best and adjusted p-values: error rates by simulation; budgets: compared with averages that are drawn."""

import numpy as np
import pytest

from structgrad.suites.statistics.selection import Worth, best, holm


def miss_rate(instances: int, *, gap: float, seed: int = 0, runs: int = 300) -> tuple[float, float]:
    """Rate at which the truly best of five is neither chosen nor tied, and the number of ties."""
    random, missed, tied = np.random.default_rng(seed), 0, 0
    means = np.array([gap, 0.0, 0.0, 0.0, 0.0])
    for _ in range(runs):
        common = 3 * random.standard_normal(instances)
        scores = means[:, None] + common + random.standard_normal((5, instances))
        found = best(scores)
        missed += 0 not in (found.winner, *found.tied)
        tied += len(found.tied)
    return missed / runs, tied / runs


@pytest.mark.parametrize("instances", [1, 2, 4, 30])
def test_the_truly_best_is_rarely_missed(instances: int) -> None:
    missed, _ = miss_rate(instances, gap=0.05)
    assert missed <= 0.05


def test_pairing_by_instance_tells_estimators_apart_that_differ_less_than_instances_do() -> None:
    missed, tied = miss_rate(30, gap=1.5)
    assert missed == 0
    assert tied < 0.05


def test_too_few_instances_tie_all_and_have_no_interval() -> None:
    scores = np.array([[1.0, 1.1, 1.2], [0.1, 0.2, 0.3], [0.0, 0.0, 0.0]])
    assert best(scores).tied == ()
    assert best(np.ones((3, 4))).tied == (1, 2)
    for found in (best(scores, fewest=4), best(scores[:, :1])):
        assert (found.tied, found.score.low) == ((1, 2), None)


def test_an_error_that_all_scores_of_a_contender_share_is_not_divided_by_their_number() -> None:
    """Two equals, whose costs are known to ± 0.1 each, differ significantly in 5 % of the runs, for any number of instances."""
    random, distinct = np.random.default_rng(0), 0
    for _ in range(400):
        scores = random.standard_normal((2, 100)) * 0.01 + 0.1 * random.standard_normal((2, 1))
        distinct += not best(scores, np.array([0.1, 0.1])).tied
    assert 0.02 <= distinct / 400 <= 0.08


def test_rho_and_error_of_a_budget_are_those_of_averages() -> None:
    random, gradient, mean = np.random.default_rng(0), np.array([1.0, 2.0]), np.array([1.5, 1.0])
    draws = mean + random.standard_normal((40_000, 4, 2)) * np.array([1.0, 2.0])
    averaged, square = draws.mean(1), gradient @ gradient
    values = ((mean - gradient) @ (mean - gradient) / square, 5.0 / square, mean @ gradient / square)
    worth = Worth(*(np.array([value]) for value in values))
    rho = (averaged @ gradient).mean() / np.sqrt(square * (averaged**2).sum(-1).mean())
    error = ((averaged - gradient) ** 2).sum(-1).mean() / square
    assert worth.rho(np.array([4.0]))[0] == pytest.approx(rho, rel=0.01)
    assert worth.squared_error(np.array([4.0]))[0] == pytest.approx(error, rel=0.01)
    assert Worth(*(np.array([value]) for value in (1.0, 0.0, 0.0))).rho(np.array([1.0])) == np.array([0.0])


def p_values(size=20, seed=0):
    drawn = np.random.default_rng(seed).random(size) ** 3
    return {f"cell {number}": float(p) for number, p in enumerate(drawn)}


def test_holm_is_closed_testing_with_bonferroni():
    """A hypothesis is rejected if every set that holds it is: with Bonferroni, the worst set holds it and all that are no smaller."""
    given = p_values(6)
    for key, adjusted in holm(given).items():
        sets = [[other for bit, other in enumerate(given) if mask >> bit & 1] for mask in range(1, 2**6)]
        closed = max(min(1.0, len(chosen) * min(given[other] for other in chosen)) for chosen in sets if key in chosen)
        assert adjusted == pytest.approx(closed)


def test_the_order_of_cells_is_kept_and_changes_nothing():
    given = p_values()
    assert list(holm(given)) == list(given)
    assert holm(dict(reversed(given.items()))) == holm(given)
    assert holm({}) == {}
