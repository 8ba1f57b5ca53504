"""Structures that state their derivations are named by their sizes like all others."""

from __future__ import annotations

import numpy as np
import pytest

from structgrad.suites.problems.sized import sized_name, sized_regime


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
    assert tuple(sized_regime(name).draw(np.random.default_rng(0), 0).shape) == event
