"""Training with true structures, as estimators: what learns from structures is compared with what learns through them.

The encoder follows a loss of its scores against the true structure, and the decoder learns at the true structure; with `Frozen` the encoder
learns nothing. None of them is in the registry of estimators, whose entries see the loss alone.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from ..oracles.capabilities import MarginalOracle, Oracle, ProjectionOracle, RelaxedOracle
from ..oracles.options import Count, Positive
from . import supervised
from .base import Estimator, Evaluations
from .noise import AnyNoise, Gumbel
from .relaxations import smoothed_maximum
from .supervised import crf_loss, margin_perceptron, margin_sparsemap_loss, sparsemap_loss, structured_perceptron
from .surrogates import Loss, evaluate, with_gradient


class Supervised(Estimator[Any]):
    """Training on true structures: the surrogate is a loss of the scores against them, plus the task's loss at them."""

    objective = "supervised"
    unbiased = True
    deterministic = True
    needs_gold = True
    measured: ClassVar[Callable[..., Tensor]]

    @final
    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        gold = getattr(loss, "gold", None)
        if gold is None:
            raise ValueError(f"`{self.name}` got a loss without true structures; expected one with `gold`, as that of the task parsing has")
        gold = gold.to(scores)
        return self._against(oracle, scores, gold, generator) + evaluate(loss, gold, oracle.event_ndim)

    def _against(self, oracle: Any, scores: Tensor, gold: Tensor, generator: torch.Generator) -> Tensor:
        """``[*batch]``: how far scores are from a structure; the options are those of the loss."""
        taken = inspect.signature(self.measured).parameters  # a subclass may have options of its own
        return self.measured(oracle, scores, gold, **{name: value for name, value in vars(self).items() if name in taken})


@dataclass(frozen=True)
class ConditionalRandomField(Supervised, name="crf", references=("lafferty2001conditional",)):
    """The negative log-likelihood of the true structure: `crf_loss`."""

    needs = (MarginalOracle,)
    calls = Evaluations(losses=1, marginals=1)
    measured = staticmethod(crf_loss)


@dataclass(frozen=True)
class Perceptron(Supervised, name="perceptron", references=("collins2002discriminative",)):
    """The structured perceptron: `structured_perceptron`."""

    calls = Evaluations(losses=1, argmax=1)
    measured = staticmethod(structured_perceptron)


@dataclass(frozen=True)
class MarginPerceptron(Supervised, name="margin_perceptron", references=("taskar2003maxmargin",)):
    """The structured hinge loss: `margin_perceptron`.

    Args:
        cost: of every part that differs.
    """

    cost: Positive = 1.0

    calls = Evaluations(losses=1, argmax=1)
    measured = staticmethod(margin_perceptron)


@dataclass(frozen=True)
class SparseMAPLoss(Supervised, name="sparsemap_loss", references=("niculae2018sparsemap",)):
    """The SparseMAP loss: `sparsemap_loss`."""

    needs = (ProjectionOracle,)
    calls = Evaluations(losses=1, projections=1)
    measured = staticmethod(sparsemap_loss)


@dataclass(frozen=True)
class MarginSparseMAP(Supervised, name="margin_sparsemap", references=("niculae2018sparsemap",)):
    """The margin SparseMAP loss: `margin_sparsemap_loss`.

    Args:
        cost: of every part that differs.
    """

    cost: Positive = 1.0

    needs = (ProjectionOracle,)
    calls = Evaluations(losses=1, projections=1)
    measured = staticmethod(margin_sparsemap_loss)


@dataclass(frozen=True)
class PerturbedFenchelYoungTraining(Supervised, name="perturbed_fenchel_young", references=("berthet2020learning",)):
    """The perturbed Fenchel–Young loss: `PerturbedFenchelYoung`.

    Args:
        num_samples: M.
        noise: on the scores.
    """

    num_samples: Count = 10
    noise: AnyNoise = Gumbel()

    deterministic = False

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, argmax=self.num_samples, perturbations=self.num_samples)

    def _against(self, oracle: Any, scores: Tensor, gold: Tensor, generator: torch.Generator) -> Tensor:
        return supervised.PerturbedFenchelYoung(self.num_samples, self.noise)(oracle, scores, gold, generator=generator)


@dataclass(frozen=True)
class DifferentiableDPLoss(Supervised, name="differentiable_dp_loss", references=("mensch2018differentiable",)):
    """Differentiable dynamic programming as a loss: ``DP_Ω(θ) − ⟨θ, y⟩``, of gradient ``E(θ) − y``; with the entropy it is `crf_loss`.

    With ½‖·‖² it may be negative, for the smoothed maximum then lies below the best score.

    Args:
        omega: ``"l2"`` or ``"entropy"``.
    """

    omega: Literal["l2", "entropy"] = "l2"

    needs = (RelaxedOracle,)
    calls = Evaluations(losses=1, relaxations=1)

    def _against(self, oracle: Any, scores: Tensor, gold: Tensor, generator: torch.Generator) -> Tensor:
        if self.omega == "entropy":
            return crf_loss(oracle, scores, gold)
        wide = scores.double()  # A small difference of large numbers.
        return supervised.fenchel_young(smoothed_maximum(oracle, wide, self.omega), 0.0, oracle.score(gold, wide)).to(scores.dtype)


@dataclass(frozen=True)
class Frozen(Estimator[Any], name="frozen"):
    """No gradient in the scores: the decoder learns at the best structures of an encoder that stays as it is, as in a pipeline."""

    objective = "argmax"
    unbiased = True
    deterministic = True
    calls = Evaluations(losses=1, argmax=1)

    def surrogate(self, loss: Loss, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        losses = evaluate(loss, oracle.argmax(scores.detach()), oracle.event_ndim)
        return with_gradient(losses, scores, torch.zeros_like(scores))


_KINDS: list[type[Estimator[Any]]] = [*Supervised.__subclasses__(), Frozen]
SUPERVISED = {kind.name: kind for kind in _KINDS}
"""What `make_estimator` builds besides the estimators: ways of training that know the true structures, or nothing of them."""
