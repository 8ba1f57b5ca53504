"""Small instances of every structure, at every scale, with masks and ties."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from structgrad.oracles import (
    Alignment,
    Assignment,
    Categorical,
    Constituency,
    IndependentCategoricals,
    LinearChain,
    ProjectiveTree,
    ShiftReduce,
    SpanningTree,
    Subset,
)
from structgrad.suites.problems.forms import CountForm, LinearForm, PointForm, QuadraticForm
from tests.derived_cases import DERIVED_CASES

CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "categorical": (Categorical(), (9,)),
    "categories": (IndependentCategoricals(), (5, 3)),
    "subset": (Subset(4), (9,)),
    "linear_chain": (LinearChain(), (5, 3, 3)),
    "alignment": (Alignment(), (4, 5)),
    "constituency": (Constituency(), (7, 7)),
    "shift_reduce": (ShiftReduce(), (8, 8, 2)),
    "local_policy": (ShiftReduce("local"), (7, 7, 2)),
    "assignment": (Assignment(), (5, 5)),
    "projective_single": (ProjectiveTree(), (6, 6)),
    "projective": (ProjectiveTree(single_root=False), (6, 6)),
    "spanning_single": (SpanningTree(), (6, 6)),
    "spanning": (SpanningTree(single_root=False), (6, 6)),
    **{row.oracle.name: (row.oracle, row.ragged) for row in DERIVED_CASES},
}
REGIMES = ("0.05", "1", "5", "50", "ties", "masked 1", "masked 50")


def scores_of(name: str, regime: str, seed: int = 0) -> Tensor:
    """Feasible scores; ties are whole numbers, of which few differ."""
    oracle, event = CASES[name]
    random = torch.Generator().manual_seed(seed)
    scores = torch.randn(event, generator=random, dtype=torch.float64)
    if regime == "ties":
        return (2 * scores).round()
    scores = scores * float(regime.split()[-1])
    if not regime.startswith("masked"):
        return scores
    kept = oracle.sample(scores / 50, generator=random)
    return torch.where((torch.rand(event, generator=random) < 0.3) & (kept == 0), -math.inf, scores)


class Formed:
    """A loss made of a form, evaluated as the form says."""

    def __init__(self, form: Any, event_ndim: int) -> None:
        self.form, self.event_ndim = form, event_ndim

    def __call__(self, structure: Tensor) -> Tensor:
        rows, form = structure.flatten(structure.ndim - self.event_ndim), self.form
        if isinstance(form, LinearForm):
            return rows @ form.weights.flatten() + form.constant
        if isinstance(form, QuadraticForm):
            return (rows @ form.matrix.flatten(1).mT - form.target).square().sum(-1)
        if isinstance(form, PointForm):
            return torch.where((rows == form.structure.flatten()).all(-1), form.here, form.elsewhere).to(rows)
        return form.function(*((rows @ count.flatten().to(rows)).round().long() for count in form.counts))


KINDS = ("linear", "quadratic", "point", "squared_count", "threshold", "two_counts")


def loss_of(kind: str, name: str, seed: int = 0) -> Formed:
    """Losses that no simpler form describes."""
    oracle, event = CASES[name]
    random = torch.Generator().manual_seed(100 + seed)
    mask = oracle.read_mask(event)
    noise = torch.randn((3, *event), generator=random, dtype=torch.float64) * mask
    gold = oracle.sample(noise[0], generator=random)
    other = torch.randint(0, 3, event, generator=random) * mask
    half = int(gold.sum()) // 2
    forms: dict[str, Any] = {
        "linear": LinearForm(noise[0], 0.5),
        "quadratic": QuadraticForm(noise, noise.flatten(1) @ gold.flatten()),
        "point": PointForm(gold, -1.0, 2.0),
        "squared_count": CountForm((other,), lambda k: (k.double() - 1.5) ** 2),
        "threshold": CountForm((gold,), lambda k: (k > half).double()),
        "two_counts": CountForm((gold, other), lambda k, j: k / (1.0 + j)),
    }
    return Formed(forms[kind], oracle.event_ndim)
