"""REINFORCE with a control variate on relaxed points: REBAR and RELAX."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from ..oracles.capabilities import FactorisedOracle
from ..oracles.options import Positive
from .base import Evaluations, UnbiasedEstimator
from .factorised import conditional_race, gumbels, log_probabilities, moving_categories
from .surrogates import Loss, evaluate, upstream_gradient, with_gradient

LEARNING_RATE = 0.01  # of Adam on η, log τ and the network, as in the authors' code


class ControlSettings(nn.Module):
    """What an optimiser moves to lower the variance: ``η``, ``log τ`` and, for RELAX, the network."""

    def __init__(self, eta: float, temperature: float, control: nn.Module | None = None) -> None:
        super().__init__()
        self.eta = nn.Parameter(torch.full((), eta, dtype=torch.float64, device="cpu"))
        self.log_temperature = nn.Parameter(torch.full((), math.log(temperature), dtype=torch.float64, device="cpu"))
        self.control = control


Control = Callable[[Tensor], Tensor]
"""From relaxed points ``[2, *batch, *event]`` to the values of the control variate there, ``[2, *batch]``."""


@dataclass(frozen=True)
class Rebar(UnbiasedEstimator[FactorisedOracle], name="rebar", references=("tucker2017rebar",)):
    """REBAR: ``ĝ = [L(b) − η L(ỹ)] ∇ log p(b) + η ∇L(y) − η ∇L(ỹ)``. Unbiased for every η and τ.

    ``y = softmax(x/τ)`` relaxes the noisy scores ``x = log p + G`` whose argmax is b, and ``ỹ`` other ones, ``x̃``, that are drawn given b.
    Both are differentiated with their noise held fixed. The first, the relaxation of b, has the mean of the last two terms with opposite
    sign. The loss is evaluated inside the hull, and needs a gradient there.

    Here b is an exact sample of the oracle and ``x`` and ``x̃`` are independent given b, which is the same law.

    η and τ are options. `tuned` lowers the variance in them, and returns a new estimator; in a training loop of one's own, `settings` holds
    them as parameters and `squared_norm` is what to minimise: the mean of ``‖ĝ‖²`` falls with the variance, because that of ĝ is fixed.

    Args:
        eta: η, the weight of the control variate; 0 is REINFORCE.
        temperature: τ, positive. (The RELAX authors' toys start at τ = 0.5.)

    References:
        Tucker et al. 2017, "REBAR: low-variance, unbiased gradient estimates for discrete latent variable models", section 3 and appendix.

    Example:
        >>> from structgrad.oracles import IndependentCategoricals
        >>> loss = lambda z: (z[..., 1].sum(-1) - 1.3).square()
        >>> scores, generator = torch.tensor([[0.0, 0.5], [0.0, -1.0]]), torch.Generator().manual_seed(0)
        >>> variances = []
        >>> bits = IndependentCategoricals()
        >>> for estimator in (Rebar(eta=0.0), Rebar(), Rebar().tuned(loss, bits, scores.expand(64, 2, 2), generator=generator)):
        ...     estimates = estimator.gradient(loss, bits, scores.expand(20_000, 2, 2), generator=generator)
        ...     variances.append(float(estimates.var(0).sum()))
        >>> variances[0] > 1.2 * variances[1] > 1.2 * variances[2]
        True
    """

    eta: float = 1.0
    temperature: Positive = 0.5

    inside_hull = True
    calls = Evaluations(losses=3, loss_gradients=2, samples=1, marginals=1, perturbations=2)

    def settings(self) -> ControlSettings:
        """η, log τ and, for RELAX, a copy of the network as parameters that start at the options."""
        return ControlSettings(self.eta, self.temperature, copy.deepcopy(getattr(self, "control", None)))

    def with_settings(self, settings: ControlSettings) -> Self:
        """The estimator whose options are the values of these parameters."""
        return replace(self, eta=float(settings.eta.detach()), temperature=float(settings.log_temperature.detach().exp()))

    def _control(self, loss: Loss, oracle: FactorisedOracle, settings: ControlSettings) -> Control:
        return lambda points: settings.eta * evaluate(loss, points, oracle.event_ndim)

    def _drawn(
        self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, settings: ControlSettings, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The loss of a sample, ``[*batch]``, and the estimate, which is differentiable in the settings where these are."""
        sample, create_graph = oracle.sample(scores, generator=generator), settings.eta.requires_grad
        first, second = (gumbels(oracle, scores, generator=generator) for _ in range(2))
        value, control = evaluate(loss, sample, oracle.event_ndim), self._control(loss, oracle, settings)
        with torch.enable_grad():
            theta = scores.detach().clone().requires_grad_()
            log_probs, won = log_probabilities(oracle, theta), sample.double()
            # y, whose noise is held fixed in the scores, and ỹ, whose noise is held fixed given the sample.
            noise = (conditional_race(log_probs.detach(), won, first) - log_probs).detach()
            races = torch.stack([log_probs + noise, conditional_race(log_probs, won, second)])
            relaxed = (races / settings.log_temperature.exp()).softmax(-1).to(theta.dtype)
            values = control(relaxed)
            gamma = upstream_gradient(self.name, values, relaxed, create_graph=create_graph)
            weights = [value.detach() - values[1], torch.stack([gamma[0], -gamma[1]])]
            (estimate,) = torch.autograd.grad([oracle.log_prob(sample, theta), relaxed], theta, weights, create_graph=create_graph)
            return value, torch.where(moving_categories(oracle, scores.detach()), estimate, 0)

    def surrogate(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        value, estimate = self._drawn(loss, oracle, scores, self.settings().requires_grad_(False), generator)
        return with_gradient(value, scores, estimate.detach())

    def squared_norm(
        self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, settings: ControlSettings, *, generator: torch.Generator
    ) -> Tensor:
        """``‖ĝ‖²`` of one estimate per row, ``[*batch]``, differentiable in the settings.

        Differentiate it in ``settings.parameters()`` alone: the parameters of the loss are part of the graph too.
        """
        value, estimate = self._drawn(loss, oracle, scores, settings, generator)
        return estimate.double().square().flatten(value.ndim).sum(-1)

    def tuned(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator, steps: int = 200) -> Self:
        """The estimator after some steps of Adam on the mean of `squared_norm` over the rows; itself it stays as it is."""
        settings = self.settings()
        parameters = list(settings.parameters())
        optimiser = torch.optim.Adam(parameters, lr=LEARNING_RATE)
        for _ in range(steps):
            objective = self.squared_norm(loss, oracle, scores, settings, generator=generator).mean()
            for parameter, gradient in zip(parameters, torch.autograd.grad(objective, parameters, materialize_grads=True), strict=True):
                parameter.grad = gradient
            optimiser.step()
        return self.with_settings(settings)


@dataclass(frozen=True)
class Relax(Rebar, name="relax", references=("grathwohl2018backpropagation",)):
    """RELAX, REBAR with a learned control variate: ``ĝ = [L(b) − C(ỹ)] ∇ log p(b) + ∇C(y) − ∇C(ỹ)``. Unbiased for every C.

    ``C = η (L + c)`` with a network c, or ``C = η c`` where only values of the loss on structures are to be had (``with_loss=False``).
    Without a network it is REBAR. The network sees the relaxed points ``[..., *batch, *event]`` and gives one value for each,
    ``[..., *batch]``. `tuned` trains a copy of it together with η and τ.

    Cost: one exact sample and two noise tensors; with the loss, one value of it on the sample and two gradients on relaxed points; without,
    one value.

    Args:
        eta: η.
        control: c, any module; its weights are not part of the estimator's value as an option, which is the module itself.
        with_loss: whether the loss is part of the control variate.

    References:
        Grathwohl, Choi, Wu, Roeder & Duvenaud 2018, "Backpropagation through the void: optimizing control variates for black-box gradient
        estimation", section 3.

    Example:
        A loss without a gradient, and a network that learns to stand in for it.

        >>> from structgrad.oracles import IndependentCategoricals
        >>> loss = lambda z: (z[..., 1].detach().sum(-1) - 1.3).square().round(decimals=1)
        >>> scores, generator = torch.tensor([[0.0, 0.5], [0.0, -1.0]]), torch.Generator().manual_seed(0)
        >>> network = nn.Sequential(nn.Flatten(-2), nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 1), nn.Flatten(-2))
        >>> before = Relax(control=network, with_loss=False)
        >>> after = before.tuned(loss, IndependentCategoricals(), scores.expand(64, 2, 2), generator=generator)
        >>> variances = []
        >>> for estimator in (before, after):
        ...     estimates = estimator.gradient(loss, "categories", scores.expand(20_000, 2, 2), generator=generator)
        ...     variances.append(float(estimates.var(0).sum()))
        >>> variances[0] > 2 * variances[1]
        True
    """

    control: nn.Module | None = None
    with_loss: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.control is None and not self.with_loss:
            raise ValueError(f"`{self.name}` got with_loss=False and no control; expected a module where the loss is left out")

    def evaluations(self) -> Evaluations:
        return super().evaluations() if self.with_loss else replace(super().evaluations(), losses=1, loss_gradients=0)

    def with_settings(self, settings: ControlSettings) -> Self:
        """The estimator whose options are the values of these parameters, with their network."""
        return replace(super().with_settings(settings), control=settings.control)

    def _control(self, loss: Loss, oracle: FactorisedOracle, settings: ControlSettings) -> Control:
        network = settings.control
        if network is None:
            return super()._control(loss, oracle, settings)

        def learned(points: Tensor) -> Tensor:
            values: Tensor = network(points)
            expected = points.shape[: points.ndim - oracle.event_ndim]
            if values.shape != expected:
                raise ValueError(
                    f"`{self.name}` got a control that gives a tensor of shape {tuple(values.shape)} for points of shape "
                    f"{tuple(points.shape)}; expected one value per point, {tuple(expected)}"
                )
            return values + evaluate(loss, points, oracle.event_ndim) if self.with_loss else values

        return lambda points: settings.eta * learned(points)
