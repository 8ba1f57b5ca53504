"""Options of oracles, estimators and noises: the annotation of a field declares type and range, and all that is given is checked by it.

A class of options is a frozen dataclass that inherits from `Configured`; a function or another class is served by its signature, as far as
that says anything. Text (``imle[lambda=2.5]``) and Python values meet the same declaration, here.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import numbers
import sys
import types
import typing
from collections.abc import Callable, Mapping
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


class OptionKind:
    """What an option takes: a subclass says how text is read and values are checked, and prints as the end of ``expected ...``."""

    def read(self, text: str, readers: Readers) -> Any:
        """The value that a text means, or `RefusedError`."""
        raise NotImplementedError

    def check(self, value: Any) -> Any:
        """The value, in the declared type, or `RefusedError`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Number(OptionKind):
    """An integer or a float; NaN is none, and ``inf`` only where the range says so."""

    type: type
    within: Within = Within()

    def read(self, text: str, readers: Readers) -> Any:
        try:
            return self.check(self.type(text))
        except ValueError:
            raise RefusedError from None

    def check(self, value: Any) -> Any:
        whole = self.type is int
        if isinstance(value, bool) or not isinstance(value, numbers.Integral if whole else numbers.Real) or value not in self.within:
            raise RefusedError
        return self.type(value)

    def __str__(self) -> str:
        noun = "an integer" if self.type is int else "a number" if self.within.infinite else "a finite number"
        because = f", {self.within.because}" if self.within.because else ""
        bounds = f"{self.within}{' or inf' if self.within.infinite else ''}"
        return " ".join(filter(None, (noun, bounds))) + because


@dataclass(frozen=True)
class Choice(OptionKind):
    """One of a few values; text that stands for True, False or None may be in lower case."""

    among: tuple[Any, ...]

    def read(self, text: str, readers: Readers) -> Any:
        return self._found(lambda known: known == _unquoted(text) if isinstance(known, str) else str(known).lower() == text.lower())

    def check(self, value: Any) -> Any:
        return self._found(lambda known: type(value) is type(known) and value == known)

    def _found(self, fits: Callable[[Any], bool]) -> Any:
        for known in self.among:
            if fits(known):
                return known
        raise RefusedError

    def __str__(self) -> str:
        return "true or false" if self == _PLAIN[bool] else " or ".join(map(repr, self.among))


@dataclass(frozen=True)
class Several(OptionKind):
    """A tuple of values of one kind; in text ``(1,2)``."""

    each: OptionKind

    def read(self, text: str, readers: Readers) -> Any:
        items = text.strip("()").split(",")
        return tuple(self.each.read(item.strip(), readers) for item in items if item.strip())

    def check(self, value: Any) -> Any:
        if not isinstance(value, tuple | list):
            raise RefusedError
        return tuple(self.each.check(item) for item in value)

    def __str__(self) -> str:
        return f"a tuple, each {self.each}"


@dataclass(frozen=True)
class InstanceOf(OptionKind):
    """An object of a class, which goes with a text in ``Annotated``; as text, what a reader of the class understands."""

    type: Any
    expected: str = ""

    def read(self, text: str, readers: Readers) -> Any:
        reader = next((reader for known, reader in {str: _unquoted, **readers}.items() if issubclass(self.type, known)), None)
        if reader is None:
            raise RefusedError
        return self.check(reader(text))

    def check(self, value: Any) -> Any:
        if not isinstance(value, self.type):
            raise RefusedError
        return value

    def __str__(self) -> str:
        return self.expected or f"an object of {self.type.__name__}"


@dataclass(frozen=True)
class Either(OptionKind):
    """Any of several kinds, the first that takes a value."""

    kinds: tuple[OptionKind, ...]

    def read(self, text: str, readers: Readers) -> Any:
        return self._first(lambda kind: kind.read(text, readers))

    def check(self, value: Any) -> Any:
        return self._first(lambda kind: kind.check(value))

    def _first(self, attempt: Callable[[OptionKind], Any]) -> Any:
        for kind in self.kinds:
            try:
                return attempt(kind)
            except RefusedError:
                continue
        raise RefusedError

    def __str__(self) -> str:
        return ", or ".join(map(str, self.kinds))


@dataclass(frozen=True)
class Anything(OptionKind):
    """What nothing is known of, in somebody's own class: a Python literal, or text where it is none."""

    def read(self, text: str, readers: Readers) -> Any:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text

    def check(self, value: Any) -> Any:
        return value

    def __str__(self) -> str:
        return "anything"


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
    return InstanceOf(annotation) if isinstance(annotation, type) and origin is None else Anything()


def _annotated(args: tuple[Any, ...]) -> OptionKind:
    """A number with its range, or a class with the words for it."""
    if args[0] in (int, float):
        return Number(args[0], next((extra for extra in args[1:] if isinstance(extra, Within)), Within()))
    kind, told = kind_of(args[0]), next((extra for extra in args[1:] if isinstance(extra, str)), "")
    return dataclasses.replace(kind, expected=told) if isinstance(kind, InstanceOf) else kind


def _either(args: tuple[Any, ...]) -> OptionKind:
    return Either(tuple(map(kind_of, args)))


_FUNCTION = InstanceOf(Callable, "a torch.nn.Module or a function, which Python alone can give")
_PLAIN: dict[Any, OptionKind] = {
    bool: Choice((True, False)),
    int: Number(int),
    float: Number(float),
    str: InstanceOf(str, "a text"),
    None: Choice((None,)),
    types.NoneType: Choice((None,)),
    Callable: _FUNCTION,
    Any: Anything(),
    object: Anything(),
}
_GENERIC: dict[Any, Callable[[tuple[Any, ...]], OptionKind]] = {
    Annotated: _annotated,
    Literal: Choice,
    Union: _either,
    types.UnionType: _either,
    tuple: lambda args: Several(kind_of(args[0])) if args[1:] == (...,) else Anything(),
    Callable: lambda args: _FUNCTION,
}


def declared(factory: Callable[..., Any]) -> dict[str, OptionKind]:
    """What the parameters of a class or function take, by name; of one without a usable annotation, what its default tells.

    Example:
        >>> from structgrad.oracles import Subset
        >>> {name: str(kind) for name, kind in declared(Subset).items()}
        {'k': 'an integer >= 1'}
    """
    kinds = _declared_by_class(factory) if isinstance(factory, type) else _declared_by(factory)
    return dict(kinds)


def _declared_by(factory: Callable[..., Any]) -> dict[str, OptionKind]:
    return {name: _declared(factory, parameter) for name, parameter in parameters_of(factory).items()}


_declared_by_class = functools.lru_cache(maxsize=512)(_declared_by)  # asked for with every estimator that is built


def parameters_of(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Of a class or function, by name; those of a class are looked up once.

    Raises:
        ValueError: some built-in classes tell none.
    """
    return _parameters_of_class(factory) if isinstance(factory, type) else inspect.signature(factory).parameters


@functools.lru_cache(maxsize=512)
def _parameters_of_class(factory: type) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(factory).parameters


def _declared(factory: Callable[..., Any], parameter: inspect.Parameter) -> OptionKind:
    annotation = _annotation(factory, parameter)
    told = annotation is not parameter.empty
    return kind_of(annotation) if told else _like(parameter.default)


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


def _like(default: Any) -> OptionKind:
    known = next((kind for kind in (bool, int, float, str) if type(default) is kind), None)
    return Anything() if known is None else kind_of(known)


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, OptionKind], ...]:
    kinds = declared(kind)
    return tuple((field.name, kinds[field.name]) for field in dataclasses.fields(kind) if field.name in kinds)


def check(configured: Any, called: str) -> None:
    """ValueError with the first option of a dataclass that is not what its field declares; numbers become Python's own.

    Args:
        configured: an object with options.
        called: its name, for the message.
    """
    owner: Any = type(configured)
    for name, kind in _fields(owner):
        given = getattr(configured, name)
        try:
            found = kind.check(given)
        except RefusedError:
            raise ValueError(refusal(called, name, repr(given), kind)) from None
        if found is not given:
            object.__setattr__(configured, name, found)


def refusal(called: str, option: str, given: str, kind: OptionKind) -> str:
    """One sentence on an option that is not what its class takes."""
    return f"`{called}` got {option.rstrip('_')}={given}; expected {kind}"


class Configured:
    """A dataclass whose options are checked when it is made; a subclass that asks for more calls ``super().__post_init__()`` first."""

    def __post_init__(self) -> None:
        if dataclasses.is_dataclass(self):
            check(self, getattr(self, "name", type(self).__name__))


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
