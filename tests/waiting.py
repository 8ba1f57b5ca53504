"""Detect operations that make the host wait for a device, on a machine without one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from structgrad.oracles.random_streams import RowGenerator

PRETENDED = torch.device("meta")
"""A device other than the CPU on every machine. Its tensors have no numbers: torch refuses to copy one to the host."""

READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "_unique2", "unique_dim")
"""What brings numbers to the host, or a size that depends on them."""

INDEXED = ("index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put")


class WaitsError(RuntimeError):
    """Something that the host would wait for."""


class _Read(TorchDispatchMode):
    """Raises where a number of a tensor on the device is needed on the host, or a tensor is copied between devices."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.kind = device.type

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        places = {value.device.type for value in args if isinstance(value, Tensor)}
        if self.kind in places and (name in READS or (name in INDEXED and any(map(_is_mask, args[1])))):
            raise WaitsError(f"{function} reads numbers of a device")
        if name == "_to_copy" and (kwargs or {}).get("device") is not None:
            places.add(torch.device(kwargs["device"]).type)
        if name in INDEXED:
            places |= {place.device.type for place in args[1] if isinstance(place, Tensor)}
        if name in ("_to_copy", "copy_", *INDEXED) and len(places) > 1:
            raise WaitsError(f"{function} copies between devices")
        return function(*args, **(kwargs or {}))


def _is_mask(place: Any) -> bool:
    """Whether an index is a mask, so that the host waits for the number of selected entries."""
    return isinstance(place, Tensor) and place.dtype in (torch.bool, torch.uint8)


class _Made(TorchFunctionMode):
    """Raises where a tensor on a named device is made of numbers of Python, which the host copies there."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.tensor, torch.as_tensor) and (kwargs or {}).get("device") is not None and not isinstance(args[0], Tensor):
            raise WaitsError(f"torch.{function.__name__} copies numbers to a device")
        if function is torch.nn.functional.one_hot:
            # On the CPU alone it looks at the numbers.
            index, categories = args
            return (torch.arange(categories, device=index.device) == index.unsqueeze(-1)).long()
        return function(*args, **(kwargs or {}))


@contextmanager
def watched(device: torch.device) -> Iterator[None]:
    """Raise where the host would wait for the device; on a GPU torch itself does.

    Raises:
        WaitsError: elsewhere.
    """
    if device.type != "cuda":
        with _Read(device), _Made():
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Unset(RowGenerator):
    """Serves uniforms without numbers, which is all that the pretended device has."""

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        return torch.empty(rows, width, dtype=torch.float64, device=device)
