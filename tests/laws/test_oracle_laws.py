"""The laws of `structgrad audit --oracle`, against structures that the tests list independently of every oracle."""

from __future__ import annotations

import pytest

from structgrad.suites.audit.oracles import LAWS, Scene, check_rules, compared
from tests.helpers import ORACLE_CASES, OracleCase, structures

PRECISE = 0.05
"""Oracles of the package keep this share of the tolerances that the audit grants others."""


def scene_of(case: OracleCase) -> Scene:
    return Scene(case.oracle, case.event, structures(case).flatten(1), "an independent list")


@pytest.mark.parametrize("law", [name for _, name, _ in LAWS])
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_every_law_holds(case: OracleCase, law: str) -> None:
    capability, _, compare = next(record for record in LAWS if record[1] == law)
    if not isinstance(case.oracle, capability):
        pytest.skip(f"{case.oracle.name} is no {capability.__name__}")
    for scene in scene_of(case).with_scores(0, quick=False):
        for check in compared(scene, law, compare, precision=PRECISE):
            assert check.status in ("holds", "skipped"), check
            assert check.p_value is None or check.p_value > 1e-6, check


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_derivations_are_those_of_the_structures(case: OracleCase) -> None:
    derivations = getattr(case.oracle, "derivations", None)
    for check in check_rules(scene_of(case), derivations and derivations(case.event)):
        assert check.status == "holds", check
