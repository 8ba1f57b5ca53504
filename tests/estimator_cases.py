"""Tables of estimators, oracles and losses that the laws of estimators share."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS, Estimator, Loss, Noise, PathwiseEstimator, make_estimator
from structgrad.oracles import Alignment, Categorical, IndependentCategoricals, LinearChain, ShiftReduce, SpanningTree, Subset
from tests.helpers import OracleCase, structures
from tests.oracle_cases import TABLE


class Variant(str):
    """An entry of the registry with options. By default a law tests the entry once, with any of its options."""

    __slots__ = ()

    @property
    def stands_for(self) -> str:
        return self.partition("[")[0]


OPTIONS: dict[str, tuple[str, ...]] = {
    # score function
    "exact": ("chunk=2",),
    "reinforce": ("num_samples=3",),
    "reinforce_constant": ("value=-0.3, num_samples=2",),
    "reinforce_running_mean": ("mean=0.7, num_samples=2",),
    "reinforce_greedy": ("num_samples=2",),
    "reinforce_sampled": ("num_samples=2",),
    "reinforce_optimal": ("pilots=1", "pilots=3, per_part=True, num_samples=2"),
    "reinforce_learned": ("num_samples=2, regression_weight=0.5",),
    "reinforce_conditional_mean": ("num_samples=2, chunk=3",),
    "reinforce_normalised": ("mean=0.4, variance=2.0, decay=0.5, num_samples=2",),
    "reinforce_ppo": ("inner_steps=3, step_size=0.5, clip=0.1, value=0.3, num_samples=3",),
    "rloo": ("num_samples=3",),
    "vargrad": ("num_samples=3",),
    "muprop": ("num_samples=2",),
    "antithetic_pairs": ("num_pairs=1",),
    "double_cv": ("alpha=-0.4, num_samples=3",),
    "sum_and_sample": ("k=3", "centred=False"),
    "unordered_set": ("num_samples=2", "num_samples=3, baseline=False"),
    "importance_weighted_set": ("num_samples=3, baseline=False", "num_samples=2, normalised=True"),
    # independent categories
    "arm": ("num_pairs=2",),
    "disarm": ("num_pairs=3",),
    "local_expectation": ("num_samples=2",),
    "disarm_sb": ("num_pairs=2",),
    "disarm_tree": ("num_pairs=2",),
    "carms": ("num_samples=3",),
    "rodeo": ("alpha=0.4, beta=-0.7, num_samples=3",),
    "rebar": ("eta=-0.7, temperature=0.9",),
    "relax": ("eta=0.4, temperature=2.0",),
    "gumbel_softmax": ("temperature=0.4",),
    "gumbel_rao": ("temperature=0.5, num_conditionals=1",),
    "gst": ("temperature=0.6, gap=p", "gap=0.2"),
    "reinmax": ("temperature=1.3",),
    "reinmax_rao": ("temperature=0.7, num_conditionals=3",),
    "reinmax_cv": ("temperature=0.7, eta=1.5, num_conditionals=3",),
    "path_quadrature": ("rule=gauss", "rule=simpson"),
    # straight-through
    "ste_marginals": ("temperature=0.5",),
    "simple": ("temperature=2.0",),
    # perturbation
    "st_gumbel": ("temperature=0.5",),
    "decoupled_st_gumbel": ("forward_temperature=2.0, backward_temperature=0.7",),
    "perturb_and_map": ("noise=sum_of_gamma/k=2", "noise=normal/scale=0.5"),
    "perturb_and_parse": ("noise=gumbel/scale=0.5", "noise=normal, temperature=0.7"),
    "stochastic_softmax": ("temperature=0.5, noise=normal",),
    "stochastic_sparsemap": ("temperature=2.0, noise=normal",),
    "perturbed_optimizer": (
        "sigma=0.5, num_samples=3, noise=gumbel/scale=2",
        "num_samples=2, control_variate=argmax",
        "num_samples=2, control_variate=none",
    ),
    "perturbed_multiplicative": ("sigma=0.5, num_samples=3", "num_samples=2, control_variate=argmax"),
    "relaxed_top_k": ("temperature=2.0",),
    "relaxed_top_k_st": ("temperature=0.7",),
    "gumbel_crf": ("temperature=0.3",),
    "gumbel_crf_st": ("temperature=0.3",),
    # surrogate projections
    "spigot": ("step_size=0.3, max_norm=1.5",),
    "spigot_steps": ("step_size=0.7, inner_steps=2",),
    "spigot_ce": ("step_size=0.3, inner_steps=3",),
    "spigot_eg": ("step_size=0.5, inner_steps=2",),
    "identity": ("centre=False", "normalise=False"),
    "identity_perturbed": ("noise=sum_of_gamma/k=2, centre=False",),
    # implicit differentiation
    "blackbox": ("lambda=0.8",),
    "imle": ("lambda=2.5, noise=sum_of_gamma/k=2, num_samples=3", "lambda=0.5, divide_by_lambda=True"),
    "aimle": ("beta=1.5, symmetric=False, noise=normal", "beta=2.0, divide_by_lambda=False, num_samples=2"),
    # deterministic
    "differentiable_dp": ("omega=entropy",),
    "sparsemax_marginalisation": ("chunk=3",),
    "top_k_sparsemax": ("k=3",),
    "entmax": ("alpha=1.3", "alpha=2"),
    "fusedmax": ("strength=0.2",),
    "oscarmax": ("strength=0.2", "strength=0.3, magnitudes=False"),
    "csparsemax": ("upper=0.7",),
    "csoftmax": ("upper=0.7",),
    # policies
    "step_reinforce": ("value=-0.3, num_samples=2",),
    "step_greedy": ("num_samples=2",),
    "step_sampled": ("num_samples=2",),
    "step_conditional_mean": ("num_samples=2",),
    "step_optimal": ("num_samples=2",),
    "step_learned": ("num_samples=2",),
    "step_leave_one_out": ("num_samples=3",),
    "step_local_expectation": ("num_samples=2",),
    "step_ppo": ("clip=0.05, inner_steps=3, step_size=0.5, value=0.3, num_samples=2",),
    "step_ste": ("temperature=0.5",),
    "step_st_gumbel": ("temperature=2.0",),
}

VARIANTS = tuple(Variant(f"{entry}[{options}]") for entry, several in OPTIONS.items() for options in several)
"""Entries of the registry with options."""

NAMES = (*ESTIMATORS, *VARIANTS)
"""Every entry of the registry with its defaults, and some with options."""

EACH_NAME = tuple(map(str, NAMES))
"""The same for laws about options: none of them stands for another."""
made = cache(make_estimator)

STATEFUL = ("reinforce_running_mean", "reinforce_learned", "reinforce_normalised", "aimle", "step_learned")
"""What `warmed_up` changes."""

IDENTITY_BACKWARD = ("ste", "ste_sample", "perturb_and_map", "identity", "identity_perturbed")
"""What hands γ itself back, and so gives an estimate where there is nothing to learn."""

NEVER_STILL = (
    *IDENTITY_BACKWARD,
    "perturbed_optimizer[num_samples=2, control_variate=none]",
    "relaxed_top_k",
    "relaxed_top_k_st",
)
"""What gives an estimate where there is nothing to learn: its mean is 0 without a control variate, and soft choices always move."""

KEEPS_SIGNS = ("perturbed_multiplicative",)
"""What perturbs scores without changing their signs."""

STANDS_STILL = ("oscarmax",)
"""What gives no gradient at scores as close to each other as those of some laws."""


def names_where(holds: Callable[[Estimator[Any]], bool]) -> tuple[str, ...]:
    """The names of the table whose estimators have a property."""
    return tuple(name for name in NAMES if holds(made(name)))


DETERMINISTIC = names_where(lambda estimator: estimator.deterministic)
STOCHASTIC = names_where(lambda estimator: not estimator.deterministic)
PATHWISE = names_where(lambda estimator: isinstance(estimator, PathwiseEstimator))
GRADIENT_FREE = names_where(lambda estimator: estimator.evaluations().loss_gradients == 0)
TARGETS_THE_EXPECTATION = names_where(lambda estimator: estimator.unbiased and estimator.objective == "expected")
EXACT_FOR_ANOTHER_OBJECTIVE = names_where(
    lambda estimator: estimator.unbiased and estimator.deterministic and estimator.objective != "expected"
)

CASES = (
    OracleCase(Categorical(), (5,)),
    OracleCase(IndependentCategoricals(), (3, 2)),
    OracleCase(IndependentCategoricals(), (2, 3)),
    OracleCase(Subset(2), (5,)),
    OracleCase(LinearChain(), (3, 2, 2)),
    OracleCase(Alignment(), (3, 2)),
    OracleCase(SpanningTree(), (4, 4)),
    OracleCase(ShiftReduce("local"), (5, 5, 2)),
)
"""One row per kind of oracle, small enough for all pairs: structures of one size and of several, closed forms, a policy."""

ALL_CASES = (*CASES, *(case for row in TABLE if row.paired and (case := OracleCase(row.oracle, row.paired)) not in CASES))
"""At least one row per oracle, for laws about pairs."""

SMALLEST = (
    OracleCase(Categorical(), (1,)),
    OracleCase(IndependentCategoricals(), (3, 1)),
    OracleCase(Subset(1), (1,)),
    OracleCase(Subset(3), (3,)),
    OracleCase(LinearChain(), (1, 1, 1)),
    OracleCase(LinearChain(), (3, 1, 1)),
    OracleCase(Alignment(), (1, 3)),
    OracleCase(SpanningTree(), (2, 2)),
    OracleCase(ShiftReduce("local"), (3, 3, 2)),
)
"""Spaces of a single structure."""

oracles = pytest.mark.parametrize("case", CASES, ids=str)


def pairs_of(names: Iterable[str], cases: tuple[OracleCase, ...] = CASES) -> pytest.MarkDecorator:
    """Every possible pair of an entry of the registry and a case; variants with options take turns, on two cases each."""
    rows = [(name, case) for name in names for case in fitting(name, cases)]
    return pytest.mark.parametrize(("name", "case"), rows, ids=[f"{name}-{case}" for name, case in rows])


@cache
def fitting(name: str, cases: tuple[OracleCase, ...] = CASES) -> list[OracleCase]:
    """The cases that an entry serves; two of them where it has options."""
    estimator = made(name)
    served = [case for case in cases if estimator.incompatibility(case.oracle, case.event) is None]
    if name in VARIANTS and len(served) > 2:
        turn = VARIANTS.index(name) % len(served)
        return [*served, *served][turn : turn + 2]
    return served


pairs = pairs_of(NAMES)


def a_case_for(name: str) -> OracleCase:
    """The first case that an estimator serves."""
    estimator = make_estimator(name)
    return next(case for case in CASES if estimator.incompatibility(case.oracle, case.event) is None)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Float64 standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def undecided(name: str, scores: Tensor) -> Tensor:
    """Scores of one sign for estimators that keep signs, which have nothing to estimate if signs alone decide."""
    return scores.abs() if name.startswith(KEEPS_SIGNS) else scores


def _linear(case: OracleCase) -> Loss:
    weights = numbers(*case.event)
    return lambda z: _total(z * weights.to(z), case)


def _quadratic(case: OracleCase) -> Loss:
    matrix = numbers(*case.event, *case.event) / structures(case)[0].sum()
    linear = _linear(case)

    def loss(z: Tensor) -> Tensor:
        rows = [_total(z * matrix[index].to(z), case) for index in _indices(case)]
        return linear(z) + _total(z * torch.stack(rows, -1).reshape(z.shape), case)

    return loss


def _smooth(case: OracleCase) -> Loss:
    quadratic = _quadratic(case)
    return lambda z: quadratic(z).sin() + (0.3 * quadratic(z)).exp()


def _black_box(case: OracleCase) -> Loss:
    smooth = _smooth(case)
    return lambda z: (4 * smooth(z.detach())).round().detach() / 4


def _offset(case: OracleCase) -> Loss:
    smooth = _smooth(case)
    return lambda z: smooth(z) + 1e3


LOSSES: dict[str, Callable[[OracleCase], Loss]] = {
    "linear": _linear,
    "quadratic": _quadratic,
    "smooth": _smooth,
    "offset": _offset,
    "black_box": _black_box,
}
"""Losses that read every entry, ignored ones too, by sums that treat each row alike whatever the batch."""


def _total(values: Tensor, case: OracleCase) -> Tensor:
    return values.flatten(values.ndim - len(case.event)).sum(-1)


def _indices(case: OracleCase) -> list[tuple[int, ...]]:
    return [tuple(index) for index in torch.ones(case.event).nonzero().tolist()]


def loss_gradient(loss: Loss, points: Tensor) -> Tensor:
    """γ = ∇L at points [..., *event]."""
    leaf = points.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf).sum(), leaf)
    return gradient


class FixedNoise(Noise):
    """Noise that is known beforehand."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def _quantile(self, uniform: Tensor) -> Tensor:
        return self.values.expand(uniform.shape)


@cache
def three_classes() -> tuple[Tensor, Tensor, Tensor]:
    """The example of the closed forms: scores, losses of the three classes, exact gradient."""
    scores = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    table = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    probabilities = scores.softmax(-1)
    return scores, table, probabilities * (table - probabilities @ table)


def table_loss(z: Tensor) -> Tensor:
    """The linear loss of `three_classes`."""
    return z @ three_classes()[1]
