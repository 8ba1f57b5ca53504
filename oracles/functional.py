"""Operations as wholes under `torch.func`: one function of any batch, whose derivatives of every order are such functions too.

A mapped dimension is one more dimension of the batch. Derivatives, in both modes, are those that autograd finds on plain tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]
"""A function of plain tensors that begin with the batch."""


def transformed(method: Callable[..., Any], given: Mapping[str, Any], leads: bool, event_ndims: Mapping[str, int]) -> Any:
    """The result of a call whose tensors may be those of a transform."""
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    fixed = {name: value for name, value in given.items() if name not in tensors}
    oracle = given.get("oracle", given.get("self"))
    tensors = aligned(tensors, batch_ndims(tensors, fixed, oracle, event_ndims))

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        result = method(**fixed, **dict(zip(tensors, values, strict=True)))
        return result if isinstance(result, tuple) else (result,)

    name, generator = method.__qualname__.removesuffix(".__call__").rpartition(".")[2], fixed.get("generator")
    call: Function = run
    if generator is not None and not getattr(given.get("self"), "deterministic", False):
        call = _Replayed(run, generator)
    results = apply(Operation(name, call, int(leads), random=call is not run), *tensors.values())
    return results if len(results) > 1 else results[0]


def batch_ndims(tensors: Mapping[str, Tensor], fixed: Mapping[str, Any], oracle: Any, event_ndims: Mapping[str, int]) -> dict[str, int]:
    """The number of batch dimensions of each tensor; the method checks whether they fit."""
    ranks = {name: event_ndims.get(name, getattr(oracle, "event_ndim", 0)) for name in tensors}
    if fixed.get("as_indices") and "z" in ranks:  # of structures that are given, not of those that come out
        ranks["z"] = oracle.index_ndim
    scores = tensors.get("scores")
    if scores is not None and "lengths" in tensors and scores.ndim >= oracle.event_ndim:
        ranks["lengths"] = len(oracle.length_limits(oracle._event(scores))) > 1
    return {name: value.ndim - ranks[name] for name, value in tensors.items()}


def aligned(tensors: Mapping[str, Tensor], ndims: Mapping[str, int], mapped: int = 0) -> dict[str, Tensor]:
    """With batches of as many dimensions each, so that one more before them is the same one for all; lengths are those of every item.

    So many ``mapped`` dimensions, which all of them have, stay first.
    """
    most = max(ndims.values(), default=0)
    found = {
        name: value.reshape((*value.shape[:mapped], *[1] * (most - ndims[name]), *value.shape[mapped:])) for name, value in tensors.items()
    }
    if ndims.get("lengths") == mapped and "scores" in tensors:
        found["lengths"] = found["lengths"].expand((*found["scores"].shape[:most], *tensors["lengths"].shape[mapped:]))
    return found


def mapped_first(tensors: Sequence[Tensor], dims: Sequence[int | None], size: int) -> list[Tensor]:
    """Tensors that begin with the mapped dimension of `torch.func.vmap`, of this size; those that are not mapped repeat along it."""
    pairs = zip(tensors, dims, strict=True)
    return [value.unsqueeze(0).expand(size, *value.shape) if dim is None else value.movedim(dim, 0) for value, dim in pairs]


@dataclass(frozen=True)
class Operation:
    """The function that `_Whole` computes.

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


def apply(operation: Operation, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The results of an operation under whatever transforms are active."""
    results: tuple[Tensor, ...] = _Whole.apply(operation, *tensors)  # type: ignore[no-untyped-call]
    return results


class _Whole(torch.autograd.Function):
    """An operation as one function, whose derivatives are operations too."""

    @staticmethod
    def forward(operation: Operation, *tensors: Tensor) -> tuple[Tensor, ...]:
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
        derivative = derivative_of(ctx.operation, len(ctx.saved_tensors), wanted, False)
        found = dict(zip(wanted, apply(derivative, *ctx.saved_tensors, *given), strict=True))
        return None, *(found.get(place) for place in range(len(ctx.saved_tensors)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        moved = {place: tangent for place, tangent in enumerate(tangents[1:]) if tangent is not None}
        found = iter(apply(derivative_of(ctx.operation, len(ctx.saved_tensors), [*moved], True), *ctx.saved_tensors, *moved.values()))
        return tuple(next(found) if floating else None for floating in ctx.floating)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], operation: Operation, *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
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
        results = apply(operation, *mapped_first(tensors, dims, size))
        return results, (operation.leading,) * len(results)


def derivative_of(operation: Operation, count: int, wanted: Sequence[int], forward: bool) -> Operation:
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

    return Operation(operation.name, run, operation.leading * forward, operation.random, operation.primals or count)
