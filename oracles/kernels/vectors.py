"""Vectors of `WIDTH` float64 numbers, for loops that the compiler does not vectorise well by itself: many short sums side by side.

A vector is a local variable of a compiled function; it is loaded from and stored to contiguous arrays of float64, or of float32, which is
converted. A place counts entries from the array's first one, and is not checked, so that arrays need room for whole vectors. Where a
machine has shorter vectors, the compiler takes several.

Vectors of twice as many float32 numbers know the same operations; `load_singles` and `spread_single` make them, `low_half`
and `high_half` convert them. So do vectors of four float64 numbers, of `load_four` and `spread_four`: half as much memory is touched at a
time.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, models, register_model

WIDTH = 8


class _Vectors(types.Type):
    def __init__(self, name: str, element: Any, width: int) -> None:
        super().__init__(name=name)
        self.vector, self.width = ir.VectorType(element, width), width


@register_model(_Vectors)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, kind.vector)


_LANES, _SINGLES = _Vectors("Lanes", ir.DoubleType(), WIDTH), _Vectors("Singles", ir.FloatType(), 2 * WIDTH)
_VECTOR = _LANES.vector
_FOUR = _Vectors("Four", ir.DoubleType(), 4)


_intrinsic: Any = intrinsic
"""Callers leave out the first argument, of which numba's types do not know."""


def _pointer(context: Any, builder: Any, kind: Any, array: Any, place: Any, vector: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [place]), vector.as_pointer())


def _loading(kind: Any) -> Any:
    """An intrinsic that gives the vector at a place of an array; float32 numbers are converted where the kind is one of float64."""

    def intrinsic_of(typing_context: Any, array: Any, place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            held = ir.VectorType(context.get_data_type(array.dtype), kind.width)
            vector = builder.load(_pointer(context, builder, array, arguments[0], arguments[1], held), align=array.dtype.bitwidth // 8)
            return vector if held == kind.vector else builder.fpext(vector, kind.vector)

        return kind(array, types.intp), generate

    return _intrinsic(intrinsic_of)


load, load_four, load_singles = map(_loading, (_LANES, _FOUR, _SINGLES))
"""The vector at a place of an array."""


@_intrinsic
def store(typing_context: Any, array: Any, place: Any, vector: Any) -> Any:
    """Write a vector at a place of an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held, value = ir.VectorType(context.get_data_type(array.dtype), vector.width), arguments[2]
        value = value if held == vector.vector else builder.fptrunc(value, held)
        builder.store(value, _pointer(context, builder, array, arguments[0], arguments[1], held), align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


@_intrinsic
def collect(typing_context: Any, array: Any, start: Any, places: Any, at: Any) -> Any:
    """The vector of an array's numbers at ``start`` plus each of `WIDTH` places, listed from ``at`` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, vector = signature.args[0], ir.Constant(_VECTOR, ir.Undefined)
        array, start, places, at = arguments
        table = _pointer(context, builder, signature.args[2], places, at, ir.IntType(64))
        for lane in range(WIDTH):
            place = builder.add(start, builder.load(builder.gep(table, [ir.Constant(ir.IntType(64), lane)])))
            number = builder.load(_pointer(context, builder, kind, array, place, context.get_data_type(kind.dtype)))
            number = builder.fpext(number, _VECTOR.element) if kind.dtype == types.float32 else number
            vector = builder.insert_element(vector, number, ir.Constant(ir.IntType(32), lane))
        return vector

    return _LANES(array, types.intp, places, types.intp), generate


def _filled(builder: Any, kind: Any, number: Any) -> Any:
    """A vector of a kind whose entries are all one number."""
    first = builder.insert_element(ir.Constant(kind.vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), kind.width), [0] * kind.width))


def _spreading(kind: Any, number: Any) -> Any:
    """An intrinsic that fills a vector of a kind with one number."""

    def intrinsic_of(typing_context: Any, value: Any) -> Any:
        return kind(number), lambda context, builder, signature, arguments: _filled(builder, kind, arguments[0])

    return _intrinsic(intrinsic_of)


spread, spread_four, spread_single = (
    _spreading(_LANES, types.float64),
    _spreading(_FOUR, types.float64),
    _spreading(_SINGLES, types.float32),
)
"""The vector whose entries are all this number."""


@_intrinsic
def fill(typing_context: Any, vector: Any, number: Any) -> Any:
    """A vector of the kind of another one, whose entries are all this float64 number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        element = vector.vector.element
        return _filled(builder, vector, arguments[1] if element == ir.DoubleType() else builder.fptrunc(arguments[1], element))

    return vector(vector, types.float64), generate


@_intrinsic
def width(typing_context: Any, vector: Any) -> Any:
    """The number of entries of a vector, a constant."""
    return types.intp(vector), lambda context, builder, signature, arguments: ir.Constant(ir.IntType(64), vector.width)


def _half(first: int) -> Any:
    """An intrinsic that takes `WIDTH` numbers out of a vector of float32 numbers."""

    def intrinsic_of(typing_context: Any, vector: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            places = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), list(range(first, first + WIDTH)))
            return builder.fpext(builder.shuffle_vector(arguments[0], arguments[0], places), _VECTOR)

        return _LANES(_SINGLES), generate

    return _intrinsic(intrinsic_of)


low_half, high_half = _half(0), _half(WIDTH)
"""The first and the second half of a vector of float32 numbers, in float64."""


def _elementwise(arity: int, build: Callable[..., Any]) -> Any:
    """An operation on the entries of so many vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return build(builder, *arguments)

    return _intrinsic(
        (
            lambda typing_context, x, y: (x(x, x), generate),
            lambda typing_context, x, y, z: (x(x, x, x), generate),
            lambda typing_context, x, y, z, u: (x(x, x, x, x), generate),
        )[arity - 2]
    )


def _selected(builder: Any, x: Any, y: Any, z: Any, u: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), z, u)


add, subtract, multiply, divide = (_elementwise(2, getattr(ir.IRBuilder, name)) for name in ("fadd", "fsub", "fmul", "fdiv"))
"""x + y, x − y, x · y, x / y."""

multiply_add = _elementwise(3, lambda builder, x, y, z: builder.fadd(builder.fmul(x, y, flags=("contract",)), z, flags=("contract",)))
"""x · y + z, rounded once where the machine can."""

greatest = _elementwise(2, lambda builder, x, y: _selected(builder, x, y, x, y))
"""The greater of x and y; y next to a NaN."""

least = _elementwise(2, lambda builder, x, y: _selected(builder, x, y, y, x))
"""The lesser of x and y; x next to a NaN."""

where_greater = _elementwise(4, _selected)
"""z where x > y, u elsewhere."""


@_intrinsic
def power_of_two(typing_context: Any, shifted: Any) -> Any:
    """2^k for whole numbers k within the range of exponents, given k + 1.5 · 2⁵² (2²³ for float32), whose lowest bits hold k."""
    bits, fraction, bias = (64, 52, 1023) if shifted is _LANES else (32, 23, 127)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = ir.VectorType(ir.IntType(bits), shifted.width)
        exponents = builder.shl(builder.bitcast(arguments[0], whole), ir.Constant(whole, [fraction] * shifted.width))
        return builder.bitcast(builder.add(exponents, ir.Constant(whole, [bias << fraction] * shifted.width)), shifted.vector)

    return shifted(shifted), generate


def _folded(build: Callable[..., Any]) -> Any:
    """An intrinsic that joins all entries of a vector, halves with halves."""

    def intrinsic_of(typing_context: Any, vector: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            (x,), width = arguments, vector.width
            while width > 1:
                width //= 2
                indices = [ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(start, start + width))) for start in (0, width)]
                x = build(builder, *(builder.shuffle_vector(x, x, index) for index in indices))
            return builder.extract_element(x, ir.Constant(ir.IntType(32), 0))

        return (types.float64 if vector is _LANES else types.float32)(vector), generate

    return _intrinsic(intrinsic_of)


total = _folded(ir.IRBuilder.fadd)
"""The sum of all entries."""

maximum = _folded(lambda builder, x, y: _selected(builder, x, y, x, y))
"""The greatest of all entries, of which none is NaN."""

minimum = _folded(lambda builder, x, y: _selected(builder, x, y, y, x))
"""The least of all entries, of which none is NaN."""
