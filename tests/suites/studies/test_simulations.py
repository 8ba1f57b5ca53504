"""The command that simulates, in miniature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from structgrad.estimators import ConditionalMeanBaseline, ImplicitMLE, LeaveOneOut, Reinforce
from structgrad.suites.measures.replicates import Sampling, draw_moments
from structgrad.suites.statistics.metrics import exact_metrics
from structgrad.suites.studies.simulations.__main__ import main
from structgrad.suites.studies.simulations.coverage import FIXED
from structgrad.suites.studies.simulations.false_alarms import FALSE_ALARMS
from structgrad.suites.studies.simulations.instances import SPACES, instance, law
from structgrad.suites.studies.simulations.laws import EstimateLaw
from structgrad.suites.studies.simulations.lines import SimulationLine, binomial_interval
from structgrad.suites.studies.simulations.page import write
from structgrad.suites.studies.simulations.parts import PARTS, simulate_cell
from structgrad.suites.studies.simulations.simple import Median, simulate_median
from structgrad.suites.truth.replay import replay


def miniature(name, repetitions=3):
    """Two cells of a part."""
    part = PARTS[name]
    numbers = (0, len(part.cells) - 1)
    return part.lines({part.cells[number]: simulate_cell((name, number, repetitions)) for number in numbers})


@pytest.mark.parametrize("name", list(PARTS))
def test_every_part_runs_and_meets_what_is_required(name):
    lines = miniature(name)
    assert lines
    assert not [line.cells() for line in lines if line.violated]


def test_a_cell_gives_the_same_numbers_again():
    assert simulate_cell(("false_alarms", 3, 5)) == simulate_cell(("false_alarms", 3, 5))


@pytest.mark.parametrize("estimator", [Reinforce(), ConditionalMeanBaseline(), LeaveOneOut(2)], ids=lambda e: e.name)
def test_a_law_has_the_moments_of_replay(estimator):
    target = instance("categorical10", 1.0)
    sample, exact = law(estimator, "categorical10", 1.0), replay(estimator, target, 2 if isinstance(estimator, LeaveOneOut) else 1)
    torch.testing.assert_close(sample.bias, exact.error, atol=1e-12, rtol=0)
    torch.testing.assert_close(sample.covariance, exact.covariance, atol=1e-12, rtol=1e-9)
    assert exact_metrics(exact)["relative_bias"].value < 1e-12


@pytest.mark.parametrize("space", ["categorical10", "subset10"])
def test_samples_from_the_table_are_distributed_as_those_of_the_shipped_estimator(space):
    """Both samples of 8192 against each other, by Welch's test of every part and of the squared length."""
    target, sample = instance(space, 1.0), law(Reinforce(), space, 1.0)
    shipped = draw_moments(Reinforce(), target, Sampling(replicates=8192, key=("simulations",)), information=sample.information)
    drawn = sample.moments(8192, np.random.default_rng(0))
    p_values = []
    for one, two in zip(*((m.mean.T, m.square.T) for m in (shipped, drawn)), strict=True):
        p_values += [stats.ttest_ind(a, b, equal_var=False).pvalue for a, b in zip(one, two, strict=True)]
    assert min(p_values) * len(p_values) > 1e-3


def test_both_ways_of_counting_have_the_same_law():
    sample = law(Reinforce(), "subset10", 0.5)
    few, many = (sample.counts(n, np.random.default_rng(0), batches=64).sum(0) for n in (64 * 64, 64 * 640))
    expected = sample.probabilities
    for counts in (few, many):
        order = expected > 5 / counts.sum()
        assert stats.chisquare(counts[order], counts[order].sum() * expected[order] / expected[order].sum()).pvalue > 1e-3


def test_refuses_an_estimator_that_is_random_in_another_way():
    with pytest.raises(ValueError, match=r"`EstimateLaw.of` got imle, which draws other random numbers than samples"):
        EstimateLaw.of(ImplicitMLE(), instance("subset10", 0.5))


def test_wrong_intervals_are_noticed(monkeypatch):
    """Half as wide, they cover 0.67: the command must fail."""
    from structgrad.suites.statistics import intervals

    quantile = intervals._quantile
    monkeypatch.setattr(intervals, "_quantile", lambda level, *degrees: quantile(level, *degrees) / 2)
    lines = FIXED.lines({FIXED.cells[0]: FIXED.simulate(FIXED.cells[0], 60)})
    assert {line.what for line in lines if line.violated} >= {"relative_variance", "gain"}


def test_a_test_without_the_filter_is_noticed(monkeypatch):
    monkeypatch.setattr("structgrad.suites.measures.testing.bias_tests.FILTER", 0)
    cell = FALSE_ALARMS.cells[4]
    assert str(cell).startswith("categorical10 sd 5")
    (line,) = FALSE_ALARMS.lines({cell: FALSE_ALARMS.simulate(cell, 60)})
    assert line.violated


def test_every_space_has_its_instance():
    assert all(instance(space, 0.5).truth.gradient.norm() > 0.1 for space in SPACES)


@pytest.mark.parametrize(
    ("line", "violated"),
    [
        (SimulationLine("", "", 0.95, 2000, 0.9, 0.99), False),
        (SimulationLine("", "", 0.899, 2000, 0.9), True),
        (SimulationLine("", "", 0.899, 2000, 0.9, noisy=True), False),
        (SimulationLine("", "", 0.85, 2000, 0.9, noisy=True), True),
        (SimulationLine("", "", 0.8, 20, 0.9), False),
        (SimulationLine("", "", 0.991, 2000, 0.9, 0.99), True),
        (SimulationLine("", "", 0.004, 4000, most=3e-3), True),
        (SimulationLine("", "", 0.5, least=0.5 - 1e-12, most=0.5 + 1e-12), False),
        (SimulationLine("", "", float("nan"), least=0.5), True),
        (SimulationLine("", "", 123.0), False),
    ],
)
def test_a_line_knows_what_is_required_of_it(line, violated):
    assert line.violated is violated


def test_binomial_intervals_are_those_of_scipy():
    for hits, trials in ((0, 10), (3, 10), (10, 10), (950, 1000)):
        exact = stats.binomtest(hits, trials).proportion_ci(method="exact")
        assert binomial_interval(hits / trials, trials) == pytest.approx((exact.low, exact.high))


def test_medians_are_covered_and_a_shifted_one_is_not(monkeypatch):
    covered, trials = simulate_median(Median(30), 300)
    assert 0.9 < covered / trials < 0.99
    monkeypatch.setattr("structgrad.suites.studies.simulations.simple.TRUE_MEDIAN", 1.5)
    assert simulate_median(Median(30), 300)[0] < covered


def test_the_command_writes_a_page_and_succeeds(tmp_path, capsys):
    path = tmp_path / "page.md"
    assert main(["--only", "medians", "--repetitions", "50", "--output", str(path)]) == 0
    assert "## Coverage of medians" in path.read_text()
    assert path.read_text().startswith("# Simulations")
    assert "order-statistic" in capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["page.md"]


def test_the_command_fails_with_the_line_that_is_violated(monkeypatch, capsys):
    monkeypatch.setattr("structgrad.suites.studies.simulations.simple.TRUE_MEDIAN", 3.0)
    assert main(["--only", "medians", "--repetitions", "50"]) == 1
    assert "not as required: order-statistic | log-normal, 160 values" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "coverages"], "invalid choice: 'coverages'"),
        (["--jobs", "0"], "--jobs got 0; expected at least 1"),
        (["--repetitions", "-1"], "--repetitions got -1; expected at least 1"),
        (["--output", "no/such/folder/page.md"], "whose folder does not exist; run from the root of the repository"),
    ],
)
def test_the_command_refuses_wrong_options(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_a_page_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "page.md"
    write("old", path)
    write("new", path)
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["page.md"]
