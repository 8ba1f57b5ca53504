"""Registries: from names to objects, ``subset[k=3]``, ``my_module:MyEstimator``, ``./my_file.py:MyEstimator``."""

from __future__ import annotations

import difflib
import inspect
import keyword
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from . import options
from .plugins import catalogue, loaded_file, module_of

if TYPE_CHECKING:
    from .capabilities import Oracle

MANY = 12
"""Names that a message lists."""

_COMMA = re.compile(r",(?![^()]*\))")
_PATTERN = re.compile(r"^(?P<name>[\w.:]+|[^\[\]]+\.py:\w+)(?:\[(?P<options>.*)\])?$")


def parse(text: str) -> tuple[str, dict[str, str]]:
    """Split ``name[option=value, ...]``; values are text, which means what the option declares. A tuple goes in parentheses.

    Example:
        >>> parse("imle[lambda=2.5, noise=gumbel]")
        ('imle', {'lambda_': '2.5', 'noise': 'gumbel'})
    """
    match = _PATTERN.match(text.strip()) if isinstance(text, str) else None
    if match is None and str(text).endswith(".py"):
        absent = "" if os.path.isfile(text) else ", which does not exist"
        offered = f", one of {', '.join(names)}" if (names := offered_by(text)) else ", such as ./mine.py:MyEstimator"
        raise ValueError(f"got the file {text!r}{absent}; expected a class or function of it{offered}")
    if match is None:
        raise ValueError(f"got the name {text!r}; expected `name` or `name[option=value,...]`")
    found: dict[str, str] = {}
    for item in filter(None, _COMMA.split(match["options"] or "")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise ValueError(f"got the option {item.strip()!r} in {text!r}; expected `option=value`")
        option = f"{key}_" if keyword.iskeyword(key) else key
        if option in found:
            raise ValueError(f"got the option {key!r} twice in {text!r}; expected it once")
        found[option] = value
    return match["name"], found


def offered_by(file: str) -> list[str]:
    """The public classes and functions that a file defines, as ``file.py:name``; none where it cannot be imported."""
    try:
        module = module_of(file)
    except Exception:  # it may be anybody's
        return []
    own = (name for name, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == module.__name__)
    return [f"{file}:{name}" for name in own if not name.startswith("_")]


def build(text: str, registry: Mapping[str, Any], kind: str, readers: options.Readers | None = None) -> Any:
    """The object that a name means: an entry of the registry, ``module:attribute`` or ``file.py:attribute``, called with the options.

    Args:
        text: the name, with options in brackets.
        registry: known names.
        kind: what is built, for messages.
        readers: classes of objects that options hold, each with the function that reads its text.

    Raises:
        ValueError: an unknown name (with the nearest known ones) or an option that the constructor refuses.
    """
    name, given = parse(text)
    factory = imported(name, kind) if ":" in name else registry.get(name)
    if factory is None:
        raise ValueError(unknown(name, registry, kind))
    if not callable(factory):
        return factory
    _check_options(text, factory, given, kind)
    try:
        return factory(**read(name, factory, given, readers or {}))
    except TypeError as error:
        raise ValueError(f"{kind} {text!r}: {error}") from error


def make_oracle(name: str | Oracle) -> Oracle:
    """The oracle of a name such as ``subset[k=3]``, ``my_module:MyOracle`` or ``./my_file.py:MyOracle``, or of a plugin.

    An oracle is returned as it is. Every function that takes an oracle takes a name too, by this function.

    Example:
        >>> make_oracle("subset[k=3]")
        Subset(k=3)
    """
    known = catalogue("oracle")
    oracle: Any = name if isinstance(name, known.base) else build(name, known, "oracle")  # type: ignore[arg-type]
    if not isinstance(oracle, known.base):
        raise ValueError(f"got {name!r}, a {type(oracle).__name__}; expected an oracle")
    return oracle  # type: ignore[return-value]


def oracle_name(oracle: Any) -> str:
    """The name with options, as the command line takes it."""
    known = asdict(oracle) if is_dataclass(oracle) and not isinstance(oracle, type) else {}
    options = ",".join(f"{key}={value}" for key, value in known.items())
    return f"{oracle.name}[{options}]" if options else str(oracle.name)


def read(name: str, factory: Any, given: Mapping[str, str], readers: options.Readers) -> dict[str, Any]:
    """The values that texts mean as options of a class or function.

    Raises:
        ValueError: a text that is not what the option takes.
    """
    try:
        kinds = options.declared(factory)
    except ValueError:  # some built-in classes tell nothing
        kinds = {}
    found = {}
    for option, text in given.items():
        kind = kinds.get(option, options.ANYTHING)
        try:
            found[option] = kind.read(text, readers)
        except options.RefusedError:
            raise ValueError(options.refusal(name, option, text, kind)) from None
    return found


def _check_options(text: str, factory: Any, given: Mapping[str, str], kind: str) -> None:
    """Refuse an option that the constructor does not know, or the lack of one that it needs, under the name that a user types."""
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some built-in classes have none
        return
    if any(parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) for parameter in parameters.values()):
        return
    known = {name: name.rstrip("_") for name in parameters}
    for option in given:
        if option not in known:
            reason = unknown(option.rstrip("_"), known.values(), "option") if known else f"got {option!r}; it takes no options"
            raise ValueError(f"{kind} {text!r}: {reason}")
    missing = [name for name, parameter in parameters.items() if parameter.default is parameter.empty and name not in given]
    if missing:
        raise ValueError(f"{kind} {text!r} lacks an option; expected {parse(text)[0]}[{known[missing[0]]}=...]")


def unknown(name: str, known: Any, kind: str) -> str:
    """One sentence on a misspelt name, with a suggestion."""
    return f"got the unknown {kind} {name!r}; {hint(name, known)}"


def hint(name: str, known: Any) -> str:
    """The known names that contain a misspelt one, else the nearest; or all of them, as far as one reads so many."""
    names = list(known)
    near = [one for one in names if len(name) > 2 and name in one][:MANY] or difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    more = f" and {len(names) - MANY} more, see `structgrad list`" if len(names) > MANY else ""
    return f"expected one of {', '.join(names[:MANY])}{more}"


_LOADED: ContextVar[type | None] = ContextVar("_LOADED", default=None)


@contextmanager
def importing_nothing(base: type) -> Iterator[None]:
    """Meanwhile names of code mean subclasses of ``base`` in modules that are loaded already: the names are from a table of anybody's."""
    token = _LOADED.set(base)
    try:
        yield
    finally:
        _LOADED.reset(token)


def imported(name: str, kind: str) -> Any:
    """What ``module:attribute`` or ``file.py:attribute`` names; ValueError with one sentence where that cannot be had."""
    place, _, attribute = name.rpartition(":")
    base = _LOADED.get()
    if base is not None:
        found = getattr(loaded_file(place) if place.endswith(".py") else sys.modules.get(place), attribute, None)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ValueError(f"got the name {name!r}, whose code is not loaded; a name in a table loads none")
        return found
    try:
        module = module_of(place)
        if hasattr(module, attribute):
            return getattr(module, attribute)
        raise ValueError(f"{place} defines no {attribute!r}")
    except Exception as error:  # the module may be anybody's
        raise ValueError(f"got the {kind} {name!r}; could not import it: {error or type(error).__name__}") from error
