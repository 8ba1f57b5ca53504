"""The declared number of evaluations is what one estimate takes, counted at the public operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import Evaluations, Loss, Noise, make_estimator
from structgrad.oracles import (
    DistinctSamplingOracle,
    EnumerableOracle,
    KBestOracle,
    MarginalOracle,
    Oracle,
    ProjectionOracle,
    RelaxedOracle,
    SamplingOracle,
    ShiftReduce,
)
from tests.catalogue.mappings import sparse_law
from tests.estimator_cases import LOSSES, each_pair, numbers
from tests.helpers import OracleCase, enumerate_truth, seeded, structures

ROWS = 2
OPERATIONS: tuple[tuple[type, str, str], ...] = (
    (Oracle, "argmax", "argmax"),
    (MarginalOracle, "marginals", "marginals"),
    (MarginalOracle, "log_partition", "marginals"),
    (MarginalOracle, "log_prob", "log_prob"),
    (ShiftReduce, "step_log_probs", "marginals"),
    (KBestOracle, "kbest", "kbest"),
    (RelaxedOracle, "relax", "relaxations"),
    (RelaxedOracle, "relaxed_sample", "relaxations"),
    (SamplingOracle, "sample", "samples"),
    (DistinctSamplingOracle, "sample_distinct", "sets"),  # one operation, whatever it calls
    (ProjectionOracle, "project", "projections"),
    (EnumerableOracle, "enumerate", "enumerated"),
    (Noise, "perturb", "perturbations"),
    (Noise, "draw", "perturbations"),
)


def sparse_support(estimator: str) -> Callable[[OracleCase, Tensor], int]:
    """The most structures of positive sparsemax in any row."""

    def count(case: OracleCase, scores: Tensor) -> int:
        rows = enumerate_truth(case, scores).structure_scores.numpy()
        return max(int((sparse_law(make_estimator(estimator), row) > 0).sum()) for row in rows)

    return count


SUPPORTS: dict[str, Callable[[OracleCase, Tensor], int]] = {
    "sparsemap_marginalisation": lambda case, scores: int(case.oracle.project(scores).atoms.shape[1]),
    "sparsemax_marginalisation": sparse_support("sparsemax_marginalisation"),
    "top_k_sparsemax": sparse_support("top_k_sparsemax"),
    "top_k_sparsemax[k=3]": sparse_support("top_k_sparsemax[k=3]"),
}
"""How many structures the loss sees in one pass over a support."""

COMPLETED_BY: dict[str, str] = {"step_greedy": "argmax", "step_sampled": "samples"}
"""The operation that completes prefixes, once before every decision."""
SWAPS: dict[str, Callable[[OracleCase], int]] = {
    "arsm": lambda case: case.event[-1] * (case.event[-1] - 1) // 2 + 1,
}
"""How many structures the loss sees in one pass over the exchanges of two parts."""

ALTERNATIVES: dict[str, Callable[[OracleCase], int]] = {
    "local_expectation": lambda case: 1 + int(structures(case)[0].sum()) * (case.event[-1] - 1),
    "step_local_expectation": lambda case: 1 + int(structures(case)[0].sum()),
}
"""How many structures the loss sees in one pass over a sample and what it could be in one place."""


class Counts(Counter[str]):
    """Calls per batch row, of what a user calls: what an operation calls in turn is part of it."""

    def __init__(self, case: OracleCase) -> None:
        super().__init__()
        self.case, self.inside = case, False

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for owner, method, kind in OPERATIONS:
            monkeypatch.setattr(owner, method, self.counted(getattr(owner, method), kind))

    def counted(self, original: Any, kind: str) -> Any:
        def call(*positional: Any, **named: Any) -> Any:
            if self.inside:
                return original(*positional, **named)
            self.inside = True
            try:
                result = original(*positional, **named)
            finally:
                self.inside = False
            self[kind] += self.size(kind, positional, result)
            return result

        return call

    def size(self, kind: str, positional: tuple[Any, ...], result: Any) -> int:
        if kind == "enumerated":
            return len(result)
        if kind == "sets":
            return 1
        if kind in ("samples", "kbest"):
            return self.rows(result)
        scores = positional[2] if kind in ("log_prob", "perturbations") else positional[1]
        return self.rows(scores)

    def rows(self, values: Tensor) -> int:
        size = torch.Size(values.shape[: values.ndim - len(self.case.event)]).numel()
        assert size % ROWS == 0
        return size // ROWS

    def loss(self, loss: Loss) -> Loss:
        def call(z: Tensor) -> Tensor:
            self["losses"] += self.rows(z)
            return loss(_Counted.apply(z, self))  # type: ignore[no-any-return, no-untyped-call]

        return call


class _Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, counts: Counts) -> Tensor:
        ctx.counts = counts
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.counts["loss_gradients"] += ctx.counts.rows(grads[0])
        return grads[0], None


def found(name: str, case: OracleCase, counts: Counts) -> Evaluations:
    """What was counted, in the terms of a declaration."""
    size, kind = len(structures(case)), name.partition("[")[0]
    completions, by = 0, COMPLETED_BY.get(kind)
    if by is not None:
        decisions = int(structures(case)[0].sum())
        completions = counts[by] // decisions
        counts[by] -= completions * decisions
        counts["losses"] -= completions * decisions
    alternatives = counts["losses"] // ALTERNATIVES[kind](case) if kind in ALTERNATIVES else 0
    if alternatives:
        counts["losses"] -= alternatives * ALTERNATIVES[kind](case)
        counts["samples"] -= alternatives * (ALTERNATIVES[kind](case) - 1) if kind.startswith("step_") else 0
    passes, support_losses, swap_losses = counts["enumerated"] // size, int(kind in SUPPORTS), int(kind in SWAPS)
    losses = counts["losses"] - support_losses * counts["atoms"] - (SWAPS[kind](case) if swap_losses else 0)
    # A pass that takes the losses of all structures is an enumeration, one that takes their probabilities alone a listing.
    enumerations = min(passes, losses // size)
    losses -= enumerations * size
    return Evaluations(
        losses=losses,
        loss_gradients=counts["loss_gradients"],
        argmax=counts["argmax"],
        # The probabilities of all structures belong to the pass over them.
        marginals=counts["marginals"] + (counts["log_prob"] if not passes else 0),
        samples=counts["samples"],
        projections=counts["projections"],
        kbest=counts["kbest"],
        relaxations=counts["relaxations"],
        perturbations=counts["perturbations"],
        enumerations=enumerations,
        listings=passes - enumerations,
        support_losses=support_losses,
        completions=completions,
        swap_losses=swap_losses,
        alternatives=alternatives,
    )


@each_pair
def test_one_estimate_takes_what_is_declared(name: str, case: OracleCase, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator, scores, counts = make_estimator(name), numbers(ROWS, *case.event), Counts(case)
    atoms = SUPPORTS.get(name, SUPPORTS.get(estimator.name, lambda *_: 0))(case, scores)
    counts.watch(monkeypatch)
    estimator.gradient(counts.loss(LOSSES["smooth"](case)), case.oracle, scores, generator=seeded())
    counts["atoms"] = atoms
    declared = estimator.evaluations()
    if declared.listings and not estimator.lists(case.oracle, case.event):
        declared = replace(declared, listings=0, marginals=1)
    # A list of the best holds no more structures than there are.
    assert found(name, case, counts) == replace(declared, kbest=min(declared.kbest, len(structures(case))))
