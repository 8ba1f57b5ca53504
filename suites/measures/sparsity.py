"""Sparsity of an estimator: its forward distribution, the structure that the loss sees, and the gradient."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...estimators.base import Estimator, PathwiseEstimator
from ...oracles.capabilities import FactorisedOracle, ProjectionOracle
from ..base import Problem
from ..statistics.intervals import Interval, wilson
from ..statistics.moments import signs_of
from ..statistics.selection import student_mean
from ..truth import Truth
from .draws import Draws, estimates
from .suite import Context, Finding, Suite

MAX_REPLICATES = 1024  # counts of non-zeros need no more


def forward(estimator: Estimator[Any], draws: Draws, truth: Truth, *, replicates: int) -> tuple[float, Interval]:
    """The support of the forward distribution, and the non-zero parts of the structure that the loss sees.

    The support is the number of structures of positive probability: 1 for argmax, the atoms of a sparse law, and all feasible structures
    for samples, noise and marginals. Non-zeros are exact if the forward is deterministic, or its law over structures is known: structures
    are 0/1, so that the expected number of parts is the sum of the marginals. Of other noise they are the mean over draws.
    """
    if estimator.objective == "sparse":
        weights, sizes = _atoms(estimator, draws)
        return float((weights > 0).sum()), Interval(float(weights @ sizes))
    best = estimator.objective == "argmax"
    support = 1.0 if best else float(truth.support)
    if not isinstance(estimator, PathwiseEstimator):
        parts = draws.oracle.argmax(draws.scores) if best else truth.marginals
        return support, Interval(round(float(parts.sum()), 9))
    with torch.no_grad():
        if not estimator.deterministic:

            def nonzeros(rows: Tensor, streams: torch.Generator) -> Tensor:
                return (estimator.structure(draws.oracle, rows, generator=streams) != 0).flatten(1).sum(-1).double()

            drawn = torch.cat([found for _, found in draws.launched(estimator.name, (0, replicates), nonzeros)])
            return support, student_mean(drawn.cpu().numpy())
        point = estimator.structure(draws.oracle, draws.scores, generator=draws.generator("forward"))
    if not best and ProjectionOracle in estimator.needs:
        support = float(draws.oracle.project(draws.scores).support)
    elif not best and isinstance(draws.oracle, FactorisedOracle):
        # A point inside the hull is the product law of its categories.
        support = float((point != 0).sum(-1).double().prod())
    return support, Interval(float((point != 0).sum()))


def _atoms(estimator: Estimator[Any], draws: Draws) -> tuple[Tensor, Tensor]:
    """Weights of the structures of a sparse law, and their numbers of parts: the derivatives of the surrogate in the losses."""
    seen: list[tuple[Tensor, Tensor]] = []

    def recording(structures: Tensor) -> Tensor:
        sizes = (structures != 0).flatten(structures.ndim - draws.oracle.event_ndim).sum(-1).to(structures.dtype)
        losses = torch.zeros_like(sizes, requires_grad=True)
        seen.append((losses, sizes))
        return losses

    value = estimator.surrogate(recording, draws.oracle, draws.scores, generator=draws.generator("forward"))
    weights = torch.autograd.grad(value, [losses for losses, _ in seen])
    return torch.cat([weight.flatten() for weight in weights]), torch.cat([sizes.flatten() for _, sizes in seen])


class Sparsity(Suite):
    """Exact zeros: of the forward distribution, of the structure that the loss sees, of the gradient.

    A part counts as non-zero unless it is exactly 0: rounding that leaves 1e-17 is no sparsity that code can use.
    """

    name: ClassVar[str] = "sparsity"
    summary: ClassVar[str] = "support of the forward distribution, non-zeros of structure and gradient, gradients that vanish"
    version: ClassVar[int] = 2

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        for instance in problem.instances:
            scores = instance.scores.to(context.device, context.dtype)
            draws = Draws(problem.oracle, instance.loss, scores, context, (self.name, problem.name, problem.stage, instance.name))
            truth, number = context.law(problem, instance), min(context.effort.replicates, MAX_REPLICATES)
            for name, estimator in estimators.items():
                try:
                    warmed, count = draws.warmed(estimator), 1 if estimator.deterministic else number
                    support, nonzeros = forward(warmed, draws, truth, replicates=count)
                    parts = signs_of(estimates(warmed, draws, count)).abs().sum(-1).double()
                    vanishing = float((parts == 0).double().mean())
                    metrics = {
                        "support": Interval(support),
                        "forward_nonzeros": nonzeros,
                        "gradient_nonzeros": student_mean(parts.cpu().numpy()),
                        "zero_gradient_rate": Interval(vanishing) if estimator.deterministic else wilson(vanishing, count),
                    }
                    for metric, found in metrics.items():
                        tier, replicates = ("mc", number) if found.method else ("exact", None)
                        yield Finding.of(name, metric, found, instance=instance.name, tier=tier, replicates=replicates)
                except Exception as error:  # any user-supplied code may run here
                    yield Finding.failed(name, "support", error, instance=instance.name)
