"""Share of the oracle in the time of a training step, forward and backward.

The estimator is given an oracle of a subclass of the oracle's own class whose public operations run under a stopwatch. What such a call
computes later, in the backward pass, counts too: a hook on its result starts the stopwatch when the gradient arrives there, and a hook on
its scores stops it when the gradient has come through. Autograd runs the nodes of one call without others in between, because it takes the
youngest first. Calls inside a call, and estimators that call the oracle from their own backward, are counted once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ....estimators.base import Estimator, Loss
from ....oracles.active_set.solution import SparseSolution
from ....oracles.capabilities import Oracle
from .timing import clock, time_once


@dataclass
class Stopwatch:
    """Seconds between starts and stops; a start while it runs is part of what runs."""

    device: torch.device
    seconds: float = 0.0
    depth: int = 0
    started: float | None = field(default=None)
    within: bool = False

    def start(self) -> None:
        """Begin, unless it runs already."""
        if self.started is None:
            self.started = clock(self.device)

    def stop(self) -> None:
        """End, and count; nothing where it does not run."""
        if self.started is not None and self.depth == 0:
            self.seconds += clock(self.device) - self.started
            self.started = None

    def __enter__(self) -> Stopwatch:
        # Within a backward pass that is timed, a call is a part of it and does not end it.
        self.within = self.within if self.depth else self.started is not None
        self.start()
        self.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.within:
            self.stop()

    def reset(self) -> None:
        """Forget everything, a start without its stop too."""
        self.seconds, self.depth, self.started = 0.0, 0, None


def oracle_seconds(estimator: Estimator[Any], timed: Any, loss: Loss, scores: Tensor, watch: Stopwatch) -> tuple[float, float, float]:
    """Seconds of the forward and of the backward of one training step with an oracle of `timed_oracle`, and of both, inside the oracle."""
    watch.reset()
    forward, backward = time_once(estimator, timed, loss, scores)
    return forward, backward, min(watch.seconds, forward + backward)


def timed_oracle(oracle: Oracle, watch: Stopwatch) -> Any:
    """An oracle like the given one, of a subclass of its class, whose public operations run under the stopwatch."""
    return timed_twin(oracle, operations(type(oracle)), watch)


def timed_twin(value: Any, methods: list[str], watch: Stopwatch) -> Any:
    """An object like the given one, of a subclass of its class, these methods of which run under the stopwatch."""
    kind = type(value)
    twin: Any = object.__new__(type(kind.__name__, (kind,), {name: timed(getattr(kind, name), watch) for name in methods}))
    twin.__dict__.update(value.__dict__)
    return twin


def operations(kind: type) -> list[str]:
    """Public methods of an instance."""
    plain = inspect.getmembers_static(kind, inspect.isfunction)
    return [name for name, _ in plain if not name.startswith("_") and not isinstance(inspect.getattr_static(kind, name), staticmethod)]


def timed(operation: Callable[..., Any], watch: Stopwatch) -> Callable[..., Any]:
    """The same function under the stopwatch, and what it computes later, in the backward pass, too."""

    @functools.wraps(operation)
    def run(*args: Any, **named: Any) -> Any:
        if watch.depth:
            return operation(*args, **named)
        args, named = tuple(_stopping(value, watch) for value in args), {key: _stopping(value, watch) for key, value in named.items()}
        with watch:
            result = operation(*args, **named)
        return _starting(result, watch)

    return run


def _stopping(value: Any, watch: Stopwatch) -> Any:
    """An argument whose gradient stops the stopwatch."""
    if not (isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled()):
        return value
    entry = value.view_as(value)
    entry.register_hook(lambda _: watch.stop())
    return entry


def _starting(result: Any, watch: Stopwatch) -> Any:
    """A result whose gradient starts the stopwatch."""
    if isinstance(result, Tensor) and result.requires_grad:
        result.register_hook(lambda _: watch.start())
    return _TimedSolution(result, watch) if isinstance(result, SparseSolution) else result


class _TimedSolution:
    """A projection, which computes what is asked for when it is asked for."""

    def __init__(self, solution: SparseSolution, watch: Stopwatch) -> None:
        self._solution, self._watch = solution, watch

    def __getattr__(self, name: str) -> Any:
        with self._watch:
            value = getattr(self._solution, name)
        return _starting(value, self._watch)
