"""Gradient estimators: ``(loss, oracle, scores) -> a surrogate whose gradient is the estimate``."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from ..oracles import plugins, registry
from .argmax_differences.adaptive_implicit_mle import AdaptiveImplicitMLE
from .argmax_differences.blackbox import BlackboxDifferentiation
from .argmax_differences.implicit_mle import ImplicitMLE
from .argmax_differences.spigot import SPIGOT
from .argmax_differences.spigot_variants import SPIGOTCE, SPIGOTEG, SPIGOTSteps
from .base import Estimator, Evaluations, Loss, PathwiseEstimator
from .exact import ExactMarginalisation
from .factorised.antithetic import ARM, ARSM, DisARM
from .factorised.control_variates import ControlSettings, Rebar, Relax
from .factorised.coupled_categories import CARMS, DisARMStickBreaking, DisARMTree
from .factorised.discrete_stein import Rodeo
from .factorised.gumbel_rao import GappedStraightThrough, GumbelRao
from .factorised.local_expectation import LocalExpectation
from .factorised.path_quadrature import PathQuadrature
from .factorised.reinmax import ReinMax, ReinMaxRao
from .factorised.reinmax_control import ReinMaxControl
from .identity import Identity, PerturbedIdentity
from .indices import of_indices
from .layer import StructuredLayer, train_step
from .noise import NOISES, Gumbel, Noise, Normal, SmoothNoise, SumOfGamma, make_noise
from .perturbation.gumbel import DecoupledGumbel, GumbelSoftmax, StraightThroughGumbel
from .perturbation.gumbel_crf import GumbelCRF, StraightThroughGumbelCRF
from .perturbation.perturb_and_map import PerturbAndMAP, PerturbAndParse
from .perturbation.perturbed import MultiplicativePerturbation, PerturbedOptimizer
from .perturbation.relaxed_subset import RelaxedTopK, StraightThroughTopK
from .perturbation.stochastic_softmax import StochasticSoftmax, StochasticSparseMAP
from .policies.completions import StepGreedy, StepSampled
from .policies.enumerated import StepConditionalMean, StepOptimal
from .policies.learned import StepLearned
from .policies.local_expectation import StepLocalExpectation
from .policies.ppo import StepPPO
from .policies.reinforce import StepLeaveOneOut, StepReinforce
from .policies.relaxed import StepStraightThrough, StepStraightThroughGumbel
from .relaxations.attention import ConstrainedSoftmax, ConstrainedSparsemax, Entmax, Fusedmax, Oscarmax
from .relaxations.constrained import csoftmax, csparsemax
from .relaxations.differentiable_dp import DifferentiableDP, smoothed_maximum
from .relaxations.entmax import entmax
from .relaxations.fused import fusedmax, oscarmax
from .relaxations.marginals import StructuredAttention
from .relaxations.sparse import SparseMAP, SparseMAPMarginalisation, SparsemaxMarginalisation, TopKSparsemax
from .score_function.antithetic_pairs import AntitheticPairs
from .score_function.baselines import ConstantBaseline, GreedyBaseline, RunningMeanBaseline, SampledBaseline
from .score_function.conditional_mean import ConditionalMeanBaseline
from .score_function.importance_weighted_set import ImportanceWeightedSet
from .score_function.learned import LearnedBaseline
from .score_function.optimal import OptimalBaseline
from .score_function.ppo import ProximalPolicy, Rollout
from .score_function.reinforce import LeaveOneOut, Reinforce, VarGrad, half_variance
from .score_function.reward_normalisation import NormalisedRewards
from .score_function.sum_and_sample import SumAndSample
from .score_function.taylor import DoubleControl, MuProp
from .score_function.unordered_set import UnorderedSet
from .straight_through import SampledStraightThrough, Simple, StraightThrough, StraightThroughMarginals
from .supervised import (
    SUPERVISED_LOSSES,
    PerturbedFenchelYoung,
    crf_loss,
    fenchel_young,
    hamming,
    margin_perceptron,
    margin_sparsemap_loss,
    sparsemap_loss,
    structured_perceptron,
)
from .supervised_training import SUPERVISED, Frozen, Supervised

ESTIMATORS: dict[str, type[Estimator[Any]]] = {
    # the reference
    "exact": ExactMarginalisation,
    # score function
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
    "vargrad": VarGrad,
    "muprop": MuProp,
    "double_cv": DoubleControl,
    "antithetic_pairs": AntitheticPairs,
    "sum_and_sample": SumAndSample,
    "unordered_set": UnorderedSet,
    "importance_weighted_set": ImportanceWeightedSet,
    # score function of independent categories and bits
    "arm": ARM,
    "disarm": DisARM,
    "disarm_sb": DisARMStickBreaking,
    "disarm_tree": DisARMTree,
    "carms": CARMS,
    "arsm": ARSM,
    "local_expectation": LocalExpectation,
    "rodeo": Rodeo,
    "rebar": Rebar,
    "relax": Relax,
    # score function of policies, decision by decision
    "step_reinforce": StepReinforce,
    "step_greedy": StepGreedy,
    "step_sampled": StepSampled,
    "step_conditional_mean": StepConditionalMean,
    "step_optimal": StepOptimal,
    "step_learned": StepLearned,
    "step_leave_one_out": StepLeaveOneOut,
    "step_local_expectation": StepLocalExpectation,
    "step_ppo": StepPPO,
    # straight-through
    "ste": StraightThrough,
    "ste_marginals": StraightThroughMarginals,
    "ste_sample": SampledStraightThrough,
    "simple": Simple,
    "step_ste": StepStraightThrough,
    "identity": Identity,
    "identity_perturbed": PerturbedIdentity,
    "gst": GappedStraightThrough,
    "reinmax": ReinMax,
    "reinmax_rao": ReinMaxRao,
    "reinmax_cv": ReinMaxControl,
    "path_quadrature": PathQuadrature,
    # Gumbel relaxations
    "gumbel_softmax": GumbelSoftmax,
    "st_gumbel": StraightThroughGumbel,
    "decoupled_st_gumbel": DecoupledGumbel,
    "gumbel_rao": GumbelRao,
    "step_st_gumbel": StepStraightThroughGumbel,
    "relaxed_top_k": RelaxedTopK,
    "relaxed_top_k_st": StraightThroughTopK,
    "gumbel_crf": GumbelCRF,
    "gumbel_crf_st": StraightThroughGumbelCRF,
    # perturbation
    "perturb_and_map": PerturbAndMAP,
    "perturb_and_parse": PerturbAndParse,
    "stochastic_softmax": StochasticSoftmax,
    "stochastic_sparsemap": StochasticSparseMAP,
    "perturbed_optimizer": PerturbedOptimizer,
    "perturbed_multiplicative": MultiplicativePerturbation,
    # surrogate projections and finite differences
    "spigot": SPIGOT,
    "spigot_steps": SPIGOTSteps,
    "spigot_ce": SPIGOTCE,
    "spigot_eg": SPIGOTEG,
    "blackbox": BlackboxDifferentiation,
    "imle": ImplicitMLE,
    "aimle": AdaptiveImplicitMLE,
    # relaxations without noise
    "structured_attention": StructuredAttention,
    "differentiable_dp": DifferentiableDP,
    "entmax": Entmax,
    "fusedmax": Fusedmax,
    "oscarmax": Oscarmax,
    "csparsemax": ConstrainedSparsemax,
    "csoftmax": ConstrainedSoftmax,
    "sparsemap": SparseMAP,
    # marginalisation over a sparse support
    "sparsemap_marginalisation": SparseMAPMarginalisation,
    "sparsemax_marginalisation": SparsemaxMarginalisation,
    "top_k_sparsemax": TopKSparsemax,
}
"""The classes of the estimators by their names."""

AVAILABLE_ESTIMATORS = plugins.Catalogue(ESTIMATORS, "estimator", Estimator, SUPERVISED)
"""`ESTIMATORS` and those of plugins."""

CONTENDERS: Mapping[str, type[Estimator[Any]]] = ChainMap(SUPERVISED, AVAILABLE_ESTIMATORS)  # type: ignore[arg-type]
"""Everything that `make_estimator` knows: these, and training that is told true structures."""

__all__ = [
    "ARM",
    "ARSM",
    "AVAILABLE_ESTIMATORS",
    "CARMS",
    "CONTENDERS",
    "ESTIMATORS",
    "NOISES",
    "SPIGOT",
    "SPIGOTCE",
    "SPIGOTEG",
    "SUPERVISED",
    "SUPERVISED_LOSSES",
    "AdaptiveImplicitMLE",
    "AntitheticPairs",
    "BlackboxDifferentiation",
    "ConditionalMeanBaseline",
    "ConstantBaseline",
    "ConstrainedSoftmax",
    "ConstrainedSparsemax",
    "ControlSettings",
    "DecoupledGumbel",
    "DifferentiableDP",
    "DisARM",
    "DisARMStickBreaking",
    "DisARMTree",
    "DoubleControl",
    "Entmax",
    "Estimator",
    "Evaluations",
    "ExactMarginalisation",
    "Frozen",
    "Fusedmax",
    "GappedStraightThrough",
    "GreedyBaseline",
    "Gumbel",
    "GumbelCRF",
    "GumbelRao",
    "GumbelSoftmax",
    "Identity",
    "ImplicitMLE",
    "ImportanceWeightedSet",
    "LearnedBaseline",
    "LeaveOneOut",
    "LocalExpectation",
    "Loss",
    "MuProp",
    "MultiplicativePerturbation",
    "Noise",
    "Normal",
    "NormalisedRewards",
    "OptimalBaseline",
    "Oscarmax",
    "PathQuadrature",
    "PathwiseEstimator",
    "PerturbAndMAP",
    "PerturbAndParse",
    "PerturbedFenchelYoung",
    "PerturbedIdentity",
    "PerturbedOptimizer",
    "ProximalPolicy",
    "Rebar",
    "ReinMax",
    "ReinMaxControl",
    "ReinMaxRao",
    "Reinforce",
    "Relax",
    "RelaxedTopK",
    "Rodeo",
    "Rollout",
    "RunningMeanBaseline",
    "SPIGOTSteps",
    "SampledBaseline",
    "SampledStraightThrough",
    "Simple",
    "SmoothNoise",
    "SparseMAP",
    "SparseMAPMarginalisation",
    "SparsemaxMarginalisation",
    "StepConditionalMean",
    "StepGreedy",
    "StepLearned",
    "StepLeaveOneOut",
    "StepLocalExpectation",
    "StepOptimal",
    "StepPPO",
    "StepReinforce",
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
    "StructuredLayer",
    "SumAndSample",
    "SumOfGamma",
    "Supervised",
    "TopKSparsemax",
    "UnorderedSet",
    "VarGrad",
    "crf_loss",
    "csoftmax",
    "csparsemax",
    "entmax",
    "fenchel_young",
    "fusedmax",
    "half_variance",
    "hamming",
    "make_estimator",
    "make_noise",
    "margin_perceptron",
    "margin_sparsemap_loss",
    "of_indices",
    "oscarmax",
    "smoothed_maximum",
    "sparsemap_loss",
    "structured_perceptron",
    "train_step",
]


def make_estimator(name: str | Estimator[Any]) -> Estimator[Any]:
    """The estimator of a name such as ``imle[lambda=2.5,noise=sum_of_gamma]``, ``my_module:MyEstimator`` or ``./my_file.py:MyEstimator``.

    An estimator is returned as it is. Every function that takes an estimator takes a name too, by this function.

    Noise goes by name with its defaults, or with options after a slash: ``noise=sum_of_gamma/k=5/scale=1``. The names of `SUPERVISED`, such
    as ``crf``, are known too.

    Example:
        >>> make_estimator("imle[lambda=2.5, noise=sum_of_gamma/k=5]")
        ImplicitMLE(lambda_=2.5, noise=SumOfGamma(k=5.0, scale=1.0, terms=10), num_samples=1, divide_by_lambda=False)
    """
    estimator = name if isinstance(name, Estimator) else registry.build(name, CONTENDERS, "estimator", {Noise: make_noise})
    if not isinstance(estimator, Estimator):
        raise ValueError(f"got {name!r}, a {type(estimator).__name__}; expected an estimator")
    return estimator
