"""Options of oracles, estimators and noises: the annotation of a field declares type and range, and all that is given is checked by it.

A class of options is a frozen dataclass that inherits from `Configured`; a function or another class is served by its signature, as far as
that says anything. Text (``imle[lambda=2.5]``) and Python values meet the same declaration, here.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import math
import numbers
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

Readers = Mapping[type, Callable[[str], Any]]
"""How text becomes an object of a class, for options that hold objects."""


class RefusedError(Exception):
    """A value that is not what an option takes."""


@dataclass(frozen=True)
class Within:
    """A range of numbers, to go with ``int`` or ``float`` in ``Annotated``.

    Args:
        least, above: the lower bound, which belongs to the range or does not.
        most, below: the upper bound likewise.
        infinite: whether ``inf`` belongs to it.
        because: what the bound is for, for messages.

    Example:
        >>> str(Within(least=0, below=1)), str(Within(above=0)), 0.5 in Within(least=0, below=1), math.inf in Within(above=0)
        ('>= 0 and < 1', '> 0', True, False)
    """

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf
    infinite: bool = False
    because: str = ""

    def __contains__(self, value: Any) -> bool:
        if math.isinf(value):
            return self.infinite and bool(value > 0)
        return bool(self.least <= value <= self.most and self.above < value < self.below)

    def __str__(self) -> str:
        bounds = ((">=", self.least), (">", self.above), ("<=", self.most), ("<", self.below))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if not math.isinf(bound))


Count = Annotated[int, Within(least=1)]
Positive = Annotated[float, Within(above=0)]
NonNegative = Annotated[float, Within(least=0)]
Decay = Annotated[float, Within(least=0, below=1)]
Peers = Annotated[int, Within(least=2, because="the others are the baseline")]


@dataclass(frozen=True, eq=False)
class OptionKind:
    """The values that an option takes; it prints as the end of ``expected ...``.

    Attributes:
        expected: the words for it.
        check: gives a value in the declared type, or raises `RefusedError`.
        read: the same for the value that a text means.
    """

    expected: str
    check: Callable[[Any], Any]
    read: Callable[[str, Readers], Any]

    def __str__(self) -> str:
        return self.expected


def _number(kind: type, within: Within = Within()) -> OptionKind:
    """An integer or a float; NaN is none, and ``inf`` only where the range says so."""

    def check(value: Any) -> Any:
        whole = kind is int
        if isinstance(value, bool) or not isinstance(value, numbers.Integral if whole else numbers.Real) or value not in within:
            raise RefusedError
        return kind(value)

    def read(text: str, readers: Readers) -> Any:
        try:
            return check(kind(text))
        except ValueError:
            raise RefusedError from None

    noun = "an integer" if kind is int else "a number" if within.infinite else "a finite number"
    words = " ".join(filter(None, (noun, f"{within}{' or inf' if within.infinite else ''}")))
    return OptionKind(words + (f", {within.because}" if within.because else ""), check, read)


def _choice(among: tuple[Any, ...]) -> OptionKind:
    """One of a few values; text that stands for True, False or None may be in lower case."""

    def found(fits: Callable[[Any], bool]) -> Any:
        for known in among:
            if fits(known):
                return known
        raise RefusedError

    def read(text: str, readers: Readers) -> Any:
        return found(lambda known: known == _unquoted(text) if isinstance(known, str) else str(known).lower() == text.lower())

    words = "true or false" if among == (True, False) else " or ".join(map(repr, among))
    return OptionKind(words, lambda value: found(lambda known: type(value) is type(known) and value == known), read)


def _tuple(each: OptionKind) -> OptionKind:
    """A tuple of values of one kind; in text ``(1,2)``."""

    def check(value: Any) -> Any:
        if not isinstance(value, tuple | list):
            raise RefusedError
        return tuple(map(each.check, value))

    def read(text: str, readers: Readers) -> Any:
        return tuple(each.read(item.strip(), readers) for item in text.strip("()").split(",") if item.strip())

    return OptionKind(f"a tuple, each {each}", check, read)


def _instance(kind: Any, expected: str = "") -> OptionKind:
    """An object of a class, which goes with a text in ``Annotated``; as text, what a reader of the class understands."""

    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise RefusedError
        return value

    def read(text: str, readers: Readers) -> Any:
        reader = next((reader for known, reader in {str: _unquoted, **readers}.items() if issubclass(kind, known)), None)
        if reader is None:
            raise RefusedError
        return check(reader(text))

    return OptionKind(expected or f"an object of {kind.__name__}", check, read)


def _either(kinds: Sequence[OptionKind]) -> OptionKind:
    """Any of several kinds, the first that takes a value."""

    def first(attempt: Callable[[OptionKind], Any]) -> Any:
        for kind in kinds:
            with contextlib.suppress(RefusedError):
                return attempt(kind)
        raise RefusedError

    return OptionKind(
        ", or ".join(map(str, kinds)),
        lambda value: first(lambda kind: kind.check(value)),
        lambda text, readers: first(lambda kind: kind.read(text, readers)),
    )


def _literal(text: str, readers: Readers) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


ANYTHING = OptionKind("anything", lambda value: value, _literal)
"""An option of unknown type, in a class of yours: a Python literal, or text if it is none."""

_FUNCTION = _instance(Callable, "a torch.nn.Module or a function, which Python alone can give")
_PLAIN: dict[Any, OptionKind] = {
    bool: _choice((True, False)),
    int: _number(int),
    float: _number(float),
    str: _instance(str, "a text"),
    None: _choice((None,)),
    types.NoneType: _choice((None,)),
    Callable: _FUNCTION,
    Any: ANYTHING,
    object: ANYTHING,
}


def kind_of(annotation: Any) -> OptionKind:
    """What an annotation declares.

    Example:
        >>> str(kind_of(Annotated[int, Within(least=2)])), str(kind_of(float | None)), str(kind_of(Literal["l2", "entropy"]))
        ('an integer >= 2', 'a finite number, or None', "'l2' or 'entropy'")
    """
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin = typing.get_origin(annotation)
    if origin in _GENERIC:
        return _GENERIC[origin](typing.get_args(annotation))
    return _instance(annotation) if isinstance(annotation, type) and origin is None else ANYTHING


def _annotated(args: tuple[Any, ...]) -> OptionKind:
    """A number with its range, or a class with the words for it."""
    extras: dict[type, Any] = {type(extra): extra for extra in reversed(args[1:])}
    if args[0] in (int, float):
        return _number(args[0], extras.get(Within, Within()))
    is_class = args[0] not in _PLAIN and isinstance(args[0], type)
    return _instance(args[0], extras.get(str, "")) if is_class else kind_of(args[0])


_GENERIC: dict[Any, Callable[[tuple[Any, ...]], OptionKind]] = {
    Annotated: _annotated,
    Literal: _choice,
    Union: lambda args: _either([kind_of(arg) for arg in args]),
    types.UnionType: lambda args: _either([kind_of(arg) for arg in args]),
    tuple: lambda args: _tuple(kind_of(args[0])) if args[1:] == (...,) else ANYTHING,
    Callable: lambda args: _FUNCTION,
}


def declared(factory: Callable[..., Any]) -> dict[str, OptionKind]:
    """What the parameters of a class or function take, by name; of one without a usable annotation, what its default tells.

    Raises:
        ValueError: some built-in classes tell nothing.

    Example:
        >>> from structgrad.oracles import Subset
        >>> {name: str(kind) for name, kind in declared(Subset).items()}
        {'k': 'an integer >= 1'}
    """
    return dict((_declared_by_class if isinstance(factory, type) else _declared_by)(factory))


def _declared_by(factory: Callable[..., Any]) -> dict[str, OptionKind]:
    kinds = {}
    for name, parameter in inspect.signature(factory).parameters.items():
        annotation, default = _annotation(factory, parameter), type(parameter.default)
        told = annotation is not parameter.empty
        kinds[name] = kind_of(annotation) if told else _PLAIN[default] if default in (bool, int, float, str) else ANYTHING
    return kinds


_declared_by_class = functools.lru_cache(maxsize=512)(_declared_by)  # asked for with every estimator that is built


def _annotation(factory: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation itself: as text it means something in the module of the class that wrote it, if the names there are imported."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    owners = inspect.getmro(factory) if isinstance(factory, type) else (factory,)
    owner = next((one for one in owners if parameter.name in vars(one).get("__annotations__", {})), factory)
    try:
        return eval(parameter.annotation, dict(vars(sys.modules[owner.__module__])))  # as `typing.get_type_hints` does, one by one
    except (NameError, AttributeError, TypeError, KeyError, SyntaxError):
        return parameter.empty


def refusal(called: str, option: str, given: str, kind: OptionKind) -> str:
    """One sentence on an option that is not what its class takes."""
    return f"`{called}` got {option.rstrip('_')}={given}; expected {kind}"


class Configured:
    """A dataclass whose options are checked when it is made; a subclass that asks for more calls ``super().__post_init__()`` first."""

    def __post_init__(self) -> None:
        """Raise ValueError for the first option that is not what its field declares; numbers become Python's own."""
        owner: Any = type(self)
        for name, kind in _fields(owner):
            given = getattr(self, name)
            try:
                found = kind.check(given)
            except RefusedError:
                raise ValueError(refusal(getattr(self, "name", type(self).__name__), name, repr(given), kind)) from None
            if found is not given:
                object.__setattr__(self, name, found)


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, OptionKind], ...]:
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    kinds = declared(kind) if fields else {}
    return tuple((field.name, kinds[field.name]) for field in fields if field.name in kinds)


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
