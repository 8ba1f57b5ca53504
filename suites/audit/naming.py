"""Names on a command line, and the estimators or functions that they mean: registries, modules, files."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ...estimators import Noise, make_estimator, make_noise
from ...oracles.plugins import module_of
from ...oracles.registry import build, parse, read, unknown


def load(text: str) -> Any:
    """What a name means: ``rloo``, ``imle[lambda=2.5]``, ``module:Name``, ``./file.py:Name``, with options in brackets.

    Returns:
        An estimator, or the function that was named.

    Raises:
        ValueError: it cannot be found, imported or built.
    """
    head, colon, tail = text.partition(":")
    if not colon:
        return make_estimator(text)
    module = _module(head)
    name, options = parse(tail)
    known = [key for key in vars(module) if not key.startswith("_")]
    if not hasattr(module, name):
        raise ValueError(f"`audit` {unknown(name, known, f'name in {head}')}")
    found = getattr(module, name)
    if inspect.isfunction(found):
        return _of_function(found, read(name, found, options, {Noise: make_noise}))
    return build(tail, {name: found}, "estimator", {Noise: make_noise}) if isinstance(found, type) or callable(found) else found


def _of_function(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A function of (loss, oracle, scores, generator) as it is, with its options; one that takes less is called, and makes an estimator."""
    needed = [name for name, one in inspect.signature(function).parameters.items() if one.default is one.empty and name not in options]
    if needed:
        return functools.partial(function, **options) if options else function
    return function(**options)


def _module(place: str) -> ModuleType:
    """A file, or a module, of the working directory too, as for ``python -m``."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return module_of(place)
    except Exception as error:  # the module may be anybody's
        said = error or type(error).__name__
        raise ValueError(f"`audit` could not import {place!r}: {said}; expected module:Name or ./file.py:Name") from error
