"""The score-function family: only values of the loss are needed, and estimates are unbiased where nothing else is said."""

from dataclasses import dataclass
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from ..oracles.capabilities import SamplingOracle
from ..oracles.capabilities.base import inner
from ..oracles.options import Count, Peers, Within
from ..oracles.random_streams import RowGenerator, random_uniform
from .base import Evaluations, UnbiasedEstimator
from .surrogates import Loss, carry, draw, evaluate, expand_samples, learns_besides, upstream_gradient


class ScoreFunction(UnbiasedEstimator[SamplingOracle]):
    """``ĝ = (1/N) Σ_i (L(z_i) − b) ∇_θ log p_θ(z_i)`` with exact samples ``z_i`` and a baseline b, here 0; subclasses may weigh otherwise.

    Shifting the loss leaves the mean of the estimate alone and changes its variance. The score comes from `log_prob` and autograd, so that
    any oracle that knows its log-probabilities is served.
    """

    num_samples: int

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, marginals=1, samples=self.num_samples)

    def _baseline(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor | float:
        """b, ``[*batch]`` or a number, independent of the samples."""
        return 0.0

    def _carrier(self, losses: Tensor, log_probs: Tensor) -> Tensor:
        """``[*batch]``, whose gradient is the estimate, from ``L(z_i) − b`` and ``log p(z_i)``, both ``[N, *batch]``."""
        return (losses * log_probs).mean(0)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        baseline = self._baseline(loss, oracle, scores.detach(), generator)
        samples, losses = draw(loss, oracle, scores, self.num_samples, generator=generator)
        losses = losses - baseline
        log_probs = oracle.log_prob(samples, scores, as_indices=not samples.is_floating_point())
        return carry(losses.mean(0), self._carrier(losses.detach(), log_probs)) + baseline


@dataclass(frozen=True)
class Reinforce(ScoreFunction, name="reinforce", tier="core", references=("williams1992simple",)):
    """REINFORCE without a baseline: ``ĝ = (1/N) Σ L(z_i) ∇ log p(z_i)``. Unbiased; the variance grows with the loss's offset.

    References:
        Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", section 4.

    Example:
        >>> scores, target = torch.zeros(100, 4), torch.tensor([1.0, 1.0, 0.0, 0.0])
        >>> estimates = Reinforce().gradient(lambda z: (z - target).square().sum(-1), "subset[k=2]", scores, generator=torch.Generator())
        >>> estimates.shape
        torch.Size([100, 4])
    """

    num_samples: Count = 1


@dataclass(frozen=True)
class LeaveOneOut(ScoreFunction, name="rloo", tier="core", references=("kool2019buy", "richter2020vargrad")):
    """REINFORCE with a leave-one-out baseline: ``ĝ = 1/(N−1) Σ (L(z_i) − L̄) ∇ log p(z_i)``.

    Unbiased, because the baseline of a sample is the mean of the *others*. (With the mean of all N the estimate would be (N−1)/N of the
    gradient.) The same estimate as VarGrad.

    References:
        Kool, van Hoof & Welling 2019, "Buy 4 REINFORCE samples, get a baseline for free", equation 8; Richter et al. 2020 (VarGrad).

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5]).expand(100_000, 3)
        >>> generator = torch.Generator().manual_seed(0)
        >>> LeaveOneOut(num_samples=4).gradient(loss, "categorical", scores, generator=generator).mean(0).round(decimals=2)
        tensor([-0.0400, -0.3500,  0.3800])
    """

    num_samples: Peers = 2

    def _carrier(self, losses: Tensor, log_probs: Tensor) -> Tensor:
        return ((losses - losses.mean(0)) * (self.num_samples / (self.num_samples - 1)) * log_probs).mean(0)


@dataclass(frozen=True)
class VarGrad(ScoreFunction, name="vargrad", references=("richter2020vargrad",)):
    """VarGrad: ``ĝ = 1/(N−1) Σ (L(z_i) − L̄)(s_i − s̄)`` with the scores ``s_i = ∇ log p(z_i)``: the covariance of losses and scores.

    The same estimate as leave-one-out, because ``Σ (L(z_i) − L̄) s̄ = 0``; only rounding differs. Unbiased.

    References:
        Richter, Boustati, Nüsken, Ruiz & Akyildiz 2020, "VarGrad: a low-variance gradient estimator for variational inference",
        section 3. `half_variance` is the loss of which it is the gradient.
    """

    num_samples: Annotated[int, Within(least=2, because="a variance is taken over them")] = 2

    def _carrier(self, losses: Tensor, log_probs: Tensor) -> Tensor:
        return covariance(losses, log_probs)


def covariance(first: Tensor, second: Tensor) -> Tensor:
    """``1/(N−1) Σ (x_i − x̄)(y_i − ȳ)`` over the first dimension: ``[N, *batch]`` twice to ``[*batch]``."""
    return ((first - first.mean(0)) * (second - second.mean(0))).sum(0) / (len(first) - 1)


def half_variance(losses: Tensor, log_probs: Tensor) -> Tensor:
    """``½ Var_N(L + log p)``, ``[*batch]``: its gradient in the scores is the VarGrad estimate for ``E[L(z) + log p(z)]``.

    That is an evidence lower bound with its sign turned, where L is minus the log of the joint probability. It vanishes at the optimum
    ``p ∝ exp(−L)``, for every sample, and so does its gradient.

    Args:
        losses: ``[N, *batch]``, of samples that are held fixed; at least two.
        log_probs: ``[N, *batch]``, from `log_prob` of the same samples, differentiable in the scores.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> scores, table = torch.zeros(3, requires_grad=True), torch.tensor([1.0, -0.5, 2.0])
        >>> optimiser, generator = torch.optim.SGD([scores], lr=0.2), torch.Generator().manual_seed(0)
        >>> for _ in range(500):
        ...     samples = Categorical().sample(scores, 8, generator=generator)
        ...     optimiser.zero_grad()
        ...     half_variance(samples @ table, Categorical().log_prob(samples, scores)).backward()
        ...     optimiser.step()
        >>> (scores.softmax(-1) - (-table).softmax(-1)).abs().max() < 1e-3
        tensor(True)
    """
    if len(losses) < 2:
        raise ValueError(f"`half_variance` got losses of {len(losses)} samples; expected at least 2, a variance is taken over them")
    total = losses.detach() + log_probs
    return covariance(total, total) / 2


def scores_of(oracle: SamplingOracle, samples: Tensor, scores: Tensor) -> Tensor:
    """``∇ log p(z_i)`` of every sample by itself: ``[N, *batch, *event]`` from N structures or indices and scores ``[*batch, *event]``."""
    batch_dims = scores.ndim - oracle.event_ndim
    leaf = expand_samples(scores.detach(), len(samples), oracle.event_ndim).requires_grad_()
    with torch.enable_grad():
        total = oracle.log_prob(samples.movedim(0, batch_dims), leaf, as_indices=not samples.is_floating_point()).sum()
    (single,) = torch.autograd.grad(total, leaf)
    return single.movedim(batch_dims, 0)


@dataclass(frozen=True)
class AntitheticPairs(UnbiasedEstimator[SamplingOracle], name="antithetic_pairs", references=("dong2021coupled",)):
    """Antithetic pairs of structures: ``ĝ = (1/2P) Σ_p Σ_{z∈p} (L(z) − b_p) ∇ log p(z)``, b_p the mean loss of the other pairs. Unbiased.

    A sampler turns uniforms u into an exact sample, decision by decision; the other of the pair is what ``1 − u`` gives, an exact sample
    too. The plain average of the two is unbiased however they depend on each other, and needs no weights as DisARM and CARMS do, but for
    the same reason the loss of the one is no baseline for the other: that is left to other pairs, and with a single one there is none. The
    variance falls where opposite uniforms give opposite terms, and rises where they give equal ones: bits and first choices do the former.

    References:
        Dong, Mnih & Tucker 2021, "Coupled gradient estimators for discrete latent variables", whose samples are coupled so, for categories.
    """

    num_pairs: Count = 2

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=2 * self.num_pairs, marginals=1, samples=2 * self.num_pairs)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        pairs = self.num_pairs
        recorded = Recorded(generator)
        first = oracle.sample(scores, pairs, generator=recorded)
        samples = torch.cat([first, oracle.sample(scores, pairs, generator=Opposite(recorded))])
        losses = evaluate(loss, samples, oracle.event_ndim)
        values = losses.detach().unflatten(0, (2, pairs))
        if pairs > 1:
            means = values.mean(0)
            values = values - (means.sum(0) - means) / (pairs - 1)
        return carry(losses.mean(0), (values.flatten(0, 1) * oracle.log_prob(samples, scores)).mean(0))


class Recorded(RowGenerator):
    """Gives the uniforms of another generator, and keeps them."""

    def __new__(cls, source: torch.Generator) -> Self:
        return super().__new__(cls, source.device)  # type: ignore[call-arg]  # torch's stub does not know the device

    def __init__(self, source: torch.Generator) -> None:
        self.source, self.drawn = source, list[Tensor]()

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        self.drawn.append(random_uniform((rows,), (width,), generator=self.source, device=device))
        return self.drawn[-1]


class Opposite(Recorded):
    """Gives ``1 − 2⁻⁵³ − u`` for the uniforms that another one gave, in their order: multiples of 2⁻⁵³ below 1, as they are."""

    def __init__(self, source: Recorded) -> None:
        self.waiting = list(source.drawn)

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        return (1 - 2.0**-53) - self.waiting.pop(0)


@dataclass(frozen=True)
class MuProp(UnbiasedEstimator[SamplingOracle], name="muprop", references=("gu2016muprop", "titsias2022double")):
    """MuProp: ``ĝ = (1/N) Σ (L(z_i) − L(μ) − ⟨γ(μ), z_i − μ⟩) ∇ log p(z_i) + Cov(z) γ(μ)``. Unbiased.

    What is subtracted is the expansion of the loss around the mean structure μ, of which ``Cov(z) γ(μ) = ∇⟨γ, μ(θ)⟩`` is the gradient. So a
    linear loss has no variance; any other is as noisy as what the expansion leaves of it, which may be more than the loss itself where that
    is not smooth inside the hull. The mean structure of any oracle is its marginals, where the paper's network passes means on.

    References:
        Gu, Levine, Sutskever & Mnih 2016, "MuProp: unbiased backpropagation for stochastic neural networks"; read as the baseline of the
        same name in the code of Titsias & Shi 2022 (``quadratic_loss.ipynb``), for bits.

    Example:
        >>> scores, weights = torch.tensor([0.3, -0.2, 0.5, 0.0]), torch.tensor([1.0, -0.5, 2.0, 0.0])
        >>> estimates = MuProp().gradient(lambda z: z @ weights, "subset[k=2]", scores.expand(100, 4), generator=torch.Generator())
        >>> bool(estimates.std(0).max() < 1e-6)
        True
    """

    num_samples: Count = 1

    inside_hull = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples + 1, loss_gradients=1, samples=self.num_samples, marginals=2)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        losses = evaluate(loss, samples, oracle.event_ndim)
        mean = oracle.marginals(scores)
        with torch.enable_grad():
            point = mean.detach().requires_grad_()
            centre = evaluate(loss, point, oracle.event_ndim)
            slope = upstream_gradient(self.name, centre, point, retain_graph=False)
        rest = losses.detach() - centre.detach() - inner(samples - mean.detach(), slope, oracle.event_ndim)
        carrier = (rest * oracle.log_prob(samples, scores)).mean(0) + self._returned(slope, mean, oracle.event_ndim)
        return carry(losses.mean(0), carrier)

    def _returned(self, slope: Tensor, mean: Tensor, event_ndim: int) -> Tensor:
        """``⟨γ, μ(θ)⟩``, ``[*batch]``: what the control variate took away, in the mean."""
        return inner(slope, mean, event_ndim)


@dataclass(frozen=True)
class DoubleControl(UnbiasedEstimator[SamplingOracle], name="double_cv", references=("titsias2022double",)):
    """Double control variates: leave-one-out on ``L(z_i) + b_i`` with ``b_i = α ⟨γ̄_−i, z_i − μ⟩``, minus ``α Cov(z) γ̄``. Unbiased.

    ``γ̄_−i`` is the mean gradient of the loss at the *other* samples and γ̄ that at all N. Given the others, ``b_i`` has mean 0 and
    ``b_i ∇ log p(z_i)`` the mean ``α Cov(z) γ̄_−i``, which the last term takes back. With the own gradient in ``b_i`` the estimate would be
    biased. At α = −1 a linear loss has no variance; at α = 0 it is leave-one-out.

    Args:
        alpha: α. The authors learn it along, from 0.

    References:
        Titsias & Shi 2022, "Double control variates for gradient estimation in discrete latent variable models"; the formula is that of the
        authors' code (``get_grad_estimation``), which is for bits.
    """

    alpha: float = -1.0
    num_samples: Peers = 2

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, loss_gradients=self.num_samples, samples=self.num_samples, marginals=2)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        losses, slopes = with_slopes(self.name, loss, samples, oracle.event_ndim)
        mean = oracle.marginals(scores)
        signals = losses.detach() + self.alpha * inner(samples - mean.detach(), self._slopes(slopes), oracle.event_ndim)
        excess = (signals - signals.mean(0)) * (self.num_samples / (self.num_samples - 1))
        carrier = (excess * oracle.log_prob(samples, scores)).mean(0) - self.alpha * inner(slopes.mean(0), mean, oracle.event_ndim)
        return carry(losses.mean(0), carrier)

    def _slopes(self, slopes: Tensor) -> Tensor:
        """``γ̄_−i``, ``[N, *batch, *event]``."""
        return (slopes.sum(0) - slopes) / (self.num_samples - 1)


def with_slopes(name: str, loss: Loss, samples: Tensor, event_ndim: int) -> tuple[Tensor, Tensor]:
    """Losses ``[N, *batch]`` and their gradients ``[N, *batch, *event]`` at samples; the losses go on learning what they hold."""
    learning = torch.is_grad_enabled()
    with torch.enable_grad():
        points = samples.detach().requires_grad_()
        losses = evaluate(loss, points, event_ndim)
        kept = learning and learns_besides(losses, points)
        slopes = upstream_gradient(name, losses, points, retain_graph=kept)
    return losses if kept else losses.detach(), slopes
