"""Tables that the host makes, on the device where they are needed: the host waits for what it copies, so it copies once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def made_once(make: Callable[P, R]) -> Callable[P, R]:
    """Keep the tables that a function made of sizes and, among its arguments, a device.

    Example:
        >>> @made_once
        ... def squares(size: int, device: torch.device) -> torch.Tensor:
        ...     return torch.tensor([i * i for i in range(size)], device=device)
        >>> squares(4, torch.device("cpu")) is squares(4, torch.device("cpu"))
        True
    """

    @functools.lru_cache(maxsize=64)
    @functools.wraps(make)
    def made(*args: P.args, **named: P.kwargs) -> R:
        # Made in inference mode, they could take part in no gradient later.
        with torch.inference_mode(False):
            return make(*args, **named)

    return made  # type: ignore[return-value]  # a cached function is one of hashable arguments
