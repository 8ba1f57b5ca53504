"""Names on a command line, and the estimators or functions that they mean: registries, modules, files."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ...estimators import Noise, make_estimator, make_noise
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
    module = _from_file(Path(head)) if head.endswith(".py") else _module(head)
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


def _module(name: str) -> ModuleType:
    """A module, of the working directory too, as for ``python -m``."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"`audit` could not import {name!r}: {error}; expected a module, or a path that ends in .py") from error


def _from_file(path: Path) -> ModuleType:
    """A file as a module, which may import its neighbours."""
    if not path.is_file():
        raise ValueError(f"`audit` found no file {path}; expected ./file.py:Name")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"`audit` could not read {path}; expected a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(path.stem, None)
        raise ValueError(f"`audit` could not run {path}: {type(error).__name__}: {error}") from error
    return module
