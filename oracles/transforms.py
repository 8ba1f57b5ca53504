"""Operations as wholes under `torch.func` and `torch.compile`.

Kernels read the numbers of a tensor, which a tensor under a transform does not show and a graph does not hold. So an operation is one step
for both. `torch.compile` leaves it out of its graphs: one break per operation. For `torch.func` it is one function that takes any batch: a
mapped dimension is one more dimension of the batch, and the derivatives, of every order and in both modes, are those that autograd finds on
plain tensors, and operations in turn. Where neither is active nothing changes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C import _get_dispatch_mode, _is_tracing, _len_torch_dispatch_stack, _len_torch_function_stack, _TorchDispatchModeKey
from torch._C._functorch import maybe_current_level
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from .tensor_kinds import OPERATIONS, explain, with_plain_default

P = ParamSpec("P")
R = TypeVar("R")

Function = Callable[..., tuple[Tensor, ...]]
"""Of plain tensors that begin with the batch."""


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
    """ValueError under torch.export, whose graphs have no breaks."""
    if torch.compiler._is_exporting_flag:  # `is_exporting`, of which the compiler of torch 2.8 says what `is_compiling` does
        raise untraceable(call)


def untraceable(call: str) -> ValueError:
    """What a tracer is told: it would keep the numbers that a kernel gave once as constants."""
    return ValueError(
        f"`{call}` got called under torch.jit.trace, torch.export or make_fx, whose graphs cannot hold it; expected a call of its own: "
        "trace what comes before and after, or use torch.compile"
    )


def operation(leading: str | None = None, **event_ndims: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function of tensors one operation; of a method of an oracle, or of an estimator, the oracle says how long the event is.

    Args:
        leading: the argument that, where it is given, puts a dimension before the batch of the result.
        event_ndims: how many dimensions of each tensor, by the argument's name, are not the batch.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(method)
        OPERATIONS.add(method.__name__)

        @functools.wraps(method)
        def called(*args: P.args, **named: P.kwargs) -> R:
            if is_compiling():
                refuse_exports(method.__name__)
                return left_out(*args, **named)
            plain = maybe_current_level() is None  # `transforming`, and the first of `refuse_duals`, without their calls
            if plain and forward_ad._current_level >= 0:  # `linearize` traces too, at one point, where constants are right
                refuse_duals(method.__name__, *args, *named.values())
            elif _is_tracing() or (_len_torch_dispatch_stack() and _get_dispatch_mode(_TorchDispatchModeKey.PROXY) is not None):
                raise untraceable(method.__name__)
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


def _transformed(method: Callable[..., Any], given: Mapping[str, Any], leads: bool, event_ndims: Mapping[str, int]) -> Any:
    """The result of a call whose tensors may be those of a transform."""
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    fixed = {name: value for name, value in given.items() if name not in tensors}
    oracle = given.get("oracle", given.get("self"))
    if given.get("as_indices"):  # of structures that are given, not of those that come out
        event_ndims = {**event_ndims, "z": oracle.index_ndim}
    tensors = _aligned(tensors, oracle, event_ndims)

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        result = method(**fixed, **dict(zip(tensors, values, strict=True)))
        return result if isinstance(result, tuple) else (result,)

    name, generator = method.__qualname__.removesuffix(".__call__").rpartition(".")[2], fixed.get("generator")
    call: Function = run
    if generator is not None and not getattr(given.get("self"), "deterministic", False):
        call = _Replayed(run, generator)
    results = apply(_Operation(name, call, int(leads), random=call is not run), *tensors.values())
    return results if len(results) > 1 else results[0]


def _aligned(tensors: Mapping[str, Tensor], oracle: Any, event_ndims: Mapping[str, int]) -> dict[str, Tensor]:
    """With batches of as many dimensions each, so that one more before them is the same one for all; lengths are those of every item.

    What does not fit is left to the checks of the method.
    """
    scores = tensors.get("scores")
    ranks = {name: event_ndims.get(name, getattr(oracle, "event_ndim", 0)) for name in tensors}
    if scores is not None and "lengths" in tensors and scores.ndim >= oracle.event_ndim:
        ranks["lengths"] = len(oracle.length_limits(oracle._event(scores))) > 1
    batch_ndims = {name: value.ndim - ranks[name] for name, value in tensors.items()}
    most = max(batch_ndims.values(), default=0)
    aligned = {name: value.reshape((*[1] * (most - batch_ndims[name]), *value.shape)) for name, value in tensors.items()}
    if batch_ndims.get("lengths") == 0 and scores is not None:
        aligned["lengths"] = tensors["lengths"].expand((*aligned["scores"].shape[:most], *tensors["lengths"].shape))
    return aligned


@dataclass(frozen=True)
class _Operation:
    """What `_Whole` computes.

    Attributes:
        name: for messages.
        run: the function of plain tensors.
        leading: how many dimensions come before the batch in its results.
        random: whether numbers are drawn.
        primals: of a derivative, how many of its tensors are those of the function that it is the derivative of.
    """

    name: str
    run: Function
    leading: int = 0
    random: bool = False
    primals: int = 0


class _Replayed:
    """A function that draws the same numbers whenever it is called again, as its derivatives do."""

    def __init__(self, run: Function, generator: torch.Generator) -> None:
        self.run, self.generator = run, generator
        self.state: tuple[Tensor, dict[str, Any]] | None = None

    def __call__(self, *values: Tensor) -> tuple[Tensor, ...]:
        # The state of a `RowGenerator` is in its attributes.
        now = self.generator.get_state(), dict(getattr(self.generator, "__dict__", {}))
        if self.state is None:
            self.state = now
            return self.run(*values)
        self._set(*self.state)
        try:
            return self.run(*values)
        finally:
            self._set(*now)

    def _set(self, state: Tensor, attributes: dict[str, Any]) -> None:
        self.generator.set_state(state)
        for name, value in attributes.items():
            setattr(self.generator, name, value)


def apply(operation: _Operation, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The results of an operation under whatever transforms are active."""
    results: tuple[Tensor, ...] = _Whole.apply(operation, *tensors)  # type: ignore[no-untyped-call]
    return results


class _Whole(torch.autograd.Function):
    """An operation as one function, whose derivatives are operations too."""

    @staticmethod
    def forward(operation: _Operation, *tensors: Tensor) -> tuple[Tensor, ...]:
        # A tangent needs memory of its own for every entry.
        return tuple(result.contiguous() for result in operation.run(*tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.operation = inputs[0]
        ctx.floating = [result.is_floating_point() for result in output]
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [place for place, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        given = [grad for grad, floating in zip(grads, ctx.floating, strict=True) if floating]
        derivative = _derivative(ctx.operation, len(ctx.saved_tensors), wanted, False)
        found = dict(zip(wanted, apply(derivative, *ctx.saved_tensors, *given), strict=True))
        return None, *(found.get(place) for place in range(len(ctx.saved_tensors)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        moved = {place: tangent for place, tangent in enumerate(tangents[1:]) if tangent is not None}
        found = iter(apply(_derivative(ctx.operation, len(ctx.saved_tensors), [*moved], True), *ctx.saved_tensors, *moved.values()))
        return tuple(next(found) if floating else None for floating in ctx.floating)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], operation: _Operation, *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        dims, size = in_dims[1:], info.batch_size
        if operation.random and operation.primals and all(dim is None for dim in dims[: operation.primals]):
            # Many directions at one point, where another batch would draw other numbers.
            single = (
                [value if dim is None else value.select(dim, i) for value, dim in zip(tensors, dims, strict=True)] for i in range(size)
            )
            results = tuple(torch.stack(each) for each in zip(*(apply(operation, *values) for values in single), strict=True))
            return results, (0,) * len(results)
        if operation.random and info.randomness != "different":
            raise ValueError(
                f'`{operation.name}` got randomness="{info.randomness}" from torch.func.vmap; expected "different", '
                "with which every mapped row draws numbers of its own, as the rows of a batch do"
            )
        front = (
            value.unsqueeze(0).expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip(tensors, dims, strict=True)
        )
        results = apply(operation, *front)
        return results, (operation.leading,) * len(results)


def _derivative(operation: _Operation, count: int, wanted: Sequence[int], forward: bool) -> _Operation:
    """The product of the Jacobian of the floating results in the wanted tensors with directions of these, or its transpose with gradients.

    Args:
        operation: a function of ``count`` tensors; the directions or gradients come behind them.
        count: how many.
        wanted: places of the tensors.
        forward: whether directions are pushed forward; else gradients are pulled back.
    """
    product: Any = torch.autograd.functional.jvp if forward else torch.autograd.functional.vjp

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        def of_wanted(*leaves: Tensor) -> tuple[Tensor, ...]:
            moved = dict(zip(wanted, leaves, strict=True))
            results = operation.run(*(moved.get(place, value) for place, value in enumerate(values[:count])))
            return tuple(result for result in results if result.is_floating_point())

        higher = torch.is_grad_enabled()
        with torch.inference_mode(False):
            leaves = tuple(values[place].clone() if values[place].is_inference() else values[place] for place in wanted)
            found: tuple[Tensor, ...] = product(of_wanted, leaves, values[count:], create_graph=higher)[1]
            return found

    return _Operation(operation.name, run, operation.leading * forward, operation.random, operation.primals or count)
