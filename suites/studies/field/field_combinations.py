"""Combinations of published estimators beside the best of these: ``python -m structgrad.suites.studies.field.field_combinations``.

Four combinations, which are no part of the registry: the best structures summed exactly with a leave-one-out baseline for samples of the
others; the same with the support of the SparseMAP projection; a set without replacement whose losses are those beside MuProp's expansion;
and, of a policy, local expectations of all actions whose completions share the uniforms of the sample. Beside each the published estimators
with the sizes that suit them; what is shown is variance by time over that of the best published one of the cell. Means are compared with
leave-one-out.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....estimators import Estimator, Loss, SumAndSample, UnorderedSet, make_estimator
from ....estimators.base import carry, evaluate, upstream_gradient
from ....estimators.policies.local_expectation import StepLocalExpectation
from ....estimators.score_function.antithetic_pairs import Recorded
from ....oracles.capabilities import KBestOracle, Oracle, PolicyOracle, ProjectionOracle, SamplingOracle
from ....oracles.capabilities.base import inner
from ....oracles.capabilities.derivatives import unsqueeze_event
from ....oracles.random_streams import RowGenerator
from ...problems.named import load
from ..markdown import table

PROBLEMS = ("subset[n=40,k=5]", "linear_chain[n=16,t=5]", "constituency[n=14]", "shift_reduce[n=14,normalization=local]")
STAGES = ("h=0.4", "h=0.1")
PUBLISHED = (
    "rloo[num_samples=16]",
    "rloo[num_samples=32]",
    "antithetic_pairs[num_pairs=8]",
    "antithetic_pairs[num_pairs=16]",
    "sum_and_sample[k=4]",
    "sum_and_sample[k=16]",
    "unordered_set[num_samples=8]",
    "unordered_set[num_samples=16]",
    "unordered_set[num_samples=32]",
    "double_cv[num_samples=8]",
    "double_cv[num_samples=16]",
    "muprop[num_samples=8]",
    "step_local_expectation[num_samples=1]",
    "step_local_expectation[num_samples=4]",
    "step_leave_one_out[num_samples=8]",
    "step_leave_one_out[num_samples=32]",
    "step_sampled[num_samples=4]",
)
REPLICATES, ROWS, ROUNDS = 2048, 64, 5


@dataclass(frozen=True)
class SumAndLeaveOneOut(SumAndSample):
    """``Σ_{z∈C} p(z) (L(z) − b̄) s + w/n Σ_i (L(z_i) − b_−i) s_i``, z_i the first n candidates outside C, at most ``draws``. Unbiased.

    ``b_−i`` estimates the mean loss by the sum over C and the other samples, and b̄ is the mean of them all: a baseline of the samples
    outside has to be that of the sum too, since their scores alone do not have mean 0.
    """

    draws: int = 8
    candidates: int = 8

    name: ClassVar[str] = "sum_and_leave_one_out"
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle, KBestOracle)

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        event = oracle.event_ndim
        best, listed = self._best(oracle, scores.detach())
        drawn = oracle.sample(scores.detach(), self.candidates, generator=generator)
        inside = (drawn.unsqueeze(1) == best).flatten(drawn.ndim + 1 - event).all(-1).any(1)
        first = inside.int().argsort(dim=0, stable=True)[: self.draws]
        outside = ~torch.take_along_dim(inside, first, 0)
        others = torch.take_along_dim(drawn, unsqueeze_event(first, event), 0)
        structures = torch.cat([torch.where(unsqueeze_event(listed, event), best, best[:1]), others])
        losses, log_probs = evaluate(loss, structures, event), oracle.log_prob(structures, scores)
        p = torch.where(listed, log_probs[: len(best)].detach().exp(), 0)
        mass, known, count = p.sum(0), (p * losses[: len(best)].detach()).sum(0), outside.sum(0)
        weight = (1 - mass) / (1 - mass**self.candidates) / count.clamp(min=1)
        rest = torch.where(outside, losses[len(best) :].detach(), 0)
        alone = known / mass.clamp(min=1e-300)
        own = torch.where(count > 1, known + (1 - mass) * (rest.sum(0) - rest) / (count - 1).clamp(min=1), alone)
        mean = torch.where(count > 1, known + (1 - mass) * rest.sum(0) / count.clamp(min=1), alone)
        excess = torch.cat([p * (losses[: len(best)].detach() - mean), torch.where(outside, weight * (rest - own), 0)])
        return carry(known + (weight * rest).sum(0), (excess * log_probs).sum(0))


@dataclass(frozen=True)
class SupportAndLeaveOneOut(SumAndLeaveOneOut):
    """The same with C the support of the SparseMAP projection: whatever structures it found, however many. Unbiased."""

    name: ClassVar[str] = "support_and_leave_one_out"
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle, KBestOracle, ProjectionOracle)

    def _best(self, oracle: Any, scores: Tensor) -> tuple[Tensor, Tensor]:
        solution, event = oracle.project(scores), oracle.event_ndim
        weights, order = solution.weights.movedim(-1, 0).sort(dim=0, descending=True, stable=True)
        atoms = torch.take_along_dim(solution.atoms.movedim(-event - 1, 0), unsqueeze_event(order, event), 0)
        # A slot without weight holds some structure, which is none of C.
        return torch.where(unsqueeze_event(weights > 0, event), atoms, atoms[:1]), weights > 0


@dataclass(frozen=True)
class SharedCompletions(StepLocalExpectation):
    """Local expectations of all actions, whose completions go on by the uniforms of the sample that they leave. Unbiased.

    A sampler takes the t-th uniform for the t-th decision, so that what follows an action does not depend on which one was drawn, and the
    difference of two losses loses what both completions have in common.
    """

    name: ClassVar[str] = "shared_completions"

    def surrogate(self, loss: Loss, oracle: PolicyOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        recorded = Recorded(generator)
        samples = oracle.sample(scores, self.num_samples, generator=recorded)
        again = Repeated(recorded, self.num_samples)
        return self.from_samples(loss, oracle, scores, samples, generator=again)


class Repeated(RowGenerator):
    """Serves the uniforms of n samples of every row once more for each of their prefixes, however many these are."""

    drawn: Tensor

    def __new__(cls, recorded: Recorded, samples: int) -> Repeated:
        return super().__new__(cls, recorded.device)  # type: ignore[call-arg]  # torch's stub does not know the device

    def __init__(self, recorded: Recorded, samples: int) -> None:
        self.drawn = recorded.drawn[0].unflatten(-1, (samples, 1, -1))

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        prefixes = width // self.drawn[0].numel()
        return self.drawn.expand(-1, -1, prefixes, -1).reshape(rows, width)


@dataclass(frozen=True)
class ExpandedSet(UnorderedSet):
    """The unordered set of ``L(z) − ⟨γ(μ), z − μ⟩``, plus ``Cov(z) γ(μ)``, as MuProp does with samples. Unbiased."""

    name: ClassVar[str] = "expanded_set"
    inside_hull: ClassVar[bool] = True

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        mean = oracle.marginals(scores)
        centre = mean.detach()
        with torch.enable_grad():
            point = centre.clone().requires_grad_()
            slope = upstream_gradient(self.name, evaluate(loss, point, oracle.event_ndim), point, retain_graph=False)
        drawn = self._drawn(oracle, scores, generator)
        left = self.from_set(lambda z: loss(z) - inner(z - centre, slope, oracle.event_ndim), oracle, scores, drawn)
        returned: Tensor = inner(slope, mean, oracle.event_ndim)
        return left + returned - returned.detach()


COMBINATIONS: dict[str, Estimator[Any]] = {
    "sum and leave-one-out, 8 + 8": SumAndLeaveOneOut(k=8, candidates=16, draws=8),
    "sum and leave-one-out, 16 + 8": SumAndLeaveOneOut(k=16, candidates=32, draws=8),
    "support and leave-one-out, 8": SupportAndLeaveOneOut(candidates=16, draws=8),
    "expanded set, 8": ExpandedSet(8),
    "expanded set, 16": ExpandedSet(16),
    "shared completions, 1": SharedCompletions(1),
    "shared completions, 4": SharedCompletions(4),
}


def measured(name: str, stage: str, *, seed: int = 0) -> dict[str, Any]:
    """One row: the best published estimator, and the others over it; and the largest distance of a mean, in standard errors."""
    problem = load(name, stage, instances=1, data=None, seed=seed)
    instance = problem.instances[0]
    asked = {text: make_estimator(text) for text in PUBLISHED} | COMBINATIONS
    event = tuple(instance.scores.shape)
    makers = {text: made for text, made in asked.items() if made.incompatibility(problem.oracle, event) is None}
    rows = instance.scores.expand(ROWS, *instance.scores.shape).contiguous()
    spent: dict[str, list[float]] = {text: [] for text in makers}
    for turn in range(ROUNDS):
        for text, made in makers.items():
            start = time.process_time()
            made.gradient(instance.loss, problem.oracle, rows, generator=torch.Generator().manual_seed(turn))
            spent[text].append(time.process_time() - start)
    generator, moments = torch.Generator().manual_seed(seed), {}
    for text, made in makers.items():
        replicates = instance.scores.expand(REPLICATES, *instance.scores.shape)
        found = made.gradient(instance.loss, problem.oracle, replicates, generator=generator)
        moments[text] = (found.mean(0), found.var(0).sum())
    work = {text: float(moments[text][1]) * statistics.median(times[1:]) for text, times in spent.items()}
    best = min((text for text in PUBLISHED if text in work), key=lambda text: work[text])
    mean, variance = moments["rloo[num_samples=32]"]
    far = max(
        float((moments[text][0] - mean).norm() / ((moments[text][1] + variance) / REPLICATES).sqrt())
        for text in COMBINATIONS
        if text in work
    )
    return {"problem": f"`{name}`, {stage}", "best published": f"`{best}`"} | {
        **{text: f"{work[text] / work[best]:.2g}" if text in work else None for text in COMBINATIONS},
        "means apart, at most [standard errors]": f"{far:.2g}",
    }


def rows() -> list[dict[str, Any]]:
    """Those of all problems and states."""
    return [measured(name, stage) for name in PROBLEMS for stage in STAGES]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(table(rows()) + "\n")
