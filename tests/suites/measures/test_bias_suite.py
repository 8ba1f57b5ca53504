"""The suite `bias`: a finding per metric, instance and reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from structgrad.estimators import (
    ImplicitMLE,
    OptimalBaseline,
    PerturbAndMAP,
    Reinforce,
    StructuredAttention,
)
from structgrad.oracles import Subset
from structgrad.suites import METRICS
from structgrad.suites.base import Instance, Problem
from structgrad.suites.measures.bias import Bias, Sampling, measure
from structgrad.suites.measures.suite import Context, Effort
from structgrad.suites.statistics.adaptive import WIDTHS, is_narrow
from structgrad.suites.statistics.intervals import Interval, jackknives
from tests.suites.cases import quadratic, scores_of, target_of

EFFORT = Effort(replicates=512, most_replicates=2048)


def problem() -> Problem:
    instances = tuple(Instance(f"item{i}", scores_of("subset", seed=i), quadratic("subset")) for i in range(2))
    return Problem("subset_test", "init", Subset(2), instances, "built-in")


def found(estimator, **settings) -> list:
    return list(Bias().findings(problem(), {"it": estimator}, Context(effort=EFFORT, **settings)))


def test_every_metric_of_every_instance_is_a_finding():
    findings = found(Reinforce())
    assert {finding.instance for finding in findings} == {"item0", "item1"}
    assert len({(finding.instance, finding.metric) for finding in findings}) == len(findings)
    assert all(finding.metric in METRICS for finding in findings)
    names = {finding.metric for finding in findings}
    assert {"truth_norm", "relative_bias", "fisher_rho_16", "null_bias", "sign_agreement", "kurtosis", "snr", "rho_16"} <= names
    assert {finding.tier for finding in findings} == {"exact"}
    assert all(finding.replicates is None and finding.interval == "" and finding.low is None for finding in findings)
    assert not any(finding.batches or finding.setting for finding in findings)
    assert {finding.metric for finding in findings if finding.verdict} == {"relative_bias"}
    unnamed = {finding.metric for finding in findings if not finding.reference}
    assert unnamed == {"snr", "kurtosis", "zero_gradient_rate", "gradient_nonzeros"}


def test_the_batches_behind_a_number_give_its_interval_again():
    findings = [finding for finding in found(ImplicitMLE()) if finding.batches]
    assert {finding.metric for finding in findings} == {"gain", "relative_bias_squared", "relative_variance", "relative_mse"}
    for finding in findings:
        if finding.interval == "jackknife":
            again = jackknives({"": finding.value}, {"": torch.tensor(finding.batches, dtype=torch.float64)})[""]
            assert (again.low, again.high) == pytest.approx((finding.low, finding.high), rel=1e-6)


@pytest.mark.parametrize(("estimator", "kind"), [(PerturbAndMAP(), "perturbed"), (StructuredAttention(), "relaxed")], ids=lambda e: str(e))
def test_another_objective_is_compared_with_its_own_gradient_too(estimator, kind):
    findings = found(estimator, seed=7)
    own = {finding.metric: finding for finding in findings if finding.reference == kind and finding.instance == "item1"}
    assert set(own) == {"relative_bias", "relative_bias_squared", "gain", "orthogonal_bias"}
    assert {finding.metric for finding in findings if finding.reference == "expected"} >= set(own)


def test_an_effort_adds_replicates_until_intervals_are_narrow():
    target = target_of("subset")
    few, many = (
        measure(
            ImplicitMLE(),
            target.oracle,
            target.loss,
            target.scores,
            truth=target.truth,
            effort=Effort(replicates=256, most_replicates=n, seconds=600.0),
        )
        for n in (256, 65_536)
    )
    assert (few.replicates, few.sampling) == (256, "budget")
    assert many.sampling == "converged"
    assert 256 < many.replicates < 65_536
    assert [all(is_narrow(one.metrics[name], *width) for name, width in WIDTHS.items()) for one in (few, many)] == [False, True]


def test_an_effort_says_how_much_is_replayed():
    target, estimator = target_of("subset"), OptimalBaseline(pilots=2)
    small = measure(estimator, target.oracle, target.loss, target.scores, truth=target.truth, effort=replace(EFFORT, replay_cap=15**3 - 1))
    large = measure(estimator, target.oracle, target.loss, target.scores, truth=target.truth, effort=replace(EFFORT, replay_cap=15**3))
    assert (small.tier, large.tier) == ("mc", "exact")


def test_an_effort_says_what_counts_as_equivalent():
    target = target_of("subset")
    found = {
        share: measure(
            Reinforce(64), target.oracle, target.loss, target.scores, truth=target.truth, sampling=Sampling(tier="mc"),
            effort=Effort(replicates=8192, most_replicates=8192, equivalence=share, replay_cap=0),
        ).verdict
        for share in (0.001, 0.2)
    }  # fmt: skip
    assert found == {0.001: "unresolved", 0.2: "equivalent"}


def test_a_measurement_goes_on_from_its_scratch_folder(tmp_path, monkeypatch):
    target, sampling = target_of("subset"), Sampling(key=("scratch",))
    settings = {"truth": target.truth, "sampling": sampling, "effort": EFFORT, "scratch": tmp_path}
    first = measure(ImplicitMLE(), target.oracle, target.loss, target.scores, **settings)
    monkeypatch.setattr("structgrad.suites.measures.bias.extend_moments", None)
    assert measure(ImplicitMLE(), target.oracle, target.loss, target.scores, **settings) == first
    with pytest.raises(TypeError):
        measure(ImplicitMLE(lambda_=3.0), target.oracle, target.loss, target.scores, **settings)


def test_a_vanishing_gradient_is_flagged_by_its_absolute_metrics():
    oracle, weights = Subset(2), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    loss = lambda z: 1e-9 * (z @ weights) + (z[..., 0] - z[..., 1]).square()  # noqa: E731
    scores = torch.tensor([0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    metrics = measure(Reinforce(), oracle, loss, scores).metrics
    assert metrics["relative_bias"] == Interval(None)
    assert metrics["absolute_bias"].value < 1e-12
    assert metrics["absolute_variance"].value > 0.1
