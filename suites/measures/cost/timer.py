"""One timer: callables take turns in random order, round after round, and medians of rounds are compared.

On a shared machine, two contenders that are timed one after the other do not compare: the load changes in between. In interleaved rounds,
ratios are taken within a round. The interval of a median needs no assumption on the noise.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ....estimators import Estimator, Loss, PathwiseEstimator
from ...text import reason_of

BATCH = 32  # rows of a timed step; every row has scores of its own
WARM_UP = 2  # untimed rounds
MIN_ROUNDS = 7  # rounds of a slow contender; a median of fewer than 6 has no 95 % interval
PATIENCE = 4  # a contender that has taken this many times its budget is timed once, and gets no interval
MIN_SECONDS = 1e-3  # seconds: a shorter call is repeated up to this, and counts as the mean
MAX_REPEATS = 64

Key = TypeVar("Key", bound=Hashable)


def interleave(
    contenders: Mapping[Key, Callable[[], tuple[float, ...]]], *, rounds: int, budget: float, spent: Mapping[Key, float] | None = None
) -> tuple[dict[Key, Any], dict[Key, str]]:
    """Time contenders in turns: seconds ``[rounds, columns]``, and the errors of those that raised, which have no seconds.

    Each call returns seconds, one number or several. After ``budget`` seconds a contender makes `MIN_ROUNDS` only, after `PATIENCE` times
    as many one round. A slow contender has fewer rows than others; row i is round i. ``spent`` are seconds that contenders have taken
    before: a slow one needs no further warm-up.
    """
    order, used = np.random.default_rng(0), {key: (spent or {}).get(key, 0.0) for key in contenders}
    timed: dict[Key, list[Any]] = {key: [] for key in contenders}
    fastest, failures = dict.fromkeys(contenders, math.inf), dict[Key, str]()

    def takes_part(key: Key, turn: int) -> bool:
        if used[key] > PATIENCE * budget:
            return turn >= WARM_UP and not timed[key]
        return turn < WARM_UP + (rounds if used[key] <= budget else MIN_ROUNDS)

    for turn in range(WARM_UP + max(rounds, MIN_ROUNDS)):
        willing = [key for key in contenders if key not in failures and takes_part(key, turn)]
        for key in (willing[i] for i in order.permutation(len(willing))):
            call, start = contenders[key], time.perf_counter()
            try:
                if turn < WARM_UP:  # the fastest of these calls is the one without compilation
                    fastest[key] = min(fastest[key], sum(call()))
                else:
                    repeats = max(1, min(MAX_REPEATS, math.ceil(MIN_SECONDS / max(fastest[key], 1e-9))))
                    rows = [call() for _ in range(repeats)]
                    timed[key].append(rows[0] if repeats == 1 else np.sum(rows, axis=0) / repeats)
            except Exception as error:  # any user-supplied code may run here
                failures[key] = reason_of(error)
            used[key] += time.perf_counter() - start
    return {key: np.array(values) for key, values in timed.items() if key not in failures}, failures


def probe(call: Callable[[], tuple[float, ...]], limit: float) -> float:
    """Seconds of the fastest of a few calls; of the second one if that exceeds a limit. The first may load or compile."""
    call()
    seconds = sum(call())
    return min([seconds, *(sum(call()) for _ in range(WARM_UP if seconds <= limit else 0))])


def clock(device: torch.device) -> float:
    """Read seconds when the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(call: Callable[[], Any], device: torch.device) -> tuple[float]:
    """Seconds of one call."""
    start = clock(device)
    call()
    return (clock(device) - start,)


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute on one thread: with two, a small step on a busy machine takes several times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def timing_batch(scores: Tensor, *, generator: torch.Generator) -> Tensor:
    """Make `BATCH` distinct rows around one score tensor: shared rows would hide costs of training."""
    return scores + 1e-3 * torch.randn((BATCH, *scores.shape), generator=generator, dtype=scores.dtype, device=scores.device)


def time_once(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> tuple[float, float]:
    """Seconds of one forward (of a layer and the loss if the estimator is a layer, else of the surrogate) and of its backward."""
    leaf = scores.detach().clone().requires_grad_()
    generator = torch.Generator(scores.device).manual_seed(0)
    start = clock(scores.device)
    if isinstance(estimator, PathwiseEstimator) and estimator.evaluations().losses == 1:
        value = loss(estimator.structure(oracle, leaf, generator=generator)).sum()
    else:
        value = estimator.surrogate(loss, oracle, leaf, generator=generator).sum()
    middle = clock(scores.device)
    torch.autograd.grad(value, leaf, allow_unused=True)
    return middle - start, clock(scores.device) - middle
