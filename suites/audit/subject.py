"""Subjects of an audit: names on a command line, estimators of the contract, and plain functions that return gradients."""

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ...estimators import ESTIMATORS, Estimator, make_estimator
from ...estimators.base import Objective
from ...estimators.own import OWN_FORMS
from ...oracles.registry import unknown
from ..base import estimator_name


@dataclass(frozen=True)
class Subject:
    """An estimator under audit, and its name."""

    estimator: Estimator[Any]
    title: str

    @property
    def declared(self) -> dict[str, Any]:
        """Its declarations."""
        estimator = self.estimator
        known = {"objective": estimator.objective, "unbiased": estimator.unbiased, "scale": estimator.scale}
        if isinstance(estimator, OWN_FORMS):
            return known
        cost = {name: value for name, value in vars(estimator.evaluations()).items() if value}
        needs = [need.__name__ for need in estimator.needs]
        return known | {"deterministic": estimator.deterministic, "inside_hull": estimator.inside_hull, "needs": needs, "evaluations": cost}


def subject_of(given: Any, **options: Any) -> Subject:
    """The subject of an argument of `make_estimator`, with its options that are not None: a name, and the declarations of a function."""
    declared = {key: value for key, value in options.items() if value is not None}
    name, known = declared.get("name"), [each for each in get_args(Objective) if each != "supervised"]
    if declared.get("objective", known[0]) not in known:
        raise ValueError(f"`audit` {unknown(declared['objective'], known, 'objective')}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as for ``python -m``
    found = make_estimator(given, **declared)
    if name or isinstance(given, str):
        return Subject(found, name or given)
    title = repr(found) if dataclasses.is_dataclass(found) else type(found).__name__
    title = estimator_name(found) if ESTIMATORS.get(found.name) is type(found) else title
    return Subject(found, found.name if isinstance(found, OWN_FORMS) else title)


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin has none
        return {}
    return {name: one.default for name, one in parameters.items() if one.default is not one.empty}


def numbers(value: Any, prefix: str = "") -> dict[str, float]:
    """Numeric options by name, and those of parts, such as ``noise.scale``; of a function, its defaults. Wrong factors may be these."""
    if isinstance(value, OWN_FORMS):
        items = _defaults(value.function)
    elif dataclasses.is_dataclass(value):
        items = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        items = dict(getattr(value, "__dict__", {}))
    found: dict[str, float] = {}
    for name, item in items.items():
        if isinstance(item, int | float) and not isinstance(item, bool):
            found[prefix + name.rstrip("_")] = float(item)
        elif dataclasses.is_dataclass(item):
            found |= numbers(item, f"{prefix}{name}.")
    return found


def with_other_value(estimator: Any, option: str) -> Any:
    """The estimator with another value of a numeric option, such as ``num_samples`` or ``noise.scale``: one more, or a fifth less."""
    if isinstance(estimator, OWN_FORMS):
        value = _defaults(estimator.function)[option]
        other = value + 1 if isinstance(value, int) else 0.8 * value
        function: Any = functools.partial(estimator.function, **{option: other})
        return dataclasses.replace(estimator, function=function)
    name, _, rest = option.partition(".")
    known = [field.name for field in dataclasses.fields(estimator) if field.init] if dataclasses.is_dataclass(estimator) else []
    field = next(one for one in (name, f"{name}_") if one in known)
    value = getattr(estimator, field)
    other = with_other_value(value, rest) if rest else value + 1 if isinstance(value, int) else 0.8 * value
    return dataclasses.replace(estimator, **{field: other})


def with_neutral_options(estimator: Any) -> Iterator[tuple[str, Any]]:
    """``option=value`` and the estimator with each switch the other way, and with each real number at 0 and at 1.

    At these values a correction, a weight or a bound does nothing. Whole numbers are sizes, and stay.
    """
    own = dataclasses.is_dataclass(estimator) and not isinstance(estimator, OWN_FORMS)
    for field in dataclasses.fields(estimator) if own else []:
        value = getattr(estimator, field.name) if field.init else None
        others = [not value] if isinstance(value, bool) else [v for v in (0.0, 1.0) if v != value] if isinstance(value, float) else []
        for other in others:
            text = f"{field.name.rstrip('_')}={other if isinstance(other, bool) else format(other, 'g')}"
            with contextlib.suppress(ValueError, TypeError):  # out of its range
                yield text, dataclasses.replace(estimator, **{field.name: other})


def to_change(estimator: Estimator[Any], name: str, code: str) -> str:
    """The class in which to declare a property, and the right line."""
    kind = type(estimator)
    owner = next(one for one in kind.__mro__ if name in vars(one))
    return (
        f"{kind.__name__}: `{code}`" if owner is kind else f"add to {kind.__name__}, which inherits `{name}` of {owner.__name__}: `{code}`"
    )
