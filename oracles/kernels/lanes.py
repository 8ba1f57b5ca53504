"""Vectors of `WIDTH` float64 numbers, for loops that the compiler does not vectorise well by itself: many short sums side by side.

A vector is a local variable of a compiled function; it is loaded from and stored to contiguous float64 arrays of one dimension. Places are
not checked, so that arrays need room for whole vectors: `WIDTH` − 1 entries more at their ends. Where a machine has shorter vectors, the
compiler takes several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, models, register_model

WIDTH = 8

_VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)


class _Lanes(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


@register_model(_Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


_LANES = _Lanes()


def _operation(build: Callable[..., Any]) -> Any:
    """An intrinsic, whose callers leave out its first argument."""
    return intrinsic(build)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, place: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [place]), _VECTOR.as_pointer())


@_operation
def load(typing_context: Any, array: Any, place: Any) -> Any:
    """The vector at a place of an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[0], *arguments), align=8)

    return _LANES(array, types.intp), generate


@_operation
def store(typing_context: Any, array: Any, place: Any, vector: Any) -> Any:
    """Write a vector at a place of an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _pointer(context, builder, signature.args[0], *arguments[:2]), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES), generate


@_operation
def spread(typing_context: Any, number: Any) -> Any:
    """The vector whose entries are all this number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), arguments[0], ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH))

    return _LANES(types.float64), generate


def _elementwise(arity: int, build: Callable[..., Any]) -> Any:
    """An operation on the entries of so many vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return build(builder, *arguments)

    signature = _LANES(*[_LANES] * arity)
    return _operation(
        (
            lambda typing_context, x, y: (signature, generate),
            lambda typing_context, x, y, z: (signature, generate),
            lambda typing_context, x, y, z, u: (signature, generate),
        )[arity - 2]
    )


def _fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    return builder.fadd(builder.fmul(x, y, flags=("contract",)), z, flags=("contract",))


def _selected(builder: Any, x: Any, y: Any, z: Any, u: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), z, u)


add = _elementwise(2, lambda builder, x, y: builder.fadd(x, y))
"""x + y."""

subtract = _elementwise(2, lambda builder, x, y: builder.fsub(x, y))
"""x − y."""

multiply = _elementwise(2, lambda builder, x, y: builder.fmul(x, y))
"""x · y."""

divide = _elementwise(2, lambda builder, x, y: builder.fdiv(x, y))
"""x / y."""

multiply_add = _elementwise(3, _fused)
"""x · y + z, rounded once where the machine can."""

greatest = _elementwise(2, lambda builder, x, y: _selected(builder, x, y, x, y))
"""The greater of x and y; y next to a NaN."""

least = _elementwise(2, lambda builder, x, y: _selected(builder, x, y, y, x))
"""The lesser of x and y; x next to a NaN."""

where_greater = _elementwise(4, _selected)
"""z where x > y, u elsewhere."""


@_operation
def power_of_two(typing_context: Any, shifted: Any) -> Any:
    """2^k for whole numbers k from −1022 to 1023, given k + 1.5 · 2⁵², whose lowest bits hold k."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = ir.VectorType(ir.IntType(64), WIDTH)
        exponents = builder.shl(builder.bitcast(arguments[0], whole), ir.Constant(whole, [52] * WIDTH))
        return builder.bitcast(builder.add(exponents, ir.Constant(whole, [1023 << 52] * WIDTH)), _VECTOR)

    return _LANES(_LANES), generate
