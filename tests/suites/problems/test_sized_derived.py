"""Structures that state their derivations are problems with declared examples, and are named by their sizes like all others."""

from __future__ import annotations

import pytest

from structgrad.oracles import DERIVED
from structgrad.suites.problems.regimes import REGIMES
from structgrad.suites.problems.sized import sized_name, sized_regime

ENTROPIES = {"linear_chain": "chain_regimes", "alignment": "alignment_regimes", "constituency": "constituency_regimes"}


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("semi_markov[n=5,w=3,t=2]", (5, 3, 2, 2)),
        ("labelled_constituency[n=4,t=2]", (4, 4, 2)),
        ("ctc[n=6,l=2]", (6, 5, 3)),
        ("edit_alignment[n=3,m=4]", (4, 5, 5)),
        ("second_order_chain[n=4,t=2]", (4, 2, 2, 2)),
    ],
)
def test_sizes_are_understood(name: str, event: tuple[int, ...]) -> None:
    assert sized_name(name) == name
    assert sized_regime(name).events == (event,)


@pytest.mark.parametrize("name", DERIVED)
def test_a_structure_says_what_its_problem_is_like(name: str) -> None:
    examples, regime = DERIVED[name].examples, REGIMES[f"{name}_regimes"]
    sizes = ",".join(f"{word}={number}" for word, number in zip(DERIVED[name].size_names, examples.small[0], strict=True))
    assert sized_regime(f"{name}[{sizes}]").entropies == regime.entropies
    assert regime.entropies == REGIMES[ENTROPIES[examples.like]].entropies if examples.like else (0.95, 0.7, 0.1)
    assert regime.oracle == DERIVED[name]()
