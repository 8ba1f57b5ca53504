"""Subjects of an audit: names on a command line, estimators of the contract, and plain functions that return gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from ...estimators import ESTIMATORS, Estimator, Noise, make_estimator, make_noise
from ...estimators.base import Evaluations, Loss, Objective, with_gradient
from ...oracles.plugins import module_of
from ...oracles.registry import build, parse, read, unknown
from ..base import estimator_name


@dataclass(frozen=True)
class FunctionEstimator(Estimator[Any]):
    """A plain function as an estimator. It has no value and declares no cost, so that laws about these do not apply.

    Args:
        function: ``f(loss, oracle, scores, generator)``, which returns one estimate per row.
        objective: its declared objective.
        unbiased: whether it is declared unbiased.
        scale: declared ratio of its mean to the gradient.
    """

    function: Callable[[Loss, Any, Tensor, torch.Generator], Tensor]
    objective: Objective = "expected"  # type: ignore[misc]  # a class variable of estimators that are classes
    unbiased: bool = True  # type: ignore[misc]
    scale: float = 1.0

    name: ClassVar[str] = "function"
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
    def is_function(self) -> bool:
        """True for a function, which returns gradients only, without a value or a declared cost."""
        return isinstance(self.estimator, FunctionEstimator)

    @property
    def declared(self) -> dict[str, Any]:
        """Its declarations."""
        estimator = self.estimator
        known = {"objective": estimator.objective, "unbiased": estimator.unbiased, "scale": estimator.scale}
        if self.is_function:
            return known
        cost = {name: value for name, value in vars(estimator.evaluations()).items() if value}
        needs = [need.__name__ for need in estimator.needs]
        return known | {"deterministic": estimator.deterministic, "inside_hull": estimator.inside_hull, "needs": needs, "evaluations": cost}

    def numbers(self) -> dict[str, float]:
        """The numeric options by name, those of a noise or of another part as ``noise.scale``: a wrong factor may be made of these."""
        return numbers(self.estimator)


def subject_of(given: Any, *, objective: str | None = None, unbiased: bool | None = None, scale: float | None = None) -> Subject:
    """The subject of a name or an object.

    Args:
        given: a name (see `load`), an estimator, a class of estimators, or a function.
        objective: declaration of a function; an estimator has its own.
        unbiased: declaration of a function.
        scale: declaration of a function.

    Raises:
        ValueError: anything else, or declarations for an estimator that has its own.
    """
    found = load(given) if isinstance(given, str) else given
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


def load(text: str) -> Any:
    """The estimator or function of a name: ``rloo``, ``imle[lambda=2.5]``, ``module:Name``, ``./file.py:Name``, with options in brackets.

    A function with fewer arguments than (loss, oracle, scores, generator) is called, and must return an estimator.

    Raises:
        ValueError: it cannot be found, imported or built.
    """
    head, colon, tail = text.partition(":")
    if not colon:
        return make_estimator(text)
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as for ``python -m``
    try:
        module = module_of(head)
    except Exception as error:  # a plugin may raise anything
        raise ValueError(
            f"`audit` could not import {head!r}: {error or type(error).__name__}; expected module:Name or ./file.py:Name"
        ) from error
    name, options = parse(tail)
    if not hasattr(module, name):
        raise ValueError(f"`audit` {unknown(name, [key for key in vars(module) if not key.startswith('_')], f'name in {head}')}")
    found = getattr(module, name)
    if inspect.isfunction(found):
        given = read(name, found, options, {Noise: make_noise})
        missing = [key for key, one in inspect.signature(found).parameters.items() if one.default is one.empty and key not in given]
        return (functools.partial(found, **given) if given else found) if missing else found(**given)
    return build(tail, {name: found}, "estimator", {Noise: make_noise}) if isinstance(found, type) or callable(found) else found


def numbers(value: Any, prefix: str = "") -> dict[str, float]:
    """Numeric fields by name, and those of fields of theirs."""
    found: dict[str, float] = {}
    for name in [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else getattr(value, "__dict__", ()):
        item = getattr(value, name)
        if isinstance(item, int | float) and not isinstance(item, bool):
            found[prefix + name.rstrip("_")] = float(item)
        elif dataclasses.is_dataclass(item):
            found |= numbers(item, f"{prefix}{name}.")
    return found


def with_other_value(estimator: Any, option: str) -> Any:
    """The estimator with another value of a numeric option, such as ``num_samples`` or ``noise.scale``: one more, or a fifth less.

    Raises:
        ValueError: there is no such field that another value can be given for.

    Example:
        >>> from structgrad.estimators import ImplicitMLE, LeaveOneOut
        >>> with_other_value(LeaveOneOut(4), "num_samples").num_samples, with_other_value(ImplicitMLE(2.5), "lambda").lambda_
        (5, 2.0)
    """
    name, _, rest = option.partition(".")
    known = [field.name for field in dataclasses.fields(estimator) if field.init] if dataclasses.is_dataclass(estimator) else []
    field = next((one for one in (name, f"{name}_") if one in known), None)
    if field is None:
        raise ValueError(f"`with_other_value` got the option {option!r}; expected a field of {type(estimator).__name__}")
    value = getattr(estimator, field)
    other = with_other_value(value, rest) if rest else value + 1 if isinstance(value, int) else 0.8 * value
    return dataclasses.replace(estimator, **{field: other})


def with_neutral_options(estimator: Any) -> list[tuple[str, Any]]:
    """The estimator with each switch the other way, and each real number at 0 or at 1: ``option=value``, and the estimator.

    At these values a correction, a weight or a bound does nothing. Whole numbers are sizes, and stay.

    Example:
        >>> from structgrad.estimators import ReinMaxControl
        >>> [text for text, _ in with_neutral_options(ReinMaxControl(eta=1.0, temperature=0.5))]
        ['temperature=1', 'eta=0']
    """
    own = dataclasses.is_dataclass(estimator) and not isinstance(estimator, FunctionEstimator)
    found = []
    for field in dataclasses.fields(estimator) if own else []:
        value = getattr(estimator, field.name) if field.init else None
        others = [not value] if isinstance(value, bool) else [v for v in (0.0, 1.0) if v != value] if isinstance(value, float) else []
        for other in others:
            text = f"{field.name.rstrip('_')}={other if isinstance(other, bool) else format(other, 'g')}"
            with contextlib.suppress(ValueError, TypeError):  # out of its range
                found.append((text, dataclasses.replace(estimator, **{field.name: other})))
    return found


def to_change(estimator: Estimator[Any], name: str, code: str) -> str:
    """Where a declaration is, and the right one: a line of the class, or one to add if it is inherited.

    Example:
        >>> from structgrad.estimators import Reinforce
        >>> to_change(Reinforce(), "deterministic", "deterministic = True")
        'add to Reinforce, which inherits `deterministic` of Estimator: `deterministic = True`'
    """
    kind = type(estimator)
    owner = next(one for one in kind.__mro__ if name in vars(one))
    if owner is not kind:
        return f"add to {kind.__name__}, which inherits `{name}` of {owner.__name__}: `{code}`"
    place = kind.__name__
    with contextlib.suppress(OSError, TypeError):  # no source
        lines, start = inspect.getsourcelines(owner)
        file = Path(inspect.getsourcefile(owner) or "")
        pattern = re.compile(rf"\s*(async\s+)?(def\s+)?{name}\b")
        number = next((number for number, line in enumerate(lines, start) if pattern.match(line)), None)
        if number is not None:
            place = f"{os.path.relpath(file) if file.is_relative_to(Path.cwd()) else file.name}, line {number}"
    return f"{place}: `{code}`"
