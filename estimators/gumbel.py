"""Gumbel relaxations, and their straight-through forms: of categories, of subsets, and of a walk through a recursion."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..oracles.capabilities import FactorisedOracle, MarginalOracle, RelaxedOracle, SubsetOracle
from ..oracles.numerics import log_sum_exp
from ..oracles.options import Positive
from .base import Evaluations, PathwiseEstimator, Relaxation
from .factorised import gumbels, log_probabilities, possible_parts
from .noise import Gumbel
from .straight_through import marginals_at, replace_value


@dataclass(frozen=True)
class GumbelSoftmax(Relaxation[FactorisedOracle], name="gumbel_softmax", references=("jang2017categorical", "maddison2017concrete")):
    """Gumbel-softmax, the Concrete relaxation: the loss sees ``y = softmax((θ + G)/τ)``, with the exact gradient of ``L(y)``.

    Unbiased for its own relaxed objective ``E_G L(y)``, which tends to the expected loss as τ → 0, while the variance grows without bound.

    Args:
        temperature: τ, positive. Published runs lower it from 1 in training.

    References:
        Jang, Gu & Poole 2017, section 2.1; Maddison, Mnih & Teh 2017, "The Concrete distribution", section 3.

    Example:
        A decoder's loss falls as the scores learn.

        >>> scores, target = torch.zeros(3, 2, requires_grad=True), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> optimiser, generator = torch.optim.Adam([scores], lr=0.3), torch.Generator().manual_seed(0)
        >>> for _ in range(50):
        ...     optimiser.zero_grad()
        ...     y = GumbelSoftmax(temperature=0.5).structure("categories", scores.expand(16, 3, 2), generator=generator)
        ...     (y - target).square().sum((-2, -1)).mean().backward()
        ...     optimiser.step()
        >>> bool((scores.softmax(-1) * target).sum(-1).min() > 0.95)
        True
    """

    temperature: Positive = 1.0

    calls = Evaluations(losses=1, loss_gradients=1, perturbations=1)

    def structure(self, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        noise = gumbels(oracle, scores, generator=generator)
        relaxed = ((log_probabilities(oracle, scores) + noise) / self.temperature).softmax(-1)
        return torch.where(possible_parts(oracle, scores), relaxed, 0).to(scores.dtype)


@dataclass(frozen=True)
class StraightThroughGumbel(
    PathwiseEstimator[MarginalOracle], name="st_gumbel", tier="core", references=("jang2017categorical", "maddison2017concrete")
):
    """Straight-through Gumbel-softmax: forward ``z = argmax(θ + G)``, backward ``ĝ = Cov_{(θ+G)/τ}(z) γ(z) / τ``. Biased.

    On `categorical` this is the straight-through Gumbel-softmax of the papers, and its forward is an exact sample. On other structures the
    softmax becomes the marginals at the noisy scores, and the forward samples the perturbed, not the Gibbs, distribution.

    References:
        Jang, Gu & Poole 2017, "Categorical reparameterization with Gumbel-softmax", section 2.2; Maddison, Mnih & Teh 2017.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5]).expand(100_000, 3)
        >>> generator = torch.Generator().manual_seed(0)
        >>> StraightThroughGumbel(temperature=0.5).gradient(loss, "categorical", scores, generator=generator).mean(0).round(decimals=2)
        tensor([-0.0200, -0.3200, 0.3400])
    """

    temperature: Positive = 1.0

    objective = "perturbed"
    linear = True
    calls = Evaluations(losses=1, loss_gradients=1, argmax=1, marginals=1, perturbations=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        perturbed = Gumbel().perturb(oracle, scores, generator=generator)
        return marginals_at(oracle, perturbed, self.temperature, oracle.argmax(perturbed))


@dataclass(frozen=True)
class DecoupledGumbel(PathwiseEstimator[MarginalOracle], name="decoupled_st_gumbel", references=("shah2024decoupled",)):
    """Decoupled straight-through Gumbel: forward ``z = argmax(θ/τ_f + G)``, backward ``ĝ = Cov_{θ/τ_b + G}(z) γ(z) / τ_b``. Biased.

    Both ways share the noise G, which is not divided by the temperatures as `StraightThroughGumbel` does: so the forward is the law of
    scores ``θ/τ_f``, at τ_f = 1 the model's own, however smooth the backward. For a linear loss on classes the mean does not depend on τ_f.

    Args:
        forward_temperature: τ_f, positive. ``backward_temperature``: τ_b, positive. Which of them should be the greater one depends on
            the task, in the paper too.

    References:
        Shah, Yan, Mozer & Liu 2024, "Improving discrete optimisation via decoupled straight-through Gumbel-softmax", whose abstract
        alone could be read; that the noise is added to ``θ/τ`` is what a public review says of its algorithm 1.
    """

    forward_temperature: Positive = 1.0
    backward_temperature: Positive = 0.5

    objective = "perturbed"
    linear = True

    @property
    def noise(self) -> Gumbel:
        """The perturbation of the scores, in their own scale: ``τ_f G``."""
        return Gumbel(self.forward_temperature)

    calls = Evaluations(losses=1, loss_gradients=1, argmax=1, marginals=1, perturbations=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        noise = Gumbel().draw(oracle, scores, generator=generator).to(scores.dtype)
        structure = oracle.argmax(scores.detach() / self.forward_temperature + noise)
        return oracle.marginals(scores / self.backward_temperature + noise, at=structure)


@dataclass(frozen=True)
class RelaxedWalk(PathwiseEstimator[RelaxedOracle]):
    """A walk through the recursion whose every choice is a Gumbel-softmax."""

    temperature: Positive = 1.0

    version = 2
    linear = True
    calls = Evaluations(losses=1, loss_gradients=1, relaxations=1)


@dataclass(frozen=True)
class GumbelCRF(RelaxedWalk, name="gumbel_crf", references=("fu2020latent",)):
    """Gumbel-CRF: the loss sees a relaxed sample y of the Gibbs law, and the scores its derivative.

    The sample is drawn from the last choice of the recursion to the first, each a Gumbel-softmax of the exact messages (see
    `RelaxedOracle.relaxed_sample`); for τ → 0 it is an exact sample, unlike that of perturbed scores. Unbiased for its relaxed objective
    ``E L(y)``, biased for that of structures.

    Cost: one relaxed sample (two passes of the recursion) and the derivative through both, one loss gradient.

    Args:
        temperature: τ of every choice, positive. The authors lower it from 1 to .01.

    References:
        Fu, Tan, Bi, Hu & Rush 2020, "Latent template induction with Gumbel-CRFs", algorithm 2.

    Example:
        >>> from structgrad.oracles import LinearChain
        >>> scores = LinearChain.from_potentials(torch.tensor([[0.0, 0.4], [3.0, 0.0]]), torch.zeros(2, 2))
        >>> y = GumbelCRF().structure(LinearChain(), scores, generator=torch.Generator().manual_seed(0))
        >>> y.sum((-2, -1))  # one transition each
        tensor([1., 1.])
    """

    objective = "relaxed"
    unbiased = True
    inside_hull = True

    def structure(self, oracle: RelaxedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.relaxed_sample(scores, self.temperature, generator=generator)


@dataclass(frozen=True)
class StraightThroughGumbelCRF(RelaxedWalk, name="gumbel_crf_st", references=("fu2020latent",)):
    """Straight-through Gumbel-CRF: forward an exact sample z of the Gibbs law, backward that of the Gumbel-softmax at every choice. Biased.

    Every choice of the walk is hard in the forward, and so the choices that condition on it are those of z.

    Cost: one relaxed sample (two passes of the recursion) and the derivative through both, one loss gradient.

    Args:
        temperature: τ of the backward, positive. The authors lower it from 1 to .01.

    References:
        Fu, Tan, Bi, Hu & Rush 2020, "Latent template induction with Gumbel-CRFs", algorithm 2, straight-through.

    Example:
        >>> from structgrad.oracles import LinearChain
        >>> scores = LinearChain.from_potentials(torch.tensor([[0.0, 0.4], [3.0, 0.0]]), torch.zeros(2, 2))
        >>> z = StraightThroughGumbelCRF().structure("linear_chain", scores.expand(10_000, 2, 2, 2), generator=torch.Generator())
        >>> bool(((z == 0) | (z == 1)).all()), [round(p, 1) for p in z.mean(0)[0, 0].tolist()]
        (True, [0.4, 0.6])
    """

    objective = "expected"

    def structure(self, oracle: RelaxedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.relaxed_sample(scores, self.temperature, hard=True, generator=generator)


@dataclass(frozen=True)
class RelaxedTopK(Relaxation[SubsetOracle], name="relaxed_top_k", references=("xie2019reparameterizable",)):
    """Relaxed top-k: the loss sees ``y = Σ_j a_j``, k softmaxes ``a_j = softmax(x_j / t)`` of noisy scores, each masked by those before.

    ``x_1 = θ + Gumbel`` and ``x_{j+1} = x_j + log(1 − a_j)``. For t → 0 this is the best subset of the noisy scores. The sum of y is k;
    where the softmaxes are soft a part can have more than 1, outside the hull, and there is a gradient even where only one subset is
    possible.
    Unbiased for its relaxed objective ``E L(y)``, biased for that of subsets.

    Args:
        temperature: t, positive. The authors' code has .1; published experiments use .5 and 2.

    References:
        Xie & Ermon 2019, "Reparameterizable subset sampling via continuous relaxations", algorithm 2.
    """

    temperature: Positive = 0.1

    calls = Evaluations(losses=1, loss_gradients=1, perturbations=1)

    def structure(self, oracle: SubsetOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return successive_softmaxes(Gumbel().perturb(oracle, scores, generator=generator), oracle.k, self.temperature)


@dataclass(frozen=True)
class StraightThroughTopK(
    PathwiseEstimator[SubsetOracle], name="relaxed_top_k_st", references=("xie2019reparameterizable", "jang2017categorical")
):
    """Straight-through relaxed top-k: forward ``z = argmax(θ + Gumbel)``, backward that of `RelaxedTopK` at the same noise. Biased.

    Args:
        temperature: t of the backward, positive.

    References:
        Xie & Ermon 2019, algorithm 2; the straight-through step is that of Jang, Gu & Poole 2017, section 2.2.
    """

    temperature: Positive = 0.1

    objective = "perturbed"
    linear = True
    calls = Evaluations(losses=1, loss_gradients=1, argmax=1, perturbations=1)

    def structure(self, oracle: SubsetOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        perturbed = Gumbel().perturb(oracle, scores, generator=generator)
        return replace_value(successive_softmaxes(perturbed, oracle.k, self.temperature), oracle.argmax(perturbed))


def successive_softmaxes(scores: Tensor, k: int, temperature: float) -> Tensor:
    """``Σ_j a_j`` along the last dimension; 0, with gradient 0, in rows that allow fewer than k parts."""
    feasible = (scores > -math.inf).sum(-1, keepdim=True) >= k
    x = torch.where(feasible, scores, 0)
    total = (x / temperature).softmax(-1)
    for _ in range(k - 1):
        x = x + log_of_the_rest(x / temperature)
        total = total + (x / temperature).softmax(-1)
    return torch.where(feasible, total, 0)


def log_of_the_rest(logits: Tensor) -> Tensor:
    """``log(1 − softmax)``, exact where an entry of the softmax rounds to 1; finite where two logits are.

    Only the greatest entry can pass ½. Its rest is the sum of the others; the rest of the others is far from 0.
    """
    greatest = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, logits.argmax(-1, keepdim=True), True)
    others = log_sum_exp(logits.masked_fill(greatest, -math.inf), -1).unsqueeze(-1)
    whole = log_sum_exp(logits, -1).unsqueeze(-1)
    small = torch.where(greatest, 0, logits.softmax(-1))
    return torch.where(greatest, others - whole, torch.log1p(-small))
