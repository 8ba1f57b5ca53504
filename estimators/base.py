"""Estimators: ``(loss, oracle, scores) -> a surrogate whose gradient is the estimate``.

Conventions (losses are minimised, MAP is a maximum): an estimate is an estimate of ``∇_θ`` of its declared objective, so the descent
direction is minus the estimate.

| objective | value | who |
|---|---|---|
| ``expected`` | ``E_{z∼p_θ} L(z)``, the Gibbs distribution | score function, straight-through on samples |
| ``perturbed`` | ``E_ε L(argmax(θ + ε))`` | perturb-and-MAP and its relatives |
| ``argmax`` | ``L(argmax θ)``, of gradient 0 almost everywhere | straight-through on MAP, SPIGOT |
| ``relaxed`` | ``L(μ(θ))`` or another point inside the hull | structured attention, SparseMAP |
| ``sparse`` | ``Σ_s w_s(θ) L(a_s)`` over a sparse support | SparseMAP marginalisation |
| ``supervised`` | a loss of θ against true structures | training that is told them; no estimator of the registry |
"""

from __future__ import annotations

import abc
import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, final, get_args

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge

from .. import estimators
from ..oracles.capabilities import MarginalOracle, Oracle, ProjectionOracle, SamplingOracle
from ..oracles.kernels.switch import SERVING, serving_as
from ..oracles.magnitudes import beyond_memory
from ..oracles.numerics import HALF, in_single
from ..oracles.options import Configured
from ..oracles.random_streams import A_GENERATOR
from ..oracles.registry import make_oracle
from ..oracles.tensor_kinds import own
from ..oracles.transforms import operation, transforming, uncompiled
from .indices import LossInHalf, OfStructures, Samples, takes_indices

Loss = Callable[[Tensor], Tensor]
"""``[..., *batch, *event] -> [..., *batch]``: one value per structure. It may hold parameters, and data per batch row.

For what needs values only, integers and booleans are values too: ``lambda z: (z != gold).sum(-1)``.
"""

Tier = Literal["core", "extended"]

Objective = Literal["expected", "perturbed", "argmax", "relaxed", "sparse", "supervised"]

NOTHING = torch.empty(0, device="cpu")
"""What was seen of no rows."""

SIZES = ("num_samples", "num_conditionals", "pilots", "k")
"""Options that count structures which are in memory together."""

O = TypeVar("O", bound=Oracle)  # noqa: E741 - the field's letter for an oracle type


@dataclass(frozen=True)
class Evaluations:
    """What one gradient estimate costs, in calls per batch row (a call on a tensor of s samples counts s).

    Attributes:
        losses: loss values. ``loss_gradients``: of these, how many are differentiated in the structure.
        argmax: MAP calls. ``marginals``: marginals or log-partitions. ``samples``: exact samples. ``projections``: SparseMAP calls.
        kbest: structures of k-best lists (all of them where there are fewer). ``relaxations``: smoothed recursions.
        perturbations: draws of a noise tensor.
        enumerations: passes over all structures (each takes the loss and the probability of every one).
        listings: passes over all structures that take their probabilities alone; of a set in a space beyond its limit, none is made.
        support_losses: passes over the support of a sparse distribution (each evaluates the loss on every atom).
        completions: passes over the prefixes of a sample (each completes every prefix once, by an argmax or a sample, and takes its loss).
        swap_losses: passes over the exchanges of two of C parts (each evaluates the loss on C(C − 1)/2 + 1 structures).
        alternatives: passes over a sample and what it could be in one place (each evaluates the loss on the sample and on every structure
            with another part of one category; for a policy, on a completion of every other action after each prefix, which it draws).
    """

    losses: int = 0
    loss_gradients: int = 0
    argmax: int = 0
    marginals: int = 0
    samples: int = 0
    projections: int = 0
    kbest: int = 0
    relaxations: int = 0
    perturbations: int = 0
    enumerations: int = 0
    listings: int = 0
    support_losses: int = 0
    completions: int = 0
    swap_losses: int = 0
    alternatives: int = 0


def _refusing(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The method, which raises ValueError with the reason where the oracle or the shape of the scores cannot be served.

    It gets scores of half precision in float32, so that noise, differences and relaxations are rounded once, in the result.
    """
    if getattr(method, "__isabstractmethod__", False):
        return method

    parameters = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def checked(self: Estimator[Any], *args: Any, **named: Any) -> Tensor:
        given = dict(zip(parameters, args, strict=False)) | named
        prepared = self._prepared(given)
        result = method(self, **prepared)
        if prepared["scores"] is given["scores"] or not isinstance(result, Tensor):
            return result
        return result.to(prepared["loss"].given or result.dtype if "loss" in given else given["scores"].dtype)

    return checked


def _with_autograd(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The surrogate, which raises ValueError where autograd does not carry its gradient, and ours is no derivative of its value.

    Under a transform that is always so; in inference mode only for what asks autograd on the way to its value.
    """

    @functools.wraps(method)
    def called(self: Estimator[Any], *args: Any, **named: Any) -> Tensor:
        if transforming():
            raise _transformed(self.name, "surrogate")
        try:
            return method(self, *args, **named)
        except RuntimeError as error:
            if not torch.is_inference_mode_enabled():
                raise
            raise _inferring(self.name, f"and failed there ({str(error).partition('. ')[0]})") from error

    return called


def _of_finite(method: Callable[..., Any]) -> Callable[..., Any]:
    """`observed` of the rows without NaN and inf, which would stay in a running state for good; a warning says how many there were."""

    @functools.wraps(method)
    def observed(self: Estimator[Any], values: Tensor = NOTHING, estimates: Tensor = NOTHING) -> Any:
        given, masks = {"values": values, "estimates": estimates}, {"values": values.isfinite(), "estimates": estimates.isfinite()}
        if estimates.ndim > 1:
            masks["estimates"] = masks["estimates"].flatten(1).all(-1)
        for name, finite in masks.items():
            if not bool(finite.all()):
                given[name] = given[name][finite]
                warnings.warn(
                    f"`{self.name}` got NaN or inf in {int((~finite).sum())} of {finite.numel()} {name} of a batch; expected finite "
                    f"losses: these are left out of its running {' and '.join(self.state)}",
                    stacklevel=3,
                )
        return method(self, **given)

    return observed


def _inferring(name: str, reason: str) -> ValueError:
    return ValueError(f"`{name}` got its surrogate called under torch.inference_mode, {reason}; use torch.no_grad")


def _transformed(name: str, method: str) -> ValueError:
    return ValueError(
        f"`{name}` got its {method} called under a transform of torch.func; expected plain tensors: the batch may have "
        "any dimensions, and autograd has the gradient; transform the structure of a pathwise estimator instead"
    )


ASKED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "estimator": (lambda estimator: isinstance(estimator, Estimator), "an estimator or its name, such as 'rloo[num_samples=4]'"),
    "loss": (lambda loss: callable(loss) and not isinstance(loss, Oracle | Estimator), "a function [..., *batch, *event] -> [..., *batch]"),
    "oracle": (lambda oracle: isinstance(oracle, Oracle), "an oracle or its name, such as 'subset[k=3]'"),
    "scores": (
        lambda scores: (
            isinstance(scores, Tensor) and scores.is_floating_point() and scores.layout is torch.strided and not scores.is_nested
        ),
        "a dense floating-point torch.Tensor [*batch, *event]",
    ),
    "generator": (lambda generator: isinstance(generator, torch.Generator), A_GENERATOR),
}
"""What the arguments of an estimate are asked to be: whether they are, and how that is said."""


def check_call(called: str, **given: Any) -> tuple[Any, ...]:
    """The arguments of an estimate, with the estimator and the oracle of a name; ValueError with the first of the wrong kind.

    Example:
        >>> check_call("measure", estimator="rloo[num_samples=4]", oracle="subset[k=3]")
        (LeaveOneOut(num_samples=4), Subset(k=3))
        >>> check_call("rloo", scores=[0.0, 1.0])
        Traceback (most recent call last):
        ValueError: `rloo` got a list as scores; expected a dense floating-point torch.Tensor [*batch, *event]
    """
    for name, value in given.items():
        fits, expected = ASKED[name]
        if isinstance(value, str) and name in ("estimator", "oracle"):
            given[name] = make_oracle(value) if name == "oracle" else estimators.make_estimator(value)
        elif not fits(value):
            order = "; the order is loss, oracle, scores" if any(fits(value) for fits, _ in ASKED.values()) and "loss" in given else ""
            raise ValueError(f"`{called}` got {_described(value)} as {name}; expected {expected}{order}")
    return tuple(given.values())


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        layout = "" if value.layout is torch.strided else f" and layout {value.layout}"
        return f"a {'nested ' * value.is_nested}tensor of dtype {value.dtype}{layout}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


class Estimator(Configured, abc.ABC, Generic[O]):
    """An estimator of the gradient of an expected (or relaxed) loss with respect to scores.

    A concrete estimator is a frozen dataclass of options. You train with `surrogate` and measure `gradient`. Its class may give the first
    three attributes as keywords: ``class LeaveOneOut(ScoreFunction, name="rloo", tier="core", references=("kool2019buy",))``.

    Attributes:
        name: registry name.
        references: BibTeX keys.
        tier: ``core`` for one estimator of every idea, which presets measure; subclasses are ``extended`` again unless they say so.
        needs: the capabilities that the oracle must have; without, the one in the brackets of the base class.
        calls: the `evaluations`, if they are the same for all options.
        objective: whose gradient is estimated.
        unbiased: whether the estimate is unbiased for its objective, for every loss.
        deterministic: whether it draws no random numbers.
        inside_hull: whether the loss is evaluated at points that are no structures.
        state: the options that `observed` changes; training starts with what they are given as.
        needs_gold: whether the loss has to hold true structures, as ``gold``.
        version: raised when a change moves the measured values.
    """

    name: ClassVar[str]
    references: ClassVar[tuple[str, ...]] = ()
    tier: ClassVar[Tier] = "extended"
    needs: ClassVar[tuple[type[Oracle], ...]] = (Oracle,)
    calls: ClassVar[Evaluations]
    objective: ClassVar[Objective]
    unbiased: ClassVar[bool] = False
    deterministic: ClassVar[bool] = False
    inside_hull: ClassVar[bool] = False
    state: ClassVar[tuple[str, ...]] = ()
    needs_gold: ClassVar[bool] = False
    version: ClassVar[int] = 1

    @property
    def scale(self) -> float:
        """The multiple of the target gradient that the estimate tends to in the small-step limit (SPIGOT: η, I-MLE: λ)."""
        return 1.0

    def evaluations(self) -> Evaluations:
        """What one estimate costs in calls of the loss and of the oracle."""
        return self.calls

    def lists(self, oracle: Any, event_shape: tuple[int, ...]) -> bool:
        """Whether the declared `Evaluations.listings` are made here; an oracle may draw sets without one."""
        return True

    @abc.abstractmethod
    def surrogate(self, loss: Loss, oracle: O, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        """``[*batch]``: its value estimates the objective, its gradient in the scores is the estimate.

        The gradient in the loss's own parameters is right too, so that a whole model trains on ``surrogate(...).mean()``.

        Args:
            loss: maps ``[..., *batch, *event]`` to ``[..., *batch]``.
            oracle: an instance of everything in `needs`.
            scores: ``[*batch, *event]``.
            generator: the only source of randomness.
        """

    @final
    @functools.partial(uncompiled, calls_losses=True)
    def gradient(self, loss: Loss, oracle: O | str, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        """One estimate per batch row, shaped like the scores; ``scores.expand(n, ...)`` gives n independent replicates."""
        loss, structures, scores, generator = check_call(self.name, loss=loss, oracle=oracle, scores=scores, generator=generator)
        if transforming():
            raise _transformed(self.name, "gradient")
        if torch.is_inference_mode_enabled():
            raise _without_gradient(self.name)
        leaf = scores.detach().requires_grad_()
        with torch.enable_grad():
            total = self.surrogate(loss, structures, leaf, generator=generator).sum()
        (estimate,) = torch.autograd.grad(total, leaf, allow_unused=True, materialize_grads=True)
        return estimate

    def warmed_up(self, loss: Loss, oracle: O, scores: Tensor, *, generator: torch.Generator) -> Self:
        """The estimator in the state in which it is measured: itself, where it has no state."""
        return self

    # What training asks for besides; `StructuredLayer` and `train_step` call all of it. Without state, none of it is to be written.

    def observed(self, values: Tensor = NOTHING, estimates: Tensor = NOTHING) -> Self:
        """The estimator after it has seen a batch of what it gave: itself, where it has no `state`.

        Args:
            values: ``[rows]``, of its surrogate; empty where they are not known.
            estimates: ``[rows, *event]``, the gradient that went to the scores, up to a factor; empty where it is not known.
        """
        return self

    def prepared(self, oracle: O, event_shape: tuple[int, ...] | None, generator: torch.Generator) -> Self:
        """The estimator with the modules that it learns along, fresh, for scores of this shape: itself, where it learns none."""
        return self

    def rounds(self, loss: Loss, oracle: O, scores: Callable[[], Tensor], *, generator: torch.Generator) -> Iterator[Tensor]:
        """The surrogates of one training step, each ``[*batch]``: one, or one for every step of the optimiser on the same samples.

        Args:
            loss: as for `surrogate`.
            oracle: an instance of everything in `needs`.
            scores: gives ``[*batch, *event]`` with the model's parameters as they are; called once for each surrogate.
            generator: the only source of randomness.
        """
        yield self.surrogate(loss, oracle, scores(), generator=generator)

    @final
    def incompatibility(self, oracle: Oracle | str, event_shape: tuple[int, ...] | None = None) -> str | None:
        """The reason why this estimator does not fit an oracle, or scores of a shape; None if it does."""
        structures = oracle if isinstance(oracle, Oracle) else check_call(self.name, oracle=oracle)[0]
        missing = [need.__name__ for need in self.needs if not isinstance(structures, need)]
        if missing:
            return f"{self.name} needs {_listed(missing)}, which the oracle {structures.name} does not offer"
        if event_shape is None:
            return None
        return self._too_many(event_shape) or self._out_of_reach(structures, event_shape) or self._limitation(structures, event_shape)

    @final
    def _refuse(self, given: dict[str, Any]) -> None:
        """Make the oracle of a name; ValueError for arguments of the wrong kind, or scores that do not fit the oracle or this estimator."""
        if not all(ASKED[name][0](value) for name, value in given.items() if name in ASKED):
            asked = {name: value for name, value in given.items() if name in ASKED}
            given.update(zip(asked, check_call(self.name, **asked), strict=True))
        oracle, scores = given["oracle"], given["scores"]
        oracle.check_scores(self.name, scores)
        reason = self.incompatibility(oracle, tuple(scores.shape[scores.ndim - oracle.event_ndim :]))
        if reason is not None:
            raise ValueError(f"{reason}; choose another pair")

    @final
    def _prepared(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of an estimate, checked: scores of half precision in float32, and a loss of structures."""
        prepared = dict(given)
        self._refuse(prepared)
        oracle, scores = prepared["oracle"], prepared["scores"]
        prepared["scores"] = in_single(scores, oracle.event_ndim)
        if "loss" in given:
            loss = LossInHalf(given["loss"], scores.dtype) if scores.dtype in HALF else given["loss"]
            prepared["loss"] = self._adapted(loss, oracle)
        return prepared

    @final
    def _adapted(self, loss: Loss, oracle: Oracle) -> Loss:
        """A loss that takes indices as one of structures; ValueError where this estimator asks for more than values at structures."""
        if not takes_indices(loss):
            return loss
        if self.inside_hull or self.evaluations().loss_gradients:
            raise ValueError(
                f"`{self.name}` got a loss that takes indices; expected one of structures, because it needs more of a loss than its values "
                "at structures: choose an estimator that needs values only, such as rloo, or a loss of dense structures"
            )
        return OfStructures(loss, oracle)

    def _too_many(self, event_shape: tuple[int, ...]) -> str | None:
        """Why the structures that an option counts do not fit into memory; None if they do."""
        for option in SIZES:
            count = getattr(self, option, 0)
            if type(count) is int and count > 2**16 and (beyond := beyond_memory(4 * count * (parts := math.prod(event_shape)))):
                return f"{self.name} got {option}={count}, structures of {parts} parts that take {beyond}: choose a smaller {option}"
        return None

    def _out_of_reach(self, oracle: Oracle, event_shape: tuple[int, ...]) -> str | None:
        """Why the sums over structures that it needs cannot be had of scores of this shape, in the words of the oracle."""
        if isinstance(oracle, MarginalOracle) and any(issubclass(need, MarginalOracle) for need in self.needs):
            try:
                oracle.check_marginals(self.name, event_shape)
            except ValueError as error:
                return str(error)
        return None

    def _limitation(self, oracle: Any, event_shape: tuple[int, ...]) -> str | None:
        """Why scores of this shape are out of reach, as one sentence that begins with the estimator's name; None where they are not."""
        return None

    def __init_subclass__(
        cls, *, name: str | None = None, references: tuple[str, ...] = (), tier: Tier = "extended", **options: Any
    ) -> None:
        """Whatever a subclass lets people call first asks whether the pair is possible, and is one operation."""
        super().__init_subclass__(**options)
        if name is not None:
            cls.name, cls.references = name, references
        cls.tier = vars(cls).get("tier", tier)  # not that of what it extends
        if "needs" not in vars(cls):
            kinds = [kind for base in vars(cls).get("__orig_bases__", ()) for kind in get_args(base)]
            cls.needs = tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Oracle)) or cls.needs
        if "structure" in vars(cls):
            cls.structure = operation()(_refusing(vars(cls)["structure"]))  # type: ignore[attr-defined]
        if "surrogate" in vars(cls):
            cls.surrogate = uncompiled(_with_autograd(_refusing(vars(cls)["surrogate"])), calls_losses=True)  # type: ignore[method-assign]
        if "observed" in vars(cls):
            cls.observed = _of_finite(vars(cls)["observed"])  # type: ignore[method-assign]
        if "warmed_up" in vars(cls):
            cls.warmed_up = _refusing(vars(cls)["warmed_up"])  # type: ignore[assignment, method-assign]


class UnbiasedEstimator(Estimator[O]):
    """An estimator whose mean is the gradient of the expected loss, for every loss."""

    objective = "expected"
    unbiased = True


class PathwiseEstimator(Estimator[O]):
    """An estimator that hands the loss a differentiable structure: usable as a layer.

    A subclass implements `structure`; its backward maps ``γ = ∇_z L`` at the structure to the estimate. Where that is declared to be linear
    in γ, `surrogate` is the loss of the structure, through which one backward goes. Else it evaluates that backward with the γ of every
    single row, so that estimates that are not linear in γ (SPIGOT, I-MLE) do not depend on how the losses of a batch are reduced later.

    Attributes:
        linear: whether the estimate of a row is linear in its γ, so that a multiple of γ gives that multiple of the estimate.
    """

    linear: ClassVar[bool] = False

    @abc.abstractmethod
    def structure(self, oracle: O, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        """A differentiable structure, ``[*batch, *event]``. In training, its backward sees γ as the loss's reduction scaled it."""

    def _draws(self) -> int:
        """How many independent structures `surrogate` averages over."""
        return 1

    @final
    def surrogate(self, loss: Loss, oracle: O, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        if self.linear and self._draws() == 1 and scores.requires_grad and torch.is_grad_enabled():
            return self._losses(loss, oracle, self.structure(oracle, scores, generator=generator))
        return self._row_by_row(loss, oracle, scores, generator)

    def _row_by_row(self, loss: Loss, oracle: O, scores: Tensor, generator: torch.Generator) -> Tensor:
        draws, sample_dim = self._draws(), scores.ndim - oracle.event_ndim
        learning, wanted = torch.is_grad_enabled(), torch.is_grad_enabled() and scores.requires_grad
        leaf = scores.detach() if draws == 1 else expand_samples(scores.detach(), draws, oracle.event_ndim)
        leaf = leaf.requires_grad_(wanted)
        with torch.enable_grad():
            structure = self.structure(oracle, leaf, generator=generator)
            point = structure.detach()
            point = (point if draws == 1 else point.movedim(sample_dim, 0)).requires_grad_()
            losses = evaluate(loss, point, oracle.event_ndim) if wanted else self._losses(loss, oracle, point)
            # What learns nothing itself is not gone through again.
            kept = learning and learns_besides(losses, point)
            values = losses if kept else losses.detach()
            if draws > 1:
                values = values.mean(0)
            if not wanted:
                return values
            gamma = upstream_gradient(self.name, losses, point, retain_graph=kept)
            upstream = gamma if draws == 1 else gamma.movedim(0, sample_dim)
            (estimate,) = torch.autograd.grad(structure, leaf, upstream, allow_unused=True, materialize_grads=True)
        return with_gradient(values, scores, estimate if draws == 1 else estimate.mean(sample_dim))

    def _losses(self, loss: Loss, oracle: O, point: Tensor) -> Tensor:
        """``[..., *batch]`` at points that require a gradient; a loss that has none there is refused."""
        losses = evaluate(loss, point, oracle.event_ndim)
        # Under `torch.inference_mode` nothing depends on anything, and the values alone are wanted.
        if not torch.is_inference_mode_enabled() and not depends(losses, point):
            raise _without_gradient(self.name)
        return losses


class Relaxation(PathwiseEstimator[O]):
    """An estimator of the exact gradient of its own, relaxed, objective: that of the loss at a differentiable point inside the hull."""

    objective = "relaxed"
    unbiased = True
    inside_hull = True
    linear = True


def upstream_gradient(name: str, losses: Tensor, point: Tensor, *, create_graph: bool = False, retain_graph: bool = True) -> Tensor:
    """γ, the gradient of every loss in its own point, for the estimator of this name; a loss without one is refused."""
    gamma = None
    if losses.requires_grad:
        (gamma,) = torch.autograd.grad(losses.sum(), point, retain_graph=retain_graph, create_graph=create_graph, allow_unused=True)
    if gamma is None:
        raise _without_gradient(name)
    return gamma


def _without_gradient(name: str) -> ValueError:
    if torch.is_inference_mode_enabled():
        return _inferring(name, "where no loss has a gradient")
    return ValueError(
        f"`{name}` got a loss without a gradient in the structure; expected a differentiable loss, "
        "or choose an estimator that needs its values only, such as rloo"
    )


def depends(losses: Tensor, point: Tensor) -> bool:
    """Whether the losses were computed from a point that requires a gradient, as far as autograd knows."""
    if not losses.requires_grad:
        return False
    sought = point.grad_fn or get_gradient_edge(point).node
    # What is older than the point is looked at last: it leads to an encoder, but for numbers that another thread gave.
    birth = sought._sequence_nr() if point.grad_fn is not None else 0
    waiting, older, known = [losses.grad_fn or get_gradient_edge(losses).node], list[Node](), set[Node]()
    while waiting or older:
        node = waiting.pop() if waiting else older.pop()
        if node is sought:
            return True
        for following, _ in reversed(node.next_functions):
            if following is not None and following not in known:
                known.add(following)
                (waiting if following._sequence_nr() >= birth else older).append(following)
    return False


def learns_besides(losses: Tensor, point: Tensor) -> bool:
    """Whether anything but a point may get a gradient from losses; what a function of somebody's own holds back counts as such."""
    waiting, known = [losses.grad_fn], set[Node | None]((None,))
    while waiting:
        node = waiting.pop()
        if isinstance(node, BackwardCFunction) or getattr(node, "variable", point) is not point:
            return True
        for following, _ in node.next_functions if node is not None else ():
            if following not in known:
                known.add(following)
                waiting.append(following)
    return False


def evaluate(loss: Loss, structures: Tensor, event_ndim: int, dtype: torch.dtype | None = None) -> Tensor:
    """The loss of every structure, one number each.

    Refused are a loss that reduces, which would mix the rows of a batch, and one that writes into its structures: estimators weigh the same
    ones by their probabilities afterwards.

    Args:
        loss: of structures, or of indices.
        structures: ``[..., *batch, *event]``, or indices.
        event_ndim: how many dimensions one has.
        dtype: of dense structures, that of these where it is None.
    """
    version = _version_of(structures)
    losses = own(loss, structures)
    if _version_of(structures) != version:
        raise ValueError(
            "the loss changed its structures in place; expected it to leave them as they are, because they are used again afterwards: "
            "change a copy, structures.clone()"
        )
    expected = tuple(structures.shape[: structures.ndim - event_ndim])
    if not isinstance(losses, Tensor) or losses.is_complex():
        raise ValueError(f"the loss gave {_described(losses)}; expected a tensor of one real number per structure, of shape {expected}")
    if tuple(losses.shape) != expected:
        raise ValueError(
            f"the loss gave a tensor of shape {tuple(losses.shape)} for structures of shape {tuple(structures.shape)}; "
            f"expected one value per structure, {expected}: reduce the surrogate instead"
        )
    # A count of errors is an integer, and what is right or wrong a boolean: estimators subtract and average them.
    return losses if losses.is_floating_point() else losses.to(torch.promote_types(dtype or structures.dtype, torch.float32))


def _version_of(values: Tensor) -> int:
    """How often torch has written into the memory of a tensor; what was made in inference mode does not count it."""
    return 0 if values.is_inference() else values._version


def evaluate_samples(loss: Loss, samples: Samples) -> Tensor:
    """`evaluate` of samples in either form."""
    if samples.compact and isinstance(loss, OfStructures):
        return evaluate(loss.loss, samples.drawn, samples.oracle.index_ndim, samples.dtype)
    return evaluate(loss, samples.drawn, samples.oracle.event_ndim)


def shifted(loss: Loss, oracle: Oracle, baseline: Tensor | float, dtype: torch.dtype) -> Loss:
    """A loss minus what does not depend on the structure, of the same form; dense structures have this dtype."""
    if isinstance(loss, OfStructures):
        return OfStructures(lambda indices: evaluate(loss.loss, indices, oracle.index_ndim, dtype) - baseline, oracle)
    return lambda z: evaluate(loss, z, oracle.event_ndim) - baseline


def expand_samples(scores: Tensor, samples: int, event_ndim: int) -> Tensor:
    """[*batch, *event] -> [*batch, samples, *event] without a copy. Samples come after the batch, so that seed blocks cut the batch."""
    batch_dims = scores.ndim - event_ndim
    shape = scores.shape
    return scores.unsqueeze(batch_dims).expand(*shape[:batch_dims], samples, *shape[batch_dims:])


def with_gradient(value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
    """``value`` [*batch], whose gradient in the scores is ``estimate`` [*batch, *event]; gradients in other parameters are kept."""
    result: Tensor = _WithGradient.apply(value, scores, estimate)  # type: ignore[no-untyped-call]
    return result


def carry(value: Tensor, carrier: Tensor) -> Tensor:
    """``value``, to whose gradient that of ``carrier`` is added; the carrier's own value, which may be infinite, is dropped."""
    result: Tensor = _Carry.apply(value, carrier)  # type: ignore[no-untyped-call]
    return result


def with_backward(structure: Tensor, scores: Tensor, pull_back: Callable[[Tensor], Tensor]) -> Tensor:
    """``structure``, with ``pull_back`` (from γ to the estimate) as its backward to the scores."""
    result: Tensor = _WithBackward.apply(structure, scores, pull_back)  # type: ignore[no-untyped-call]
    return result


def straight_through(structure: Tensor, scores: Tensor, oracle: Oracle) -> Tensor:
    """``structure``, with the identity on the moving parts as its backward; ``z + θ − θ.detach()`` would be NaN at a score of -inf."""
    if oracle.all_free(scores):
        return with_backward(structure, scores, lambda gamma: gamma.view_as(gamma))
    moving = moving_parts(structure, scores, oracle)
    return with_backward(structure, scores, lambda gamma: torch.where(moving, gamma, 0))


def moving_parts(structure: Tensor, scores: Tensor, oracle: Oracle) -> Tensor:
    """Boolean, broadcastable to ``[*batch, *event]``: the parts that carry gradient, the free ones, and none in an infeasible row.

    Where nothing is feasible, the structure that an oracle returns uses a forbidden part, or no part at all.
    """
    if oracle.forbids_nothing(scores):
        return oracle.read_mask(tuple(scores.shape[scores.ndim - oracle.event_ndim :]), scores.device)
    free, used, event = oracle.free_parts(scores), structure != 0, tuple(range(-oracle.event_ndim, 0))
    return oracle.parts_within(free, scores) & used.any(event, keepdim=True) & (free | ~used).all(event, keepdim=True)


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        ctx.save_for_backward(estimate)
        ctx.event_ndim = scores.ndim - value.ndim
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (estimate,) = ctx.saved_tensors
        gradient = grads[0].reshape(*grads[0].shape, *([1] * ctx.event_ndim)) * estimate
        if torch.is_grad_enabled():
            gradient = _UNDERIVED(gradient.requires_grad_())
        return grads[0], gradient, None


_UNDERIVED = torch._C._functions.DelayedError(
    "the estimate of a gradient got differentiated, as by a gradient penalty; expected no more than its value, because an estimate is a "
    "number that no derivative leads through: take a relaxation with derivatives, such as structured_attention, or detach the estimate",
    1,
)
"""Passes a gradient on, and refuses to be differentiated."""


class _Carry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, carrier: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0]


class _WithBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, structure: Tensor, scores: Tensor, pull_back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.pull_back, ctx.serving = pull_back, SERVING.get()
        return structure.view_as(structure)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        with serving_as(ctx.serving):
            return None, ctx.pull_back(grads[0]), None


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


__all__ = [
    "Estimator",
    "Evaluations",
    "Loss",
    "MarginalOracle",
    "Objective",
    "Oracle",
    "PathwiseEstimator",
    "ProjectionOracle",
    "Relaxation",
    "SamplingOracle",
    "UnbiasedEstimator",
    "carry",
    "evaluate",
    "expand_samples",
    "moving_parts",
    "straight_through",
    "upstream_gradient",
    "with_backward",
    "with_gradient",
]
