"""Wall-clock time of estimators, forward and backward, measured side by side.

On a shared machine one estimator after the other is no comparison: the machine's mood changes in between. All estimators of a problem take
turns in random order, round after round; times are medians over rounds, and ratios are medians of ratios *within* a round. The interval is
that of order statistics, which needs no assumption on the noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from ...estimators.base import Estimator, Loss, PathwiseEstimator
from ..statistics.metrics import LEVEL, Interval

BATCH = 32
"""Rows per timed call; every row has scores of its own."""

WARM_UP = 2
"""Untimed rounds."""

ROUNDS = 30
"""Timed calls of each estimator, unless the budget ends earlier."""

FEWEST_ROUNDS = 7
"""Below 6 calls the order statistics give no 95 % interval."""

BUDGET = 10.0
"""Seconds after which no further round is started."""

REFERENCE = "reinforce"
"""Ratios are relative to the total time of this estimator."""


@dataclass(frozen=True)
class Times:
    """Seconds per call on a batch of `BATCH` rows, and the total relative to the reference, with 95 % intervals of the medians."""

    forward: Interval
    backward: Interval
    ratio: Interval


def timing_batch(scores: Tensor, *, generator: torch.Generator) -> Tensor:
    """`BATCH` distinct rows ``[BATCH, *event]`` around one score tensor: shared rows would hide the cost that training pays."""
    noise = torch.randn((BATCH, *scores.shape), generator=generator, dtype=scores.dtype, device=scores.device)
    return scores + 1e-3 * noise


def measure_times(
    estimators: Mapping[str, Estimator[Any]], oracle: Any, loss: Loss, scores: Tensor, *, rounds: int = ROUNDS
) -> dict[str, Times]:
    """Interleaved timings of estimators on the same batch.

    Args:
        estimators: by name; `REFERENCE` among them if ratios are wanted.
        oracle: what they run on.
        loss: ``[..., *batch, *event] -> [..., *batch]``.
        scores: ``[*batch, *event]``, no shared rows.
        rounds: timed calls of each; fewer, but at least `FEWEST_ROUNDS`, where they would take longer than `BUDGET`.

    Returns:
        Times by name; the ratio is empty where the reference was not among the estimators.
    """
    order = np.random.default_rng(0)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in estimators}
    start = time.perf_counter()
    for turn in range(WARM_UP + rounds):
        if turn >= WARM_UP + FEWEST_ROUNDS and time.perf_counter() - start > BUDGET:
            break
        for name in order.permutation(list(estimators)):
            pair = time_once(estimators[name], oracle, loss, scores)
            if turn >= WARM_UP:
                samples[name].append(pair)
    table = {name: np.array(pairs) for name, pairs in samples.items()}
    base = table[REFERENCE].sum(-1) if REFERENCE in table else None
    return {name: _times(pairs, base) for name, pairs in table.items()}


def time_once(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> tuple[float, float]:
    """Seconds of one forward (structure and loss, or surrogate) and of its backward to the scores; the device is synchronised."""
    leaf = scores.detach().clone().requires_grad_()
    generator = torch.Generator(scores.device).manual_seed(0)
    value, forward = _clocked(lambda: _forward(estimator, oracle, loss, leaf, generator).sum(), scores.device)
    _, backward = _clocked(lambda: torch.autograd.grad(value, leaf, allow_unused=True), scores.device)
    return forward, backward


def _forward(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor, generator: torch.Generator) -> Tensor:
    """As in training: a layer and the loss where the estimator is one, else the surrogate."""
    if isinstance(estimator, PathwiseEstimator) and estimator.evaluations().losses == 1:
        return loss(estimator.structure(oracle, scores, generator=generator))
    return estimator.surrogate(loss, oracle, scores, generator=generator)


def _clocked(call: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    start = clock(device)
    result = call()
    return result, clock(device) - start


def clock(device: torch.device | None = None) -> float:
    """Seconds, read when the device has finished what it was given; without one, the current CUDA device, if there is any."""
    if torch.cuda.is_available() if device is None else device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _times(pairs: Any, base: Any) -> Times:
    ratio = Interval(None) if base is None else median_interval(pairs.sum(-1) / base)
    return Times(median_interval(pairs[:, 0]), median_interval(pairs[:, 1]), ratio)


def median_interval(values: Any) -> Interval:
    """The median with its order-statistic interval.

    Example:
        >>> median_interval(np.arange(1.0, 32.0))
        Interval(value=16.0, low=10.0, high=22.0)
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    rank = int(stats.binom.ppf((1 - LEVEL) / 2, len(ordered), 0.5))
    return Interval(float(np.median(ordered)), float(ordered[max(rank - 1, 0)]), float(ordered[min(len(ordered) - rank, len(ordered) - 1)]))
