"""Tensors that no operation takes, by kind, another default device, and labels of any integer dtype.

Kinds are not looked at before a call. Where an operation fails on such a tensor, its error says so, instead of the words of torch.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C import _len_torch_function_stack
from torch._C._functorch import maybe_current_level

from .random_streams import RowGenerator

PADDING = -100
"""The label that torch's losses ignore."""

P = ParamSpec("P")
R = TypeVar("R")

OPERATIONS: set[str] = {"random_uniform", "masked"}
"""Names of operations, under which their errors are raised, and of what they call with arguments of theirs."""

CPU = torch.device("cpu")

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Dtypes with few operations in torch."""


class UnusualTensorError(ValueError):
    """Raised by `explain`; the call of the user around it raises it again in its own name."""


def with_plain_default(method: Callable[..., R], args: tuple[Any, ...], named: Mapping[str, Any]) -> R:
    """A call of what reads tables on the CPU, whatever `torch.set_default_device` says."""
    if not _len_torch_function_stack() or torch.empty(0).device == CPU:
        return method(*args, **named)
    with CPU:
        return method(*args, **named)


def explain(call: str, method: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any], error: Exception) -> NoReturn:
    """Raise the error of a call, or ValueError where the kind of an argument is why it failed."""
    nested = any(isinstance(value, Tensor) and value.is_nested for value in (*args, *named.values()))
    if isinstance(error, ValueError) and not isinstance(error, UnusualTensorError) and not nested:
        name_call(call, error)
        raise error  # a sentence already, but where the sizes in it are those of a nested tensor
    reason = unusual(inspect.signature(method).bind_partial(*args, **named).arguments)
    if reason is None:
        raise error
    raise UnusualTensorError(f"`{call}` got {reason}") from error


def name_call(call: str, error: ValueError) -> None:
    """Let the error of an operation name the call around it, which the user made; not if the user's own function called the operation."""
    said = re.fullmatch(r"`(\w+)`( got .*)", str(error), re.DOTALL)
    if said is not None and said[1] in OPERATIONS and "own" not in vars(error):
        error.args = (f"`{call}`{said[2]}",)


def naming(call: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function whose errors, those of operations inside of it, name this call."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **named: P.kwargs) -> R:
            try:
                return function(*args, **named)
            except ValueError as error:
                name_call(call, error)
                raise

        return called

    return decorate


def own(function: Callable[..., R], *args: Any) -> R:
    """The result of a function of the user's own, such as a loss, whose errors keep their names."""
    try:
        return function(*args)
    except ValueError as error:
        vars(error)["own"] = True
        raise


def unusual(given: Mapping[str, Any]) -> str | None:
    """A sentence on the unusual tensor of a call, and on the expected one; None if all are plain and on one device."""
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    for name, value in tensors.items():
        if (kind := unusual_kind(name, value)) is not None:
            return kind
    first = next(iter(tensors.values()), None)
    for name, value in given.items():
        placed = isinstance(value, Tensor) or (isinstance(value, torch.Generator) and not isinstance(value, RowGenerator))
        if first is not None and placed and value.device.type != first.device.type:
            do = f"{name}.to({str(first.device)!r})" if isinstance(value, Tensor) else f"torch.Generator({str(first.device)!r})"
            return f"{name} on {value.device} for {next(iter(tensors))} on {first.device}; expected one device: take {do}"
    return None


def unusual_kind(name: str, value: Tensor) -> str | None:
    """A sentence on an unusual tensor, and on the expected one; None for a plain one."""
    if value.is_nested:
        return f"{name} as a nested tensor; expected a dense one: take torch.nested.to_padded_tensor, and lengths="
    if value.layout is not torch.strided:
        return f"{name} of layout {value.layout}; expected a dense tensor: take {name}.to_dense()"
    if value.is_meta or type(value).__name__ == "FakeTensor":
        return f"{name} on the device meta, or under FakeTensorMode, without numbers; expected a tensor with numbers, on the CPU or a GPU"
    if value.is_inference() and not torch.is_inference_mode_enabled():
        return f"{name} made under torch.inference_mode; expected an ordinary tensor, as {name}.clone() gives"
    return None


def check_dense(call: str, name: str, value: Tensor) -> None:
    """ValueError for a sparse or nested tensor, in the name of a call, where it would not fail by itself."""
    if value.layout is not torch.strided or value.is_nested:
        raise ValueError(f"`{call}` got {unusual_kind(name, value)}")


def signed(values: Tensor) -> Tensor:
    """The values, as int64 where torch does not compute with their dtype."""
    return values.long() if values.dtype in UNSIGNED else values


def inside_lengths(call: str, lengths: Tensor | None, size: int) -> Tensor | None:
    """Boolean ``[*batch, size]`` from lengths ``[*batch]``: what lies within the items; None where they have no lengths."""
    if lengths is None:
        return None
    lengths = labels_below(call, "lengths", lengths, size + 1)
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(-1)


def labels_below(call: str, name: str, labels: Tensor, count: int, inside: Tensor | None = None) -> Tensor:
    """Labels of any integer dtype as int64, 0 where they are not ``inside``.

    Raises:
        ValueError: they are no integers, or those inside are not from 0 to ``count − 1``. Values are looked at on the CPU alone.
    """
    whole = isinstance(labels, Tensor) and not (labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool)
    if not whole or labels.is_nested or labels.layout is not torch.strided:
        got = f"{labels.dtype} and {labels.layout}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"`{call}` got {name} of {got}; expected a dense tensor of integers from 0 to {count - 1}")
    labels = labels.long() if inside is None else torch.where(inside, labels.long(), 0)
    if labels.is_cpu and maybe_current_level() is None and bool(((labels < 0) | (labels >= count)).any()):
        padded = f", and lengths= for items whose padding is {PADDING}" if inside is None and bool((labels == PADDING).any()) else ""
        raise ValueError(f"`{call}` got {name} from {int(labels.min())} to {int(labels.max())}; expected 0 to {count - 1}{padded}")
    return labels
