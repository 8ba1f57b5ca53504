"""Estimators of one's own that are no classes of the contract: functions of a loss, and layers from scores to structures."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from ..oracles import registry
from .base import Estimator, Evaluations, Objective, PathwiseEstimator
from .noise import Noise, make_noise
from .surrogates import Loss, learns_besides, with_gradient

FORMS: Final = "a class of estimators, a function of loss, oracle, scores and generator, or a layer from scores to structures"


@dataclass(frozen=True)
class FunctionEstimator(Estimator[Any], name="function"):
    """A function ``f(loss, oracle, scores, generator)`` of estimates ``[*batch, *event]``, or of a surrogate ``[*batch]`` of them.

    The scores that it gets are a leaf that requires a gradient. The value of estimates is the mean of all losses that were evaluated, so
    parameters of the loss learn from that mean.
    """

    function: Callable[[Loss, Any, Tensor, torch.Generator], Tensor]
    name: str = "function"  # type: ignore[misc]  # class variables of estimators that are classes
    objective: Objective = "expected"  # type: ignore[misc]
    unbiased: bool = True  # type: ignore[misc]
    scale: float = 1.0

    version: ClassVar[int] = 2
    inside_hull: ClassVar[bool] = True
    origin = property(lambda self: _origin(self.function), doc="What the user wrote.")

    def evaluations(self) -> Evaluations:
        return Evaluations()

    def needs_values_only(self, oracle: Any, event_shape: tuple[int, ...] | None) -> bool:
        """Whether one estimate takes only values of the loss, at structures alone."""
        points = list[Tensor]()

        def loss(structures: Tensor) -> Tensor:
            points.append(structures.detach())
            return structures.detach().flatten(structures.ndim - oracle.event_ndim).sum(-1)

        with contextlib.suppress(Exception):  # a function that differentiates this loss raises
            self.gradient(loss, oracle, torch.zeros(2, *event_shape or ()), generator=torch.Generator().manual_seed(0))
            return all(bool((point == point.round()).all()) for point in points)
        return False

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        leaf, shape, recorded = scores.detach().requires_grad_(), tuple(scores.shape), _RecordedLoss(loss)
        result = self.function(recorded, oracle, leaf, generator)
        got, batch = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__, shape[: -oracle.event_ndim]
        if got == shape:
            return with_gradient(recorded.mean(scores, batch), scores, result.detach())
        if got != batch:
            hint = "; take no mean over the batch: the rows of a batch are estimates of their own" if got == () else ""
            raise ValueError(
                f"the function gave {got} for scores of shape {shape}; expected estimates of that shape, or a surrogate {batch}{hint}"
            )
        if not torch.is_grad_enabled():
            return result
        if not result.requires_grad:
            raise ValueError("the function gave a surrogate without a gradient; expected one that depends on its scores")
        (estimate,) = torch.autograd.grad(result.sum(), leaf, retain_graph=True, allow_unused=True, materialize_grads=True)
        return result + with_gradient(scores.new_zeros(batch), scores, estimate)  # the first has the gradient in the loss's own parameters


class _RecordedLoss:
    """A loss that keeps its values, and the structures if it has parameters of its own."""

    def __init__(self, loss: Any) -> None:
        self.loss, self.calls = loss, list[tuple[Tensor, Tensor | None]]()

    def __call__(self, structures: Tensor) -> Any:
        losses = self.loss(structures)
        if isinstance(losses, Tensor):
            learns = losses.requires_grad and learns_besides(losses, structures)
            self.calls.append((losses.detach(), structures.detach() if learns else None))
        return losses

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loss, name)

    def mean(self, scores: Tensor, batch: tuple[int, ...]) -> Tensor:
        """The mean of all values. Losses with parameters are evaluated again, because the function may have used up their graph."""
        values = [losses if structures is None else self.loss(structures) for losses, structures in self.calls]
        rows = [one.reshape(-1, *batch).to(scores.dtype) for one in values if tuple(one.shape)[max(0, one.ndim - len(batch)) :] == batch]
        return torch.cat(rows).mean(0) if rows else scores.new_zeros(batch)


@dataclass(frozen=True)
class LayerEstimator(PathwiseEstimator[Any], name="layer"):
    """A layer ``scores -> structure``, ``[*batch, *event]`` both, whose backward makes the estimate of the gradient of the loss there.

    What it draws from torch's own generator follows from the generator of the estimate.
    """

    function: Callable[[Tensor], Tensor]
    name: str = "layer"  # type: ignore[misc]
    objective: Objective = "expected"  # type: ignore[misc]
    unbiased: bool = False  # type: ignore[misc]
    scale: float = 1.0

    inside_hull: ClassVar[bool] = True
    origin = property(lambda self: _origin(self.function), doc="What the user wrote.")

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1)

    def structure(self, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        devices = [scores.device] if scores.is_cuda else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
            structure = self.function(scores)
        if not isinstance(structure, Tensor) or structure.shape != scores.shape:
            got = tuple(structure.shape) if isinstance(structure, Tensor) else type(structure).__name__
            raise ValueError(f"the layer gave {got} for scores of shape {tuple(scores.shape)}; expected a structure of that shape")
        return structure


def own_estimator(given: Any, options: Mapping[str, str] | None = None, **declared: Any) -> Estimator[Any]:
    """Your own function or layer as an estimator, which audits, runs, training and `measure` take.

    Args:
        given: one of these.

            - ``f(loss, oracle, scores, generator)``, which returns estimates ``[*batch, *event]``, or a surrogate ``[*batch]``;
            - a layer from scores to structures: a function of one argument, a module, or a ``torch.autograd.Function``, such as the solver
              that torch-imle decorates, ``entmax15``, or a blackbox solver;
            - a class of modules, or a function with other parameters, which is called with the options and makes one of these;
            - an `Estimator` or a class of estimators.
        options: texts of options by name, for what is called.
        declared: ``name``, and of a function or layer its ``objective``, ``unbiased`` and ``scale``. A function counts as unbiased, and a
            layer as biased, unless this says otherwise.

    Raises:
        ValueError: anything else.

    Example:
        >>> from structgrad.suites import measure
        >>> def reinforce(loss, oracle, scores, generator):
        ...     z = oracle.sample(scores, generator=generator)
        ...     losses, log_prob = loss(z), oracle.log_prob(z, scores)
        ...     return losses + losses.detach() * (log_prob - log_prob.detach())
        >>> def straight_through(scores):
        ...     soft = scores.softmax(-1)
        ...     return torch.zeros_like(soft).scatter(-1, soft.argmax(-1, keepdim=True), 1.0) + soft - soft.detach()
        >>> scores, loss = torch.tensor([0.5, 0.0, -0.5], dtype=torch.float64), lambda z: z.cumsum(-1).square().sum(-1)
        >>> measure(own_estimator(reinforce), "categorical", loss, scores).verdict
        'unbiased-exact'
        >>> measure(own_estimator(straight_through), "categorical", loss, scores).verdict
        'biased'
    """
    title, texts = str(getattr(given, "__name__", type(given).__name__)), dict(options or {})
    if is_estimator(given):
        text = f"{title}[{', '.join(f'{option}={value}' for option, value in texts.items())}]" if texts else title
        built: Estimator[Any] = (
            given if isinstance(given, Estimator) else registry.build(text, {title: given}, "estimator", {Noise: make_noise})
        )
        if isinstance(built, OWN_FORMS):
            return replace(built, **declared)
        if declared.keys() - {"name"}:
            raise ValueError(f"got {', '.join(declared)} for {built.name}, which declares it itself; expected them for a function or layer")
        return built
    if not callable(given):
        named = f"{declared['name']!r}, " if "name" in declared else ""
        raise ValueError(f"got {named}a {type(given).__name__}; expected {FORMS}")
    declared, values, missing = ({"name": title} if title.isidentifier() else {}) | declared, {}, ["scores"]
    if isinstance(given, type) and issubclass(given, torch.autograd.Function):
        given = given.apply
    elif not isinstance(given, nn.Module):
        values = registry.read(title, given, texts, {Noise: make_noise})
        missing = _missing(given, values)
        if not missing or isinstance(given, type):
            made = given(**values)
            return own_estimator(made, **({} if is_estimator(made) else declared))
    forms: dict[int, type[LayerEstimator | FunctionEstimator]] = {1: LayerEstimator, 4: FunctionEstimator}
    form = forms.get(len(missing))
    if form is None:
        raise ValueError(f"got {title}, a function of {', '.join(missing)}; expected {FORMS}")
    return form(functools.partial(given, **values) if values else given, **declared)


def shown_name(name: str) -> tuple[str, str]:
    """The name that tables show, and the code: two parts of ``mine=./my_file.py:estimator``, and one text without such a name.

    Example:
        >>> shown_name("mine=./my_file.py:estimator[k=2]"), shown_name("imle[lambda=2.5]")
        (('mine', './my_file.py:estimator[k=2]'), ('imle[lambda=2.5]', 'imle[lambda=2.5]'))
    """
    shown, mark, code = name.partition("=")
    return (shown, code) if mark and ":" in code and not set(shown) & set("[/:") else (name, name)


OWN_FORMS = (FunctionEstimator, LayerEstimator)
"""Estimators that are made of something else; their declarations are options."""


def is_estimator(given: Any) -> bool:
    """Whether this is an estimator or a class of estimators."""
    return isinstance(given, Estimator) or (isinstance(given, type) and issubclass(given, Estimator))


def _origin(function: Any) -> Any:
    """The class or function that is meant by a bound, partial or decorated one."""
    bound = getattr(function, "__self__", None)  # of ``autograd.Function.apply``
    return bound if isinstance(bound, type) else inspect.unwrap(getattr(function, "func", function))


def _missing(function: Callable[..., Any], given: Mapping[str, Any]) -> list[str]:
    """The parameters that a call must still be given."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function in C tells nothing: a layer, as ``autograd.Function.apply``
        return ["scores"]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [key for key, one in parameters.items() if one.kind in kinds and one.default is one.empty and key not in given]
    takes_any = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters.values())
    return found or (["scores"] if takes_any else [])  # a decorator may hide what it wraps
