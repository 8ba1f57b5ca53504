"""The devices that a plan names, and what names them wrongly."""

from __future__ import annotations

import re
from collections import Counter

_ONE = r"cpu|cuda(:\d+)?"

_OF_SEVERAL = r"cuda:\d+"


def kind_of(name: str) -> str:
    """``cuda`` of ``cuda:0,cuda:1``: what numbers depend on.

    Example:
        >>> kind_of("cuda:0,cuda:1"), kind_of("cpu")
        ('cuda', 'cpu')
    """
    return name.partition(":")[0]


def devices_of(name: str) -> tuple[str, ...]:
    """The devices of a list with commas.

    Example:
        >>> devices_of("cuda:0,cuda:1")
        ('cuda:0', 'cuda:1')
    """
    return tuple(name.split(","))


def check_names(name: str) -> None:
    """Raise ValueError for what names no device, or several devices wrongly."""
    names = devices_of(name)
    if len(names) == 1:
        _check_name(name)
    elif not all(re.fullmatch(_OF_SEVERAL, one) for one in names):
        raise ValueError(f"the plan got device={name!r}; expected CUDA devices by their numbers where there are several: cuda:0,cuda:1")
    twice = [one for one, times in Counter(names).items() if times > 1]
    if twice:
        raise ValueError(f"the plan got device={name!r}, which names {twice[0]} twice; expected every device once: more --jobs share one")


def check_device(name: str) -> None:
    """Raise ValueError where torch has no such device."""
    import torch

    _check_name(name)
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the plan got device={name!r}, which is not at hand ({reason}); expected cpu, or cuda where there is one"
        ) from error


def _check_name(name: str) -> None:
    if not re.fullmatch(_ONE, name):
        raise ValueError(f"the plan got device={name!r}; expected cpu, cuda, or cuda:1 and so on")
