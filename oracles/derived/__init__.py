"""Structures that are their derivations and nothing else: every file here is one, and is found by its name."""

import importlib
import pkgutil

from ..derivations import DerivedOracle


def _class_of(stem: str) -> type[DerivedOracle]:
    """The class of a file, which has the file's name."""
    held = vars(importlib.import_module(f"{__name__}.{stem}")).values()
    found = [kind for kind in held if isinstance(kind, type) and issubclass(kind, DerivedOracle) and vars(kind).get("name") == stem]
    if len(found) != 1:
        raise ValueError(f"oracles/derived/{stem}.py has {len(found)} subclasses of DerivedOracle with name = {stem!r}; expected one")
    return found[0]


DERIVED: dict[str, type[DerivedOracle]] = {module.name: _class_of(module.name) for module in pkgutil.iter_modules(__path__)}
"""By name, in alphabetical order. Their options have defaults: suites take each of them as it is."""
