"""Operations as wholes under `torch.func`, `torch.compile` and `torch.export`.

Kernels read the numbers of a tensor, which a tensor under a transform does not show and a graph does not hold. So an operation is one step
for both: for `torch.func` a function of `functional`, in a graph a node of `graphs`. What no graph can hold, such as a sample, is left out
by `torch.compile`: one break per operation. Where nothing of this is active nothing changes.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C import _get_dispatch_mode, _is_tracing, _len_torch_dispatch_stack, _len_torch_function_stack, _TorchDispatchModeKey
from torch._C._functorch import maybe_current_level
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from . import graphs
from .functional import transformed
from .tensor_kinds import OPERATIONS, explain, with_plain_default

P = ParamSpec("P")
R = TypeVar("R")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """Keep the compiler out of a function and all that it calls, which it enters where a frame around it fell back to plain Python."""
    apart: Callable[P, R] = _disable_dynamo(function)  # which imports the compiler when it is called

    @functools.wraps(function)
    def called(*args: P.args, **named: P.kwargs) -> R:
        return (apart if "torch._dynamo" in sys.modules else function)(*args, **named)

    return called


_transformed = untraced(transformed)


def transforming() -> bool:
    """Whether a transform of `torch.func` is active, under which numbers cannot be looked at."""
    return maybe_current_level() is not None


def refuse_duals(call: str, *values: Any) -> None:
    """ValueError for dual numbers outside `torch.func`, whose directions kernels would lose without a word."""
    if forward_ad._current_level < 0 or transforming():
        return
    if any(isinstance(value, Tensor) and forward_ad.unpack_dual(value).tangent is not None for value in values):
        raise ValueError(
            f"`{call}` got a dual number of torch.autograd.forward_ad or torch.func.linearize; expected a plain tensor: use torch.func.jvp"
        )


def refuse_exports(call: str) -> None:
    """ValueError under tracers whose graphs have no breaks: all but torch.compile. They would keep numbers as constants."""
    exporting = torch.compiler._is_exporting_flag  # `is_exporting`, of which the compiler of torch 2.8 says what `is_compiling` does
    if exporting or not is_compiling():
        raise ValueError(
            f"`{call}` got called under torch.jit.trace, torch.export or make_fx, whose graphs cannot hold it; expected a call of its own: "
            "trace what comes before and after, or use torch.compile"
        )


def operation(
    leading: str | None = None, *, gives: Literal["event", "padded", "batch"] | None = None, **event_ndims: int
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function of tensors one operation; of a method of an oracle, or of an estimator, the oracle says how long the event is.

    Args:
        leading: the argument that, where it is given, puts a dimension before the batch of the result.
        gives: what its only result is like, if graphs are to hold it: an event, one that `Oracle.pad` made, or a number for each row.
        event_ndims: how many dimensions of each tensor, by the argument's name, are not the batch.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(method)
        names, key = tuple(signature.parameters), f"{method.__module__}:{method.__qualname__}"
        OPERATIONS.add(method.__name__)
        graphs.KINDS[key] = graphs.Kind(method, gives, event_ndims)

        def in_graph(*args: Any, **named: Any) -> Any:
            if gives and (node := graphs.node(key, names, args, named)) is not None:
                return node
            refuse_exports(method.__name__)
            return left_out(*args, **named)

        @functools.wraps(method)
        def called(*args: P.args, **named: P.kwargs) -> R:
            if is_compiling():
                return in_graph(*args, **named)  # type: ignore[no-any-return]
            plain = maybe_current_level() is None  # `transforming`, and the first of `refuse_duals`, without their calls
            if plain and forward_ad._current_level >= 0:  # `linearize` traces too, at one point, where constants are right
                refuse_duals(method.__name__, *args, *named.values())
            elif _is_tracing() or (_len_torch_dispatch_stack() and _get_dispatch_mode(_TorchDispatchModeKey.PROXY) is not None):
                return in_graph(*args, **named)  # type: ignore[no-any-return]
            if plain:
                try:
                    return with_plain_default(method, args, named) if _len_torch_function_stack() else method(*args, **named)
                except Exception as error:
                    explain(method.__name__, method, args, named, error)
            given = signature.bind(*args, **named).arguments
            result: R = _transformed(method, given, given.get(leading or "") is not None, event_ndims)
            return result

        # `torch.compiler.disable` would import the compiler here and now.
        left_out: Callable[P, R] = _disable_dynamo(called)
        return called

    return decorate


def applied(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`Function.apply` without what it prepares for transforms, where none is active: under them no `operation` calls it."""
    call: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return call


def uncompiled(method: Callable[P, R], *, calls_losses: bool = False) -> Callable[P, R]:
    """Leave a function out of the graphs of `torch.compile`, as a whole; losses that it calls see the default device as it is."""
    if not calls_losses:
        OPERATIONS.add(method.__name__)

    @functools.wraps(method)
    def called(*args: P.args, **named: P.kwargs) -> R:
        if is_compiling():
            refuse_exports(method.__name__)
            return left_out(*args, **named)
        try:
            plain = calls_losses or not _len_torch_function_stack()
            return method(*args, **named) if plain else with_plain_default(method, args, named)
        except Exception as error:
            explain(getattr(args[0], "name", method.__name__) if calls_losses else method.__name__, method, args, named, error)

    left_out: Callable[P, R] = _disable_dynamo(called)
    return called
