"""A device that is not there, with numbers: operations run on the host, for tensors that say they are elsewhere.

What mixes tensors of two devices is refused, as on a GPU, but for single numbers of the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map

FAR = torch.device("meta", 1)
"""Stands for a device without kernels: that of CUDA is unknown to a torch that was built without it."""

COPIES = ("_to_copy", "copy_", "lift_fresh")


class Far(Tensor):
    """A tensor of that device, which holds its numbers on the host."""

    held: Tensor
    is_meta = False

    @staticmethod
    def __new__(cls, held: Tensor) -> Far:
        return torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=FAR
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(function, args, kwargs or {})


def computed(function: Any, args: Any, named: dict[str, Any]) -> Any:
    """The result of a torch function, on the device that its arguments are on or name."""
    name = function.overloadpacket.__name__
    tensors = [value for value in tree_iter((args, named)) if isinstance(value, Tensor)]
    far, near = ([value for value in tensors if isinstance(value, Far) == kind] for kind in (True, False))
    if far and any(value.ndim for value in near) and name not in COPIES:
        raise RuntimeError(f"{function} got tensors of two devices: {[tuple(value.shape) for value in near]} on the host")
    wanted = named.get("device")
    there = bool(far) if wanted is None else torch.device(wanted).type == FAR.type
    if not far and not there:
        return function(*args, **named)
    host = dict(named) if wanted is None else named | {"device": torch.device("cpu")}
    found = function(*tree_map(held, args), **tree_map(held, host))
    if not there:
        return found
    return return_and_correct_aliasing(
        function, args, named, tree_map(lambda value: Far(value) if isinstance(value, Tensor) else value, found)
    )


def held(value: Any) -> Any:
    """The host copy of a tensor on the pretended device; other values unchanged."""
    return value.held if isinstance(value, Far) else value


class _Numbers(TorchFunctionMode):
    """Moves numbers of Python there as a copy from the host, which no dispatch shows."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor) and "device" in named:
            device = named.pop("device")
            return function(*args, **named).to(device)
        return function(*args, **named)


class _Made(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(function, args, kwargs or {})


@contextmanager
def far_device() -> Iterator[torch.device]:
    """That device, for tensors that are made in this context."""
    with _Made(), _Numbers():
        yield FAR
