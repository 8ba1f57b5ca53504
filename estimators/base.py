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

import abc
import functools
import inspect
import math
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, final, get_args

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level
from torch._compile import _disable_dynamo
from torch.compiler import is_compiling

from .. import estimators
from ..oracles.capabilities import EnumerableOracle, MarginalOracle, Oracle
from ..oracles.capabilities.enumeration import MAX_RANK
from ..oracles.magnitudes import beyond_memory, counted, duration
from ..oracles.numerics import HALF, in_single
from ..oracles.options import Configured
from ..oracles.random_streams import A_GENERATOR
from ..oracles.registry import make_oracle
from ..oracles.tensor_kinds import explain
from ..oracles.transforms import operation, refuse_exports, transforming, uncompiled
from .surrogates import (
    Loss,
    LossInHalf,
    OfStructures,
    depends,
    described,
    evaluate,
    expand_samples,
    inferring,
    learns_besides,
    upstream_gradient,
    with_gradient,
    without_gradient,
)

Tier = Literal["core", "extended"]

Objective = Literal["expected", "perturbed", "argmax", "relaxed", "sparse", "supervised"]

NOTHING = torch.empty(0, device="cpu")  # values or estimates of no rows

TYPICAL_RATE = 2e4
"""Structures a second of one row of scores, on one core, as measured with cheap losses; some structures take four times as long."""

SIZES = ("num_samples", "num_conditionals", "pilots", "k")  # options that count structures which are in memory together

LAST_CALL: list[tuple[Callable[[], Any], Callable[[], Any], Any]] = [(lambda: None, lambda: None, None)]
"""References to estimator and oracle, and the kind of scores, of the last checked call: another one like it is not checked again."""

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


def _called(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The method with its arguments checked; ValueError if the oracle or the shape of the scores does not fit, or autograd cannot serve.

    It gets scores of half precision in float32, so that noise, differences and relaxations are rounded once, in the result. A surrogate is
    left out of the graphs of `torch.compile`. Under a transform none has a gradient, because ours is no derivative of its value; in
    inference mode some fail on the way to it.
    """
    if getattr(method, "__isabstractmethod__", False):
        return method
    parameters, surrogate = list(inspect.signature(method).parameters)[1:], method.__name__ == "surrogate"

    @functools.wraps(method)
    def called(self: Estimator[Any], *args: Any, **named: Any) -> Tensor:
        if surrogate and is_compiling():
            refuse_exports("surrogate")
            return left_out(self, *args, **named)
        try:
            if surrogate and maybe_current_level() is not None:
                raise _transformed(self.name, "surrogate")
            given = dict(zip(parameters, args, strict=False)) | named
            scores, last = given["scores"], LAST_CALL[0]
            known = isinstance(scores, Tensor) and not scores.is_nested and (scores.layout, scores.dtype, scores.shape) == last[2]
            of_structures = callable(loss := given.get("loss", len)) and not getattr(loss, "takes_indices", False)
            drawing = isinstance(given.get("generator"), torch.Generator)
            if known and of_structures and drawing and self is last[0]() and given["oracle"] is last[1]():  # as at the last call
                return method(self, **given)
            prepared = self._prepared(given)
            result = method(self, **prepared)
            if prepared["scores"] is scores or not isinstance(result, Tensor):
                return result
            return result.to(prepared["loss"].given or result.dtype if "loss" in given else scores.dtype)
        except Exception as error:
            if not surrogate:
                raise
            if isinstance(error, RuntimeError) and torch.is_inference_mode_enabled():
                error, cause = inferring(self.name, f"and failed there ({str(error).partition('. ')[0]})"), error
                error.__cause__ = cause
            explain(self.name, method, (self, *args), named, error)

    left_out: Callable[..., Tensor] = _disable_dynamo(called)  # `torch.compiler.disable` would import the compiler here and now
    called.unchecked = method  # type: ignore[attr-defined]
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
        elif name == "estimator" and callable(value) and not isinstance(value, Oracle | Estimator):
            given[name] = estimators.make_estimator(value)
        elif not fits(value):
            order = "; the order is loss, oracle, scores" if any(fits(value) for fits, _ in ASKED.values()) and "loss" in given else ""
            raise ValueError(f"`{called}` got {described(value)} as {name}; expected {expected}{order}")
    return tuple(given.values())


class Estimator(Configured, abc.ABC, Generic[O]):
    """An estimator of the gradient of an expected (or relaxed) loss with respect to scores.

    A concrete estimator is a frozen dataclass of options. In formulas N is the option ``num_samples``, P is ``num_pairs`` and τ is
    ``temperature`` unless its description says otherwise. Spaces of more than ``limit`` structures are refused. You train with `surrogate`
    and measure `gradient`. Its class may give the first three attributes as keywords:
    ``class LeaveOneOut(ScoreFunction, name="rloo", tier="core", references=("kool2019buy",))``.

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
    calls: ClassVar[Evaluations | None] = None
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
        if self.calls is None:
            raise ValueError(
                f"`{self.name}` does not say what an estimate costs; expected a class attribute such as `calls = Evaluations(losses=1)`, "
                "or a method `evaluations`"
            )
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
        if not isinstance(scores, Tensor) or not scores.is_floating_point():
            check_call(self.name, loss=loss, oracle=oracle, scores=scores, generator=generator)
        if transforming():
            raise _transformed(self.name, "gradient")
        if torch.is_inference_mode_enabled():
            raise without_gradient(self.name)
        leaf = scores.detach().requires_grad_()
        with torch.enable_grad():
            total = self.surrogate(loss, oracle, leaf, generator=generator).sum()  # type: ignore[arg-type]
        (estimate,) = torch.autograd.grad(total, leaf, allow_unused=True, materialize_grads=True)
        return estimate

    def warmed_up(self, loss: Loss, oracle: O, scores: Tensor, *, generator: torch.Generator) -> Self:
        """The estimator in the state in which it is measured: itself, where it has no state."""
        return self

    # What training asks for besides; `StructuredLayer` and `train_step` call all of it. Without state, none of it is to be written.

    def observed(self, values: Tensor = NOTHING, estimates: Tensor = NOTHING) -> Self:
        """The estimator after it has seen a batch of what it gave: itself, where it has no `state` or the batch is empty.

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
            listed = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
            return f"{self.name} needs {listed}, which the oracle {structures.name} does not offer"
        if event_shape is None:
            return None
        for option in SIZES:
            count, parts = getattr(self, option, 0), math.prod(event_shape)
            if type(count) is int and count > 2**16 and (beyond := beyond_memory(4 * count * parts)):
                return f"{self.name} got {option}={count}, structures of {parts} parts that take {beyond}: choose a smaller {option}"
        if isinstance(structures, MarginalOracle) and any(issubclass(need, MarginalOracle) for need in self.needs):
            try:
                structures.check_marginals(self.name, event_shape)
            except ValueError as error:
                return str(error)  # sums over so many structures are out of reach
        return self._limitation(structures, event_shape)

    @final
    def _prepared(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of an estimate, checked: the oracle of a name, scores of half precision in float32, and a loss of structures."""
        asked = {name: value for name, value in given.items() if name in ASKED}
        prepared = given | dict(zip(asked, check_call(self.name, **asked), strict=True))
        oracle, scores = prepared["oracle"], prepared["scores"]
        oracle.check_scores(self.name, scores)
        reason = self.incompatibility(oracle, tuple(scores.shape[scores.ndim - oracle.event_ndim :]))
        if reason is not None:
            raise ValueError(f"{reason}; choose another pair")
        if scores.dtype in HALF:
            prepared["scores"] = in_single(scores, oracle.event_ndim)
        elif getattr(self, "__dataclass_params__", None) and self.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            LAST_CALL[0] = (weakref.ref(self), weakref.ref(oracle), (scores.layout, scores.dtype, scores.shape))
        if "loss" not in given:
            return prepared
        loss = LossInHalf(given["loss"], scores.dtype) if scores.dtype in HALF else given["loss"]
        if getattr(loss, "takes_indices", False):
            if self.inside_hull or self.evaluations().loss_gradients:
                raise ValueError(
                    f"`{self.name}` got a loss that takes indices; expected one of structures, because it needs more of a loss than its "
                    "values at structures: choose an estimator that needs values only, such as rloo, or a loss of dense structures"
                )
            loss = OfStructures(loss, oracle)
        return prepared | {"loss": loss}

    def _limitation(self, oracle: Any, event_shape: tuple[int, ...]) -> str | None:
        """Why scores of this shape are out of reach, as one sentence that begins with the estimator's name; None where they are not.

        By default: that an estimator would go through more structures than its option ``limit``, an integer.
        """
        limit = getattr(self, "limit", None)
        if type(limit) is not int or EnumerableOracle not in self.needs or not self.lists(oracle, event_shape):
            return None
        total = oracle.count(event_shape)
        if total <= min(limit, MAX_RANK):
            return None
        raises = f", raise limit= for so long a wait ({self.name}[limit={total}])" if total <= MAX_RANK else ""
        return (
            f"{self.name} enumerates at most limit={limit} structures, and the oracle {oracle.name} has {counted(total)} of the shape "
            f"{event_shape}, which take {duration(total, TYPICAL_RATE)} at a typical {TYPICAL_RATE:,.0f} a second{raises}"
        )

    def __init_subclass__(
        cls, *, name: str | None = None, references: tuple[str, ...] = (), tier: Tier = "extended", **options: Any
    ) -> None:
        """Whatever a subclass lets people call first asks whether the pair is possible, and is one operation."""
        super().__init_subclass__(**options)
        if name is not None:
            cls.name = name
        if references or (name is not None and "references" not in vars(cls)):  # not those of what it extends
            cls.references = references
        cls.tier = vars(cls).get("tier", tier)  # not that of what it extends
        kinds = (kind for base in vars(cls).get("__orig_bases__", ()) for kind in get_args(base))
        bracketed = tuple(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Oracle))
        if bracketed and not any("needs" in vars(base) for base in cls.__mro__ if base is not Estimator):
            cls.needs = bracketed
        own: dict[str, Callable[[Any], Any]] = {
            "structure": lambda method: operation(gives="event")(_called(method)),
            "surrogate": _called,
            "observed": _of_finite,
            "warmed_up": _called,
        }
        for method, wrapped in own.items():
            if method in vars(cls):
                setattr(cls, method, wrapped(vars(cls)[method]))


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
            return self._losses(loss, oracle, self._structure(oracle, scores, generator))
        return self._row_by_row(loss, oracle, scores, generator)

    def _structure(self, oracle: O, scores: Tensor, generator: torch.Generator) -> Tensor:
        """`structure` without the checks, which `surrogate` has made."""
        method = type(self).structure
        structure: Tensor = getattr(method, "unchecked", method)(self, oracle, scores, generator=generator)
        return structure

    def _row_by_row(self, loss: Loss, oracle: O, scores: Tensor, generator: torch.Generator) -> Tensor:
        draws, sample_dim = self._draws(), scores.ndim - oracle.event_ndim
        learning, wanted = torch.is_grad_enabled(), torch.is_grad_enabled() and scores.requires_grad
        leaf = scores.detach() if draws == 1 else expand_samples(scores.detach(), draws, oracle.event_ndim)
        leaf = leaf.requires_grad_(wanted)
        with torch.enable_grad():
            structure = self._structure(oracle, leaf, generator)
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
            raise without_gradient(self.name)
        return losses


class Relaxation(PathwiseEstimator[O]):
    """An estimator of the exact gradient of its own, relaxed, objective: that of the loss at a differentiable point inside the hull."""

    objective = "relaxed"
    unbiased = True
    inside_hull = True
    linear = True
