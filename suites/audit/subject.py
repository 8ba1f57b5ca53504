"""Subjects of an audit: names on a command line, estimators of the contract, and plain functions that return gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from ...estimators import ESTIMATORS, Estimator, Evaluations, Loss, Noise, make_estimator, make_noise
from ...estimators.base import Objective
from ...estimators.surrogates import with_gradient
from ...oracles.plugins import module_of
from ...oracles.registry import build, parse, read, unknown
from ..base import estimator_name


@dataclass(frozen=True)
class FunctionEstimator(Estimator[Any], name="function"):
    """A plain function ``f(loss, oracle, scores, generator)`` as an estimator without a value or a declared cost."""

    function: Callable[[Loss, Any, Tensor, torch.Generator], Tensor]
    objective: Objective = "expected"  # type: ignore[misc]  # a class variable of estimators that are classes
    unbiased: bool = True  # type: ignore[misc]
    scale: float = 1.0

    inside_hull: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations()

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        estimate, shape = self.function(loss, oracle, scores.detach(), generator), tuple(scores.shape)
        got = tuple(estimate.shape) if isinstance(estimate, Tensor) else type(estimate).__name__
        if got != shape:
            raise ValueError(f"the function gave {got} for scores of shape {shape}; expected one estimate per row, shaped alike")
        return with_gradient(scores.new_zeros(shape[: scores.ndim - oracle.event_ndim]), scores, estimate.detach())


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
        if isinstance(estimator, FunctionEstimator):
            return known
        cost = {name: value for name, value in vars(estimator.evaluations()).items() if value}
        needs = [need.__name__ for need in estimator.needs]
        return known | {"deterministic": estimator.deterministic, "inside_hull": estimator.inside_hull, "needs": needs, "evaluations": cost}


def subject_of(given: Any, *, objective: str | None = None, unbiased: bool | None = None, scale: float | None = None) -> Subject:
    """The subject of a name (see `_load`), an estimator, a class of estimators, or a function with its declarations."""
    found = _load(given) if isinstance(given, str) else given
    if isinstance(found, type) and issubclass(found, Estimator):
        found = build(found.__name__, {found.__name__: found}, "estimator")
    declared: dict[str, Any] = {"objective": objective, "unbiased": unbiased, "scale": scale}
    declared = {name: value for name, value in declared.items() if value is not None}
    if isinstance(found, Estimator):
        if declared and not isinstance(found, FunctionEstimator):
            names = ", ".join(declared)
            raise ValueError(f"`audit` got {names} for {found.name}, which declares it itself; expected them for functions alone")
        title = repr(found) if dataclasses.is_dataclass(found) else type(found).__name__
        title = estimator_name(found) if ESTIMATORS.get(found.name) is type(found) else title
    elif callable(found):
        known = [each for each in get_args(Objective) if each != "supervised"]
        if objective is not None and objective not in known:
            raise ValueError(f"`audit` {unknown(objective, known, 'objective')}")
        title, found = str(getattr(found, "__name__", type(found).__name__)), FunctionEstimator(found, **declared)
    else:
        kind = type(found).__name__
        raise ValueError(f"`audit` got a {kind}; expected an estimator, or a function of loss, oracle, scores and generator")
    return Subject(found, given if isinstance(given, str) else title)


def _load(text: str) -> Any:
    """The estimator or function of a name: ``rloo``, ``imle[lambda=2.5]``, ``module:Name``, ``./file.py:Name``, with options in brackets.

    A function with fewer arguments than (loss, oracle, scores, generator) is called, and must return an estimator.
    """
    head, colon, tail = text.partition(":")
    if not colon:
        return make_estimator(text)
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as for ``python -m``
    try:
        module = module_of(head)
    except Exception as error:  # a plugin may raise anything
        reason = error or type(error).__name__
        raise ValueError(f"`audit` could not import {head!r}: {reason}; expected module:Name or ./file.py:Name") from error
    name, options = parse(tail)
    if not hasattr(module, name):
        raise ValueError(f"`audit` {unknown(name, [key for key in vars(module) if not key.startswith('_')], f'name in {head}')}")
    found = getattr(module, name)
    if inspect.isfunction(found):
        given = read(name, found, options, {Noise: make_noise})
        missing = [key for key, one in inspect.signature(found).parameters.items() if one.default is one.empty and key not in given]
        return (functools.partial(found, **given) if given else found) if missing else found(**given)
    return build(tail, {name: found}, "estimator", {Noise: make_noise}) if isinstance(found, type) or callable(found) else found


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin has none
        return {}
    return {name: one.default for name, one in parameters.items() if one.default is not one.empty}


def numbers(value: Any, prefix: str = "") -> dict[str, float]:
    """Numeric options by name, and those of parts, such as ``noise.scale``; of a function, its defaults. Wrong factors may be these."""
    if isinstance(value, FunctionEstimator):
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
    if isinstance(estimator, FunctionEstimator):
        value = _defaults(estimator.function)[option]
        other = value + 1 if isinstance(value, int) else 0.8 * value
        return dataclasses.replace(estimator, function=functools.partial(estimator.function, **{option: other}))
    name, _, rest = option.partition(".")
    known = [field.name for field in dataclasses.fields(estimator) if field.init] if dataclasses.is_dataclass(estimator) else []
    field = next((one for one in (name, f"{name}_") if one in known), None)
    if field is None:
        raise ValueError(f"`with_other_value` got the option {option!r}; expected a field of {type(estimator).__name__}")
    value = getattr(estimator, field)
    other = with_other_value(value, rest) if rest else value + 1 if isinstance(value, int) else 0.8 * value
    return dataclasses.replace(estimator, **{field: other})


def with_neutral_options(estimator: Any) -> Iterator[tuple[str, Any]]:
    """``option=value`` and the estimator with each switch the other way, and with each real number at 0 and at 1.

    At these values a correction, a weight or a bound does nothing. Whole numbers are sizes, and stay.
    """
    own = dataclasses.is_dataclass(estimator) and not isinstance(estimator, FunctionEstimator)
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
