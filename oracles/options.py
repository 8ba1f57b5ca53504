"""Options of oracles, estimators and noises: the annotation of a field declares type and range, and all that is given is checked by it.

A class of options is a frozen dataclass that inherits from `Configured`; a function or another class is served by its signature, as far as
that says anything. Text (``imle[lambda=2.5]``) and Python values meet the same declaration, here.
"""

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


@dataclass(frozen=True, eq=False)
class OptionKind:
    """The values that an annotation declares; it prints as the end of ``expected ...``.

    Attributes:
        form: ``int``, ``float`` or another class, ``Any``, or a `Literal`, union or tuple of one kind.
        within: the range of a number.
        words: for a class, where its annotation has some.
    """

    form: Any
    within: Within = Within()
    words: str = ""

    def __str__(self) -> str:
        kinds = typing.get_args(self.form)
        if self.form in (int, float):
            noun = "an integer" if self.form is int else "a number" if self.within.infinite else "a finite number"
            words = " ".join(filter(None, (noun, f"{self.within}{' or inf' if self.within.infinite else ''}")))
            return words + (f", {self.within.because}" if self.within.because else "")
        if self.form == _FLAG:
            return "true or false"
        origin = typing.get_origin(self.form)
        if origin is Literal:
            return " or ".join(map(repr, kinds))
        if origin is tuple:
            return f"a tuple, each {kind_of(kinds[0])}"
        if kinds:
            return ", or ".join(str(kind_of(kind)) for kind in kinds)
        return self.words or _WORDS.get(self.form) or f"an object of {self.form.__name__}"

    def check(self, value: Any) -> Any:
        """A value in the declared type, or `RefusedError`."""
        form, origin, kinds = self.form, typing.get_origin(self.form), typing.get_args(self.form)
        if form is Any or (origin is Literal and any(type(value) is type(known) and value == known for known in kinds)):
            return value
        if origin in _UNIONS:
            return self._first(lambda kind: kind.check(value))
        if origin is tuple and isinstance(value, tuple | list):
            return tuple(map(kind_of(kinds[0]).check, value))
        if form in (int, float):
            known = numbers.Integral if form is int else numbers.Real
            if isinstance(value, known) and not isinstance(value, bool) and value in self.within:
                return form(value)
        elif not kinds and isinstance(value, form):
            return value
        raise RefusedError

    def read(self, text: str, readers: Readers) -> Any:
        """Check the value that a text means: True, False and None may be in lower case, a tuple is ``(1,2)``."""
        form, origin, kinds = self.form, typing.get_origin(self.form), typing.get_args(self.form)
        if origin in _UNIONS:
            return self._first(lambda kind: kind.read(text, readers))
        if origin is tuple:
            return tuple(kind_of(kinds[0]).read(item.strip(), readers) for item in text.strip("()").split(",") if item.strip())
        if origin is Literal:
            for known in kinds:
                if known == _unquoted(text) if isinstance(known, str) else str(known).lower() == text.lower():
                    return known
            raise RefusedError
        if form in (int, float, Any):
            with contextlib.suppress(ValueError, SyntaxError):
                return ast.literal_eval(text) if form is Any else self.check(form(text))
            if form is Any:
                return text
            raise RefusedError
        reader = next((reader for known, reader in {str: _unquoted, **readers}.items() if issubclass(form, known)), None)
        return self.check(reader(text) if reader else None)

    def _first(self, attempt: Callable[[Any], Any]) -> Any:
        """The first kind of a union that takes a value."""
        for kind in typing.get_args(self.form):
            with contextlib.suppress(RefusedError):
                return attempt(kind_of(kind))
        raise RefusedError


_FLAG, _UNIONS = Literal[True, False], (Union, types.UnionType)
_FORMS: dict[Any, Any] = {bool: _FLAG, None: Literal[None], types.NoneType: Literal[None], object: Any}
_WORDS = {str: "a text", Callable: "a torch.nn.Module or a function, which Python alone can give", Any: "anything"}

ANYTHING = OptionKind(Any)
"""An option of unknown type, in a class of yours: a Python literal, or text if it is none."""


def kind_of(annotation: Any) -> OptionKind:
    """The values that an annotation declares.

    Example:
        >>> str(kind_of(Annotated[int, Within(least=2)])), str(kind_of(float | None)), str(kind_of(Literal["l2", "entropy"]))
        ('an integer >= 2', 'a finite number, or None', "'l2' or 'entropy'")
    """
    extras: dict[type, Any] = {}
    if typing.get_origin(annotation) is Annotated:
        annotation, *given = typing.get_args(annotation)
        extras = {type(extra): extra for extra in reversed(given)}
    form, origin = _FORMS.get(annotation, annotation), typing.get_origin(annotation)
    form = Callable if origin is Callable else form
    known = form is Any or typing.get_origin(form) in (Literal, *_UNIONS) or (isinstance(form, type) and not origin)
    is_tuple = origin is tuple and typing.get_args(annotation)[1:] == (...,)
    return OptionKind(form, extras.get(Within, Within()), extras.get(str, "")) if known or is_tuple or form is Callable else ANYTHING


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
        annotation: Any = _annotation(factory, parameter)
        if annotation is parameter.empty:
            annotation = type(parameter.default) if type(parameter.default) in (bool, int, float, str) else Any
        kinds[name] = kind_of(annotation)
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
