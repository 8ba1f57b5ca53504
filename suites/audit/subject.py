"""Subjects of an audit: an estimator of the contract, or a plain function that gives gradients."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from ...estimators import ESTIMATORS, Estimator
from ...estimators.base import Evaluations, Loss, Objective, with_gradient
from ...oracles.registry import build, unknown
from .naming import load

GradientFunction = Callable[[Loss, Any, Tensor, torch.Generator], Tensor]
"""``f(loss, oracle, scores, generator)``: estimates shaped like the scores."""


@dataclass(frozen=True)
class FunctionEstimator(Estimator[Any]):
    """A plain function as an estimator. It has no value and declares no cost, so that laws about these do not apply.

    Args:
        function: gives one estimate per row.
        objective, unbiased, scale: what it is said to be.
    """

    function: GradientFunction
    objective: Objective = "expected"  # type: ignore[misc]  # a class variable of estimators that are classes
    unbiased: bool = True  # type: ignore[misc]
    scale: float = 1.0

    name: ClassVar[str] = "function"
    inside_hull: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations()

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        estimate = self.function(loss, oracle, scores.detach(), generator)
        if not isinstance(estimate, Tensor) or estimate.shape != scores.shape:
            got = tuple(estimate.shape) if isinstance(estimate, Tensor) else type(estimate).__name__
            raise ValueError(
                f"the function gave {got} for scores of shape {tuple(scores.shape)}; expected one estimate per row, shaped alike"
            )
        value = scores.new_zeros(scores.shape[: scores.ndim - oracle.event_ndim])
        return with_gradient(value, scores, estimate.detach())


@dataclass(frozen=True)
class Subject:
    """An estimator under audit.

    Attributes:
        estimator: as it was given. ``title``: how it is called.
        is_function: whether it gives gradients alone.
    """

    estimator: Estimator[Any]
    title: str

    @property
    def is_function(self) -> bool:
        """Whether it gives gradients alone: no value, no declared cost."""
        return isinstance(self.estimator, FunctionEstimator)

    @property
    def declared(self) -> dict[str, Any]:
        """What it says of itself."""
        estimator = self.estimator
        known = {"objective": estimator.objective, "unbiased": estimator.unbiased, "scale": estimator.scale}
        if self.is_function:
            return known
        cost = {name: value for name, value in vars(estimator.evaluations()).items() if value}
        needs = [need.__name__ for need in estimator.needs]
        return known | {"deterministic": estimator.deterministic, "inside_hull": estimator.inside_hull, "needs": needs, "evaluations": cost}

    def numbers(self) -> dict[str, float]:
        """The numeric options by name, those of a noise or of another part as ``noise.scale``: what a wrong factor may be made of."""
        return dict(numbers(self.estimator))


def subject_of(what: Any, *, objective: str | None = None, unbiased: bool | None = None, scale: float | None = None) -> Subject:
    """What a user gave, as a subject.

    Args:
        what: a name (see `load`), an estimator, a class of estimators, or a function.
        objective: of a function; an estimator says it itself.
        unbiased: likewise.
        scale: likewise.

    Raises:
        ValueError: anything else, or facts given for an estimator that declares its own.
    """
    title = what if isinstance(what, str) else None
    found = load(what) if isinstance(what, str) else what
    if isinstance(found, type) and issubclass(found, Estimator):
        found = build_class(found)
    given = {"objective": objective, "unbiased": unbiased, "scale": scale}
    said: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if isinstance(found, Estimator):
        if said and not isinstance(found, FunctionEstimator):
            raise ValueError(f"`audit` got {', '.join(said)} for {found.name}, which declares it itself; expected them for functions alone")
        return Subject(found, title or _title(found))
    if not callable(found):
        raise ValueError(
            f"`audit` got a {type(found).__name__}; expected an estimator, or a function of loss, oracle, scores and generator"
        )
    known = [each for each in get_args(Objective) if each != "supervised"]
    if objective is not None and objective not in known:
        raise ValueError(f"`audit` {unknown(objective, known, 'objective')}")
    name = getattr(found, "__name__", type(found).__name__)
    return Subject(FunctionEstimator(found, **said), title or name)


def build_class(kind: type[Estimator[Any]]) -> Estimator[Any]:
    """A class with its defaults; ValueError where it lacks an option or is abstract."""
    estimator: Estimator[Any] = build(kind.__name__, {kind.__name__: kind}, "estimator")
    return estimator


def _title(estimator: Estimator[Any]) -> str:
    if estimator.name in ESTIMATORS and type(estimator) is ESTIMATORS[estimator.name]:
        changed = _changed(estimator)
        return f"{estimator.name}[{changed}]" if changed else estimator.name
    return repr(estimator) if dataclasses.is_dataclass(estimator) else type(estimator).__name__


def _changed(estimator: Any) -> str:
    pairs = ((field, getattr(estimator, field.name)) for field in dataclasses.fields(estimator))
    return ",".join(f"{field.name.rstrip('_')}={value}" for field, value in pairs if value != field.default)


def numbers(value: Any, prefix: str = "") -> list[tuple[str, float]]:
    """Numeric fields by name, and those of fields of theirs."""
    found: list[tuple[str, float]] = []
    names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else list(getattr(value, "__dict__", ()))
    for name in names:
        item = getattr(value, name)
        if isinstance(item, int | float) and not isinstance(item, bool):
            found.append((prefix + name.rstrip("_"), float(item)))
        elif dataclasses.is_dataclass(item):
            found += numbers(item, f"{prefix}{name}.")
    return found


def varied(estimator: Any, option: str) -> Any:
    """The same with another value of a numeric option, such as ``num_samples`` or ``noise.scale``: one more, or a fifth less.

    Raises:
        ValueError: there is no such field that another value can be given for.

    Example:
        >>> from structgrad.estimators import ImplicitMLE, LeaveOneOut
        >>> varied(LeaveOneOut(4), "num_samples").num_samples, varied(ImplicitMLE(2.5), "lambda").lambda_
        (5, 2.0)
    """
    name, _, rest = option.partition(".")
    known = [field.name for field in dataclasses.fields(estimator) if field.init] if dataclasses.is_dataclass(estimator) else []
    field = next((one for one in (name, f"{name}_") if one in known), None)
    if field is None:
        raise ValueError(f"`varied` got the option {option!r}; expected a field of {type(estimator).__name__}")
    value = getattr(estimator, field)
    other = varied(value, rest) if rest else value + 1 if isinstance(value, int) else 0.8 * value
    return dataclasses.replace(estimator, **{field: other})


def switched(estimator: Any) -> list[tuple[str, Any]]:
    """The same with each switch the other way, and each real number at 0 or at 1: ``option=value``, and the estimator.

    These are the values at which a correction, a weight or a bound of one's own does nothing. Whole numbers are sizes, and stay.

    Example:
        >>> from structgrad.estimators import ReinMaxControl
        >>> [text for text, _ in switched(ReinMaxControl(eta=1.0, temperature=0.5))]
        ['temperature=1', 'eta=0']
    """
    own = dataclasses.is_dataclass(estimator) and not isinstance(estimator, FunctionEstimator)
    fields = [field for field in dataclasses.fields(estimator) if field.init] if own else []
    found = []
    for field in fields:
        value = getattr(estimator, field.name)
        others = [not value] if isinstance(value, bool) else [v for v in (0.0, 1.0) if v != value] if isinstance(value, float) else []
        for other in others:
            text = f"{field.name.rstrip('_')}={other if isinstance(other, bool) else format(other, 'g')}"
            with contextlib.suppress(ValueError, TypeError):  # out of its range
                found.append((text, dataclasses.replace(estimator, **{field.name: other})))
    return found
