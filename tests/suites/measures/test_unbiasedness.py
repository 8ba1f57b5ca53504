"""The suite that tests claims of unbiasedness."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from structgrad.estimators import LeaveOneOut, PerturbAndMAP, Reinforce, Simple, UnorderedSet
from structgrad.suites.base import Instance, Problem
from structgrad.suites.measures.suite import EFFORTS, Context, Effort
from structgrad.suites.measures.unbiasedness import Unbiasedness
from structgrad.suites.metrics import METRICS
from structgrad.suites.statistics.testing.multiplicity import holm
from tests.suites.cases import ORACLES, ScaledReinforce, quadratic, scores_of

QUICK = Effort(replicates=4096, most_replicates=8192, equivalence=0.1)


def problem(name="subset", scales=(0.3,)):
    instances = tuple(Instance(f"{name}-{scale:g}", scores_of(name, scale), quadratic(name)) for scale in scales)
    return Problem(f"{name}_regimes", "h=0.95", ORACLES[name][0], instances, "")


def findings(estimators, effort=QUICK, scales=(0.3,), **context):
    return list(Unbiasedness().findings(problem(scales=scales), estimators, Context(effort=effort, **context)))


def by_metric(found):
    return {finding.metric: finding for finding in found}


def test_replay_decides_where_it_can_on_peaked_instances_too():
    found = findings({"right": Reinforce(), "wrong": ScaledReinforce()}, scales=(0.3, 5.0))
    assert [(f.estimator, f.instance, f.verdict) for f in found] == [
        (estimator, instance, verdict)
        for estimator, verdict in (("right", "unbiased-exact"), ("wrong", "biased"))
        for instance in ("subset-0.3", "subset-5")
    ]
    assert {(f.metric, f.tier, f.reference, f.replicates) for f in found} == {("relative_bias", "exact", "expected", None)}
    assert found[-1].value == pytest.approx(0.02)


def test_replicates_decide_elsewhere():
    found = by_metric(findings({"set": UnorderedSet(3)}))
    assert set(found) == {"relative_bias", "bias_p_value", "relative_bias_bound", "gain_error_bound"}
    assert {(f.tier, f.verdict, f.sampling) for f in found.values()} == {("mc", "equivalent", "converged")}
    assert found["relative_bias"].interval == "profile"
    assert found["relative_bias"].high < 0.1
    assert 0 < found["bias_p_value"].value <= 1
    assert found["bias_p_value"].replicates in (4096, 8192)
    assert set(found) <= set(METRICS)


@pytest.mark.parametrize("strict", [False, True])
def test_a_wrong_estimator_is_found_by_replicates(strict):
    effort = dataclasses.replace(QUICK, strict=strict)
    found = by_metric(findings({"wrong": ScaledReinforce(factor=0.5)}, effort, tier="mc"))
    assert {f.verdict for f in found.values()} == {"biased"}
    assert found["bias_p_value"].p_value < 1e-6
    # A subclass may do anything: nothing guarantees its range.
    assert "bias_e_value" not in found


def test_the_strict_mode_bets_where_there_is_a_range():
    found = by_metric(findings({"right": Reinforce()}, dataclasses.replace(QUICK, strict=True), tier="mc"))
    assert 0 < found["bias_e_value"].value < 100
    assert found["bias_e_value"].verdict in ("unresolved", "equivalent")
    assert "bias_e_value" not in by_metric(findings({"set": UnorderedSet(3)}, dataclasses.replace(QUICK, strict=True)))


def test_a_bettor_who_wins_decides(monkeypatch):
    monkeypatch.setattr("structgrad.suites.measures.unbiasedness.BiasBets.e_value", 1e6)
    found = by_metric(findings({"right": Reinforce()}, dataclasses.replace(QUICK, strict=True), tier="mc"))
    assert {(f.verdict, f.sampling) for f in found.values()} == {("biased", "converged")}


def test_who_claims_nothing_is_not_tested():
    assert findings({"pam": PerturbAndMAP(), "simple": Simple()}) == []


def test_numbers_do_not_depend_on_the_batch_size_or_on_the_other_estimators():
    together = findings({"set": UnorderedSet(3), "loo": LeaveOneOut(3)}, tier="mc", batch_size=1000)
    alone = findings({"loo": LeaveOneOut(3)}, tier="mc")
    for one, two in zip([f for f in together if f.estimator == "loo"], alone, strict=True):
        assert one.metric == two.metric
        assert one.value == pytest.approx(two.value, rel=1e-9, abs=1e-12)


def test_another_seed_is_another_sample():
    values = {by_metric(findings({"set": UnorderedSet(3)}, seed=seed))["gain_error_bound"].value for seed in (0, 0, 1)}
    assert len(values) == 2


def test_p_values_of_a_run_can_be_adjusted():
    found = findings({"right": Reinforce(), "wrong": ScaledReinforce(factor=0.5)}, tier="mc", scales=(0.3, 0.6))
    adjusted = holm({(f.estimator, f.instance): f.p_value for f in found if f.metric == "bias_p_value"})
    assert {name for (name, _), p in adjusted.items() if p < 0.05} == {"wrong"}


def test_refuses_the_exact_tier_where_there_is_none():
    with pytest.raises(ValueError, match="got tier='exact' for set, which cannot be replayed; expected tier='auto' or 'mc'"):
        findings({"set": UnorderedSet(3)}, tier="exact")


def test_single_precision_is_tested_against_the_double_truth():
    found = by_metric(findings({"set": UnorderedSet(3)}, dtype=torch.float32))
    assert found["relative_bias"].verdict == "equivalent"


def test_presets_have_a_level_for_confirmed_rejections():
    assert all(effort.alpha**2 == pytest.approx(1e-6) for effort in EFFORTS.values())
