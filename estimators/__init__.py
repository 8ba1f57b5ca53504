"""Gradient estimators: ``(loss, oracle, scores) -> a surrogate whose gradient is the estimate``."""

from __future__ import annotations

from typing import Any

from ..oracles import registry
from .antithetic import ARM, ARSM, DisARM
from .adaptive_implicit_mle import AdaptiveImplicitMLE
from .base import Estimator, Evaluations, Loss, PathwiseEstimator
from .blackbox import BlackboxDifferentiation
from .combinators import ConstantBaseline, GreedyBaseline, RunningMeanBaseline
from .control_variates import ControlSettings, Rebar, Relax
from .combinators import ConstantBaseline, GreedyBaseline, RunningMeanBaseline, SampledBaseline
from .conditional_mean import ConditionalMeanBaseline
from .exact import ExactMarginalisation
from .gumbel import GumbelSoftmax, StraightThroughGumbel
from .gumbel_rao import GappedStraightThrough, GumbelRao
from .gumbel import StraightThroughGumbel
from .gumbel_crf import GumbelCRF, StraightThroughGumbelCRF
from .identity import Identity, PerturbedIdentity
from .implicit_mle import ImplicitMLE
from .importance_weighted_set import ImportanceWeightedSet
from .learned_baseline import LearnedBaseline
from .marginals import StructuredAttention
from .noise import NOISES, Gumbel, Noise, SumOfGamma
from .optimal_baseline import OptimalBaseline
from .perturb_and_map import PerturbAndMAP, PerturbAndParse
from .policy import StepLeaveOneOut, StepReinforce
from .policy_completions import StepGreedy, StepSampled
from .policy_enumerated import StepConditionalMean, StepOptimal
from .policy_learned import StepLearned
from .policy_ppo import StepPPO, StepRollout
from .policy_relaxed import StepStraightThrough, StepStraightThroughGumbel
from .reinmax import ReinMax, ReinMaxRao
from .noise import NOISES, Gumbel, Noise, Normal, SmoothNoise, SumOfGamma
from .perturb_and_map import PerturbAndMAP, PerturbAndParse
from .perturbed import MultiplicativePerturbation, PerturbedOptimizer
from .relaxed_subset import RelaxedTopK, StraightThroughTopK
from .score_function import LeaveOneOut, Reinforce
from .ppo import ProximalPolicy, Rollout
from .reward_normalisation import NormalisedRewards
from .score_function import LeaveOneOut, Reinforce, VarGrad, half_variance
from .sparse import SparseMAP, SparseMAPMarginalisation
from .spigot import SPIGOT
from .spigot_variants import SPIGOTCE, SPIGOTEG, SPIGOTSteps
from .stochastic_softmax import StochasticSoftmax, StochasticSparseMAP
from .straight_through import SampledStraightThrough, Simple, StraightThrough, StraightThroughMarginals
from .sum_and_sample import SumAndSample
from .unordered_set import UnorderedSet

ESTIMATORS: dict[str, type[Estimator[Any]]] = {
    "exact": ExactMarginalisation,
    "reinforce": Reinforce,
    "reinforce_constant": ConstantBaseline,
    "reinforce_running_mean": RunningMeanBaseline,
    "reinforce_greedy": GreedyBaseline,
    "reinforce_sampled": SampledBaseline,
    "reinforce_optimal": OptimalBaseline,
    "reinforce_learned": LearnedBaseline,
    "reinforce_conditional_mean": ConditionalMeanBaseline,
    "reinforce_normalised": NormalisedRewards,
    "reinforce_ppo": ProximalPolicy,
    "rloo": LeaveOneOut,
    "step_reinforce": StepReinforce,
    "step_greedy": StepGreedy,
    "step_sampled": StepSampled,
    "step_conditional_mean": StepConditionalMean,
    "step_optimal": StepOptimal,
    "step_learned": StepLearned,
    "step_leave_one_out": StepLeaveOneOut,
    "step_ppo": StepPPO,
    "arm": ARM,
    "disarm": DisARM,
    "arsm": ARSM,
    "rebar": Rebar,
    "relax": Relax,
    "vargrad": VarGrad,
    "sum_and_sample": SumAndSample,
    "unordered_set": UnorderedSet,
    "importance_weighted_set": ImportanceWeightedSet,
    "ste": StraightThrough,
    "ste_marginals": StraightThroughMarginals,
    "ste_sample": SampledStraightThrough,
    "simple": Simple,
    "gumbel_softmax": GumbelSoftmax,
    "st_gumbel": StraightThroughGumbel,
    "step_ste": StepStraightThrough,
    "step_st_gumbel": StepStraightThroughGumbel,
    "gumbel_rao": GumbelRao,
    "gst": GappedStraightThrough,
    "reinmax": ReinMax,
    "reinmax_rao": ReinMaxRao,
    "perturb_and_map": PerturbAndMAP,
    "perturb_and_parse": PerturbAndParse,
    "identity": Identity,
    "identity_perturbed": PerturbedIdentity,
    "stochastic_softmax": StochasticSoftmax,
    "stochastic_sparsemap": StochasticSparseMAP,
    "perturbed_optimizer": PerturbedOptimizer,
    "perturbed_multiplicative": MultiplicativePerturbation,
    "relaxed_top_k": RelaxedTopK,
    "relaxed_top_k_st": StraightThroughTopK,
    "gumbel_crf": GumbelCRF,
    "gumbel_crf_st": StraightThroughGumbelCRF,
    "spigot": SPIGOT,
    "spigot_steps": SPIGOTSteps,
    "spigot_ce": SPIGOTCE,
    "spigot_eg": SPIGOTEG,
    "blackbox": BlackboxDifferentiation,
    "imle": ImplicitMLE,
    "aimle": AdaptiveImplicitMLE,
    "structured_attention": StructuredAttention,
    "sparsemap": SparseMAP,
    "sparsemap_marginalisation": SparseMAPMarginalisation,
}

__all__ = [
    "ARM",
    "ARSM",
    "ESTIMATORS",
    "NOISES",
    "SPIGOT",
    "ConditionalMeanBaseline",
    "SPIGOTCE",
    "SPIGOTEG",
    "AdaptiveImplicitMLE",
    "BlackboxDifferentiation",
    "ConstantBaseline",
    "ControlSettings",
    "DisARM",
    "Estimator",
    "Evaluations",
    "ExactMarginalisation",
    "GappedStraightThrough",
    "GreedyBaseline",
    "Gumbel",
    "GumbelRao",
    "GumbelSoftmax",
    "GumbelCRF",
    "Identity",
    "ImplicitMLE",
    "ImportanceWeightedSet",
    "LearnedBaseline",
    "LeaveOneOut",
    "Loss",
    "MultiplicativePerturbation",
    "Noise",
    "NormalisedRewards",
    "OptimalBaseline",
    "PathwiseEstimator",
    "PerturbAndMAP",
    "PerturbAndParse",
    "Rebar",
    "ReinMax",
    "ReinMaxRao",
    "Reinforce",
    "Relax",
    "ProximalPolicy",
    "Reinforce",
    "Rollout",
    "RunningMeanBaseline",
    "SampledBaseline",
    "Normal",
    "PathwiseEstimator",
    "PerturbAndMAP",
    "PerturbAndParse",
    "PerturbedIdentity",
    "PerturbedOptimizer",
    "Reinforce",
    "RelaxedTopK",
    "RunningMeanBaseline",
    "SPIGOTSteps",
    "SampledStraightThrough",
    "Simple",
    "SmoothNoise",
    "SparseMAP",
    "SparseMAPMarginalisation",
    "StepConditionalMean",
    "StepGreedy",
    "StepLearned",
    "StepLeaveOneOut",
    "StepOptimal",
    "StepPPO",
    "StepReinforce",
    "StepRollout",
    "StepSampled",
    "StepStraightThrough",
    "StepStraightThroughGumbel",
    "StochasticSoftmax",
    "StochasticSparseMAP",
    "StraightThrough",
    "StraightThroughGumbel",
    "StraightThroughGumbelCRF",
    "StraightThroughMarginals",
    "StraightThroughTopK",
    "StructuredAttention",
    "SumAndSample",
    "SumOfGamma",
    "UnorderedSet",
    "VarGrad",
    "half_variance",
    "make_estimator",
]


def make_estimator(name: str) -> Estimator[Any]:
    """The estimator of a name such as ``imle[lambda=2.5,noise=sum_of_gamma]`` or ``my_module:MyEstimator``.

    Noise goes by name with its defaults, or with options after a slash: ``noise=sum_of_gamma/k=5/scale=1``.

    Example:
        >>> make_estimator("imle[lambda=2.5, noise=sum_of_gamma/k=5]")
        ImplicitMLE(lambda_=2.5, noise=SumOfGamma(k=5, scale=1.0, terms=10), num_samples=1, divide_by_lambda=False)
    """
    estimator = registry.build(name, ESTIMATORS, "estimator", {"noise": _noise})
    if not isinstance(estimator, Estimator):
        raise ValueError(f"got {name!r}, a {type(estimator).__name__}; expected an estimator")
    return estimator


def _noise(text: str) -> Noise:
    kind, _, options = text.partition("/")
    noise: Noise = registry.build(f"{kind}[{options.replace('/', ',')}]", NOISES, "noise")
    return noise
