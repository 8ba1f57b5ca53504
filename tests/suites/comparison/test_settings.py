from __future__ import annotations

import tomllib

import pytest

from structgrad.suites.comparison.matching import key_of
from structgrad.suites.comparison.settings import Settings, read_settings
from tests.suites.comparison.rows import exact

EXAMPLE = """
[gate]
alpha = 0.05
on_missing = "warn"

[gate.metric.relative_variance]
minimum_change = 0.05

[[gate.override]]
estimator = "st_gumbel*"
metric = "relative_*"
equivalence = 0.5

[[gate.override]]
problem = "tiny"
gated = false

[gate.timing]
pairs = 80
estimators = ["rloo"]

[run]
preset = "quick"
"""


def test_a_file_changes_what_it_names_and_nothing_else() -> None:
    settings = read_settings(tomllib.loads(EXAMPLE))
    assert (settings.alpha, settings.on_missing, settings.on_changed) == (0.05, "warn", "fail")
    assert (settings.timing.pairs, settings.timing.estimators, settings.timing.minimum_change) == (80, ("rloo",), 0.02)
    assert read_settings({"gate": {}}) == Settings()


def test_the_last_override_that_matches_holds() -> None:
    settings = read_settings(tomllib.loads(EXAMPLE))
    plain = settings.rule(key_of(exact()))
    assert (plain.minimum_change, plain.equivalence, plain.gated) == (0.05, 0.10, True)
    assert settings.rule(key_of(exact(estimator="st_gumbel[temperature=2.0]"))).equivalence == 0.5
    assert settings.rule(key_of(exact(estimator="st_gumbel", metric="gain"))).equivalence == 0.05
    assert not settings.rule(key_of(exact(problem="tiny"))).gated


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gate = 3", r"expected a table \[gate\]"),
        ("[gaet]\nalpha = 0.1", r"^the configuration got 'gaet'; expected a table \[gate\], an empty one for the defaults$"),
        ("alpha = 0.1", r"^the configuration got 'alpha'; expected a table \[gate\]"),
        ("", r"^the configuration got nothing; expected a table \[gate\]"),
        ("[gate]\nalpa = 1", "got the key 'alpa'; did you mean alpha"),
        ("[gate]\nalpha = 'x'", "alpha = 'x'; expected a finite number"),
        ("[gate]\nalpha = true", "expected a finite number"),
        ("[gate]\nalpha = nan", "expected a finite number"),
        ("[gate]\nalpha = 2", "expected a number between 0 and 1"),
        ("[gate]\nminimum_bias = -1", "not negative"),
        ("[gate]\nminimum_bias = inf", "expected a finite number"),
        ("[gate]\non_missing = 'pass'", "expected 'fail' or 'warn': what is not decided is never a silent pass"),
        ("[gate.metric.relativ_variance]\nfloor = 1", "metric 'relativ_variance'; did you mean relative_variance"),
        ("[gate.metric.forward_time]\nfloor = 1", "never compared between runs"),
        ("[gate.metric.gain]\nrole = 'lower'", "got the key 'role'"),
        ("[gate.metric]\ngain = 1", "expected a table"),
        ("[gate.metric.gain]\ngated = 1", "expected true or false"),
        ("[gate]\noverride = 1", r"expected tables \[\[gate.override\]\]"),
        ("[[gate.override]]\nfloor = 1", "number 1 got .* expected at least one pattern"),
        ("[[gate.override]]\nestimator = 'a'\nfloor = 1\n[[gate.override]]\nestimator = 3", "number 2 got"),
        ("[[gate.override]]\nestimater = 'a'", "did you mean estimator"),
        ("[gate.timing]\npairs = 10", "at least 40"),
        ("[gate.timing]\nproblems = 'a'", "expected a list of patterns"),
        ("[gate.timing]\nround = 1", "got the key 'round'"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_settings(tomllib.loads(text))
