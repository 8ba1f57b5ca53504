"""The operations of oracles as functions of scores whose results begin with the batch, for laws that hold for every one of them."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from structgrad.oracles.capabilities import Oracle
from structgrad.oracles.capabilities.derivatives import unsqueeze_event
from tests.helpers import seeded


def _kbest(oracle: Any, scores: Tensor, **named: Any) -> Tensor:
    """The best structure and twice the next, the zero tensor where there is none."""
    listed = oracle.kbest(scores, min(2, oracle.count(oracle._event(scores))), **named)
    return torch.as_tensor(listed[0] + 2 * listed[1:].sum(0))


def _mixture(oracle: Any, scores: Tensor, **named: Any) -> Tensor:
    """The mean of a projection as the weighted sum of its atoms."""
    solution = oracle.project(scores, **named)
    weighted = unsqueeze_event(solution.weights, oracle.event_ndim) * solution.atoms
    return weighted.sum(-1 - oracle.event_ndim)


def _seeded(named: dict[str, Any]) -> dict[str, Any]:
    """Use a fixed generator if none is given."""
    return {"generator": seeded()} | named


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "argmax": lambda oracle, scores, **named: oracle.argmax(scores, **named),
    "score": lambda oracle, scores, **named: oracle.score(oracle.argmax(scores.detach(), **named), scores, **named),
    "free_parts": lambda oracle, scores, **named: oracle.free_parts(scores, **named).to(scores.dtype),
    "log_partition": lambda oracle, scores, **named: oracle.log_partition(scores, **named),
    "marginals": lambda oracle, scores, **named: oracle.marginals(scores, **named),
    "feasible": lambda oracle, scores, **named: oracle.feasible(scores, **named).to(scores.dtype),
    "log_prob": lambda oracle, scores, **named: oracle.log_prob(oracle.argmax(scores.detach(), **named), scores, **named),
    "entropy": lambda oracle, scores, **named: oracle.entropy(scores, **named),
    "kl": lambda oracle, scores, **named: oracle.kl(scores, scores / 2, **named),
    "sample": lambda oracle, scores, **named: oracle.sample(scores, **_seeded(named)),
    "samples": lambda oracle, scores, **named: oracle.sample(scores, 3, **_seeded(named)).sum(0),
    "project": lambda oracle, scores, **named: oracle.project(scores, **named).mean,
    "project_weights": lambda oracle, scores, **named: oracle.project(scores, **named).weights.square().sum(-1),
    "project_atoms": _mixture,
    "project_support": lambda oracle, scores, **named: oracle.project(scores, **named).support.to(scores.dtype),
    "project_gap": lambda oracle, scores, **named: oracle.project(scores, **named).gap,
    "max_marginals": lambda oracle, scores, **named: oracle.max_marginals(scores, **named),
    "kbest": _kbest,
    "relax": lambda oracle, scores, **named: oracle.relax(scores, "l2", **named),
    "relaxed_value": lambda oracle, scores, **named: oracle.relaxed_value(scores, "l2", **named),
    "relaxed_sample": lambda oracle, scores, **named: oracle.relaxed_sample(scores, **_seeded(named)),
    "relaxed_sample_hard": lambda oracle, scores, **named: oracle.relaxed_sample(scores, 0.5, hard=True, **_seeded(named)),
    "step_log_probs": lambda oracle, scores, **named: oracle.step_log_probs(scores, **named).exp(),
}
"""What begins like the name of a method, with ``_``, is a result of that method."""

RANDOM = ("sample", "samples", "relaxed_sample", "relaxed_sample_hard")

DIFFERENTIABLE = (
    *("score", "log_partition", "marginals", "log_prob", "entropy", "kl", "project", "project_weights", "project_atoms"),
    *("relax", "relaxed_value", "step_log_probs"),
)
"""What has a gradient in the scores, and draws no random numbers."""


def method_of(operation: str) -> str:
    """The method of an oracle that an operation calls."""
    shorter = operation.split("_")[0] if operation.startswith("project_") else operation.removesuffix("_hard")
    return "sample" if operation == "samples" else shorter


def operations_of(oracle: Oracle, names: Iterable[str] = tuple(OPERATIONS)) -> list[str]:
    """The operations of an oracle. Laws loop over them: every oracle meets every operation."""
    return [name for name in names if hasattr(oracle, method_of(name))]


def assert_same(found: Tensor, expected: Tensor, operation: str, tolerance: float = 1e-12) -> None:
    """Assert equality up to rounding; the message names the operation."""
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{operation}: {text}")


def assert_derivatives(compute: Callable[[Tensor], Tensor], scores: Tensor) -> None:
    """The derivatives of results in every score are finite differences, in three calls: one copy of a row for each of its scores.

    Each copy may have noise of its own. Its results are weighted at random, and no weight is small.
    """
    parts = scores[0].numel()
    copies = scores.repeat_interleave(parts, 0).requires_grad_()
    step = 1e-6 * torch.eye(parts, dtype=scores.dtype).repeat(len(scores), 1).reshape(copies.shape)
    results, above, below = compute(copies), compute(copies.detach() + step), compute(copies.detach() - step)
    uniforms = 2 * torch.rand(results.shape, generator=seeded(), dtype=results.dtype) - 1
    weights = uniforms + uniforms.sign()
    (gradient,) = torch.autograd.grad((weights * results).sum(), copies)
    differences = (weights * (above - below)).flatten(1).sum(-1) / 2e-6
    torch.testing.assert_close((gradient * step).flatten(1).sum(-1) / 1e-6, differences, rtol=1e-5, atol=1e-6)


def with_lengths(oracle: type[Oracle]) -> set[str]:
    """The public methods of an oracle that take lengths."""
    public = {name: method for name, method in inspect.getmembers(oracle, inspect.isfunction) if not name.startswith("_")}
    return {name for name, method in public.items() if "lengths" in inspect.signature(method).parameters}
