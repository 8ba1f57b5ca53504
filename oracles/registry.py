"""From names to objects: ``subset[k=3]``, ``imle[lambda=2.5]``, ``my_module:MyEstimator``, ``./my_file.py:MyEstimator``."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any

from .plugins import file_module

_PATTERN = re.compile(r"^(?P<name>[\w.:]+|[^\[\]]+\.py:\w+)(?:\[(?P<options>.*)\])?$")


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name[option=value, ...]``; values are Python literals, or strings where they are none.

    Example:
        >>> parse("imle[lambda=2.5, noise=gumbel]")
        ('imle', {'lambda_': 2.5, 'noise': 'gumbel'})
    """
    match = _PATTERN.match(text.strip())
    if match is None:
        raise ValueError(f"got the name {text!r}; expected `name` or `name[option=value,...]`")
    options: dict[str, Any] = {}
    for item in filter(None, (match["options"] or "").split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"got the option {item.strip()!r} in {text!r}; expected `option=value`")
        key = key.strip()
        options[f"{key}_" if keyword.iskeyword(key) else key] = _literal(value.strip())
    return match["name"], options


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def build(text: str, registry: Mapping[str, Any], kind: str, readers: Mapping[str, Callable[[str], Any]] | None = None) -> Any:
    """The object that a name means: an entry of the registry, ``module:attribute`` or ``file.py:attribute``, called with the options.

    Args:
        text: the name, with options in brackets.
        registry: known names.
        kind: what is built, for messages.
        readers: options that are no literals, each with the function that reads its text.

    Raises:
        ValueError: an unknown name (with the nearest known ones) or an option that the constructor refuses.
    """
    name, options = parse(text)
    factory = imported(name, kind) if ":" in name else registry.get(name)
    if factory is None:
        raise ValueError(unknown(name, registry, kind))
    if not callable(factory):
        return factory
    _check_options(text, factory, options, kind)
    for option, reader in (readers or {}).items():
        if isinstance(options.get(option), str):
            options[option] = reader(options[option])
    try:
        return factory(**options)
    except TypeError as error:
        raise ValueError(f"{kind} {text!r}: {error}") from error


def _check_options(text: str, factory: Any, options: Mapping[str, Any], kind: str) -> None:
    """Refuse an option that the constructor does not know, or the lack of one that it needs, under the name that a user types."""
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some built-in classes have none
        return
    if any(parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) for parameter in parameters.values()):
        return
    known = {name: name.rstrip("_") for name in parameters}
    for option in options:
        if option not in known:
            reason = unknown(option.rstrip("_"), known.values(), "option") if known else f"got {option!r}; it takes no options"
            raise ValueError(f"{kind} {text!r}: {reason}")
    missing = [name for name, parameter in parameters.items() if parameter.default is parameter.empty and name not in options]
    if missing:
        raise ValueError(f"{kind} {text!r} lacks an option; expected {parse(text)[0]}[{known[missing[0]]}=...]")


def unknown(name: str, known: Any, kind: str) -> str:
    """One sentence on a misspelt name, with a suggestion."""
    return f"got the unknown {kind} {name!r}; {hint(name, known)}"


def hint(name: str, known: Any) -> str:
    """The known names that are nearest to a misspelt one, or all of them."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(known)}"


def imported(name: str, kind: str) -> Any:
    """What ``module:attribute`` or ``file.py:attribute`` names; ValueError with one sentence where that cannot be had."""
    place, _, attribute = name.rpartition(":")
    try:
        return getattr(file_module(place) if place.endswith(".py") else importlib.import_module(place), attribute)
    except (Exception, SystemExit) as error:  # the module may be anybody's
        raise ValueError(f"got the {kind} {name!r}; could not import it: {error or type(error).__name__}") from error
